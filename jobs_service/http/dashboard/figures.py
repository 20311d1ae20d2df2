"""What happened to a type's jobs lately, as figures and charts; and which of it somebody should look at."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from jobs_service.http.dashboard import charts, texts
from jobs_service.model.counts import Histogram, Interval, Totals

if TYPE_CHECKING:
    from jobs_service import JobsService, JobType
    from jobs_service.http.dashboard.charts import Chart
    from jobs_service.service.count_operations import Resolution

WINDOWS: Final = ("hour", "day")
SPANS: Final = {"hour": "last hour", "day": "last day"}
SLOW: Final = 60.0
"""Seconds that a ready job may wait before the overview says so."""
GROWS: Final = 20
"""Jobs by which a type's waiting jobs have to grow before the overview says so."""

_BACK: Final[dict[str, tuple[float, Resolution, int]]] = {"hour": (3600.0, "minute", 60), "day": (86_400.0, "hour", 24)}


@dataclass(frozen=True, slots=True)
class Lately:
    """What happened to a type's jobs within a window.

    Attributes:
        totals, waited, ran: all of it.
        intervals: minute by minute, or hour by hour.
    """

    totals: Totals
    waited: Histogram
    ran: Histogram
    intervals: tuple[Interval, ...]

    @property
    def ended(self) -> int:
        """How many jobs ended for good."""
        return self.totals.succeeded + self.totals.failed + self.totals.canceled

    @property
    def growth(self) -> int:
        """By how many more jobs were added than ended."""
        return self.totals.added - self.ended


async def lately(service: JobsService, type: JobType, window: str, now: float) -> Lately:
    """Return what happened to a type's jobs.

    Args:
        service: of the jobs.
        type: theirs.
        window: of WINDOWS.
        now: seconds since the epoch.
    """
    seconds, resolution, most = _BACK[window]
    found = await service.throughput(type, since=now - seconds, until=now, resolution=resolution)
    return summed(found[-most:])


def summed(intervals: Sequence[Interval]) -> Lately:
    """Return what happened in several intervals, together."""
    return Lately(
        Totals.together([each.totals for each in intervals]),
        Histogram.together([each.waited for each in intervals]),
        Histogram.together([each.ran for each in intervals]),
        tuple(intervals),
    )


def ended_chart(found: Lately, name: str, span: str, **size: float) -> Chart:
    """Return the jobs that ended, by how they ended."""
    kinds = ("succeeded", "failed", "canceled")
    series = [(kind, [getattr(each.totals, kind) for each in found.intervals]) for kind in kinds]
    told = ", ".join(f"{texts.count(getattr(found.totals, kind))} {kind}" for kind in kinds)
    return charts.stacked(series, f"{name}, {span}: {told}", **size)


def added_chart(found: Lately, name: str, span: str, **size: float) -> Chart:
    """Return the jobs that were added."""
    says = f"{name}, {span}: {texts.count(found.totals.added)} added"
    return charts.stacked([("added", [each.totals.added for each in found.intervals])], says, **size)


def waited_chart(found: Lately, name: str, span: str, **size: float) -> Chart:
    """Return within which time 95 of 100 jobs were started."""
    values = [each.waited.percentile(95) if any(each.waited.counts) else None for each in found.intervals]
    told = within(found.waited, 95) or "none was started"
    return charts.line(values, f"{name}, {span}, waiting time of 95 of 100 jobs: {told}", **size)


def within(histogram: Histogram, percent: float) -> str:
    """Return within which time so many percent lie, for people; "" where there is nothing."""
    seconds = histogram.percentile(percent) if any(histogram.counts) else None
    return "" if seconds is None else f"within {_round(seconds)}"


def _round(seconds: float) -> str:
    """Return a bound of a bucket: a power of two, which need not be told to the millisecond."""
    if seconds >= 1 or seconds == 0:
        return texts.duration(seconds)
    digits = 1 - math.floor(math.log10(seconds))
    return texts.duration(round(seconds, digits))


def percentiles(histogram: Histogram) -> list[tuple[str, str]]:
    """Return percentiles in words: "half of them", "within 2 s"."""
    if not any(histogram.counts):
        return []
    return [
        (words, within(histogram, percent))
        for words, percent in (("half of them", 50), ("95 of 100", 95), ("99 of 100", 99))
    ]


def complaints(type: str, row: dict[str, Any], span: str) -> list[tuple[str, str, str, dict[str, str]]]:
    """Return what somebody should look at: a state for its colour, a word, what is said, and where to look.

    Args:
        type: its name.
        row: of the overview: damage, paused, ready, waiting, oldest_age, lately.
        span: of `lately`, in words.
    """
    found: list[tuple[str, str, str, dict[str, str]]] = []
    happened: Lately = row["lately"]
    if row["damage"]:
        found.append(("failed", "damaged", f"has a part that cannot be read: {texts.brief(row['damage'], 400)}", {}))
    if row["paused"] and row["ready"]:
        wait = "waits" if row["ready"] == 1 else "wait"
        found.append(("plain", "paused", f"is paused, and {texts.many(row['ready'], 'job')} {wait}.", {}))
    if happened.totals.failed:
        failed = texts.many(happened.totals.failed, "job")
        found.append(("failed", "failed", f"had {failed} fail within the {span}.", {"state": "failed"}))
    if happened.totals.lost:
        lost = texts.many(happened.totals.lost, "time")
        found.append(("failed", "lost", f"lost its worker {lost} within the {span}.", {"state": "running"}))
    age = row["oldest_age"]
    if age is not None and age > SLOW and not row["paused"]:
        found.append(
            ("ready", "waits", f"has a job that has been ready for {texts.duration(age)}.", {"state": "ready"})
        )
    if happened.growth >= GROWS and happened.growth * 10 >= row["waiting"] and row["waiting"] >= GROWS:
        grown = texts.many(happened.growth, "job")
        found.append(
            ("ready", "grows", f"grows: {grown} more were added than ended within the {span}.", {"state": "ready"})
        )
    return found
