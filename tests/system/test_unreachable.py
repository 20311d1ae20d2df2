"""A store that does not answer for a while: calls fail in time, actors wait, and nothing is lost."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest

from jobs_service import (
    JobsError,
    JobsService,
    JobState,
    JobTransaction,
    RunningJob,
    Settings,
    StoreUnavailable,
    WorkerConflict,
)
from jobs_service.sources import Sources
from jobs_service.store.memory import Faults, MemoryStore, MemoryTransaction
from tests.checker import assert_sound
from tests.stores import settings_with
from tests.system.failing import PATIENCE, T1, restarts
from tests.system.forking import ForkServer
from tests.virtual_time import in_virtual_time


@pytest.fixture
def address(tmp_path: Path) -> str:
    """The address of an embedded store of this test's own."""
    return f"lmdb:{tmp_path / 'store'}"


@pytest.fixture(scope="module")
def forks() -> Iterator[ForkServer]:
    """Processes that begin within milliseconds."""
    with ForkServer() as server:
        yield server


class Holder:
    """A process that was stopped while it holds the store's write lock."""

    def __init__(self, forks: ForkServer, pid: int) -> None:
        self._forks = forks
        self._pid: int | None = pid

    def let_go(self, how: signal.Signals = signal.SIGCONT) -> None:
        """Continue or kill it, and return when it has ended."""
        if self._pid is not None:
            os.kill(self._pid, how)
            self._forks.wait(self._pid)
            self._pid = None


@asynccontextmanager
async def locked(forks: ForkServer, directory: Path) -> AsyncIterator[Holder]:
    """Have another process hold the write lock of the store until it is let go, or until the end."""
    journal = f"{directory}/holder"
    holder = Holder(forks, forks.start("hold_write_lock", path=f"{directory}/store", journal=journal))
    try:
        async with asyncio.timeout(PATIENCE):
            while not os.path.exists(journal):  # noqa: ASYNC110, ASYNC240 - another process makes it, in no time
                await asyncio.sleep(0.01)
        yield holder
    finally:
        holder.let_go(signal.SIGKILL)


async def patient(jobs: JobsService) -> RunningJob:
    """Wait for a job as workers do: one that was about to look when the store went away looks again."""
    while True:
        with suppress(StoreUnavailable):
            job = await jobs.accept(T1)
            assert job is not None
            return job


@pytest.mark.parametrize("how", [signal.SIGCONT, signal.SIGKILL])
async def test_while_another_process_holds_the_write_lock_writes_say_so_and_all_resumes(
    forks: ForkServer, address: str, tmp_path: Path, how: signal.Signals
) -> None:
    async with JobsService(address, settings=Settings(transaction_timeout=0.3)) as jobs, asyncio.timeout(PATIENCE):
        await jobs.set_type_timeout(T1, 600)
        await jobs.add(T1, "watched")
        worker = await jobs.accept(T1)
        assert worker is not None
        async with AsyncExitStack() as stack, jobs.subscribe(T1, "watched") as events:
            assert (await anext(events)).state is JobState.RUNNING
            waiting = [asyncio.create_task(patient(jobs)) for _ in range(3)]
            holder = await stack.enter_async_context(locked(forks, tmp_path))
            for call in (
                jobs.add(T1, "b"),
                jobs.resubmit(T1, "watched"),
                jobs.remove(T1, "watched"),
                jobs.set_type_timeout(T1, 0.5),
                jobs.accept(T1, timeout=0),
                jobs.transact(lambda tx: tx.add(T1, "c")),
                worker.update("never"),
                worker.finish("never"),
            ):
                with pytest.raises(StoreUnavailable, match=r"did not answer within 0\.3 s"):
                    await call
            assert (await jobs.get(T1, "watched")).state is JobState.RUNNING
            assert [job.id async for job in jobs.list(T1)] == ["watched"]
            holder.let_go(how)
            await worker.update("again")
            assert (await anext(events)).data == "again"
            for number in range(3):
                await jobs.add(T1, f"{number}")
            came = await asyncio.gather(*waiting)
            assert {job.id for job in came} == {"0", "1", "2"}
            await worker.finish("end")
            assert [event.data async for event in events] == ["end"]
        assert await jobs.get_type_timeout(T1) == 600
        assert restarts(jobs) == 0
        await assert_sound(jobs.store)


