"""An accept that is canceled at any moment: it returns its job, or the job is pending again without its timeout."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from jobs_service import JobsService, JobTransaction, Settings
from jobs_service.errors import StoreUnavailable
from jobs_service.layer import running_jobs
from jobs_service.sources import Sources
from jobs_service.store.memory import MemoryStore
from tests.checker import assert_sound
from tests.service.support import T1, TIMEOUT, eventually, new_jobs


async def nothing(tx: JobTransaction) -> None:
    """Do nothing, but as a transaction that writes."""
    tx.kv[b"own/barrier"] = b""


@pytest.mark.parametrize("timeout", [0, None])
@pytest.mark.parametrize("workers", [1, 3])
async def test_a_job_of_an_accept_that_was_canceled_is_pending_again(
    quiet: JobsService, workers: int, timeout: float | None
) -> None:
    canceled = 0
    for turns in range(25):
        await quiet.add_many(T1, new_jobs("a", "b"))
        tasks = [asyncio.create_task(quiet.accept(T1, timeout=timeout)) for _ in range(workers)]
        for _ in range(turns):
            await asyncio.sleep(0)
        tasks[0].cancel()
        [first] = await asyncio.gather(tasks[0], return_exceptions=True)
        canceled += isinstance(first, asyncio.CancelledError)
        for task in tasks[1:]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        held = [job for job in results if job is not None and not isinstance(job, BaseException)]

        async def only_they_are_held(held: int = len(held)) -> bool:
            return len(await quiet.active_ids(T1)) == held and await quiet.pending_count(T1) == 2 - held

        # Whatever the canceled ones had begun has ended when a transaction that came later has.
        await quiet.transact(nothing)
        await eventually(only_they_are_held)
        await assert_sound(quiet.store)
        for id in "ab":
            await quiet.remove(T1, id, force=True)
    assert canceled


class UnsureStore(MemoryStore):
    """A store that cannot tell of its next so many transactions with a release whether they have happened."""

    unsure = 0
    happens = True
    has_release = False

    async def transact(self, *arguments: Any, **keywords: Any) -> Any:
        self.has_release = False
        result = await super().transact(*arguments, **keywords)
        if self.has_release and self.unsure:
            self.unsure -= 1
            raise StoreUnavailable("a commit was lost sight of; the write may have taken effect")
        return result


@pytest.mark.parametrize(("unsure", "happens"), [(1, True), (1, False), (3, False), (100, True), (100, False)])
async def test_a_job_of_a_canceled_accept_is_given_back_although_the_store_cannot_tell_at_first(
    monkeypatch: pytest.MonkeyPatch, unsure: int, happens: bool
) -> None:
    """Seed 6704055: one release of unknown outcome, and the job waited for its timeout."""
    store = UnsureStore(settings=Settings(), sources=Sources())
    release = running_jobs.release

    async def noted(*arguments: Any) -> Any:
        store.has_release = True
        if store.unsure and not happens:
            store.unsure -= 1
            raise StoreUnavailable("nobody can tell; it has not happened")
        return await release(*arguments)

    monkeypatch.setattr(running_jobs, "release", noted)
    released = 0
    async with JobsService(store, settings=Settings(), supervise=False) as jobs:
        await jobs.set_type_timeout(T1, TIMEOUT)
        for turns in range(25):
            await jobs.add(T1, "a")
            task = asyncio.create_task(jobs.accept(T1, timeout=0))
            for _ in range(turns):
                await asyncio.sleep(0)
            store.unsure = unsure
            with capture_logs() as events:
                task.cancel()
                [job] = await asyncio.gather(task, return_exceptions=True)
                await jobs.transact(nothing)
                if jobs._abandoned._releases:
                    await asyncio.wait(jobs._abandoned._releases)
            released += store.unsure < unsure
            failed = [event for event in events if event["event"] == "release_failed"]
            store.unsure = 0
            if isinstance(job, asyncio.CancelledError):
                is_held = bool(await jobs.active_ids(T1))
                assert is_held is bool(failed)
                assert not is_held or (unsure == 100 and not happens)
            await jobs.remove(T1, "a", force=True)
    assert released
