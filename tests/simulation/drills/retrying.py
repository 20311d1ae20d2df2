"""Jobs that crash again and again: when each runs again, to the millisecond, and when it has failed for good."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Final

from jobs_service import Outcome, Retry, RunningJob, Snooze
from tests.simulation.drills.drill import Drill
from tests.simulation.drills.handling import opened, running

_EXACT: Final = 2e-3
_MOST_DOUBLINGS: Final = 10
_MANY: Final = 13
"""Crashes in a row: the last three pauses are as long as a pause may be."""
_HEALTHY: Final = 1.5
"""Seconds after which a run counts as healthy."""
_LONG: Final = 4
"""Crashes in a row from which on a pause is much longer than the first one."""
_ENOUGH: Final = 9
_SPREAD: Final = 0.15
"""The share of what may be drawn that so many pauses are not all within, but for once in many millions."""
_AFTER: Final = {"retries soon": 0.2, "retries at once": 0.0}
"""Seconds that a run asks for, by what it does."""


@dataclass
class _Crashing:
    """One job, and what its runs do.

    Attributes:
        id, most: of it; `most` is how many runs may fail.
        acts: what its runs do, until they return.
        runs: how many have begun.
        attempts, crashes: runs that count, and crashes in a row.
        due: when it is to run again at the earliest and at the latest, seconds since the epoch.
        error: of the last run that has failed.
        failed: whether it has failed for good.
        over: set when it does not run again.
    """

    id: str
    most: int | None
    acts: list[str]
    runs: int = 0
    attempts: int = 0
    crashes: int = 0
    due: tuple[float, float] | None = None
    error: str | None = None
    failed: bool = False
    over: asyncio.Event = field(default_factory=asyncio.Event, repr=False)


async def crash_again_and_again(drill: Drill) -> None:
    """Have jobs crash until the pauses grow no more, beside others that snooze, or are healthy in between."""
    crashing = _CrashingJobs(drill)
    service = drill.client.process.service(supervise=False)
    service.handler(drill.type, **crashing.options)(crashing.run)
    async with opened(drill, service), running(drill, service, 2 * crashing.options["grace"]):
        for job in crashing.jobs:
            own: dict[str, Any] = {} if job.most == crashing.options["max_attempts"] else {"max_attempts": job.most}
            await drill.jobs.enqueue(drill.type, id=job.id, **own)
        for job in crashing.jobs:
            try:
                async with asyncio.timeout(3 * crashing.longest + 100 * drill.moment):
                    await job.over.wait()
            except TimeoutError:
                drill.complain(f"{job} is not over")
        await drill.settle()
    for job in crashing.jobs:
        found = await drill.jobs.get(drill.type, job.id)
        wanted = Outcome.FAILED if job.failed else Outcome.SUCCEEDED
        error = None if found.error is None else f"{found.error.type}: {found.error.message}"
        if (found.outcome, found.attempts, error) != (wanted, job.attempts, job.error):
            drill.complain(f"{job} is {found!r}, after {found.attempts} attempts, with {error}")
        if len(found.history) > crashing.options["max_history"]:
            drill.complain(f"{job} has a history of {len(found.history)} events: {crashing.options}")
    crashing.check_jitter()


class _CrashingJobs:
    def __init__(self, drill: Drill) -> None:
        choose = drill.random.choice
        self._drill = drill
        self.options: dict[str, Any] = {
            "slots": 5,
            "timeout": 60.0,
            "grace": 0.5,
            "backoff": choose([0.0, 0.004, 0.01, 0.01]),
            "jitter": choose([0.0, 0.0, 0.1, 1.0]),
            "max_history": choose([1, 2, 5, 20]),
            "max_attempts": choose([None, None, 2]),
            "health_threshold": _HEALTHY,
        }
        self.longest: float = 2**_MOST_DOUBLINGS * self.options["backoff"] * (1 + self.options["jitter"])
        self._shares: list[float] = []
        most = self.options["max_attempts"] or choose([None, _MANY + 1])
        self.jobs = [_Crashing("many", None if most is None else _MANY + 1, ["raises"] * _MANY)]
        acts = [
            "raises",
            "raises",
            "raises",
            "retries",
            "retries soon",
            "retries at once",
            "snoozes",
            "is healthy",
            "is nearly healthy",
        ]
        for number in range(choose([1, 1, 2])):
            job = _Crashing(str(number), choose([1, 2, 3, 5, self.options["max_attempts"]]), [])
            job.acts += [choose(acts) for _ in range(drill.random.randint(3, 6))]
            self.jobs.append(job)

    @property
    def _now(self) -> float:
        return self._drill.client.process.clock.wall_time()

    async def run(self, job: RunningJob) -> None:
        """Do in a run of a job what it is to do."""
        drill = self._drill
        it = next(each for each in self.jobs if each.id == job.id)
        self._begins(it, job)
        if it.runs > len(it.acts):
            it.over.set()
            return
        act = it.acts[it.runs - 1]
        if act == "is healthy":
            await asyncio.sleep(_HEALTHY + 0.1)
        if act == "is nearly healthy":  # it was accepted a little before it began
            await asyncio.sleep(_HEALTHY - 0.1 - 8 * drill.latency)
        if act == "snoozes":
            it.attempts = 0
            it.crashes, it.due = 0, (self._now + 0.3, self._now + 0.3)
            raise Snooze(0.3)
        after = _AFTER.get(act)
        error = (
            Retry(after=after, message=str(it.runs)) if act.startswith("retries") else ValueError(f"in run {it.runs}")
        )
        it.error = f"{type(error).__name__}: {error}"
        self._crashes(it, is_healthy=act == "is healthy", after=after)
        raise error

    def _begins(self, it: _Crashing, job: RunningJob) -> None:
        if it.over.is_set():
            self._drill.complain(f"{it} runs again")
        it.runs += 1
        it.attempts += 1
        if job.attempts != it.attempts:
            self._drill.complain(f"{it} is told that it runs as number {job.attempts}")
        if it.due is None:
            return
        earliest, latest = it.due
        at = 0.0 if job.run_at is None else job.run_at.timestamp()
        if not earliest - _EXACT <= at <= latest + _EXACT:
            self._drill.complain(f"{it} was to run again {self._shown(it.due)} from now, not {at - self._now:.3f}")
        if not at - _EXACT <= self._now <= at + self._drill.moment:
            self._drill.complain(f"{it} runs {self._now - at:.3f} s after it was due")
        if latest > earliest and it.crashes >= _LONG:
            self._shares.append((at - earliest) / (latest - earliest))

    def _crashes(self, it: _Crashing, *, is_healthy: bool, after: float | None) -> None:
        now = self._now
        if it.most is not None and it.attempts >= it.most:
            it.failed = True
            it.over.set()
            return
        it.crashes = 1 if is_healthy else it.crashes + 1
        pause: float = self.options["backoff"] * 2 ** min(it.crashes - 1, _MOST_DOUBLINGS)
        it.due = now + pause, now + pause * (1 + self.options["jitter"])
        if after is not None:
            it.due = now + after, now + after

    def _shown(self, due: tuple[float, float]) -> str:
        return " to ".join(f"{each - self._now:.3f}" for each in due)

    def check_jitter(self) -> None:
        """What is drawn as jitter is spread over all that it may be."""
        shares = self._shares
        if len(shares) >= _ENOUGH and not (min(shares) < 1 - _SPREAD and max(shares) > _SPREAD):
            self._drill.complain(f"of the jitter, which is {self.options['jitter']}, were drawn {shares}")
