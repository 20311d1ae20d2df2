"""What blocks count makes no transactions conflict, though all of them count jobs of one type."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from jobs_service import JobsService, Outcome
from jobs_service.service.transactions import WithinTransaction
from tests.checker import assert_sound
from tests.service.support import T1, new_jobs
from tests.service.sync_transaction.support import Application, begun

WRITERS = 10

Step = Callable[[WithinTransaction], object]


def done(jobs: JobsService, step: Step) -> Application:
    """Do a step in a transaction of its own, and return that before it is committed."""
    application = begun(jobs)
    with jobs.within(application.tr) as tx:
        step(tx)
    return application


def add(id: str) -> Step:
    return lambda tx: tx.add(T1, id)


async def test_transactions_of_which_each_began_before_any_committed_do_not_conflict(quiet: JobsService) -> None:
    await quiet.add_many(T1, new_jobs(*(f"old {number:02}" for number in range(2 * WRITERS))))
    finishing, releasing = [await quiet.accept_many(T1, WRITERS) for _ in range(2)]
    outcomes = itertools.cycle(Outcome)
    steps = [
        *(add(f"new {number:02}") for number in range(WRITERS)),
        *(lambda tx, job=job: tx.finish(job, outcome=next(outcomes)) for job in finishing),
        *(lambda tx, job=job: tx.release(job) for job in releasing),
    ]
    underway = [done(quiet, step) for step in steps]
    # They do overlap: who writes what another one has read conflicts with it.
    same = done(quiet, add("new 00"))
    for application in underway:
        application.commit()
    with pytest.raises(same.conflict):
        same.commit()
    counts = (await quiet.counts(T1))[T1]
    assert (counts.ready, counts.running) == (2 * WRITERS, 0)
    assert (counts.succeeded, counts.failed, counts.canceled) == (4, 3, 3)
    assert (counts.totals.added, counts.totals.started, counts.totals.released) == (3 * WRITERS, 2 * WRITERS, WRITERS)
    await assert_sound(quiet.store)
