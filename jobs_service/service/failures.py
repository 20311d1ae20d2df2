"""Failed and retrying jobs of all types, by what went wrong: the command line, HTTP and the dashboard show the same."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from jobs_service.errors import RecordDamaged, StoreDamaged
from jobs_service.model import Job, JobType
from jobs_service.model.counts import TypeCounts
from jobs_service.service.selection import Filter, message_of, pages, signature_of

if TYPE_CHECKING:
    from jobs_service.service.service import JobsService

STATES: Final = ("failed", "retrying")
"""In which jobs are that are looked at: failed for good, or waiting for another attempt after a crash."""
MOST_READ: Final = 200
"""Jobs of each state that are looked at: the newest failed ones of each type, and the retrying ones of highest ids."""
LEAST_OF_A_TYPE: Final = 10
_MOST_TYPES: Final = MOST_READ // LEAST_OF_A_TYPE


@dataclass(slots=True)
class Group:
    """Failed or retrying jobs with the same error.

    Attributes:
        state: of STATES.
        error: its class; "" for jobs without an error.
        message: its message, with … for what differs from job to job.
        signature: what all of them have in common, as filters say it.
        jobs: of each type, in the order in which they were found.
        first, last: when the first and the last of them failed, or crashed, seconds since the epoch; None where nothing
            says so.
        attempts: runs of all of them.
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
        """How many jobs there are."""
        return sum(map(len, self.jobs.values()))

    @property
    def filter(self) -> dict[str, Any]:
        """Which jobs these are, and those like them that were not looked at, as filters say it."""
        return {"state": self.state, "signature": self.signature}

    def add(self, job: Job) -> None:
        """Take a job in."""
        self.jobs.setdefault(job.type, []).append(job)
        self.attempts += job.attempts
        at = job.history[0].at if job.history else None
        if at is not None:
            self.first = at if self.first is None else min(self.first, at)
            self.last = at if self.last is None else max(self.last, at)


@dataclass(frozen=True, slots=True)
class Failures:
    """What a look at failed and retrying jobs has found.

    Attributes:
        groups: the jobs by their states and errors, those that failed or crashed last first.
        failed, retrying: how many jobs of all types have failed, and wait for another attempt.
        read: how many of both were looked at.
        damaged: types whose jobs were to be looked at, but are on a damaged page, each with the error.
    """

    groups: list[Group]
    failed: int
    retrying: int
    read: int
    damaged: list[tuple[JobType, StoreDamaged]]

    @property
    def is_cut(self) -> bool:
        """Whether there are more than were looked at."""
        return self.read < self.failed + self.retrying


async def newest_failures(service: JobsService, counts: Mapping[JobType, TypeCounts]) -> Failures:
    """Look at failed and at retrying jobs of the types with most of them: at MOST_READ of each, however many there are.

    Args:
        service: of the jobs.
        counts: what is counted of its types.
    """
    damaged: dict[JobType, StoreDamaged] = {}

    async def newest(type: JobType, state: str, share: int) -> list[Job]:
        wanted = Filter(state=state)
        try:
            async with aclosing(pages(service, type, wanted, read=share, most=share, newest_first=True)) as found:
                return (await anext(found)).jobs
        except StoreDamaged as error:  # concerns no other type
            damaged.setdefault(type, error)
            return []

    looks = []
    for state in STATES:
        numbers = {type: getattr(each, state) for type, each in counts.items() if getattr(each, state)}
        types = sorted(numbers, key=lambda type: -numbers[type])[:_MOST_TYPES]
        share = max(MOST_READ // max(len(types), 1), LEAST_OF_A_TYPE)
        looks += [newest(type, state, share) for type in types]
    jobs = [job for some in await asyncio.gather(*looks) for job in some]
    failed, retrying = (sum(getattr(each, state) for each in counts.values()) for state in STATES)
    return Failures(grouped(jobs), failed, retrying, len(jobs), [*damaged.items()])


def grouped(jobs: list[Job]) -> list[Group]:
    """Return failed and retrying jobs, without what is secret, by state and error: those that failed last first."""
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