async def test_jobs_lost_while_the_store_is_unreachable_are_found_afterwards(
    forks: ForkServer, address: str, tmp_path: Path
) -> None:
    settings = settings_with(transaction_timeout=0.3, retry_backoff=0.01)
    async with JobsService(address, settings=settings) as jobs, asyncio.timeout(PATIENCE):
        await jobs.set_type_timeout(T1, 0.5)
        await jobs.add(T1, "lost")
        assert await jobs.accept(T1) is not None
        async with locked(forks, tmp_path) as holder:
            await asyncio.sleep(1.5)  # it is taken for lost now, but that cannot be written down
            assert await jobs.active_ids(T1) == ["lost"]
            holder.let_go()
        finished = False
        while not finished:
            again = await jobs.accept(T1)
            assert again is not None
            with suppress(WorkerConflict):  # on a busy machine it is lost once more
                finished = (await again.finish()).state is JobState.FINISHED
        assert restarts(jobs) == 0
        await assert_sound(jobs.store)


async def test_what_has_a_time_limit_keeps_it_while_the_store_is_unreachable(
    forks: ForkServer, address: str, tmp_path: Path
) -> None:
    """Not even the store's own time limit, which is long here, holds them up."""
    async with JobsService(address, settings=Settings(transaction_timeout=600)) as jobs:
        await jobs.set_type_timeout(T1, 600)
        await jobs.add(T1, "running", priority=-1)
        await jobs.add(T1, "pending")
        assert await jobs.accept(T1) is not None
        async with locked(forks, tmp_path) as holder, asyncio.timeout(PATIENCE):
            for _ in range(3):
                assert await jobs.accept(T1, timeout=0.05) is None
                assert await jobs.accept_many(T1, 10, timeout=0.05) == []
                for id in ("running", "pending"):
                    with pytest.raises(TimeoutError):
                        await jobs.wait(T1, id, JobState.FINISHED, timeout=0.05)
                    with pytest.raises(TimeoutError):
                        await jobs.stop_and_remove(T1, id, timeout=0.05)
            holder.let_go()
            # What was given up was withdrawn, or was given back.
            await jobs.add(T1, "new")
            assert [job.id for job in await jobs.accept_many(T1, 10, timeout=0)] == ["pending", "new"]
            assert (await jobs.get(T1, "running")).cancel is False
            await assert_sound(jobs.store)


async def test_a_service_can_be_left_while_its_store_is_unreachable(
    forks: ForkServer, address: str, tmp_path: Path
) -> None:
    tasks = asyncio.all_tasks()
    async with locked_later(forks, tmp_path, address) as jobs:
        async with asyncio.timeout(PATIENCE):
            await jobs.__aexit__(None, None, None)
        assert asyncio.all_tasks() == tasks
    async with JobsService(address, supervise=False) as again:
        assert [job.id async for job in again.list(T1)] == ["a"]
        await assert_sound(again.store)


@asynccontextmanager
async def locked_later(forks: ForkServer, directory: Path, address: str) -> AsyncIterator[JobsService]:
    """Enter a service, then have its store locked with calls under way; at the end lock and threads are gone."""
    before = set(threading.enumerate())
    jobs = JobsService(address, settings=Settings(transaction_timeout=0.3))
    await jobs.__aenter__()
    await jobs.set_type_timeout(T1, 600)
    await jobs.add(T1, "a")
    async with locked(forks, directory):
        adding = asyncio.create_task(jobs.add(T1, "b"))
        waiting = asyncio.create_task(jobs.wait(T1, "a", JobState.FINISHED))
        await asyncio.sleep(0.01)
        yield jobs
        with pytest.raises(StoreUnavailable):
            await adding
        with pytest.raises(JobsError):
            await waiting
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE)
    assert set(threading.enumerate()) <= before


