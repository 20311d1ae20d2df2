"""The ticks of periodic jobs: schedules, and the selection of due ticks.

Pure functions without a clock and a store. Times are seconds since the epoch. Ticks depend only on the schedule, so
that all processes agree on them.
"""

from __future__ import annotations

import contextlib
import enum
import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import Final, Protocol
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from jobs_service import durations
from jobs_service.arguments import check_duration
from jobs_service.durations import Bounds, Duration
from jobs_service.errors import InvalidJob, a_kind_of, shown

SHORTEST: Final = 1.0
"""Least seconds between two ticks."""

LONGEST: Final = 36_500 * 86_400.0
"""Most seconds between two ticks of a fixed period."""

END: Final = 250_000_000_000
"""The latest tick of any schedule, in the year 9892: a search must not run into the end of Python's calendar."""

PUNCTUAL: Final = 60.0
"""Seconds that a tick may be late before `Missed.SKIP` drops it."""

MOST_TICKS: Final = 1000
"""Most ticks that one call of `due_ticks` returns."""

MOST_MADE_UP: Final = 100
"""Most missed ticks that `Missed.ALL` makes up for, the newest ones: a job of every minute must not run ten thousand
times after a week without a process.
"""

_PERIODS: Final = Bounds(SHORTEST, LONGEST)
_DAY: Final = 86_400
_WALL_EPOCH: Final = datetime(1970, 1, 1)
_NICKNAMES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
"""The nicknames of crontab(5) for some expressions."""

_LONGEST_EXPRESSION: Final = 1000


class Missed(enum.StrEnum):
    """The treatment of ticks that passed while no process could enqueue their jobs."""

    SKIP = "skip"
    """Drop them, except the newest one if it is at most `PUNCTUAL` seconds late."""
    ONCE = "once"
    """Enqueue one job, for the newest of them."""
    ALL = "all"
    """Enqueue a job for each, oldest first; if there are more than `MOST_MADE_UP`, for the newest ones."""


class Schedule(Protocol):
    """The ticks of a periodic job, from the epoch on until `END`."""

    def next_after(self, t: float) -> float:
        """Return the first tick later than `t`; math.inf for none."""

    def previous_at(self, t: float) -> float | None:
        """Return the last tick not later than `t`; None for none."""


@dataclass(frozen=True, slots=True)
class Every:
    """Ticks with a fixed period, at its multiples since the epoch, not since the start of the process.

    `Every(86_400)` ticks at midnight UTC, `Every(604_800)` on Thursdays, because the epoch was a Thursday.

    Args:
        seconds: the period, from 1 second to 36,500 days.

    Raises:
        InvalidJob: the period is out of range.
    """

    seconds: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "seconds", parse_every(self.seconds))

    def next_after(self, t: float) -> float:
        """Return the first tick later than `t`; math.inf for none."""
        if t >= END:
            return math.inf
        tick = (self._multiple_at(t) + 1) * self.seconds if t >= 0 else 0.0
        return tick if tick <= END else math.inf

    def previous_at(self, t: float) -> float | None:
        """Return the last tick not later than `t`; None for none."""
        return self._multiple_at(min(t, END)) * self.seconds if t >= 0 else None

    def _multiple_at(self, t: float) -> int:
        multiple = math.floor(t / self.seconds)
        # A tick is the rounded product. The quotient above is rounded as well, so at a tick it may be off by one.
        if multiple * self.seconds > t:
            return multiple - 1
        return multiple + 1 if (multiple + 1) * self.seconds <= t else multiple


