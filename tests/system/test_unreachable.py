"""A store that does not answer for a while: calls fail in time, actors wait, and nothing is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator
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
)
from tests.checker import assert_sound
from tests.system.failing import PATIENCE, T1, restarts
from tests.system.forking import ForkServer


@pytest.fixture
def address(tmp_path: Path) -> str:
    """The address of an embedded store of this test's own."""
    return f"lmdb:{tmp_path / 'store'}"


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
