"""Recent events of a type's jobs as figures, charts and complaints, and what pages read once for all their visitors."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from jobs_service.dashboard import rendering
from jobs_service.durations import rest_after
from jobs_service.model.type_state import Histogram, Interval, Totals, TypeCounts
from jobs_service.service.failures import LastHour, Outage, last_hour

if TYPE_CHECKING:
    from jobs_service import JobsService, JobType
    from jobs_service.service.queries import Resolution

WIDTH: Final = 132.0
HEIGHT: Final = 28.0

WINDOWS: Final = ("hour", "day")
SPANS: Final = {"hour": "last hour", "day": "last day"}
SLOW: Final = 60.0
"""Seconds that a ready job may wait before the overview reports it."""
GROWS: Final = 20
"""Least growth in due jobs of a type that the overview reports."""

_BACK: Final[dict[str, tuple[float, Resolution, int]]] = {"hour": (3600.0, "minute", 60), "day": (86_400.0, "hour", 24)}

T = TypeVar("T")

QUICK: Final = 0.02
"""A read that takes fewer seconds is repeated for each request; slower reads are shared for a while."""

_EMBEDDED: Final = ("lmdb", "sqlite")
_MOST_SIZES: Final = 60
"""Most sizes that are remembered."""
_SIZES_APART: Final = 60.0
"""Least seconds between two remembered sizes, which together span an hour."""


# Charts


@dataclass(frozen=True, slots=True)
class ChartBar:
    """A rectangle of a chart.

    Attributes:
        kind: the state that determines the colour.
        x, y, width, height: in units of the chart.
    """

    kind: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Chart:
    """The geometry that a template draws.

    Attributes:
        width, height: of the drawing, in its own units.
        bars: rectangles.
        line, area: the points of a line and of the area below it; "" for none.
        says: the chart in words, for screen readers.
        most: the greatest value.
    """

    width: float
    height: float
    bars: tuple[ChartBar, ...] = ()
    line: str = ""
    area: str = ""
    says: str = ""
    most: float = 0.0


def stacked(
    series: Sequence[tuple[str, Sequence[int]]], says: str, *, width: float = WIDTH, height: float = HEIGHT
) -> Chart:
    """Return a chart of stacked bars.

    Args:
        series: kinds with their values, the lowest first; all of the same length.
        says: the chart in words.
        width, height: of the drawing.
    """
    places = len(series[0][1])
    most = max((sum(values[place] for _, values in series) for place in range(places)), default=0)
    step = width / max(places, 1)
    bars = []
    for place in range(places):
        below = 0.0
        for kind, values in series:
            if not values[place]:
                continue
            # Even a single event beside very many others must be visible.
            tall = max(values[place] / most * (height - 1), 1.5)
            bars.append(
                ChartBar(
                    kind,
                    round(place * step, 2),
                    round(max(height - below - tall, 0.0), 2),
                    round(max(step * 0.8, 0.8), 2),
                    round(tall, 2),
                )
            )
            below += tall
    return Chart(width, height, tuple(bars), says=says, most=float(most))


def line(values: Sequence[float | None], says: str, *, width: float = WIDTH, height: float = HEIGHT) -> Chart:
    """Return a line chart; a missing value is drawn at the bottom.

    Args:
        values: the values from left to right.
        says: the chart in words.
        width, height: of the drawing.
    """
    known = [value for value in values if value is not None]
    most = max(known, default=0.0)
    if not most:
        return Chart(width, height, says=says)
    step = width / max(len(values) - 1, 1)
    points = [
        (round(place * step, 2), round(height - 1 - (value or 0.0) / most * (height - 3), 2))
        for place, value in enumerate(values)
    ]
    drawn = " ".join(f"{x},{y}" for x, y in points)
    return Chart(width, height, line=drawn, area=f"0,{height} {drawn} {width},{height}", says=says, most=most)


# Recent events


@dataclass(frozen=True, slots=True)
class Lately:
    """The events of a type's jobs within a time window.

    Attributes:
        totals, waited, ran: sums over the window.
        intervals: the same by minute or by hour.
    """

    totals: Totals
    waited: Histogram
    ran: Histogram
    intervals: tuple[Interval, ...]

    @property
    def ended(self) -> int:
        """The number of jobs that ended for good."""
        return self.totals.succeeded + self.totals.failed + self.totals.canceled

    def grown(self, counts: TypeCounts) -> int:
        """Return the least growth of the due jobs that no worker has begun.

        It is the number of added jobs minus the ended ones, and minus all jobs that are scheduled, wait for another
        attempt or run, because all of these may have been added within the window.
        """
        grown = self.totals.added - self.ended - counts.scheduled - counts.retrying - counts.running
        return min(grown, counts.ready)


class Complaint(NamedTuple):
    """A problem of a type that needs attention.

    Attributes:
        rank: the severity; the lowest is the worst.
        state: the state that determines the colour.
        word: the problem in one word.
        says: the sentence about the type, without its subject.
        query: the filter that finds the jobs.
    """

    rank: int
    state: str
    word: str
    says: str
    query: dict[str, str]


async def lately(service: JobsService, type: JobType, window: str, now: float) -> Lately:
    """Return the recent events of a type's jobs.

    Args:
        service: the service.
        type: the type.
        window: one of WINDOWS.
        now: the present time, seconds since the epoch.
    """
    seconds, resolution, most = _BACK[window]
    found = await service.throughput(type, since=now - seconds, until=now, resolution=resolution)
    return summed(found[-most:])


def summed(intervals: Sequence[Interval]) -> Lately:
    """Return the sum of several intervals."""
    return Lately(
        Totals.together([each.totals for each in intervals]),
        Histogram.together([each.waited for each in intervals]),
        Histogram.together([each.ran for each in intervals]),
        tuple(intervals),
    )


def ended_chart(found: Lately, name: str, span: str, **size: float) -> Chart:
    """Return a chart of the ended jobs by outcome, and of the crashed runs with another attempt."""
    kinds = ("succeeded", "failed", "canceled")
    series = [(kind, [getattr(each.totals, kind) for each in found.intervals]) for kind in kinds]
    series.append(("retrying", [retried(each.totals) for each in found.intervals]))
    told = ", ".join(f"{rendering.count(getattr(found.totals, kind))} {kind}" for kind in kinds)
    return stacked(series, f"{name}, {span}: {told}, {rendering.count(retried(found.totals))} crashed", **size)


def retried(totals: Totals) -> int:
    """Return the least number of crashed runs that another attempt follows."""
    return max(totals.crashed - totals.failed, 0)


def added_chart(found: Lately, name: str, span: str, **size: float) -> Chart:
    """Return a chart of the added jobs."""
    says = f"{name}, {span}: {rendering.count(found.totals.added)} added"
    return stacked([("added", [each.totals.added for each in found.intervals])], says, **size)


def waited_chart(found: Lately, name: str, span: str, **size: float) -> Chart:
    """Return a chart of the 95th percentile of waiting times."""
    values = [each.waited.percentile(95) if any(each.waited.counts) else None for each in found.intervals]
    told = within(found.waited, 95) or "none was started"
    return line(values, f"{name}, {span}, waiting time of 95 of 100 jobs: {told}", **size)


def within(histogram: Histogram, percent: float) -> str:
    """Return a percentile of a histogram in words; "" for an empty histogram."""
    seconds = histogram.percentile(percent) if any(histogram.counts) else None
    return "" if seconds is None else f"within {_round(seconds)}"


def _round(seconds: float) -> str:
    """Return the bound of a bucket, a power of two, rounded to two digits if it is below a second."""
    if seconds >= 1 or seconds == 0:
        return rendering.duration(seconds)
    digits = 1 - math.floor(math.log10(seconds))
    return rendering.duration(round(seconds, digits))


def percentiles(histogram: Histogram) -> list[tuple[str, str]]:
    """Return percentiles in words: "half of them", "within 2 s"."""
    if not any(histogram.counts):
        return []
    return [
        (words, within(histogram, percent))
        for words, percent in (("half of them", 50), ("95 of 100", 95), ("99 of 100", 99))
    ]


def outage(found: Outage) -> Complaint:
    """Return the complaint about a type whose runs crash."""
    says = f"had {crashes(found, 'crash')}"
    if found.retrying:
        says += (
            f"; {rendering.many(found.retrying, 'job')} wait{'s' if found.retrying == 1 else ''} for another attempt"
        )
    return Complaint(1, "failed", "crashes", f"{says}.", {"state": "retrying" if found.retrying else "failed"})


def crashes(found: Outage, verb: str) -> str:
    """Return the number of crashed runs of a type as part of a sentence."""
    ended, within = rendering.many(found.ended, "run"), rendering.many(found.minutes, "minute")
    return f"{rendering.count(found.crashed)} of {ended} {verb} within the last {within}"


def complaint(row: dict[str, Any], crashing: Outage | None, span: str) -> Complaint | None:
    """Return the problems of a type in one line, the worst first; None without problems.

    Args:
        row: the type's row of the overview: paused, of_states, oldest_age, lately.
        crashing: the outage, if the type's runs crash.
        span: the time window of `lately`, in words.
    """
    found = [*_complaints(row, crashing, span)]
    if not found:
        return None
    return found[0]._replace(says=" It ".join(each.says for each in found))


def _complaints(row: dict[str, Any], crashing: Outage | None, span: str) -> Iterator[Complaint]:
    happened: Lately = row["lately"]
    counts: TypeCounts = row["of_states"]
    if crashing is not None:
        yield outage(crashing)
    if happened.totals.failed:
        failed = rendering.many(happened.totals.failed, "job")
        yield Complaint(2, "failed", "failed", f"had {failed} fail within the {span}.", {"state": "failed"})
    if happened.totals.lost:
        lost = rendering.many(happened.totals.lost, "time")
        yield Complaint(3, "failed", "lost", f"lost its worker {lost} within the {span}.", {"state": "running"})
    if row["paused"]:
        # Its jobs wait because it is paused, and for nothing else.
        if counts.ready:
            wait = "waits" if counts.ready == 1 else "wait"
            yield Complaint(5, "plain", "paused", f"is paused, and {rendering.many(counts.ready, 'job')} {wait}.", {})
        return
    age = row["oldest_age"]
    if age is not None and age > SLOW:
        says = f"has a job that has been ready for {rendering.duration(age)}."
        yield Complaint(4, "ready", "waits", says, {"state": "ready"})
    grown = happened.grown(counts)
    if grown >= GROWS and grown * 10 >= counts.ready:
        says = f"grows: {rendering.many(grown, 'job')} more came due than were begun within the {span}."
        yield Complaint(4, "ready", "grows", says, {"state": "ready"})


# Counts of all types


class SharedCounts:
    """Reads the counts of all types.

    Args:
        service: the service.
    """

    def __init__(self, service: JobsService) -> None:
        self._service = service
        self._counts: _Shared[dict[JobType, TypeCounts]] = _Shared(service.counts)
        self._last_hour: _Shared[LastHour] = _Shared(self._read_last_hour)

    async def get(self, age: float = 0.0) -> dict[JobType, TypeCounts]:
        """Return the counts, which may be some tenths of a second old if there are very many types.

        Args:
            age: seconds that they may be old in any case.
        """
        return await self._counts.get(age)

    async def last_hour(self) -> LastHour:
        """Return the failures of the last hour, which may be as old."""
        return await self._last_hour.get()

    async def _read_last_hour(self) -> LastHour:
        return await last_hour(self._service, await self.get())


class _Shared(Generic[T]):
    """A value that is read once for all simultaneous callers if reading it takes long."""

    def __init__(self, read: Callable[[], Awaitable[T]]) -> None:
        self._read = read
        self._found: T | None = None
        self._read_at = self._good_until = 0.0
        self._reading = asyncio.Lock()

    async def get(self, age: float = 0.0) -> T:
        async with self._reading:
            began = time.monotonic()
            if self._found is not None and (began < self._good_until or began - self._read_at < age):
                return self._found
            self._found = found = await self._read()
            self._read_at = ended = time.monotonic()
            took = ended - began
            self._good_until = 0.0 if took < QUICK else ended + rest_after(took)
            return found


# The size of the store


@dataclass(frozen=True, slots=True)
class StoreSize:
    """The size of a store.

    Attributes:
        bytes: bytes that the store takes.
        free: free bytes in its file system.
        grown: bytes of growth since the oldest remembered size.
        since: the time of that size, seconds since the epoch; None if there is no earlier size.
    """

    bytes: int
    free: int
    grown: int
    since: float | None


class SizeWatch:
    """Remembers the sizes of a store at earlier views of the page."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque(maxlen=_MOST_SIZES)

    def look(self, location: str) -> StoreSize | None:
        """Return the size of a store and its growth; None for a store that is none of files."""
        scheme, _, path = location.partition(":")
        if scheme not in _EMBEDDED:
            return None
        try:
            if scheme == "lmdb":
                files = [entry.stat() for entry in os.scandir(path) if entry.is_file()]
            else:
                files = [os.stat(name) for name in (path, f"{path}-wal") if os.path.exists(name)]
            room = os.statvfs(path)
        except OSError:
            return None
        size, now = sum(found.st_blocks * 512 for found in files), time.time()
        if not self._seen or now - self._seen[-1][0] >= _SIZES_APART:
            self._seen.append((now, size))
        since, before = self._seen[0]
        is_first = now - since < 1
        return StoreSize(size, room.f_bavail * room.f_frsize, size - before, None if is_first else since)
