"""Failed and retrying jobs of all types, by what went wrong: the command line, HTTP and the dashboard show the same."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from jobs_service.errors import RecordDamaged, StoreDamaged
from jobs_service.model import Job, JobType
from jobs_service.model.counts import TypeCounts
from jobs_service.names import one_line
from jobs_service.service.filters import BadFilter, Filter

if TYPE_CHECKING:
    from jobs_service.service.service import JobsService

STATES: Final = ("failed", "retrying")
"""In which jobs are that are looked at: failed for good, or waiting for another attempt after a crash."""
MOST_READ: Final = 200
"""Jobs of each state that are looked at: the newest failed ones of each type, and the retrying ones of highest ids."""
LEAST_OF_A_TYPE: Final = 10
_MOST_TYPES: Final = MOST_READ // LEAST_OF_A_TYPE

_VARIES: Final = re.compile(
    r"0x[0-9a-fA-F]+|[0-9a-fA-F]{8,}(?:-[0-9a-fA-F]{4,})*|\d+(?:[.:,]\d+)*|'[^']*'|\"[^\"]*\"|[\ud800-\udfff]+"
)
"""What differs, and half characters, which no filter has."""
_HOLE: Final = "…"


@dataclass(slots=True)
class Group:
    """Failed or retrying jobs with the same error.

    Attributes:
        state: of STATES.
        error: its class; "" for jobs without an error.
        message: its message, with … for what differs from job to job.
        fixed: the longest piece of the message that all have.
        jobs: of each type, in the order in which they were found.
        first, last: when the first and the last of them failed, or crashed, seconds since the epoch; None where nothing
            says so.
        attempts: runs of all of them.
    """

    state: str
    error: str
    message: str
    fixed: str
    jobs: dict[JobType, list[Job]] = field(default_factory=dict)
    first: float | None = None
    last: float | None = None
    attempts: int = 0

    @property
    def count(self) -> int:
        """How many jobs there are."""
        return sum(map(len, self.jobs.values()))

    @property
    def filter(self) -> dict[str, str] | None:
        """Which jobs have this error, as filters say it; None where no filter finds them.

        None finds jobs without an error, and those whose error's class has half characters or spaces around it.
        """
        wanted = {"state": self.state, "error": self.error, **({"text": self.fixed} if self.fixed else {})}
        try:
            return wanted if self.error and Filter.of(wanted, ()).to_dict() == wanted else None
        except BadFilter:
            return None

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
        try:
            found = await service.page(type, state=state, limit=share, newest_first=True)
            return [*map((await service.get_redaction(type)).job, found.jobs)]
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


def signature(message: str) -> tuple[str, str]:
    """Return a message without what differs from job to job, and the longest piece of it that does not differ."""
    line = message.strip().partition("\n")[0][:300]
    pieces = _VARIES.split(line)
    fixed = max((piece.strip() for piece in pieces), key=len, default="")
    return one_line(_HOLE.join(pieces), 160), fixed


def grouped(jobs: list[Job]) -> list[Group]:
    """Return failed and retrying jobs, without what is secret, by state and error: those that failed last first."""
    groups: dict[tuple[str, str, str], Group] = {}
    for job in jobs:
        try:
            error = job.error
            kind, (message, fixed) = ("", ("", "")) if error is None else (error.type, signature(error.message))
            state = "retrying" if job.retrying else "failed"
            groups.setdefault((state, kind, message), Group(state, kind, message, fixed)).add(job)
        except RecordDamaged:
            continue
    return sorted(groups.values(), key=lambda group: -(group.last or 0.0))
