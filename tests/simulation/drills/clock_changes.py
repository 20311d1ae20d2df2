"""When schedules tick, by counting: every second or minute is looked at, as the page on periodic jobs says it."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from random import Random
from typing import Final
from zoneinfo import ZoneInfo

from jobs_service import JobsService, RunningJob
from jobs_service.runner.schedule import Schedule
from tests.simulation.drills.drill import Drill

_CHANGES: Final[tuple[tuple[str, int], ...]] = (
    ("Europe/Berlin", 1711846800),
    ("Europe/Berlin", 1729990800),
    ("America/New_York", 1710054000),
    ("America/New_York", 1730613600),
    ("Australia/Lord_Howe", 1712415600),
    ("Australia/Lord_Howe", 1728142200),
    ("Pacific/Apia", 1325239200),
    ("America/Sao_Paulo", 1541300400),
    ("Africa/Cairo", 1714082400),
    ("Asia/Kathmandu", 1700000000),
    ("UTC", 1700000000),
)
"""Zones, and times near which their clocks change; of the last two nothing does."""

_DAY: Final = 86_400
_THURSDAY: Final = 3
_AROUND: Final = 2 * _DAY
_LOOKS: Final = 5
"""Times from which the next and the last tick are looked for."""

_EXPRESSIONS: Final = 6
_HOURS_OF_ALL: Final = 24


@dataclass(frozen=True)
class _Times:
    """A cron expression as what it asks for.

    Attributes:
        seconds, minutes, hours: of those in which it ticks.
        weekdays: 0 for Monday; None for all.
        text: the expression.
    """

    seconds: frozenset[int]
    minutes: frozenset[int]
    hours: frozenset[int]
    weekdays: frozenset[int] | None
    text: str

    def has(self, wall: int) -> bool:
        """Whether it ticks at what clocks show, told as seconds since they showed the beginning of 1970, a Thursday."""
        return (
            wall // 60 % 60 in self.minutes
            and wall // 3600 % 24 in self.hours
            and wall % 60 in self.seconds
            and (self.weekdays is None or (wall // _DAY + _THURSDAY) % 7 in self.weekdays)
        )


def _some_times(random: Random) -> _Times:
    """Draw an expression, of all hours or of some, mostly of those in which clocks change."""
    minute_step, first = random.choice([5, 15, 20, 30]), random.choice([0, 0, 7])
    minutes, minute_text = random.choice(
        [
            (frozenset({0}), "0"),
            (frozenset({30}), "30"),
            (frozenset({59}), "59"),
            (frozenset({15, 45}), "15,45"),
            (frozenset(range(first, 60, minute_step)), f"{first}-59/{minute_step}"),
        ]
    )
    hour = random.choice([0, 1, 2, 2, 2, 3, 23])
    hours, hour_text = random.choice(
        [
            (frozenset(range(24)), "*"),
            (frozenset(range(24)), "0-23"),
            (frozenset({hour}), str(hour)),
            (frozenset({hour}), str(hour)),
            (frozenset(range(0, 24, 2)), "*/2"),
            (frozenset(range(1, 24, 2)), "1-23/2"),
            (frozenset({1, 2, 3}), "1-3"),
            (frozenset(range(1, 24)), "1-23"),
        ]
    )
    weekdays, weekday_text = random.choice(
        [(None, "*"), (None, "*"), (frozenset({6}), "SUN"), (frozenset({5, 6}), "6-7")]
    )
    seconds, second_text = random.choice([(frozenset({0}), ""), (frozenset({0}), ""), (frozenset({30}), "30 ")])
    text = f"{second_text}{minute_text} {hour_text} * * {weekday_text}"
    return _Times(seconds, minutes, hours, weekdays, text)


class _Zone:
    """Ticks in a zone around a time, found by looking at each minute."""

    def __init__(self, name: str, middle: int) -> None:
        self._zone = ZoneInfo(name)
        self.begin, self.end = middle - _AROUND, middle + _AROUND

    def _offset(self, t: int) -> int:
        offset = datetime.fromtimestamp(t, self._zone).utcoffset()
        assert offset is not None
        return int(offset.total_seconds())

    def ticks(self, times: _Times) -> list[int]:
        """Return all ticks of some days."""
        changes = self._changes()
        bounds = [self.begin, *changes, self.end]
        if len(times.hours) == _HOURS_OF_ALL:
            found = [tick for begin, end in pairwise(bounds) for tick in self._walls(times, begin, end)]
            return sorted({*found})
        # Each time of day once: the first one where clocks show it twice, at the change where they skip it.
        ticks: set[int] = set()
        latest = -math.inf
        for begin, end in pairwise(bounds):
            offset = self._offset(begin)
            ticks |= {tick for tick in self._walls(times, begin, end) if tick + offset > latest}
            before = self._offset(begin - 1)
            if begin != self.begin and offset > before:
                skipped = range(begin + before, begin + offset)
                ticks |= {begin for wall in skipped if wall % 30 == 0 and times.has(wall)}
            latest = max(latest, end + offset - 1)
        return sorted(ticks)

    def _walls(self, times: _Times, begin: int, end: int) -> list[int]:
        """Return the ticks between two times, in which clocks do not change."""
        offset = self._offset(begin)
        [second] = times.seconds
        first = begin + (second - (begin + offset)) % 60
        return [tick for tick in range(first, end, 60) if times.has(tick + offset)]

    def _changes(self) -> list[int]:
        found = []
        for begin in range(self.begin, self.end, 3600):
            end = min(begin + 3600, self.end)
            if self._offset(begin) != self._offset(end):
                before = self._offset(begin)
                found.append(begin + bisect_left(range(begin, end), True, key=lambda t: self._offset(t) != before))
        return found


async def tell_the_ticks(drill: Drill) -> None:
    """Register periodic handlers, and ask for their next and last ticks, also where clocks change."""
    service = drill.client.process.service(supervise=False)
    for number in range(_EXPRESSIONS):
        _look_at_cron(drill, service, ("cron", number))
    _look_at_period(drill, service)


async def _nothing(job: RunningJob) -> None:
    """Do nothing."""


def _look_at_cron(drill: Drill, service: JobsService, type: tuple[str, int]) -> None:
    random = drill.random
    name, middle = random.choice(_CHANGES)
    times = _some_times(random)
    service.cron(times.text, timezone=name, type=type)(_nothing)
    schedule = service.periodic[type].schedule
    zone = _Zone(name, middle)
    ticks = zone.ticks(times)
    near = [tick for tick in ticks if abs(tick - middle) < _DAY // 4]
    for _ in range(_LOOKS):
        at = random.choice([middle, *near]) + random.choice([-1, 0, 1, random.uniform(-9000, 9000)])
        _look(drill, f"{times.text!r} in {name}", schedule, ticks, at)


def _look_at_period(drill: Drill, service: JobsService) -> None:
    """Ticks of a period are its multiples since the epoch, however it is said."""
    random = drill.random
    said: list[tuple[str | float | timedelta, float]] = [
        ("90s", 90.0),
        ("1h30m", 5400.0),
        ("2d", 2 * 86_400.0),
        (7, 7.0),
        (2.5, 2.5),
        ("1.1s", 1.1),
        (timedelta(days=1, hours=2), 26 * 3600.0),
        (timedelta(minutes=3, milliseconds=500), 180.5),
    ]
    period, seconds = random.choice(said)
    service.every(period, type="every")(_nothing)
    schedule = service.periodic["every"].schedule
    for _ in range(_LOOKS):
        number = random.randint(1, 2_000_000_000) // math.ceil(seconds)
        ticks = [each * seconds for each in range(number - 3, number + 4)]
        at = ticks[3] + random.choice([0.0, 0.0, -0.3, 0.4])
        _look(drill, f"every {period!r}", schedule, ticks, at)


def _look(drill: Drill, what: str, schedule: Schedule, ticks: list[float] | list[int], at: float) -> None:
    after, until = [each for each in ticks if each > at], [each for each in ticks if each <= at]
    if after and schedule.next_after(at) != after[0]:
        drill.complain(f"{what} ticks after {_shown(at)} at {_shown(schedule.next_after(at))}, not {_shown(after[0])}")
    if until and schedule.previous_at(at) != until[-1]:
        found = schedule.previous_at(at)
        drill.complain(f"{what} has ticked until {_shown(at)} at {found and _shown(found)}, not {_shown(until[-1])}")


def _shown(t: float) -> str:
    return f"{t} ({datetime.fromtimestamp(t, UTC):%Y-%m-%d %H:%M:%S})" if math.isfinite(t) else str(t)
