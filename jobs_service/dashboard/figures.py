"""Recent events of a type's jobs, or of all types, as figures, lanes of charts, complaints; the size of the store."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from markupsafe import Markup

from jobs_service.dashboard import charts, rendering
from jobs_service.dashboard.charts import Lane
from jobs_service.model import ProcessInfo, ProcessState
from jobs_service.model.type_state import Histogram, Interval, QueueState, Totals, TypeCounts
from jobs_service.service.failures import LastHour, Outage
from jobs_service.service.queries import columns as columns_of

if TYPE_CHECKING:
    from jobs_service import JobsService, JobType
    from jobs_service.model.process import OutboxInfo
    from jobs_service.service.queries import Resolution

SLOW: Final = 60.0
"""Seconds that a ready job may wait before the overview complains, and for which a p95 is no reason to look."""
SPARK: Final = 24.0
"""Height of a small chart, in units of the drawing."""

_EMBEDDED: Final = ("lmdb", "sqlite")
_MOST_SIZES: Final = 60
"""Most sizes that are remembered."""
_SIZES_APART: Final = 60.0
"""Least seconds between two remembered sizes, which together span an hour."""


# Recent events


@dataclass(frozen=True, slots=True)
class Span:
    """A time window of charts.

    Attributes:
        words, short: its names.
        resolution: of the rows that are read.
        interval: seconds of a row.
        intervals: number of rows.
        merged: rows of one column.
        per: a column in words.
        axis: form of the times on the axis, for strftime.
        labels: number of times on the axis.
    """

    words: str
    short: str
    resolution: Resolution
    interval: float
    intervals: int
    merged: int
    per: str
    axis: str
    labels: int = 6


SPANS: Final = {
    "hour": Span("last hour", "1\u00a0h", "minute", 60.0, 60, 1, "minute", "%H:%M"),
    "day": Span("last day", "24\u00a0h", "hour", 3600.0, 24, 1, "hour", "%H:%M"),
    "week": Span("last week", "7\u00a0d", "hour", 3600.0, 168, 3, "3 hours", "%m-%d", 7),
    "month": Span("last 30 days", "30\u00a0d", "hour", 3600.0, 720, 12, "12 hours", "%m-%d"),
}
WINDOWS: Final = tuple(SPANS)


@dataclass(frozen=True, slots=True)
class Lately:
    """The events of jobs within a time window.

    Attributes:
        span: the window.
        columns: sums of the intervals of each column of a chart.
        totals, waited, ran: sums over the window.
    """

    span: Span
    columns: tuple[Interval, ...]
    totals: Totals
    waited: Histogram
    ran: Histogram

    @classmethod
    def of(cls, span: Span, columns: Sequence[Interval], every: Interval) -> Lately:
        """Return the events in columns, the oldest first, and all of them."""
        return cls(span, tuple(columns), every.totals, every.waited, every.ran)

    @classmethod
    def merged(cls, span: Span, intervals: Sequence[Interval]) -> Lately:
        """Return the events in intervals, the oldest first."""
        columns = [together(intervals[at : at + span.merged]) for at in range(0, len(intervals), span.merged)]
        return cls.of(span, columns, together(columns))

    @property
    def ended(self) -> int:
        """The number of jobs that ended for good."""
        return self.totals.succeeded + self.totals.failed + self.totals.canceled

    def of_columns(self, count: str) -> list[int]:
        """Return a count of Totals by column; "retried" is the least number of crashed runs with another attempt."""
        if count == "retried":
            return [retried(each.totals) for each in self.columns]
        return [getattr(each.totals, count) for each in self.columns]

    def percentiles(self, of: str, percent: float) -> list[float | None]:
        """Return a percentile by column, None where there is none; `of` is "waited" or "ran"."""
        return [getattr(each, of).percentile(percent) for each in self.columns]


def together(intervals: Sequence[Interval]) -> Interval:
    if len(intervals) == 1:
        return intervals[0]
    begin = intervals[0].begin if intervals else 0.0
    return Interval(
        begin,
        sum(each.seconds for each in intervals),
        Totals.together([each.totals for each in intervals]),
        Histogram.together([each.waited for each in intervals]),
        Histogram.together([each.ran for each in intervals]),
    )


async def lately(
    service: JobsService, types: Sequence[JobType], window: str, now: float, *, times: bool = True
) -> list[Lately]:
    """Return the recent events of the jobs of types, each of its own.

    Args:
        service: the service.
        types: the types.
        window: one of SPANS.
        now: the present time, seconds since the epoch.
        times: whether the waiting and running times of each column are wanted.
    """
    span = SPANS[window]
    last = int(now // span.interval)
    first = last - span.intervals + 1
    found = await columns_of(service._access, types, span.resolution, first, last, span.merged, times=times)
    return [Lately.of(span, *each) for each in found]


def numbers(totals: Totals) -> list[int]:
    """Return the numbers of events."""
    return [getattr(totals, name) for name in totals.__slots__]


def retried(totals: Totals) -> int:
    """Return the least number of crashed runs that another attempt follows."""
    return max(totals.crashed - totals.failed, 0)


def percentile(histogram: Histogram, percent: float) -> str:
    """Return a percentile in words; "" for an empty histogram."""
    return rendering.duration(histogram.percentile(percent))


def slots(processes: Sequence[ProcessInfo], type: JobType) -> tuple[int, int] | None:
    """Return how many slots of a type are taken, and how many processes have; None if that is unknown."""
    taking = [each for each in processes if each.state is ProcessState.RUNNING]
    if any(each.unnamed for each in taking):
        return None
    found = [each for process in taking for each in process.handlers if each.type == type]
    return sum(each.taken for each in found), sum(each.slots for each in found)


# Charts


def runs_lane(found: Lately, name: str = "Runs", height: float = charts.HEIGHT) -> Lane:
    """Return a lane of succeeded, retried and failed runs."""
    area = ("succeeded", found.of_columns("succeeded"))
    return charts.counted(name, _says(found), area=area, bars=_errors(found), height=height)


def overview_lanes(found: Lately, before: Lately | None) -> list[Lane]:
    """Return the lanes of the large chart; `before` is the span a day or a week earlier, None if it is unknown."""
    ghost = None
    if before is not None and before.totals.succeeded:
        ghost = ("yesterday" if found.span.interval == 60.0 else "the span before", before.of_columns("succeeded"))
    per = found.span.per
    succeeded = (
        f"{rendering.count(found.totals.succeeded)} succeeded, at most {max(found.of_columns('succeeded'))} per {per}"
    )
    area = ("succeeded", found.of_columns("succeeded"))
    return [
        charts.counted(f"Succeeded per {per}", f"{succeeded}.", area=area, ghost=ghost),
        charts.counted(f"Errors per {per}", _says(found), bars=_errors(found)),
        time_lane(found, "waited"),
    ]


def failure_lanes(found: Lately) -> list[Lane]:
    """Return the lanes of the chart of failures."""
    failed, retrying = _errors(found)[1], _errors(found)[0]
    return [
        charts.counted(f"Failed per {found.span.per}", _says(found), bars=[failed]),
        charts.counted(f"Crashed and retried per {found.span.per}", _says(found), bars=[retrying]),
    ]


def time_lane(found: Lately, of: str) -> Lane:
    """Return a lane of waiting times ("waited") or running times ("ran")."""
    name, kind = ("Waiting time", "ready") if of == "waited" else ("Running time", "running")
    every: Histogram = getattr(found, of)
    told = f"{percentile(every, 95)} at the 95th percentile" if every.count else "no run"
    says = f"{name} in the {found.span.words}: {told}."
    return charts.timed(name, says, kind, found.percentiles(of, 95), found.percentiles(of, 50))


def spark(found: Lately, name: str) -> Lane:
    """Return a small chart of runs."""
    return runs_lane(found, name, height=SPARK)


def _errors(found: Lately) -> list[tuple[str, str, list[int]]]:
    return [("retrying", "retried", found.of_columns("retried")), ("failed", "failed", found.of_columns("failed"))]


def _says(found: Lately) -> str:
    totals = found.totals
    numbers = [
        (totals.succeeded, "succeeded"),
        (retried(totals), "crashed and were retried"),
        (totals.failed, "failed"),
    ]
    return f"{found.span.words.capitalize()}: {', '.join(f'{rendering.count(n)} {word}' for n, word in numbers)}."


class Column(NamedTuple):
    """A column of a chart, or a row of its table.

    Attributes:
        at: its beginning.
        href: the page of the runs in it; "" for none.
        succeeded, retried, failed: numbers of runs.
        median, p95: of waiting times, in words.
    """

    at: Markup
    href: str
    succeeded: int
    retried: int
    failed: int
    median: str
    p95: str


def columns(found: Lately, href: Callable[[float, float], str], most: int = 60) -> list[Column]:
    """Return the columns of a chart, or of its table with at most so many rows.

    Args:
        found: the events.
        href: returns the address of the page of the runs from a time on, for so many seconds.
        most: columns.
    """
    size = -(-len(found.columns) // most) if found.columns else 1
    parts = [together(found.columns[at : at + size]) for at in range(0, len(found.columns), size)]
    form = found.span.axis if found.span.axis == "%H:%M" else "%m-%d %H:%M"
    return [
        Column(
            rendering.clock(each.begin, form),
            href(each.begin, each.seconds),
            each.totals.succeeded,
            retried(each.totals),
            each.totals.failed,
            percentile(each.waited, 50),
            percentile(each.waited, 95),
        )
        for each in parts
    ]


def axis(found: Lately, labels: int | None = None) -> list[Markup]:
    """Return the times on the axis, the last one "now"."""
    number = min(labels or found.span.labels, len(found.columns))
    places = [place * len(found.columns) // number for place in range(number)]
    return [*(rendering.clock(found.columns[place].begin, found.span.axis) for place in places), Markup("now")]


# What needs attention


class Complaint(NamedTuple):
    """A problem of a type.

    Attributes:
        rank: the severity; the lowest is the worst.
        type: the type.
        state: the state that determines the colour.
        icon: the shape.
        says: the problem, without its subject.
        more: a second line.
        since: for how long, in words; "" if unknown.
        began: seconds since the epoch; None if unknown.
        query: the filter that finds the jobs.
    """

    rank: int
    type: JobType
    state: str
    icon: str
    says: str
    more: str
    since: str
    query: dict[str, str]
    began: float | None = None


def complaints(
    hour: LastHour, queues: Mapping[JobType, QueueState], counts: Mapping[JobType, TypeCounts], now: float
) -> dict[JobType, Complaint]:
    """Return the worst problem of each type that has one, the worst first.

    Args:
        hour: of all types.
        queues: of the types with the most jobs that wait.
        counts: of all types.
        now: seconds since the epoch.
    """
    found: dict[JobType, Complaint] = {}
    every = [*_of_runs(hour, now), *_of_queues(queues, counts, now)]
    for each in sorted(every, key=lambda complaint: complaint.rank):
        found.setdefault(each.type, each)
    return found


def crash_share(found: Outage) -> str:
    """Return the share of crashed runs of a type in words."""
    return f"{100 * found.crashed // found.ended}{rendering.NBSP}% of its runs crash"


def crashes(found: Outage, verb: str) -> str:
    """Return the number of crashed runs of a type as part of a sentence."""
    ended, within = rendering.many(found.ended, "run"), rendering.many(found.minutes, "minute")
    return f"{rendering.count(found.crashed)} of {ended} {verb} within the last {within}"


def _of_runs(hour: LastHour, now: float) -> Iterator[Complaint]:
    for each in hour.outages:
        wait = "job waits" if each.retrying == 1 else "jobs wait"
        more = crashes(each, "crashed") + (
            f"; {rendering.count(each.retrying)} {wait} for another attempt" if each.retrying else ""
        )
        query = {"state": "retrying" if each.retrying else "failed"}
        since = rendering.roughly(max(each.since, 1) * 60.0)
        began = (now // 60 - max(each.since, 1) + 1) * 60.0
        yield Complaint(1, each.type, "failed", "failed", crash_share(each), more, since, query, began)
    for type, totals in sorted(hour.by_type.items(), key=lambda item: -item[1].failed):
        if totals.failed:
            says = f"{rendering.many(totals.failed, 'job')} failed"
            yield Complaint(2, type, "failed", "failed", says, "within the last hour", "", {"state": "failed"})
        elif totals.lost:
            says = f"lost its worker {rendering.many(totals.lost, 'time')}"
            yield Complaint(3, type, "failed", "silent", says, "within the last hour", "", {"state": "running"})


def _of_queues(
    queues: Mapping[JobType, QueueState], counts: Mapping[JobType, TypeCounts], now: float
) -> Iterator[Complaint]:
    for type, queue in queues.items():
        ready = counts[type].ready if type in counts else 0
        many = f"{rendering.many(ready, 'job')} {'is' if ready == 1 else 'are'} ready"
        age = None if queue.ready_since is None else now - queue.ready_since
        if queue.paused:
            # Its jobs wait because it is paused, and for nothing else.
            if ready:
                yield Complaint(5, type, "paused", "paused", "is paused", many, "", {})
        elif age is not None and age > SLOW:
            query = {"state": "ready"}
            yield Complaint(4, type, "retrying", "growing", "falls behind", many, rendering.roughly(age), query)


# Outboxes


def outbox_lag(outbox: OutboxInfo) -> str:
    """Return how many rows of an outbox wait, and for how long, in words."""
    since = "" if outbox.oldest is None else f", the oldest for {rendering.duration(outbox.oldest)}"
    aside = f", {rendering.count(outbox.set_aside)} set aside" if outbox.set_aside else ""
    return f"{rendering.many(outbox.rows, 'row')}{since}{aside}"


def outbox_problem(outbox: OutboxInfo) -> str:
    """Return the problem of an outbox, without its name; "" for none."""
    if outbox.error:
        return f"is not moved: {rendering.brief(outbox.error, 200)}"
    return "falls behind" if outbox.oldest is not None and outbox.oldest > SLOW else ""


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
