"""Workers who fall silent beside others who do not: each job is lost once, in time, and who had it has it no more."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from jobs_service import JobCanceled, JobNotFound, Outcome, RunningJob, WorkerConflict
from tests.simulation.drills.drill import Drill


async def lose_some(drill: Drill) -> None:
    """Have some workers show that they are alive, in all ways, until each falls silent at a time of its own."""
    if not drill.is_watched_over:
        return
    random = drill.random
    seconds = random.choice([1.5, 3.0])
    await drill.make_type(seconds)
    if random.random() < 0.3:
        await drill.jobs.set_retention(drill.type, keep=random.choice([0.0, 300.0]))
    ids = [f"{number}" for number in range(random.randint(1, 7))]
    await drill.client.add_many(drill.type, ids)
    losses = _Losses(drill, seconds)
    async with asyncio.TaskGroup() as group:
        while drill.pending():
            for job in await drill.client.accept(drill.type, random.choice([1, 3, 20]), timeout=0):
                group.create_task(losses.work(job), name=f"{drill.type} works")
            # All are taken before any of them can be lost.
            await asyncio.sleep(random.choice([0.0, 0.0, random.uniform(0.0, seconds / (2 * len(ids)))]))
    await losses.work_again()


class _Losses:
    """Jobs of one type whose workers fall silent.

    Args:
        drill: that they are part of.
        seconds: the timeout of the type.
    """

    def __init__(self, drill: Drill, seconds: float) -> None:
        self._drill = drill
        self._seconds = seconds
        # Seconds of silence after which a job is pending again in any case.
        self._late = 1.5 * seconds + 1.0 + 12 * drill.latency
        self._lost: list[RunningJob] = []

    async def work(self, job: RunningJob) -> None:
        """Work on a job, and fall silent."""
        drill, random = self._drill, self._drill.random
        with contextlib.suppress(WorkerConflict):
            for _ in range(random.choice([0, 0, 1, 3, 6])):
                await asyncio.sleep(random.uniform(0.05, 0.95) * self._seconds)
                job = await self._show(job)
            if random.random() < 0.15:
                await drill.client.finish(job)
                return
        cancels = random.random() < 0.25
        if cancels:
            with contextlib.suppress(JobNotFound):
                await drill.client.remove(job.type, job.id)
        await asyncio.sleep(self._late)
        now = drill.job(job.id)
        if now is not None and now.lock == job.lock:
            drill.complain(
                f"{job.id!r} runs, whose worker was silent for {self._late:.3f} s; the timeout is {self._seconds}"
            )
            return
        if cancels and now is not None and now.outcome is not Outcome.CANCELED:
            drill.complain(f"{job.id!r} was canceled and lost, and is {now}")
        await self._refused(job)
        if not cancels and now is not None:
            self._lost.append(job)

    async def _show(self, job: RunningJob) -> RunningJob:
        """Show that a job is alive."""
        client = self._drill.client
        ways: list[Callable[[], Awaitable[RunningJob]]] = [
            lambda: client.update(job),
            lambda: client.again(job),
            lambda: job.progress(1, 2),
            job.update,
        ]
        return await self._drill.random.choice(ways)()

    async def _refused(self, job: RunningJob) -> None:
        """Have the former worker go on, as if it knew nothing."""
        client = self._drill.client
        ways: dict[str, Callable[[], Awaitable[Any]]] = {
            "update": lambda: client.update(job),
            "resubmit": lambda: client.again(job),
            "progress": lambda: job.progress(1),
            "finish": lambda: client.finish(job),
            "release": lambda: client.release(job),
            "finish_with": lambda: job.finish_with(lambda tx: 1),
        }
        for name in self._drill.random.sample([*ways], 2):
            try:
                await ways[name]()
            except WorkerConflict:
                continue
            except JobCanceled as error:
                self._drill.complain(f"who had lost {job.id!r} was told {error!r}")
            self._drill.complain(f"{name} of {job.id!r} was done by a worker who had lost it")

    async def work_again(self) -> None:
        """Have others run what was lost: it is a second attempt for each, and the first one can do no harm."""
        drill = self._drill
        lost: dict[object, RunningJob] = {job.id: job for job in self._lost}
        found: dict[object, RunningJob] = {}
        while drill.pending():
            found |= {job.id: job for job in await drill.client.accept(drill.type, 20, timeout=0)}
        if not lost.keys() <= found.keys():
            drill.complain(f"{[*lost]} were lost, and {[*found]} can be accepted")
        for id, job in found.items():
            if id in lost:
                told = [event.kind.value for event in job.history]
                if told.count("lost") != 1 or job.attempts != 2:
                    drill.complain(f"{id!r} was lost once, and it is told: attempt {job.attempts} of {told}")
                await self._refused(lost[id])
            await drill.client.finish(job)