@dataclass(frozen=True, slots=True)
class Cron:
    """Ticks at the times of a cron expression on the clocks of a time zone.

    A clock change neither loses nor doubles a tick:

    - An expression that names hours (`30 2 * * *`, `0 */6 * * *`) ticks once for each time of day. For times in an hour
      that the clocks skip there is a single tick, at the moment of the change; times in an hour that the clocks show
      twice tick the first time only.
    - An expression for every hour (`*/15 * * * *`) keeps its pace: it ticks in both of the repeated hours, and a
      skipped hour has no ticks, because it takes no time.

    These are the rules of cron(8) for "jobs that run at a specific time or with a granularity greater than one hour"
    and for more frequent jobs. cronsim walks over the times of day. Clock changes are handled here, because cronsim
    fails when clocks move by half an hour, and when it begins in a repeated hour.

    Args:
        expression: minute, hour, day of month, month, day of week; six fields begin with the second. cronsim's syntax:
            `*`, lists, ranges, steps, names of months and days, `L`, `LW`, `5L`, `MON#2`. Or `@hourly`, `@daily`,
            `@midnight`, `@weekly`, `@monthly`, `@yearly`, `@annually`.
        timezone: the IANA name of a time zone, or a ZoneInfo with a name. The default is not the machine's zone,
            because all processes must agree.

    Raises:
        InvalidJob: the expression is invalid or never ticks, or the time zone is unknown.
    """

    expression: str
    timezone: str | ZoneInfo = "UTC"
    _zone: _Zone = field(init=False, repr=False, compare=False)
    _every_hour: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.expression, str):
            object.__setattr__(self, "expression", _NICKNAMES.get(self.expression.lower(), self.expression))
        object.__setattr__(self, "_every_hour", len(_cron(self.expression).hours) == 24)
        zone = _zone_info(self.timezone)
        object.__setattr__(self, "timezone", zone.key)
        object.__setattr__(self, "_zone", _Zone(zone))

    def next_after(self, t: float) -> float:
        """Return the first tick later than `t`; math.inf for none."""
        if t >= END:
            return math.inf
        tick = self._tick_after(math.floor(max(t, -1.0)))
        return tick if tick <= END else math.inf

    def previous_at(self, t: float) -> float | None:
        """Return the last tick not later than `t`; None for none."""
        return self._tick_at(math.floor(min(t, END))) if t >= 0 else None

    def _tick_after(self, t: int) -> float:
        offset = self._zone.offset(t)
        wall = t + offset
        for change in self._zone.changes(t - _DAY, t)[-1:]:
            # In a repeated hour, the times of day before the change have ticked already.
            wall = max(wall, self._first_wall(change) - 1)
        while True:
            found = self._wall_after(wall)
            if found is None:
                return math.inf
            tick = max(found - offset, t)
            changes = self._zone.changes(t, tick)
            if not changes:
                return float(tick)
            t = changes[0]
            offset = self._zone.offset(t)
            wall = self._first_wall(t) - 1

    def _tick_at(self, t: int) -> float | None:
        offset = self._zone.offset(t)
        wall = t + offset
        while True:
            found = self._wall_at(wall)
            if found is None or found < -_DAY:
                return None
            tick = found - offset
            changes = self._zone.changes(tick - _DAY, t)
            if not changes or found >= self._first_wall(changes[-1]):
                tick = max([tick, *changes[-1:]])
                return float(tick) if tick >= 0 else None
            t = changes[-1] - 1
            offset = self._zone.offset(t)
            wall = t + offset

    def _first_wall(self, change: int) -> int:
        """Return the first time of day after a clock change, as seconds on the wall clock."""
        return change + self._zone.offset(change if self._every_hour else change - 1)

    def _wall_after(self, wall: int) -> int | None:
        found = next(CronSim(self.expression, _WALL_EPOCH + timedelta(seconds=wall)), None)
        return None if found is None else _wall_seconds(found)

    def _wall_at(self, wall: int) -> int | None:
        found = next(CronSim(self.expression, _WALL_EPOCH + timedelta(seconds=wall + 1), reverse=True), None)
        return None if found is None else _wall_seconds(found)


class _Zone:
    """The clocks of a time zone, in whole seconds."""

    def __init__(self, zone: ZoneInfo) -> None:
        self._zone = zone

    def offset(self, t: int) -> int:
        """Return the offset of the clocks from UTC at `t`, in seconds."""
        offset = datetime.fromtimestamp(t, self._zone).utcoffset()
        return 0 if offset is None else offset // timedelta(seconds=1)

    def changes(self, after: int, until: int) -> list[int]:
        """Return the times later than `after`, up to `until`, at which the offset changes.

        Two changes within a day that cancel each other are not found: the database has none since 1970.
        """
        found = []
        offset = self.offset(after)
        for begin in range(after, until, _DAY):
            end = min(begin + _DAY, until)
            before, offset = offset, self.offset(end)
            if offset != before:
                found.append(self._change(begin, end))
        return found

    def _change(self, begin: int, end: int) -> int:
        before = self.offset(begin)
        return begin + bisect_left(range(begin, end), True, key=lambda t: self.offset(t) != before)


