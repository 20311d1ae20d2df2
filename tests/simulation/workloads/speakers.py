"""Those who enqueue by keyword, with options of their own for a job, one by one and many at once, anywhere."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from jobs_service import JobsError, JobsService, JobTransaction, JobType, RunningJob
from jobs_service.testing import EPOCH, Process
from tests.simulation.calls import Call
from tests.simulation.client import Client
from tests.simulation.workloads.base import Workload

SPOKEN: Final[JobType] = "spoken"
_MOST: Final = 3
_TOLERANCE: Final = 1e-6


@dataclass(frozen=True)
class Wish:
    """What somebody wanted of a job.

    Attributes:
        max_attempts, time_limit: for this job; None for those of its handler.
        not_before: the caller's time, in seconds, before which it must not run, but for what clocks differ.
    """

    max_attempts: int | None
    time_limit: float | None
    not_before: float


class Speakers(Workload):
    """Enqueue jobs for a function with keywords."""

    name = "speakers"
    weight: ClassVar[int] = 6

    def __init__(self, run: Any) -> None:
        super().__init__(run)
        self._wishes: dict[int, Wish] = {}
        self._busy: dict[Process, int] = {}
        self._starts: dict[bytes, int] = {}

    def register(self, process: Process, jobs: JobsService) -> None:
        """Make a function the handler of a service that is about to be opened."""
        self._busy[process] = 0

        @jobs.handler(SPOKEN, slots=_MOST, timeout=6.0, grace=0.5, max_attempts=_MOST, backoff=0.5, jitter=0.0)
        async def spoken(job: RunningJob, *, call: int, pad: str = "", how: str = "well") -> dict[str, int]:
            return await self._run(process, job, call, how)

    async def _run(self, process: Process, job: RunningJob, call: int, how: str) -> dict[str, int]:
        run = self.run
        self._starts[job.lock] = self._starts.get(job.lock, 0) + 1
        self._busy[process] += 1
        try:
            if self._busy[process] > _MOST and not run.crashes.has_crashed(process):
                run.complain(f"slots: {process} runs {self._busy[process]} of {SPOKEN!r}, {_MOST} at most")
            wish = self._wishes.get(call)
            if wish is not None:
                self._compare(process, job, wish)
            match how:
                case "badly":
                    raise ValueError("as it was told to")
                case "slowly":
                    await asyncio.sleep(1.5)
            return {"call": call}
        finally:
            self._busy[process] -= 1

    def _compare(self, process: Process, job: RunningJob, wish: Wish) -> None:
        run = self.run
        for what, found, wanted in (
            ("attempts", job.max_attempts, wish.max_attempts),
            ("time limit", job.time_limit, wish.time_limit),
        ):
            # Of a job that runs again at somebody's wish, limits stay that it had and the new wish does not name.
            if found != wanted and (wanted is not None or not str(job.id).startswith("unique:")):
                run.complain(f"options: {job.id!r} of {SPOKEN!r} runs with {what} {found}, not {wanted}")
        most = _MOST if job.max_attempts is None else job.max_attempts
        if job.attempts > most:
            run.complain(f"attempts: {job.id!r} of {SPOKEN!r} runs as number {job.attempts}, {most} at most")
        if run.world.loop.time() < wish.not_before - run.latest_clock + run.earliest_clock - _TOLERANCE:
            run.complain(f"early: {job.id!r} of {SPOKEN!r} runs before {wish.not_before}")

    async def step(self, client: Client) -> None:
        jobs = client.jobs
        what = self.random.random()
        how = self.random.choice(["well", "well", "badly", "slowly"])
        options: dict[str, Any] = {
            "max_attempts": self.random.choice([None, None, 1, 2]),
            "time_limit": self.random.choice([None, None, 1.0, 30.0]),
        }
        delay = self.random.choice([None, None, None, 0.5, 3.0])
        if delay is not None:
            options["delay"] = delay
        elif self.random.random() < 0.2:
            options["run_at"] = client.process.clock.wall_time() + self.random.choice([-1.0, 2.0])
        if self.random.random() < 0.3:
            options["priority"] = self.random.choice([-1, 1, "p"])
        if what < 0.45:
            call = client.begin("enqueue", SPOKEN, None, options)
            self._wish(client, [call], options)
            given = client.data(call)
            await client.call(call, jobs.enqueue(SPOKEN, **given, how=how, **self._alone(client), **options))
        elif what < 0.75:
            calls = [client.begin("enqueue", SPOKEN, None) for _ in range(self.random.randint(1, 4))]
            self._wish(client, calls, options)
            options["unique"] = self.random.random() < 0.3
            options["unique_for"] = 1.5 if options["unique"] else None
            await client.many(
                calls, jobs.enqueue_many(SPOKEN, [{**client.data(call), "how": how} for call in calls], **options)
            )
        else:
            await self._in_a_transaction(client, how, options)

    async def _in_a_transaction(self, client: Client, how: str, options: dict[str, Any]) -> None:
        calls = [client.begin("enqueue", SPOKEN, None) for _ in range(3)]
        self._wish(client, calls, options)

        alone, unique = self._alone(client), self.random.random() < 0.3

        async def enqueue(tx: JobTransaction) -> None:
            given = {**client.data(calls[0]), "how": how}
            if calls[0].number % 2:
                await tx.enqueue(SPOKEN, given, **alone, **options)
            else:
                await tx.enqueue(SPOKEN, **given, **alone, **options)
            many = [{**client.data(call), "how": how} for call in calls[1:]]
            await tx.enqueue_many(SPOKEN, many, unique=unique, unique_for=1.5 if unique else None, **options)

        with contextlib.suppress(JobsError):
            await client.transact(calls, enqueue)

    def _alone(self, client: Client) -> dict[str, Any]:
        """Return options that only one job can have."""
        what = self.random.random()
        if what < 0.3:
            return {"unique": self.random.choice([True, "a", "b"]), "unique_for": 1.5 if what < 0.1 else None}
        rule = self.random.choice([None, "error", "ignore", "resubmit"])
        return {"id": f"s{self.random.randrange(1 << 30)}", "if_exists": rule} if what < 0.5 else {}

    def _wish(self, client: Client, calls: list[Call], options: dict[str, Any]) -> None:
        """Note what is wanted; whoever runs the job may have a clock that is ahead of the caller's."""
        due = client.process.clock.wall_time() + options.get("delay", 0.0)
        for call in calls:
            self._wishes[call.number] = Wish(options["max_attempts"], options["time_limit"], due - EPOCH)

    def check(self) -> Iterator[str]:
        """No lock was given to two runs."""
        for lock, starts in self._starts.items():
            if starts > 1:
                yield f"twice: the lock {lock.hex()[:6]} of {SPOKEN!r} was run {starts} times"
