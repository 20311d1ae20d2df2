"""Runners on one store, one of which is killed again and again: every job ends, and takes effect once.

`python -m tests.system.runner_soak --jobs 10000` prints what happened, and exits 1 with the reason when something is
not as it must be. The suite has a short form of it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from jobs_service import HistoryEvent, HistoryKind, Job, JobsService, JobTransaction, NewJob, Outcome, RunningJob
from jobs_service.runner.options import HandlerKeywords
from tests.checker import assert_sound
from tests.system.forking import ForkServer
from tests.system.roles import quiet
from tests.system.workloads import KIND, ONE, effect_key, effects, empty

SUM = b"sum"
"""The application's own key that counts all effects."""
KILLED = -9
CRASHES = 0.03
"""Share of the runs that fail by themselves."""
MOST_PENDING = 100
"""Jobs that wait at any time: a lost one goes to the end of the queue, and its turn is to come soon."""
PATIENCE = 120.0
"""Seconds without a job ending after which a soak has failed."""
OPTIONS = HandlerKeywords(slots=40, max_attempts=None, backoff=0.1)


def runner(address: str, seed: str, longest: float) -> None:
    """Be a process that runs jobs, and never ends by itself."""
    choose = random.Random(seed)
    jobs = JobsService(address)

    @jobs.handler(KIND, **OPTIONS)
    async def work(job: RunningJob) -> None:
        await asyncio.sleep(choose.uniform(0, longest))
        if choose.random() < CRASHES:
            raise OSError("the work failed")
        await job.finish_with(lambda tx: effect(tx, str(job.id)))

    quiet()
    asyncio.run(jobs.run())


def effect(tx: JobTransaction, id: str) -> str:
    """Count a job's work, for the job and over all; return what becomes its result."""
    tx.kv.add(effect_key(id), ONE)
    tx.kv.add(SUM, ONE)
    return f"{id} by {os.getpid()}"


async def _sum(jobs: JobsService) -> int:
    """Return how many effects there were: each comes in the transaction that finishes its job."""
    counted: bytes | None = await jobs.store.read(lambda tr: tr.get(SUM))
    return int.from_bytes(counted or b"", "little")


@dataclass
class Deaths:
    """When the processes were killed, seconds since the epoch, by the names that they had as workers."""

    by_worker: dict[str, float] = field(default_factory=dict)

    def note(self, pid: int, at: float) -> None:
        """Note when a process was no more."""
        self.by_worker[f"{socket.gethostname()[:100]}:{pid}"] = at


@dataclass
class Losses:
    """What the jobs' histories tell of those whose worker died.

    Attributes:
        of_the_dead: runs that were lost because their process was killed.
        of_the_living: runs that were taken for lost while their process was only slow.
        silences: seconds from a worker's death to the loss of its job.
        waits: seconds from a worker's death to the job's next start.
        queued: seconds from the loss to the next start.
    """

    of_the_dead: int = 0
    of_the_living: int = 0
    silences: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    queued: list[float] = field(default_factory=list)

    def read(self, job: Job, deaths: Deaths) -> None:
        """Read the history of one job."""
        events = job.history[::-1]
        assert events[0].kind is HistoryKind.ADDED, f"the history of {job.id!r} is not whole"
        for position, (started, lost) in enumerate(pairwise(events)):
            if lost.kind is not HistoryKind.LOST:
                continue
            assert started.kind is HistoryKind.STARTED, f"{job.id!r} was lost after {started}"
            again = events[position + 2]
            assert again.kind is HistoryKind.STARTED, f"{job.id!r} was not run after {lost}"
            self._count(started, lost, again, deaths)

    def _count(self, started: HistoryEvent, lost: HistoryEvent, again: HistoryEvent, deaths: Deaths) -> None:
        died = deaths.by_worker.get(started.detail)
        if died is None or died > lost.at:
            self.of_the_living += 1
            return
        self.of_the_dead += 1
        # It was silent since its last sign of life, which came before it died.
        self.silences.append(lost.at - died)
        self.waits.append(again.at - died)
        self.queued.append(again.at - lost.at)


