"""Arguments that make no sense: each is refused in one line, by the service and in a transaction, without a trace."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from jobs_service import InvalidJob, JobsError, JobsService, JobTransaction, NewJob
from tests.service.support import J1, T1, contents, running
from tests.stores import EVERY_STORE, one_of

# No store takes part in what is refused before it, and that a transaction which raises writes nothing is its contract.
store_kind = one_of(EVERY_STORE[:1])

Call = Callable[[Any], Awaitable[object]]

EVERYWHERE: list[tuple[str, Call, str]] = [
    ("type", lambda jobs: jobs.add(1.5, "x"), "type 1.5: a float; allowed are str, bytes, int and tuples of these"),
    ("type of accept", lambda jobs: jobs.accept_many(None, 1), "type None: a NoneType"),
    ("id", lambda jobs: jobs.add(T1, 7), "id 7: an int; allowed are str and bytes"),
    ("a surrogate", lambda jobs: jobs.add(T1, "\ud800"), "a str that is not UTF-8"),
    ("id of get", lambda jobs: jobs.get(T1, None), "id None: a NoneType"),
    ("data", lambda jobs: jobs.add(T1, "x", {1: 2}), "data is not JSON: the key 1 of type int"),
    ("priority", lambda jobs: jobs.add(T1, "x", priority=1.5), "priority 1.5: a float"),
    ("run_at", lambda jobs: jobs.add(T1, "x", run_at="soon"), "run_at 'soon': a str"),
    ("if_exists", lambda jobs: jobs.add(T1, "x", if_exists="replace"), "if_exists='replace': allowed are 'error', "),
    ("new job", lambda jobs: jobs.add_many(T1, [NewJob("x"), "y"]), "a job of type str; add_many takes NewJob objects"),
    ("new jobs' id", lambda jobs: jobs.add_many(T1, [NewJob("x"), NewJob(1)]), "id 1: an int"),  # type: ignore[arg-type]
    ("new jobs' data", lambda jobs: jobs.add_many(T1, [NewJob("x"), NewJob("y", b"")]), "a value of type bytes"),
    ("resubmit's data", lambda jobs: jobs.resubmit(T1, J1, data=float("nan")), "the number nan; only finite"),
    ("timeout of a type", lambda jobs: jobs.set_type_timeout(T1, 0), "activity timeout=0: allowed are durations > 0"),
    ("no number", lambda jobs: jobs.set_type_timeout(T1, "soon"), "activity timeout='soon': allowed are durations > 0"),
    ("no switch", lambda jobs: jobs.set_type_timeout(T1, True), "activity timeout=True: allowed are durations > 0"),
    (
        "endless",
        lambda jobs: jobs.set_type_timeout(T1, float("inf")),
        "activity timeout=inf: allowed are durations > 0",
    ),
    ("huge", lambda jobs: jobs.set_type_timeout(T1, 10**400), "allowed are durations > 0"),
    ("huge and negative", lambda jobs: jobs.set_type_timeout(T1, -(10**5000)), "an int that cannot be shown"),
    ("limit", lambda jobs: jobs.accept_many(T1, 0), "limit=0: allowed are integers from 1 up"),
    ("no limit", lambda jobs: jobs.accept_many(T1, True), "limit=True: allowed are integers from 1 up"),
    (
        "spread",
        lambda jobs: jobs.accept_many(T1, 1, spread=0),
        "spread=0: allowed are integers from 1 up and 'adaptive'",
    ),
    (
        "no spread",
        lambda jobs: jobs.accept(T1, spread="adaptiv"),
        "spread='adaptiv': allowed are integers from 1 up and",
    ),
    ("yes", lambda jobs: jobs.accept(T1, spread=True), "spread=True: allowed are integers from 1 up and 'adaptive'"),
    ("nothing", lambda jobs: jobs.accept(T1, spread=None), "spread=None: allowed are integers from 1 up and"),
    ("max_priority", lambda jobs: jobs.accept_many(T1, 1, max_priority=[1]), "priority [1]: a list"),
    ("due_by", lambda jobs: jobs.accept_many(T1, 1, due_by="now"), "due_by 'now': a str"),
    ("due_by of a count", lambda jobs: jobs.pending_count(T1, due_by=float("nan")), "due_by nan: allowed are times"),
    (
        "limit of a count",
        lambda jobs: jobs.pending_count(T1, limit=-1),
        "limit=-1: allowed are None and integers from 0 up",
    ),
    (
        "state",
        lambda jobs: listing(jobs, T1, state="lost"),
        "state 'lost': allowed are 'pending', 'running', 'finished'",
    ),
    ("removed", lambda jobs: listing(jobs, T1, state="removed"), "state 'removed': allowed are 'pending'"),
    ("page size", lambda jobs: listing(jobs, T1, page_size=0), "page_size=0: allowed are integers from 1 up"),
]

SERVICE_ONLY: list[tuple[str, Call, str]] = [
    ("negative", lambda jobs: jobs.accept(T1, timeout=-1), "timeout=-1: allowed are None and durations from 0"),
    (
        "no number",
        lambda jobs: jobs.accept(T1, timeout="soon"),
        "timeout='soon': allowed are None and durations from 0",
    ),
    ("not a number", lambda jobs: jobs.accept(T1, timeout=float("nan")), "timeout=nan: allowed are None"),
    ("state", lambda jobs: jobs.wait(T1, J1, "lost"), "state 'lost': allowed are 'pending', 'running', 'finished', "),
]


async def listing(jobs: Any, *arguments: Any, **keywords: Any) -> None:
    """List jobs."""
    async for _ in jobs.list(*arguments, **keywords):
        pass


def names(cases: list[tuple[str, Call, str]]) -> list[str]:
    return [name for name, _, _ in cases]


def check(error: JobsError, complaint: str) -> None:
    """Check an error's message."""
    assert complaint in str(error)
    assert len(str(error).splitlines()) == 1


