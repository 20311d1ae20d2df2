"""Outages: types whose runs crash, judged alike on the command line and on the dashboard.

A crashed job is retried, for hours by default, so an outage shows no failed jobs at first. Therefore the share of
crashes among each type's recently ended runs is decisive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from jobs_service.model import JobType
from jobs_service.model.counts import Interval, Totals, TypeCounts

if TYPE_CHECKING:
    from jobs_service.service.service import JobsService

MOST_TYPES: Final = 200
"""Most types whose last hour is read: the types with most retrying or failed jobs."""
LEAST_CRASHES: Final = 5
"""Least crashes of an outage."""
_WINDOWS: Final = ((2, 0.5), (10, 0.2), (60, 0.9))
"""Minutes, with the least share of crashes among the runs that ended in them during an outage. The first window is
short, to detect an outage of a busy type within a minute; the last is long, since most of an hour may pass between two
attempts."""
_ENOUGH: Final = 20
"""Least ended runs in the first window that can prove the end of an outage."""
_AT_ONCE: Final = 50
"""Types read at the same time."""


@dataclass(frozen=True, slots=True)
class Outage:
    """A type whose runs crash.

    Attributes:
        type: of the jobs.
        crashed: number of runs that crashed or failed.
        ended: number of ended runs.
        minutes: length of the window that was counted.
        retrying: number of its jobs that wait for another attempt now.
    """

    type: JobType
    crashed: int
    ended: int
    minutes: int
    retrying: int


@dataclass(frozen=True, slots=True)
class LastHour:
    """A summary of the last hour of all types.

    Attributes:
        totals: counts over the types that ever had a crashed, failed or lost run, MOST_TYPES at most.
        outages: the types whose runs crash, most crashes first.
    """

    totals: Totals
    outages: tuple[Outage, ...]


async def last_hour(service: JobsService, counts: Mapping[JobType, TypeCounts]) -> LastHour:
    """Return the crashes and outages of the last hour; reads at most 61 short rows per type, of MOST_TYPES types.

    Args:
        service: of the jobs.
        counts: of the service's types.
    """
    now = service.wall_time()
    suspects = [type for type, each in counts.items() if each.totals.crashed or each.totals.failed or each.totals.lost]
    suspects.sort(key=lambda type: (-counts[type].retrying, -counts[type].failed, -counts[type].totals.crashed))

    async def minutes_of(type: JobType) -> list[Interval]:
        return (await service.throughput(type, since=now - 3600, until=now))[-_WINDOWS[-1][0] :]

    totals: list[Totals] = []
    outages: list[Outage] = []
    suspects = suspects[:MOST_TYPES]
    for at in range(0, len(suspects), _AT_ONCE):
        some = suspects[at : at + _AT_ONCE]
        for type, found in zip(some, await asyncio.gather(*map(minutes_of, some)), strict=True):
            minutes = [each.totals for each in found]
            totals.append(Totals.together(minutes))
            if (outage := outage_of(type, minutes, counts[type].retrying)) is not None:
                outages.append(outage)
    outages.sort(key=lambda outage: -outage.crashed)
    return LastHour(Totals.together(totals), tuple(outages))


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
            return Outage(type, crashed, ended, number, retrying)
        if number == _WINDOWS[0][0] and ended >= _ENOUGH and crashed < _WINDOWS[1][1] * ended:
            return None  # the earlier outage is over
    return None