def parse_every(value: Duration) -> float:
    """Return the seconds of a period.

    Args:
        value: a duration from 1 second to 36,500 days.

    Raises:
        InvalidJob: the period is out of range.
    """
    seconds = check_duration("period", value, _PERIODS)
    assert seconds is not None
    return seconds


def last_tick(schedule: Schedule, noted: float | None) -> float | None:
    """Return the last tick of a periodic handler; None before its first one.

    Args:
        schedule: the handler's schedule.
        noted: the last tick in the store. Before the first one it is the time of the handler's first run, which is no
            tick.
    """
    return noted if noted is not None and schedule.previous_at(noted) == noted else None


def in_words(schedule: Schedule) -> str:
    """Return a schedule in words: `every 1h30m`, or a cron expression and its time zone."""
    if isinstance(schedule, Every):
        return f"every {durations.typed(schedule.seconds)}"
    return f"{schedule.expression} {schedule.timezone}" if isinstance(schedule, Cron) else str(schedule)


def due_ticks(schedule: Schedule, last: float | None, now: float, missed: Missed) -> list[float]:
    """Return the ticks whose jobs must be enqueued now, oldest first, at most `MOST_TICKS`.

    With `Missed.ALL`, a next call continues with the last of them as `last`. A tick up to `last` is never returned:
    nothing ticks twice after a clock jumps back, and after a clock was ahead nothing ticks until its time has come.

    Args:
        schedule: the schedule of the job.
        last: the last enqueued tick, or the time of the first call if there was none yet. None in the first call: then
            only a tick at this very moment is due, and unless it is returned the caller passes `now` as `last` to the
            next call.
        now: seconds since the epoch.
        missed: the treatment of late ticks.
    """
    first = schedule.next_after(math.nextafter(now, -math.inf) if last is None else last)
    if first > now:
        return []
    if missed is Missed.ALL:
        return list(islice(_ticks_until(schedule, first, now), MOST_TICKS))
    newest = schedule.previous_at(now)
    if newest is None or (missed is Missed.SKIP and now - newest > PUNCTUAL):
        return []
    return [newest]


def made_up_since(schedule: Schedule, last: float, now: float) -> float:
    """Return the tick after which `Missed.ALL` makes up for missed ones: `last`, or a later one if these are too many.

    Args:
        schedule: the schedule of the job.
        last: the last enqueued tick.
        now: seconds since the epoch.
    """
    since: float | None = now
    for _ in range(MOST_MADE_UP + 1):
        assert since is not None
        since = schedule.previous_at(since)
        if since is None or since <= last:
            return last
        found, since = since, math.nextafter(since, -math.inf)
    return found


def _ticks_until(schedule: Schedule, tick: float, now: float) -> Iterator[float]:
    while tick <= now:
        yield tick
        tick = schedule.next_after(tick)


def _cron(expression: object) -> CronSim:
    if not isinstance(expression, str):
        raise _no_cron(expression, f"{a_kind_of(expression)} is no text")
    if len(expression) > _LONGEST_EXPRESSION:
        raise _no_cron(expression, f"longer than {_LONGEST_EXPRESSION} characters")
    try:
        cron = CronSim(expression, _WALL_EPOCH)
    except CronSimError as error:
        reason = str(error)
        raise _no_cron(expression, reason[:1].lower() + reason[1:]) from None
    if next(cron, None) is None:
        raise _no_cron(expression, "it never ticks")
    return cron


def _no_cron(expression: object, why: str) -> InvalidJob:
    allowed = "minute, hour, day of month, month, day of week, such as '0 3 * * MON-FRI' (six fields: second first)"
    return InvalidJob(f"cron expression {shown(expression)}: {why}; write {allowed}")


def _zone_info(timezone: object) -> ZoneInfo:
    name = timezone.key if isinstance(timezone, ZoneInfo) else timezone
    if isinstance(name, str):
        # An unknown name, one that is no possible name or not the name of a zone's file, a directory.
        with contextlib.suppress(KeyError, ValueError, OSError):
            return ZoneInfo(name)
    raise InvalidJob(
        f"time zone {shown(timezone)}: there is none of that name; write an IANA name, such as 'Europe/Berlin' or 'UTC'"
    )


def _wall_seconds(wall: datetime) -> int:
    return (wall - _WALL_EPOCH) // timedelta(seconds=1)