class RunnerSoak:
    """One run.

    Args:
        directory: for the store.
        seed: of who is killed when, and of how long the handlers take.
        jobs: how many are to be run.
        every: seconds between two kills.
        longest: seconds that a handler takes at most.
        timeout: the type's activity timeout in seconds.
        processes: how many run jobs at the same time.
        address: of another store than an embedded one in that directory; it is emptied.
    """

    def __init__(
        self,
        directory: Path,
        seed: int,
        *,
        jobs: int,
        every: float,
        longest: float,
        timeout: float,
        processes: int = 3,
        address: str | None = None,
    ) -> None:
        self.figures: Counter[str] = Counter()
        self.losses = Losses()
        self.seconds = 0.0
        self._address = address or f"lmdb:{directory / 'store'}"
        self._seed = seed
        self._choose = random.Random(seed)
        self._jobs = jobs
        self._every = every
        self._longest = longest
        self._timeout = timeout
        self._processes = processes
        self._alive: list[int] = []
        self.deaths = Deaths()

    async def run(self) -> None:
        """Have all jobs run while the processes are killed one by one, then check everything.

        Raises:
            AssertionError: something that must not be; processes that fail by themselves have said why.
            TimeoutError: jobs do not end.
        """
        with ForkServer("tests.system.runner_soak") as forks:
            async with JobsService(self._address) as jobs:
                await empty(jobs)
                await jobs.set_type_timeout(KIND, self._timeout)
                began = time.monotonic()
                for _ in range(self._processes):
                    self._start(forks)
                killer = asyncio.create_task(self._kill_again_and_again(forks))
                try:
                    await self._add(jobs)
                    await self._all_ended(jobs)
                finally:
                    killer.cancel()
                self.seconds = time.monotonic() - began
                while self._alive:
                    self._kill(forks)
                await asyncio.wait([killer])
                assert killer.cancelled(), killer.exception()
                await self._check(jobs)

    def _start(self, forks: ForkServer) -> None:
        seed = f"{self._seed} {self.figures['processes']}"
        self.figures["processes"] += 1
        self._alive.append(forks.start("runner", address=self._address, seed=seed, longest=self._longest))

    def _kill(self, forks: ForkServer) -> None:
        pid = self._alive.pop(self._choose.randrange(len(self._alive)))
        code = forks.kill(pid)
        self.deaths.note(pid, time.time())
        assert code == KILLED, f"a process ended by itself, with exit code {code}"

    async def _kill_again_and_again(self, forks: ForkServer) -> None:
        while True:
            await asyncio.sleep(self._every)
            self._kill(forks)
            self.figures["kills"] += 1
            self._start(forks)

    async def _add(self, jobs: JobsService) -> None:
        added = 0
        while added < self._jobs:
            room = min(MOST_PENDING - await jobs.pending_count(KIND, limit=MOST_PENDING), self._jobs - added)
            if room:
                await jobs.add_many(KIND, [NewJob(f"job {added + number}") for number in range(room)])
                added += room
            await asyncio.sleep(0.02)

    async def _all_ended(self, jobs: JobsService) -> None:
        ended = 0
        while ended < self._jobs:
            async with asyncio.timeout(PATIENCE):
                while (now := await _sum(jobs)) == ended:  # noqa: ASYNC110 - it has no event
                    await asyncio.sleep(0.05)
            ended = now

    async def _check(self, jobs: JobsService) -> None:
        await assert_sound(jobs.store)
        happened = await effects(jobs)
        total = await _sum(jobs)
        complaints = [*self.complaints([job async for job in jobs.list(KIND)], happened)]
        if total != self._jobs:
            complaints.append(f"{total} effects were counted, of {self._jobs} jobs")
        assert not complaints, "\n".join(complaints[:50])

    def complaints(self, jobs: list[Job], happened: dict[str, int]) -> Iterator[str]:
        """Say what cannot be, given all jobs and how often each took effect; reads the histories on the way."""
        if len(jobs) != self._jobs:
            yield f"there are {len(jobs)} jobs, not {self._jobs}"
        for job in jobs:
            id = str(job.id)
            if job.outcome is not Outcome.SUCCEEDED:
                yield f"{id} is {job.state}, {job.outcome}: {job.history}"
            if happened.get(id, 0) != 1:
                yield f"{id} took effect {happened.get(id, 0)} times"
            if not str(job.result).startswith(f"{id} by "):
                yield f"{id} has the result {job.result!r}"
            self.figures["crashes"] += sum(event.kind is HistoryKind.CRASHED for event in job.history)
            self.losses.read(job, self.deaths)

    def late(self) -> Iterator[str]:
        """Say which jobs waited for too long after their worker had died."""
        for silence, wait in zip(self.losses.silences, self.losses.waits, strict=True):
            if silence > 1.5 * self._timeout + 1:
                yield f"a job was taken for lost {silence:.2f} s after its worker had died, at {self._timeout:g} s"
            if wait > 2 * self._timeout:
                yield f"a job was started again {wait:.2f} s after its worker had died, at {self._timeout:g} s"

    def report(self) -> dict[str, Any]:
        """Return what happened."""
        losses = self.losses
        return {
            "jobs": self._jobs,
            "seconds": round(self.seconds, 1),
            "processes killed": self.figures["kills"],
            "runs that crashed": self.figures["crashes"],
            "lost with their worker": losses.of_the_dead,
            "taken for lost while their worker was slow": losses.of_the_living,
            "longest from death to loss (s)": round(max(losses.silences, default=0.0), 2),
            "longest from loss to next start (s)": round(max(losses.queued, default=0.0), 2),
            "longest from death to next start (s)": round(max(losses.waits, default=0.0), 2),
            "activity timeout (s)": self._timeout,
        }


def main() -> None:
    """Run a soak from the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.runner_soak", description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000, help="how many are run")
    parser.add_argument("--every", type=float, default=2.0, help="seconds between two kills")
    parser.add_argument("--longest", type=float, default=1.0, help="seconds that a handler takes at most")
    parser.add_argument("--timeout", type=float, default=4.0, help="the type's activity timeout in seconds")
    parser.add_argument("--processes", type=int, default=3, help="how many run jobs at the same time")
    parser.add_argument("--seed", type=int, default=None, help="of who is killed")
    parser.add_argument("--store", help="an address, such as fdb:FILE; an embedded store by default. It is emptied")
    arguments = parser.parse_args()
    quiet()
    seed = random.randrange(1 << 32) if arguments.seed is None else arguments.seed
    with tempfile.TemporaryDirectory() as directory:
        soak = RunnerSoak(
            Path(directory),
            seed,
            jobs=arguments.jobs,
            every=arguments.every,
            longest=arguments.longest,
            timeout=arguments.timeout,
            processes=arguments.processes,
            address=arguments.store,
        )
        try:
            asyncio.run(soak.run())
        except (AssertionError, TimeoutError) as error:
            print(f"seed {seed}: violation: {error!r}", flush=True)
            sys.exit(1)
        finally:
            print(*[f"{name}: {figure}" for name, figure in soak.report().items()], sep="\n")
    late = [*soak.late()]
    print(f"seed {seed}: every job ended, each took effect once", *late[:20], sep="\n")
    sys.exit(1 if late else 0)


if __name__ == "__main__":
    main()
