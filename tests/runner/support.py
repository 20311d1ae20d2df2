"""What the tests of the running runner have in common: services on one store in virtual time, and their runners."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from structlog.testing import capture_logs

from jobs_service import Job, JobsService, JobState, NewJob, RunningJob
from jobs_service.layer import running_jobs
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model import HistoryKind
from jobs_service.sources import Sources
from jobs_service.store.memory import Faults
from tests.actors.support import CountedStore
from tests.checker import assert_sound
from tests.stores import settings_with
from tests.virtual_time import EPOCH, VirtualTimeLoop

TYPE = "work"
PATIENCE = 50_000.0
"""Virtual seconds after which a test that still waits has failed."""
THREAD = "jobs_service handler"
"""The name of the threads in which plain functions run."""
PATIENCE_OF_THREADS = 30.0
"""The same in real time, where functions run in threads."""
SOON = 0.2
"""Seconds within which the handler of a job that is no longer to run is canceled."""


class Weather(Faults):
    """A store that is away now and then: whoever calls it waits until it is back, or until the call's time limit."""

    def __init__(self) -> None:
        self._back = asyncio.Event()
        self._back.set()

    def leave(self) -> None:
        """Be away from now on."""
        self._back.clear()

    def come_back(self) -> None:
        """Answer again."""
        self._back.set()

    async def before_begin(self) -> None:
        await self._back.wait()


class Gate:
    """What handlers wait for, and a count of those who do.

    Attributes:
        inside: how many wait now.
        most: how many ever waited at the same time.
    """

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        self._open = asyncio.Event()

    async def pass_through(self) -> None:
        """Wait until it is open."""
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            await self._open.wait()
        finally:
            self.inside -= 1

    def open(self) -> None:
        """Let everybody through from now on."""
        self._open.set()


class Signals:
    """Lets threads and the loop wait for each other.

    Attributes:
        begun: set on the loop when a function has begun.
        go: what functions wait for.
    """

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.go = threading.Event()
        self._loop = asyncio.get_running_loop()

    def begin(self) -> None:
        """Tell the loop that a function has begun; called in its thread."""
        self._loop.call_soon_threadsafe(self.begun.set)


def virtual_loop() -> VirtualTimeLoop:
    """Return the loop that runs."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    return loop


def now() -> float:
    """Return the virtual seconds since the test began."""
    return virtual_loop().time()


@asynccontextmanager
async def opened(
    store: CountedStore | None = None,
    *,
    worker: str = "w1",
    supervise: bool = True,
    patience: float = PATIENCE,
    **changes: Any,
) -> AsyncIterator[JobsService]:
    """Open a service on a memory store in virtual time; the store must be sound when it is left.

    Args:
        store: one that another service has opened already; None for a new one.
        worker: what the service is called in histories.
        supervise: whether lost jobs are noticed.
        patience: virtual seconds that all may take.
        changes: settings of the service; of itself its process is not listed, which would be transactions of its own.
    """
    loop = virtual_loop()
    sources = Sources(worker, wall_time=loop.wall_time, worker=worker)
    settings = settings_with(**{"process_heartbeat": 0, **changes})
    if store is None:
        store = CountedStore(settings=settings, sources=sources)
    # What it logs is looked at where that matters; printing it would take longer than the tests.
    with capture_logs():
        async with (
            asyncio.timeout(patience),
            JobsService(store, settings=settings, supervise=supervise, sources=sources) as jobs,
        ):
            yield jobs
            await assert_sound(store, now=loop.wall_time())


def store_of(jobs: JobsService) -> CountedStore:
    """Return the store of a service that `opened` gave."""
    assert isinstance(jobs.store, CountedStore)
    return jobs.store


@asynccontextmanager
async def running(jobs: JobsService, *, max_jobs: int | None = None) -> AsyncIterator[asyncio.Task[None]]:
    """Run the handlers until the block is left; its end is that of `run()`."""
    task = asyncio.create_task(jobs.run(max_jobs=max_jobs), name="run")
    try:
        yield task
    finally:
        await stopped(task)


async def stopped(task: asyncio.Task[None]) -> None:
    """Cancel a task once, and see how it ends."""
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()


async def add(jobs: JobsService, *ids: str, type: Any = TYPE, timeout: float = 60.0) -> None:
    """Add jobs without data, and make the type where it is missing."""
    if type not in await jobs.types():
        await jobs.set_type_timeout(type, timeout)
    await jobs.add_many(type, [NewJob(id) for id in ids])


def taking(jobs: JobsService, seconds: float, type: Any = TYPE, **options: Any) -> list[object]:
    """Register a handler that takes so long; return where it notes the jobs that were canceled."""
    canceled: list[object] = []

    @jobs.handler(type, **options)
    async def work(job: RunningJob) -> str:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            canceled.append(job.id)
            raise
        return "done"

    return canceled


async def ended(jobs: JobsService, id: str, type: Any = TYPE) -> Job:
    """Wait until a job has finished, and return it."""
    await jobs.wait(type, id, JobState.FINISHED)
    return await jobs.get(type, id)


async def all_ended(jobs: JobsService, ids: Iterable[str], type: Any = TYPE) -> list[Job]:
    """Wait until all these jobs have finished, and return them."""
    return [await ended(jobs, id, type) for id in ids]


async def lose(jobs: JobsService, type: Any = TYPE) -> None:
    """Take all running jobs of a type from their workers, as an activity monitor does with those that fell silent."""
    context = jobs._context
    keys = context.keyspace.of(type)

    async def work(unit: UnitOfWork) -> None:
        await running_jobs.re_enqueue(unit, keys, b"\xff" * 10, 1000)

    await context.transact(work)


def story(job: Job) -> list[str]:
    """Return what happened to a job, oldest first."""
    return [event.kind.value for event in reversed(job.history)]


def moments(job: Job, kind: HistoryKind) -> list[float]:
    """Return when such events happened, oldest first, in virtual seconds since the test began, to the millisecond."""
    return [round(event.at - EPOCH, 3) for event in reversed(job.history) if event.kind is kind]


def warned(events: Iterable[Any]) -> list[Any]:
    """Return warnings and errors."""
    return [event for event in events if event["log_level"] in ("warning", "error")]
