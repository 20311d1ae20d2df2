"""An operation that meets damage leaves nothing half done, whichever of its reads it is that fails.

Operations share transactions, so what one has changed before it fails would be committed with the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from jobs_service import JobsError, JobsService, NewJob, RunningJob, StoreDamaged
from jobs_service.store import memory
from jobs_service.store.base import KeyValue
from jobs_service.store.memory import View
from tests.docs.test_semantics import CALLED, STATES, with_job
from tests.operations import ID, TYPE, Attempt
from tests.service.support import contents


class Reads:
    """Counts reads, and lets one of them fail.

    Attributes:
        until: the number of reads until one fails; None for none.
    """

    until: int | None = None


class DamagedView(View):
    """What a transaction reads from."""

    def get(self, key: bytes) -> bytes | None:
        fail_if_it_is_time()
        return super().get(key)

    def scan(self, begin: bytes, end: bytes, reverse: bool) -> Iterator[KeyValue]:
        fail_if_it_is_time()
        return super().scan(begin, end, reverse)


def fail_if_it_is_time() -> None:
    if Reads.until is not None:
        Reads.until -= 1
        if Reads.until < 0:
            Reads.until = None
            raise StoreDamaged("store memory: is damaged where this is stored")


async def enqueue(jobs: JobsService, _: RunningJob) -> None:
    @jobs.handler(TYPE, redact=["data.password"], timeout=30)
    async def log_in(job: RunningJob) -> None:
        """Never run."""

    await jobs.enqueue(log_in, id=ID)


async def enqueue_unique(jobs: JobsService, _: RunningJob) -> None:
    @jobs.handler("made", redact=["data.password"], timeout=30)
    async def log_in(job: RunningJob) -> None:
        """Never run."""

    await jobs.enqueue(log_in, unique=True)


OPERATIONS: dict[str, Attempt] = {
    **{str(name): attempt for name, attempt in CALLED.items()},
    "enqueue": enqueue,
    "enqueue(unique=True)": enqueue_unique,
    "add with a schedule": lambda jobs, _: jobs.add(TYPE, ID, run_at=4e9),
    "add_many": lambda jobs, _: jobs.add_many(TYPE, [NewJob(ID), NewJob("another")]),
    "accept_many": lambda jobs, _: jobs.accept_many(TYPE, 10, timeout=0),
    "clear_type_timeout": lambda jobs, _: jobs.clear_type_timeout(TYPE),
    "set_retention": lambda jobs, _: jobs.set_retention(TYPE, keep=0),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("operation", OPERATIONS)
async def test_an_operation_that_meets_damage_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, operation: str, state: str
) -> None:
    monkeypatch.setattr(memory, "View", DamagedView)
    for reads in count():
        async with JobsService("memory:", supervise=False) as jobs:
            await jobs.set_retention(TYPE, keep=600)
            worker = await with_job(jobs, state)
            await jobs.add_many(TYPE, [NewJob("second"), NewJob("third"), NewJob("later", run_at=1)])
            before = await contents(jobs)
            Reads.until = reads
            try:
                await OPERATIONS[operation](jobs, worker)
            except StoreDamaged:
                assert await contents(jobs) == before, reads
                continue
            except JobsError:
                pass
            finally:
                is_done, Reads.until = Reads.until is not None, None
            if is_done:
                assert reads
                return
