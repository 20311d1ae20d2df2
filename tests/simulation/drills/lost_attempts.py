"""Jobs whose runs fail in turn, are lost with their worker and are given back: which of these count as an attempt."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Final

from jobs_service import Outcome, Retry, RunningJob, Snooze
from tests.simulation.drills.drill import Drill
from tests.simulation.drills.handling import opened, running

_SECONDS: Final = 1.5
"""The timeout of the type."""
_PHASES: Final = 7
_EXACT: Final = 2e-3


@dataclass
class _Trying:
    """One job.

    Attributes:
        id, own: of it, and how many attempts it may have; None for as many as its handler says.
        most: what follows of that; None for any number.
        attempts, crashes: runs that count, and crashes in a row.
        crashed, lost: how many have.
        error: of the last one that has crashed.
        due: from when on it may run, seconds since the epoch.
        outcome: None as long as it may run again.
        ran: set when it has run in this phase.
    """

    id: str
    own: int | None
    most: int | None
    attempts: int = 0
    crashes: int = 0
    crashed: int = 0
    lost: int = 0
    error: str | None = None
    due: float = 0.0
    outcome: Outcome | None = None
    ran: asyncio.Event = field(default_factory=asyncio.Event, repr=False)

    @property
    def is_used_up(self) -> bool:
        """Whether it may not run any more."""
        return self.most is not None and self.attempts >= self.most

    def count_anew(self) -> None:
        """A run has come to an end of its own."""
        self.attempts = self.crashes = self.crashed = self.lost = 0


async def lose_attempts(drill: Drill) -> None:
    """Have jobs run by a handler, by workers who fall silent, and by workers who give them back, in turn."""
    trying = _TryingJobs(drill)
    await drill.make_type(_SECONDS)
    for job in trying.jobs:
        own: dict[str, Any] = {} if job.own is None else {"max_attempts": job.own}
        await drill.jobs.enqueue(drill.type, id=job.id, **own)
    for _ in range(_PHASES):
        await trying.play()
    await trying.check()


class _TryingJobs:
    def __init__(self, drill: Drill) -> None:
        choose = drill.random.choice
        self._drill = drill
        self._most: int | None = choose([None, 1, 2, 3])
        # Longer than it takes until all have run once, and the handler is left.
        self._pause = 1.0 + 3 * drill.moment
        self.jobs = []
        for number in range(drill.random.randint(2, 4)):
            own = choose([None, None, 1, 2, 4])
            self.jobs.append(_Trying(str(number), own, own or self._most))

    @property
    def _now(self) -> float:
        return self._drill.client.process.clock.wall_time()

    def _left(self) -> list[_Trying]:
        return [job for job in self.jobs if job.outcome is None]

    async def play(self) -> None:
        """Have all that are left run once, in one way."""
        left = self._left()
        if not left:
            return
        await asyncio.sleep(max(0.0, max(job.due for job in left) - self._now) + 2 * _EXACT)
        # Only handlers know how often a job may run.
        if self._drill.random.random() < 0.5 or any(job.is_used_up for job in left):
            await self._run_handler(left)
        else:
            await self._work(left)

    async def _work(self, left: list[_Trying]) -> None:
        drill = self._drill
        taken: list[RunningJob] = []
        while found := await drill.client.accept(drill.type, 20, timeout=0):
            taken += found
        if {job.id for job in taken} != {job.id for job in left}:
            drill.complain(f"{left} are due, and {taken} were taken")
        is_lost = drill.is_watched_over and drill.random.random() < 0.8
        for job in taken:
            it = self._of(job)
            if it.attempts + 1 != job.attempts:
                drill.complain(f"{it} is told that it runs as number {job.attempts}")
            if is_lost:
                it.attempts += 1
                it.lost += 1
            else:
                it.count_anew()
                await drill.client.release(job)
        await asyncio.sleep(1.5 * _SECONDS + 1.0 + drill.moment if is_lost else 0.0)

    def _of(self, job: RunningJob) -> _Trying:
        return next(each for each in self.jobs if each.id == job.id)

    async def _run_handler(self, left: list[_Trying]) -> None:
        drill = self._drill
        for it in left:
            it.ran.clear()
            if it.is_used_up:  # it is not run, and has failed
                it.outcome = Outcome.FAILED
                it.ran.set()
        service = drill.client.process.service(supervise=False)
        options: dict[str, Any] = {"max_attempts": self._most, "backoff": self._pause, "jitter": 0.0, "grace": 1.0}
        service.handler(drill.type, timeout=_SECONDS, **options)(self._run)
        async with opened(drill, service), running(drill, service, 2.0):
            try:
                async with asyncio.timeout(2 * drill.moment):
                    for it in left:
                        await it.ran.wait()
            except TimeoutError:
                drill.complain(f"{[it for it in left if not it.ran.is_set()]} do not run")
            await drill.settle()  # those that are not run at all are over then
        for it in left:
            model = drill.job(it.id)
            run_at = None if model is None else model.run_at
            if it.outcome is None and (run_at is None or abs(run_at - it.due) > _EXACT):
                drill.complain(f"{it} is to run at {run_at}, not {it.due}; it is {model}")

    async def _run(self, job: RunningJob) -> Any:
        it, now = self._of(job), self._now
        if it.ran.is_set() or it.outcome is not None:
            self._drill.complain(f"{it} runs once more, as number {job.attempts}")
        it.ran.set()
        it.attempts += 1
        if job.attempts != it.attempts:
            self._drill.complain(f"{it} is told that it runs as number {job.attempts}")
        how = self._drill.random.choice(["raises", "raises", "raises", "retries", "snoozes", "returns"])
        if how == "returns":
            it.outcome = Outcome.SUCCEEDED
            return {"ran": it.attempts}
        if how == "snoozes":
            it.count_anew()
            it.due = now + self._pause
            raise Snooze(self._pause)
        it.crashes += 1
        it.crashed += 1
        error: Exception = (
            Retry(after=1.5 * self._pause, message="later") if how == "retries" else ValueError(f"number {it.attempts}")
        )
        it.error = f"{type(error).__name__}: {error}"
        it.due = now + (1.5 if how == "retries" else 2 ** (it.crashes - 1)) * self._pause
        if it.is_used_up:
            it.outcome = Outcome.FAILED
            it.lost = 0  # nobody counts them where the last run has failed
        raise error

    async def check(self) -> None:
        """Each is what it should be, and an error says how its attempts were used up."""
        drill = self._drill
        for it in self.jobs:
            found = await drill.jobs.get(drill.type, it.id)
            if (found.outcome, found.attempts) != (it.outcome, it.attempts):
                drill.complain(f"{it} is {found!r}, with {found.attempts} attempts")
            if it.outcome is Outcome.FAILED:
                said = "" if found.error is None else f"{found.error.type}: {found.error.message}"
                if said != self._wanted(it):
                    drill.complain(f"{it} has failed as {said!r}, not {self._wanted(it)!r}")
                traceback = "" if found.error is None else found.error.traceback
                if it.error is not None and "ValueError" in it.error and "ValueError" not in traceback:
                    drill.complain(f"{it} has failed with the traceback {traceback!r}")

    def _wanted(self, it: _Trying) -> str:
        if not it.lost:
            return it.error or ""
        if it.error is None:
            return f"JobsError: its worker was lost {'once' if it.lost == 1 else f'{it.lost} times'}"
        used_up = f"{it.crashed} crashed, {it.lost} lost with their worker; the last error was {it.error}"
        return f"JobsError: its {it.attempts} attempts are used up: {used_up}"
