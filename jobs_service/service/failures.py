"""Failed jobs of all types, grouped by what went wrong: the command line, HTTP and the dashboard show the same."""

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
from jobs_service.status import Status

if TYPE_CHECKING:
    from jobs_service.service.service import JobsService

MOST_READ: Final = 200
"""Failed jobs that are looked at, the newest of each type."""
LEAST_OF_A_TYPE: Final = 10
_MOST_TYPES: Final = MOST_READ // LEAST_OF_A_TYPE


@dataclass(slots=True)
class Group:
    """Failed jobs with the same error.

    Attributes:
        error: its class; "" for jobs without an error.
        message: its message, with … for what differs from job to job.
        signature: what all of them have in common, as filters say it.
        jobs: of each type, in the order in which they were found.
        first, last: when the first and the last of them failed, seconds since the epoch; None where nothing says so.
        attempts: runs of all of them.
    """

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
        """Which failed jobs these are, and those like them that were not looked at, as filters say it."""
        return {"state": Status.FAILED.value, "signature": self.signature}

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
    """What a look at failed jobs has found.

    Attributes:
        groups: the jobs by their errors, those that failed last first.
        types: those that were looked at, each with how many of its jobs have failed; most failed jobs first.
        failed: how many jobs of all types have failed.
        read: how many of them were looked at.
        damaged: types whose failed jobs were to be looked at, but are on a damaged page, each with the error.
    """

    groups: list[Group]
    types: list[tuple[JobType, int]]
    failed: int
    read: int
    damaged: list[tuple[JobType, StoreDamaged]]


async def newest_failures(service: JobsService, counts: Mapping[JobType, TypeCounts]) -> Failures:
    """Look at the newest failed jobs of the types with most of them: at MOST_READ of all, however many there are.

    Args:
        service: of the jobs.
        counts: what is counted of its types.
    """
    failing = sorted(((type, each.failed) for type, each in counts.items() if each.failed), key=lambda item: -item[1])
    looked = failing[:_MOST_TYPES]
    share = max(MOST_READ // max(len(looked), 1), LEAST_OF_A_TYPE)

    damaged: list[tuple[JobType, StoreDamaged]] = []
    wanted = Filter(state=Status.FAILED)

    async def newest(type: JobType) -> list[Job]:
        try:
            async with aclosing(pages(service, type, wanted, read=share, most=share, newest_first=True)) as found:
                return (await anext(found)).jobs
        except StoreDamaged as error:  # concerns no other type
            damaged.append((type, error))
            return []

    found = await asyncio.gather(*(newest(type) for type, _ in looked))
    jobs = [job for some in found for job in some]
    return Failures(grouped(jobs), looked, sum(number for _, number in failing), len(jobs), damaged)


def grouped(jobs: list[Job]) -> list[Group]:
    """Return failed jobs, without what is secret, by their errors: those that failed last first."""
    groups: dict[str, Group] = {}
    for job in jobs:
        try:
            error = job.error
            signature = signature_of(error)
            kind, message = ("", "") if error is None else (error.type, message_of(error))
            groups.setdefault(signature, Group(kind, message, signature)).add(job)
        except RecordDamaged:
            continue
    return sorted(groups.values(), key=lambda group: -(group.last or 0.0))