async def test_a_job_accepted_too_late_for_its_worker_is_given_back(address: str) -> None:
    """The commit takes longer than the worker waits for it: another one in the same commit holds it up."""

    async def slow(tx: JobTransaction) -> None:
        time.sleep(0.4)  # noqa: ASYNC251 - on the writer's thread
        tx.kv[b"slow"] = b"done"

    async with JobsService(address, settings=Settings(transaction_timeout=0.5), supervise=False) as jobs:
        await jobs.set_type_timeout(T1, 600)
        await jobs.add(T1, "a")
        first = asyncio.create_task(jobs.transact(slow))  # the writer is busy, so that the next two come together
        await asyncio.sleep(0.1)
        accepting = asyncio.create_task(jobs.accept(T1))
        await asyncio.sleep(0.1)
        second = asyncio.create_task(jobs.transact(slow))
        results = await asyncio.gather(accepting, first, second, return_exceptions=True)
        assert isinstance(results[0], StoreUnavailable)
        async with asyncio.timeout(PATIENCE):
            again = await jobs.accept(T1)
        assert again is not None
        await assert_sound(jobs.store)


class Slow(Faults):
    """Commits that are answered too late."""

    async def after_commit(self, transaction: MemoryTransaction) -> None:
        if transaction.committed:
            await asyncio.sleep(60)


@in_virtual_time
async def test_no_job_stays_locked_by_a_worker_that_was_told_that_the_store_is_unavailable() -> None:
    store = MemoryStore(settings=Settings(transaction_timeout=10), sources=Sources(1))
    async with JobsService(store, supervise=False) as jobs:
        await jobs.set_type_timeout(T1, 600)
        await jobs.add(T1, "a")
        store.faults = Slow()
        held = None
        with suppress(StoreUnavailable):
            held = await jobs.accept(T1)
        store.faults = None
        assert ((await jobs.get(T1, "a")).state is JobState.RUNNING) is (held is not None)


@pytest.mark.unmeasured
async def test_calls_that_fail_while_the_store_is_unreachable_leave_nothing_in_memory(
    forks: ForkServer, address: str, tmp_path: Path
) -> None:
    count = 500

    async def add(number: int) -> None:
        with suppress(StoreUnavailable):
            await jobs.add(T1, f"{number}", "x" * 1000)

    async def add_together(number: int) -> None:
        with suppress(StoreUnavailable):
            await jobs.transact(lambda tx: tx.add(T1, f"{number}", "x" * 1000))

    async def accept(number: int) -> None:
        assert await jobs.accept(T1, timeout=0.01) is None

    async def give_up(number: int) -> None:
        with suppress(TimeoutError, StoreUnavailable):
            async with asyncio.timeout(0.01):
                await jobs.transact(lambda tx: tx.add(T1, f"{number}", "x" * 1000))

    async def fail() -> int:
        for call in (add, add_together, accept, give_up):
            await asyncio.gather(*(call(number) for number in range(count)))
        await asyncio.sleep(0.2)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    async with JobsService(address, settings=Settings(transaction_timeout=0.1), supervise=False) as jobs:
        await jobs.set_type_timeout(T1, 600)
        async with locked(forks, tmp_path):
            tracemalloc.start()
            try:
                held = [await fail() for _ in range(5)]
            finally:
                tracemalloc.stop()
        # What waits in line for the lock is a stub.
        per_call = (held[-1] - held[1]) / (3 * 4 * count)
        assert per_call < 500, f"{per_call:.0f} bytes per call"
        assert [job async for job in jobs.list(T1)] == []
        await jobs.add(T1, "a")
