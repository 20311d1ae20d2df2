"""Recent events of a type's jobs as figures and charts, and the problems among them that need attention."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jobs_service.dashboard import charts, texts
from jobs_service.model.counts import Histogram, Interval, Totals, TypeCounts

if TYPE_CHECKING:
    from jobs_service import JobsService, JobType
    from jobs_service.dashboard.charts import Chart
    from jobs_service.service.outages import Outage
    from jobs_service.service.queries import Resolution

WINDOWS: Final = ("hour", "day")
SPANS: Final = {"hour": "last hour", "day": "last day"}
SLOW: Final = 60.0
"""Seconds that a ready job may wait before the overview reports it."""
GROWS: Final = 20
"""Least growth in due jobs of a type that the overview reports."""

_BACK: Final[dict[str, tuple[float, Resolution, int]]] = {"hour": (3600.0, "minute", 60), "day": (86_400.0, "hour", 24)}


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
    told = ", ".join(f"{texts.count(getattr(found.totals, kind))} {kind}" for kind in kinds)
    return charts.stacked(series, f"{name}, {span}: {told}, {texts.count(retried(found.totals))} crashed", **size)


def retried(totals: Totals) -> int:
    """Return the least number of crashed runs that another attempt follows."""
    return max(totals.crashed - totals.failed, 0)


def added_chart(found: Lately, name: str, span: str, **size: float) -> Chart:
    """Return a chart of the added jobs."""
    says = f"{name}, {span}: {texts.count(found.totals.added)} added"
    return charts.stacked([("added", [each.totals.added for each in found.intervals])], says, **size)


def waited_chart(found: Lately, name: str, span: str, **size: float) -> Chart:
    """Return a chart of the 95th percentile of waiting times."""
    values = [each.waited.percentile(95) if any(each.waited.counts) else None for each in found.intervals]
    told = within(found.waited, 95) or "none was started"
    return charts.line(values, f"{name}, {span}, waiting time of 95 of 100 jobs: {told}", **size)


def within(histogram: Histogram, percent: float) -> str:
    """Return a percentile of a histogram in words; "" for an empty histogram."""
    seconds = histogram.percentile(percent) if any(histogram.counts) else None
    return "" if seconds is None else f"within {_round(seconds)}"


def _round(seconds: float) -> str:
    """Return the bound of a bucket, a power of two, rounded to two digits if it is below a second."""
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


def outage(found: Outage) -> Complaint:
    """Return the complaint about a type whose runs crash."""
    says = f"had {crashes(found, 'crash')}"
    if found.retrying:
        says += f"; {texts.many(found.retrying, 'job')} wait{'s' if found.retrying == 1 else ''} for another attempt"
    return Complaint(1, "failed", "crashes", f"{says}.", {"state": "retrying" if found.retrying else "failed"})


def crashes(found: Outage, verb: str) -> str:
    """Return the number of crashed runs of a type as part of a sentence."""
    ended, within = texts.many(found.ended, "run"), texts.many(found.minutes, "minute")
    return f"{texts.count(found.crashed)} of {ended} {verb} within the last {within}"


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
        failed = texts.many(happened.totals.failed, "job")
        yield Complaint(2, "failed", "failed", f"had {failed} fail within the {span}.", {"state": "failed"})
    if happened.totals.lost:
        lost = texts.many(happened.totals.lost, "time")
        yield Complaint(3, "failed", "lost", f"lost its worker {lost} within the {span}.", {"state": "running"})
    if row["paused"]:
        # Its jobs wait because it is paused, and for nothing else.
        if counts.ready:
            wait = "waits" if counts.ready == 1 else "wait"
            yield Complaint(5, "plain", "paused", f"is paused, and {texts.many(counts.ready, 'job')} {wait}.", {})
        return
    age = row["oldest_age"]
    if age is not None and age > SLOW:
        says = f"has a job that has been ready for {texts.duration(age)}."
        yield Complaint(4, "ready", "waits", says, {"state": "ready"})
    grown = happened.grown(counts)
    if grown >= GROWS and grown * 10 >= counts.ready:
        says = f"grows: {texts.many(grown, 'job')} more came due than were begun within the {span}."
        yield Complaint(4, "ready", "grows", says, {"state": "ready"})
