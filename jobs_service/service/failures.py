"""Failed and retrying jobs of all types, grouped by error, for the command line, HTTP and the dashboard alike."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from jobs_service.errors import RecordDamaged
from jobs_service.json_forms import name
from jobs_service.json_values import time
from jobs_service.model import Job, JobType
from jobs_service.model.counts import TypeCounts
from jobs_service.service.selection import Filter, message_of, pages, signature_of

if TYPE_CHECKING:
    from jobs_service.service.service import JobsService

STATES: Final = ("failed", "retrying")
"""States of the examined jobs: failed for good, or waiting for another attempt after a crash."""
MOST_READ: Final = 200
"""Jobs read per state: the newest failed jobs of each type, and the retrying jobs with the highest ids."""
LEAST_OF_A_TYPE: Final = 10
_MOST_TYPES: Final = MOST_READ // LEAST_OF_A_TYPE


@dataclass(slots=True)
class Group:
    """Failed or retrying jobs with the same error.

    Attributes:
        state: of STATES.
        error: its class; "" for jobs without an error.
        message: its message, with … for variable parts.
        signature: of all these jobs, for filters.
        jobs: by type, in the order of their discovery.
        first, last: times of the first and the last failure or crash, seconds since the epoch; None if unknown.
        attempts: sum of all jobs' runs.
    """

    state: str
    error: str
    message: str
    signature: str
    jobs: dict[JobType, list[Job]] = field(default_factory=dict)
    first: float | None = None
    last: float | None = None
    attempts: int = 0

    @property
    def count(self) -> int:
        """The number of jobs."""
        return sum(map(len, self.jobs.values()))

    @property
    def filter(self) -> dict[str, Any]:
        """The filter that selects these jobs, and similar ones that were not read."""
        return {"state": self.state, "signature": self.signature}

    def to_dict(self) -> dict[str, Any]:
        """Return the group as plain data for JSON, without its jobs."""
        types = [
            {"type": name(type), "count": len(jobs), "newest": name(jobs[0].id), "filter": self.filter}
            for type, jobs in self.jobs.items()
        ]
        return {
            "state": self.state,
            "error": self.error or None,
            "message": self.message,
            "count": self.count,
            "attempts": self.attempts,
            "first": time(self.first),
            "last": time(self.last),
            "types": types,
        }

    def add(self, job: Job) -> None:
        """Add a job to the group."""
        self.jobs.setdefault(job.type, []).append(job)
        self.attempts += job.attempts
        at = job.history[0].at if job.history else None
        if at is not None:
            self.first = at if self.first is None else min(self.first, at)
            self.last = at if self.last is None else max(self.last, at)


@dataclass(frozen=True, slots=True)
class Failures:
    """A summary of failed and retrying jobs.

    Attributes:
        groups: the jobs by state and error, the latest failure or crash first.
        failed, retrying: number of jobs of all types in each state.
        read: number of jobs of both states that were read.
    """

    groups: list[Group]
    failed: int
    retrying: int
    read: int

    @property
    def is_cut(self) -> bool:
        """Whether there are more jobs than were read."""
        return self.read < self.failed + self.retrying


async def newest_failures(service: JobsService, counts: Mapping[JobType, TypeCounts]) -> Failures:
    """Read failed and retrying jobs, MOST_READ of each state at most, from the types with the most of them.

    Args:
        service: of the jobs.
        counts: of the service's types.
    """

    async def newest(type: JobType, state: str, share: int) -> list[Job]:
        wanted = Filter(state=state)
        async with aclosing(pages(service, type, wanted, read=share, most=share, newest_first=True)) as found:
            return (await anext(found)).jobs

    looks = []
    for state in STATES:
        numbers = {type: getattr(each, state) for type, each in counts.items() if getattr(each, state)}
        types = sorted(numbers, key=lambda type: -numbers[type])[:_MOST_TYPES]
        share = max(MOST_READ // max(len(types), 1), LEAST_OF_A_TYPE)
        looks += [newest(type, state, share) for type in types]
    jobs = [job for some in await asyncio.gather(*looks) for job in some]
    failed, retrying = (sum(getattr(each, state) for each in counts.values()) for state in STATES)
    return Failures(grouped(jobs), failed, retrying, len(jobs))


def grouped(jobs: list[Job]) -> list[Group]:
    """Group redacted failed and retrying jobs by state and error, the latest failure first."""
    groups: dict[tuple[str, str], Group] = {}
    for job in jobs:
        try:
            error = job.error
            signature = signature_of(error)
            kind, message = ("", "") if error is None else (error.type, message_of(error))
            state = "retrying" if job.retrying else "failed"
            groups.setdefault((state, signature), Group(state, kind, message, signature)).add(job)
        except RecordDamaged:
            continue
    return sorted(groups.values(), key=lambda group: -(group.last or 0.0))
