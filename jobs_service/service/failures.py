"""Failures of all types: failed and retrying jobs grouped by error, and the last hour's outages.

The command line, HTTP and the dashboard show the same summaries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from jobs_service.errors import RecordDamaged
from jobs_service.json_types import time
from jobs_service.model import Job, JobType
from jobs_service.model.type_state import Totals, TypeCounts
from jobs_service.names import name
from jobs_service.service import queries
from jobs_service.service.selection import Filter, message_of, pages, signature_of

if TYPE_CHECKING:
    from jobs_service.service.service import JobsService

STATES: Final = ("failed", "retrying")
"""States of the examined jobs: failed for good, or waiting for another attempt after a crash."""
MOST_READ: Final = 200
"""Jobs read per state: the newest failed jobs of each type, and the retrying jobs with the highest ids."""
LEAST_OF_A_TYPE: Final = 10
"""Least jobs read of each type whose jobs are read."""

MOST_TYPES: Final = 200
"""Most types whose last hour is read by minute, among those in which runs went wrong: with most retrying jobs first."""
LEAST_CRASHES: Final = 5
"""Least crashes of an outage."""
_WINDOWS: Final = ((2, 0.5), (10, 0.2), (60, 0.9))
"""Minutes, with the least share of crashes among the runs that ended in them during an outage. The first window is
short, to detect an outage of a busy type within a minute; the last is long, since most of an hour may pass between two
attempts."""
_ENOUGH: Final = 20
"""Least ended runs in the first window that can prove the end of an outage."""


# Jobs by error


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
        shares: for each state and type, how many of its jobs were read, and how many there are.
    """

    groups: list[Group]
    failed: int
    retrying: int
    read: int
    shares: Mapping[tuple[str, JobType], tuple[int, int]]

    @property
    def is_cut(self) -> bool:
        """Whether there are more jobs than were read."""
        return self.read < self.failed + self.retrying

    def about(self, group: Group, type: JobType | None = None) -> int:
        """Return about how many jobs of its types, or of one, a group has, if all are like those that were read."""
        found = 0.0
        for each in group.jobs if type is None else (type,):
            read, total = self.shares[group.state, each]
            found += len(group.jobs[each]) * max(total / read, 1.0)
        return round(found)


async def newest_failures(
    service: JobsService,
    counts: Mapping[JobType, TypeCounts],
    *,
    recent: Collection[JobType] = (),
    most: int = MOST_READ,
) -> Failures:
    """Read failed and retrying jobs, from the types with the most of them.

    Args:
        service: of the jobs.
        counts: of the service's types.
        recent: types to read first.
        most: jobs of each state to read.
    """

    async def newest(type: JobType, state: str, share: int) -> tuple[str, JobType, list[Job]]:
        wanted = Filter(state=state)
        async with aclosing(pages(service, type, wanted, read=share, most=share, newest_first=True)) as found:
            return state, type, (await anext(found)).jobs

    looks = []
    for state in STATES:
        numbers = {type: getattr(each, state) for type, each in counts.items() if getattr(each, state)}
        types = sorted(numbers, key=lambda type: (type not in recent, -numbers[type]))[: most // LEAST_OF_A_TYPE]
        share = max(most // max(len(types), 1), LEAST_OF_A_TYPE)
        looks += [newest(type, state, share) for type in types]
    read = await asyncio.gather(*looks)
    jobs = [job for _, _, some in read for job in some]
    shares = {(state, type): (len(some), getattr(counts[type], state)) for state, type, some in read}
    failed, retrying = (sum(getattr(each, state) for each in counts.values()) for state in STATES)
    return Failures(grouped(jobs), failed, retrying, len(jobs), shares)


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


# The last hour


@dataclass(frozen=True, slots=True)
class Outage:
    """A type whose runs crash.

    Attributes:
        type: of the jobs.
        crashed: number of runs that crashed or failed.
        ended: number of ended runs.
        minutes: length of the window that was counted.
        retrying: number of its jobs that wait for another attempt now.
        since: number of minutes, the present one included, in which runs have crashed in this share without a break.
    """

    type: JobType
    crashed: int
    ended: int
    minutes: int
    retrying: int
    since: int = 0


@dataclass(frozen=True, slots=True)
class LastHour:
    """A summary of the last hour of all types.

    Attributes:
        totals: counts over the types with a crashed, failed or lost run, MOST_TYPES at most.
        outages: the types whose runs crash, most crashes first.
        by_type: counts of each of these types with a failed or lost run.
    """

    totals: Totals
    outages: tuple[Outage, ...]
    by_type: Mapping[JobType, Totals]


async def last_hour(service: JobsService, counts: Mapping[JobType, TypeCounts]) -> LastHour:
    """Return the crashes and outages of the last hour; reads 2 short rows per type, and 60 of MOST_TYPES types.

    Args:
        service: of the jobs.
        counts: of the service's types.
    """
    now = service.wall_time()
    suspects = [type for type, each in counts.items() if _went_wrong(each.totals)]
    suspects.sort(key=lambda type: (-counts[type].retrying, -counts[type].failed, -counts[type].totals.crashed))

    access, hour, minute = service._access, int(now // 3600), int(now // 60)
    hours = await queries.totals(access, suspects, "hour", hour - 1, hour)
    bad = [type for type, some in zip(suspects, hours, strict=True) if any(map(_went_wrong, some))][:MOST_TYPES]
    by_type: dict[JobType, Totals] = {}
    outages: list[Outage] = []
    for type, minutes in zip(bad, await queries.totals(access, bad, "minute", minute - 59, minute), strict=True):
        by_type[type] = Totals.together(minutes)
        if (outage := outage_of(type, minutes, counts[type].retrying)) is not None:
            outages.append(outage)
    outages.sort(key=lambda outage: -outage.crashed)
    failed = {type: each for type, each in by_type.items() if each.failed or each.lost}
    return LastHour(Totals.together([*by_type.values()]), tuple(outages), failed)


def _went_wrong(totals: Totals) -> bool:
    return totals.crashed + totals.failed + totals.lost > 0


def outage_of(type: JobType, minutes: Sequence[Totals], retrying: int) -> Outage | None:
    """Return the outage of a type; None if its runs do not crash.

    Args:
        type: of the jobs.
        minutes: of the last hour, the present minute last.
        retrying: number of its jobs that wait for another attempt.
    """
    for number, least in _WINDOWS:
        happened = Totals.together(minutes[-number:])
        # The last attempt of a failing job is a crash as well, but a job that its worker ends as failed has no crash.
        crashed = max(happened.crashed, happened.failed)
        ended = crashed + happened.succeeded + happened.released
        enough = max(crashed, retrying) >= LEAST_CRASHES
        if crashed and enough and crashed >= least * ended:
            return Outage(type, crashed, ended, number, retrying, _bad_minutes(minutes, _WINDOWS[1][1]))
        if number == _WINDOWS[0][0] and ended >= _ENOUGH and crashed < _WINDOWS[1][1] * ended:
            return None  # the earlier outage is over
    return None


def _bad_minutes(minutes: Sequence[Totals], least: float) -> int:
    """Return for how many minutes back the share of crashes has been so high; minutes without runs do not count."""
    bad = 0
    for back, each in enumerate(reversed(minutes), 1):
        crashed = max(each.crashed, each.failed)
        ended = crashed + each.succeeded + each.released
        if ended and crashed < least * ended:
            break
        bad = back if crashed else bad
    return bad
