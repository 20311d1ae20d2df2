"""Types whose runs crash: the command line and the dashboard look at the same minutes, and judge them alike.

A job whose run has crashed is tried again, for hours by default, so that nothing has failed for good while nothing
works. So what counts is which share of the runs that ended lately have crashed, of every type.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from jobs_service.errors import StoreDamaged
from jobs_service.model import JobType
from jobs_service.model.counts import Interval, Totals, TypeCounts

if TYPE_CHECKING:
    from jobs_service.service.service import JobsService

MOST_TYPES: Final = 200
"""Types whose last hour is read at most: those with most jobs that wait for another attempt or have failed."""
LEAST_CRASHES: Final = 5
"""Fewer crashes are no outage."""
_WINDOWS: Final = ((2, 0.5), (10, 0.2), (60, 0.9))
"""Minutes, and which share of the runs that ended in them have crashed in an outage. The first are few, so that it is
seen within a minute on a busy type; the last are many, for between two attempts there may be most of an hour."""
_ENOUGH: Final = 20
"""Runs that have to have ended in the first minutes to say that it is over."""
_AT_ONCE: Final = 50
"""Types that are read at the same time."""


@dataclass(frozen=True, slots=True)
class Outage:
    """A type whose runs crash.

    Attributes:
        type: of the jobs.
        crashed: how many runs of it have crashed, or failed.
        ended: of so many that have ended.
        minutes: within so many minutes.
        retrying: how many of its jobs wait for another attempt now.
    """

    type: JobType
    crashed: int
    ended: int
    minutes: int
    retrying: int


@dataclass(frozen=True, slots=True)
class LastHour:
    """What a look at the last hour of all types has found.

    Attributes:
        totals: what happened to the jobs of all types that ever had a run crash, fail or be lost, MOST_TYPES at most.
        outages: the types whose runs crash, those with most crashes first.
    """

    totals: Totals
    outages: tuple[Outage, ...]


async def last_hour(service: JobsService, counts: Mapping[JobType, TypeCounts]) -> LastHour:
    """Return what went wrong in the last hour: a read of at most 61 short rows for each of at most MOST_TYPES types.

    Args:
        service: of the jobs.
        counts: what is counted of its types.
    """
    now = service._context.sources.wall_time()
    suspects = [type for type, each in counts.items() if each.totals.crashed or each.totals.failed or each.totals.lost]
    suspects.sort(key=lambda type: (-counts[type].retrying, -counts[type].failed, -counts[type].totals.crashed))

    async def minutes_of(type: JobType) -> list[Interval]:
        try:
            return (await service.throughput(type, since=now - 3600, until=now))[-_WINDOWS[-1][0] :]
        except StoreDamaged:  # concerns no other type
            return []

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
    """Return whether the runs of a type crash; None if they do not.

    Args:
        type: of the jobs.
        minutes: of the last hour, the present one last.
        retrying: how many of its jobs wait for another attempt.
    """
    for number, least in _WINDOWS:
        happened = Totals.together(minutes[-number:])
        # The last attempt of a job that fails crashes as well; who ends a job as failed has no run that crashes.
        crashed = max(happened.crashed, happened.failed)
        ended = crashed + happened.succeeded + happened.released
        enough = max(crashed, retrying) >= LEAST_CRASHES
        if crashed and enough and crashed >= least * ended:
            return Outage(type, crashed, ended, number, retrying)
        if number == _WINDOWS[0][0] and ended >= _ENOUGH and crashed < _WINDOWS[1][1] * ended:
            return None  # what went wrong before is over
    return None
