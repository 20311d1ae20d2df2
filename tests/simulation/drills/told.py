"""A store of a drill's own with types and jobs of all kinds, and what must be told of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from jobs_service import JobError, JobType, Outcome, RunningJob
from tests.simulation.drills.drill import LONG, Drill
from tests.simulation.drills.place import Place

_TYPES: Final[tuple[JobType, ...]] = ("mail", ("u", 1), "z z", 7)
_LATER: Final = 5000.0
_ERRORS: Final = (None, JobError("TimeoutError", "no answer"), JobError("ValueError", "is bad"))

PENDING: Final = ("ready", "scheduled")
STATES: Final = ("ready", "scheduled", "retrying", "running", "succeeded", "failed", "canceled")


@dataclass
class Job:
    """A job: in which of the states it is, with its data, its error and its runs, and since when it is so, seconds."""

    state: str
    data: dict[str, Any]
    since: float
    error: JobError | None = None
    attempts: int = 0
    cancel: bool = False

    @property
    def is_finished(self) -> bool:
        return self.state in ("succeeded", "failed", "canceled")


@dataclass
class Type:
    """A type: its jobs, and what was said of it."""

    timeout: float | None = LONG
    paused: bool = False
    keep: tuple[float | None, float | None] = (None, None)
    secret: tuple[str, ...] = ()
    jobs: dict[str, Job] = field(default_factory=dict)
    happened: Counter[str] = field(default_factory=Counter)

    @property
    def is_there(self) -> bool:
        """Whether it exists, or has jobs: then it is counted."""
        return self.timeout is not None or bool(self.jobs)

    def count(self, state: str) -> int:
        """Return how many jobs are in a state."""
        return sum(job.state == state for job in self.jobs.values())


class Told:
    """A store with types and jobs, and what must be told of them.

    Args:
        drill: that it is part of.
    """

    def __init__(self, drill: Drill) -> None:
        self.drill = drill
        self.place = Place(drill, "figures")
        self.types: dict[JobType, Type] = {}

    def now(self) -> float:
        """Return seconds since the epoch."""
        return self.place.sources.wall_time()

    async def fill(self) -> None:
        """Have there be types and jobs of all kinds."""
        random, jobs = self.drill.random, self.place.jobs
        for type in random.sample(_TYPES, random.randint(1, 3)):
            told = self.types[type] = Type()
            await jobs.set_type_timeout(type, LONG)
            if random.random() < 0.4:
                told.secret = ("password",)
                await jobs.set_redaction(type, told.secret)
            if random.random() < 0.4:
                told.keep = random.choice([None, 600.0]), random.choice([None, 90.0])
                await jobs.set_retention(type, keep=told.keep[0], keep_failed=told.keep[1])
            for number in range(random.randint(0, 8)):
                data = {"number": number, "password": f"hunter-{len(self.types)}-{number}-"}
                later = random.random() < 0.2
                await jobs.add(type, str(number), data, run_at=self.now() + _LATER if later else None)
                told.jobs[str(number)] = Job("scheduled" if later else "ready", data, self.now())
                told.happened["added"] += 1
                await self.drill.pass_turns()
            for _ in range(random.randint(0, 5)):
                job = await jobs.accept(type, timeout=0)
                if job is not None:
                    await self._use(job, told)
            if random.random() < 0.3:
                told.paused = True
                await jobs.pause(type)

    async def _use(self, job: RunningJob, told: Type) -> None:
        """Have a job that runs end in some way, or go on."""
        random, known = self.drill.random, told.jobs[str(job.id)]
        known.state, known.attempts, known.since = "running", 1, self.now()
        told.happened["started"] += 1
        how = random.choice(["succeeded", "failed", "failed", "canceled", "running", "running"])
        if how == "canceled" or random.random() < 0.1:
            await self.place.jobs.remove(job.type, job.id)
            known.cancel = True
        if how == "running":
            return
        known.error = random.choice(_ERRORS) if how == "failed" else None
        outcome = Outcome.FAILED if how == "failed" else Outcome.SUCCEEDED
        await job.finish(outcome=outcome, error=known.error)
        known.state = "canceled" if known.cancel and how != "failed" else how
        told.happened[known.state] += 1

    def complain(self, what: str) -> None:
        """Say what is wrong."""
        self.drill.complain(what)