@pytest.mark.parametrize(("name", "call", "complaint"), EVERYWHERE, ids=names(EVERYWHERE))
async def test_the_service_refuses_what_makes_no_sense(
    quiet: JobsService, name: str, call: Call, complaint: str
) -> None:
    before = await contents(quiet)
    with pytest.raises(InvalidJob) as caught:
        await call(quiet)
    check(caught.value, complaint)
    assert await contents(quiet) == before


@pytest.mark.parametrize(("name", "call", "complaint"), EVERYWHERE, ids=names(EVERYWHERE))
async def test_a_transaction_refuses_what_makes_no_sense(
    quiet: JobsService, name: str, call: Call, complaint: str
) -> None:
    before = await contents(quiet)

    async def work(tx: JobTransaction) -> None:
        await tx.add(T1, "beside")
        await call(tx)

    with pytest.raises(InvalidJob) as caught:
        await quiet.transact(work)
    check(caught.value, complaint)
    assert await contents(quiet) == before


@pytest.mark.parametrize(("name", "call", "complaint"), SERVICE_ONLY, ids=names(SERVICE_ONLY))
async def test_what_waits_refuses_what_makes_no_sense(jobs: JobsService, name: str, call: Call, complaint: str) -> None:
    with pytest.raises(JobsError) as caught:
        await call(jobs)
    check(caught.value, complaint)


async def test_a_worker_cannot_end_a_job_in_a_way_that_does_not_exist(quiet: JobsService) -> None:
    job = await running(quiet)
    outcome: Any = "lost"
    with pytest.raises(InvalidJob, match="outcome 'lost': allowed are 'succeeded', 'failed', 'canceled'"):
        await job.finish(outcome=outcome)
    with pytest.raises(InvalidJob, match="outcome 'lost': allowed are"):
        await quiet.transact(lambda tx: tx.finish(job, outcome=outcome))
    with pytest.raises(InvalidJob, match="a value of type bytes") as caught:
        await job.update(b"x")
    assert (caught.value.type, caught.value.id) == (T1, J1)
    await job.finish()


async def test_none_at_most_are_counted_as_none(quiet: JobsService) -> None:
    await quiet.add(T1, J1)
    assert await quiet.pending_count(T1, limit=0) == 0
    assert await quiet.transact(lambda tx: tx.pending_count(T1, limit=0)) == 0
