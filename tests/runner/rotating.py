"""A stage with continuous jobs that take turns, for the tests of rotation."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from jobs_service import JobsService, RunningJob, Snooze
from tests.runner.support import TYPE, now, opened, running

INTERVAL = 60.0
SETTLED = 1.0
"""Seconds after which everything has come of a change that comes of it without the next rotation."""
SETUP = 20.0
"""Seconds that setting up a table may take."""


class Stage:
    """Jobs that run until a test ends them, and a record of when each did.

    Attributes:
        jobs: the service.
        spans: of each job's runs, when they began and when they ended, in seconds; of the one that goes on the former.
    """

    def __init__(self, jobs: JobsService, **options: Any) -> None:
        self.jobs = jobs
        self.spans: dict[str, list[list[float]]] = defaultdict(list)
        self._acts: dict[str, asyncio.Future[Any]] = {}

        @jobs.handler(TYPE, **{"continuous": _is_continuous, "interval": INTERVAL, **options})
        async def work(job: RunningJob) -> Any:
            id = str(job.id)
            self.spans[id].append([now()])
            act = self._acts[id] = asyncio.get_running_loop().create_future()
            try:
                return await act
            finally:
                self.spans[id][-1].append(now())

    def end(self, id: str, error: Exception | None = None) -> None:
        """Have a job's run end, well or with an error."""
        if error is None:
            self._acts[id].set_result(None)
        else:
            self._acts[id].set_exception(error)

    def running(self) -> list[str]:
        """Return the jobs whose handlers run."""
        return sorted(id for id, spans in self.spans.items() if len(spans[-1]) == 1)

    def stops(self) -> int:
        """Return how often a run has ended."""
        return sum(len(span) == 2 for spans in self.spans.values() for span in spans)

    def seconds(self, id: str) -> float:
        """Return for how long a job has run in all."""
        return sum((span[1] if len(span) == 2 else now()) - span[0] for span in self.spans[id])

    async def stopped(self) -> list[str]:
        """Return the jobs that wait."""
        return sorted([str(job.id) async for job in self.jobs.list(TYPE, state="pending")])

    async def run_stop_count(self) -> tuple[int, int]:
        """Return how many jobs run, and how many wait."""
        return len(self.running()), len(await self.stopped())

    async def change(self, **options: Any) -> None:
        """Change options, and wait until what comes of it at once has come."""
        self.jobs.configure(TYPE, **options)
        await asyncio.sleep(SETTLED)

    async def rotate(self) -> None:
        """Wait until the next rotation is over."""
        await asyncio.sleep(INTERVAL - now() % INTERVAL + SETTLED)


def _is_continuous(job: RunningJob) -> bool:
    return bool(job.data == "continuous")


def continuous(number: int) -> tuple[int, str, bool]:
    return number, "continuous", False


def continuous_running(number: int) -> tuple[int, str, bool]:
    return number, "continuous", True


@asynccontextmanager
async def table(*candidates: tuple[int, str, bool], **options: Any) -> AsyncIterator[Stage]:
    """Have jobs run that were started at the seconds that their numbers say, and others wait that were started then.

    As many slots as jobs run are all there are.
    """
    async with opened() as jobs:
        stage = Stage(jobs, **{"slots": len(candidates), **options})
        async with running(jobs):
            await jobs.set_type_timeout(TYPE, 600)
            began = now()
            for number, data, _ in sorted(candidates):
                await asyncio.sleep(began + number - now())
                await jobs.add(TYPE, str(number), data)
            await asyncio.sleep(SETTLED)
            await jobs.pause(TYPE)
            for number, _, runs in sorted(candidates):
                if not runs:
                    stage.end(str(number), Snooze(0))
                    await asyncio.sleep(SETTLED)
            await stage.change(slots=sum(runs for _, _, runs in candidates))
            await jobs.resume(TYPE)
            await asyncio.sleep(SETTLED)
            assert now() < SETUP
            assert stage.running() == sorted(str(number) for number, _, runs in candidates if runs)
            assert await stage.stopped() == sorted(str(number) for number, _, runs in candidates if not runs)
            yield stage
