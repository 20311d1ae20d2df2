"""The state of a type beside its jobs: settings, the front of its queue, statistics, schedules; and a page of jobs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, NamedTuple, Self

from jobs_service.json_types import Time, Unchanged, plain
from jobs_service.model.job import Job, JobId, JobType, Outcome

LATE: Final = 15.0
"""Seconds by which a scheduled job may be late. If it is later, no activity monitor can be running."""

BUCKETS: Final = 32
"""Buckets of a histogram."""

FIRST_POWER: Final = -10
"""The first bucket ends at two to this power and one, in seconds: about 2 ms; the last one begins at 24 days."""

NO_COUNTS: Final = (0,) * BUCKETS

_BOUNDS: Final = (*(2.0 ** (FIRST_POWER + k + 1) for k in range(BUCKETS - 1)), math.inf)


# Settings and queue


@dataclass(frozen=True, slots=True)
class Retention:
    """Retention of a type's finished jobs.

    Attributes:
        keep: seconds for succeeded and canceled jobs; None for ever.
        keep_failed: seconds for failed jobs; None for ever.
    """

    keep: float | None
    keep_failed: float | None

    @property
    def lets_leave(self) -> bool:
        """Whether jobs leave the store when they end, all of them or only failed ones."""
        return 0 in (self.keep, self.keep_failed)

    def seconds(self, outcome: Outcome) -> float | None:
        """Return the seconds for which a job with this outcome is kept."""
        return self.keep_failed if outcome is Outcome.FAILED else self.keep

    def encode(self) -> bytes:
        """Return the stored form."""
        import fdb.tuple  # a client needs no store

        packed: bytes = fdb.tuple.pack((self.keep, self.keep_failed))
        return packed

    @classmethod
    def decode(cls, packed: bytes) -> Retention:
        """Return the retention of encoded bytes; for ever if they are invalid, to remove nothing by mistake."""
        import fdb.tuple

        try:
            kept: tuple[Any, ...] = fdb.tuple.unpack(packed)
        except Exception:  # fdb.tuple raises many kinds of errors for bytes that are no tuple
            return FOR_EVER
        good = len(kept) == 2 and all(each is None or (type(each) is float and each >= 0) for each in kept)
        return cls(*kept) if good else FOR_EVER


FOR_EVER: Final = Retention(None, None)


class TypeSettings(NamedTuple):
    """The settings of a type.

    Attributes:
        timeout: activity timeout in seconds; None for a type that does not exist.
        paused: whether workers are stopped from accepting jobs.
        retention: of its finished jobs.
    """

    timeout: float | None
    paused: bool
    retention: Retention


@dataclass(frozen=True, slots=True)
class QueueState:
    """The state of a type's queue; times in seconds since the epoch.

    Attributes:
        id, ready_since: the job that has been ready for longest; None if none is ready. The time comes from the job's
            history, which may be damaged, or dropped from a record of the largest size. Such a job is named only if all
            are such, and its time is None.
        next_scheduled: when the next scheduled job is due; None if there is none.
        paused: whether workers are stopped from accepting jobs.
    """

    id: JobId | None
    ready_since: Time | None
    next_scheduled: Time | None
    paused: bool


# Statistics


@dataclass(frozen=True, slots=True)
class Totals:
    """Numbers of events of a type's jobs.

    Attributes:
        added: jobs added, or resubmitted while they did not run.
        started: runs begun.
        succeeded, failed, canceled: runs that ended this way and were not retried.
        crashed: runs that raised, whether they were tried again or not.
        lost: jobs of workers that fell silent.
        released: jobs given back, as if they had not begun.
        expired: finished jobs removed after their retention.
    """

    added: int = 0
    started: int = 0
    succeeded: int = 0
    failed: int = 0
    canceled: int = 0
    crashed: int = 0
    lost: int = 0
    released: int = 0
    expired: int = 0

    @classmethod
    def together(cls, totals: Sequence[Totals]) -> Totals:
        """Return the sums of several."""
        busy = [each for each in totals if each != _NO_TOTALS]
        return cls(*(sum(getattr(one, each.name) for one in busy) for each in fields(cls))) if busy else _NO_TOTALS


_NO_TOTALS: Final = Totals()


@dataclass(frozen=True, slots=True)
class Histogram:
    """Numbers of times by length, in buckets that are powers of two.

    Attributes:
        counts: bucket k, from 0 to 31, counts times of 2**(k-10) seconds and more, and less than twice that. Shorter
            times are in the first bucket, longer ones in the last.
        sum: of all times, in seconds, to the millisecond.
    """

    counts: tuple[int, ...] = NO_COUNTS
    sum: float = 0.0

    @classmethod
    def together(cls, histograms: Sequence[Self]) -> Self:
        """Return the sums of several."""
        busy = [each for each in histograms if any(each.counts)]
        if not busy:
            return cls()
        counts = tuple(map(sum, zip(*(each.counts for each in busy), strict=True)))
        return cls(counts, sum(each.sum for each in busy))

    @staticmethod
    def bounds() -> tuple[float, ...]:
        """Return where each bucket ends, in seconds; the last one is infinity."""
        return _BOUNDS

    @property
    def count(self) -> int:
        """The number of times."""
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """The average time in seconds, None if there are none."""
        count = self.count
        return self.sum / count if count else None

    def percentile(self, p: float) -> float | None:
        """Return the given percentile in seconds, interpolated within its bucket: at most a factor of two off.

        Args:
            p: from 0 to 100.

        Returns:
            The seconds; None if there are no times.
        """
        wanted = self.count * min(max(p, 0), 100) / 100
        seen = 0
        for bucket, count in enumerate(self.counts):
            if count and seen + count >= wanted:
                # Within a bucket the logarithms of times are taken to be spread evenly.
                return float(2.0 ** (FIRST_POWER + bucket + max(wanted - seen, 0) / count))
            seen += count
        return None


@dataclass(frozen=True, slots=True)
class TypeCounts:
    """Statistics of a type.

    Attributes:
        ready, scheduled, running, succeeded, failed, canceled: jobs now in each state. A job that has come due counts
            as scheduled until a process makes it ready, within seconds. A job with an unreadable record counts in its
            former state until a process finds it.
        retrying: jobs that wait for another attempt after a crash, due or not; they count in no other state.
        totals: since the type was made.
        waited: times from due to start of started jobs, since the type was made.
        ran: run times, whatever the outcome, since the type was made.
        unreadable: jobs in none of these states, because their records were found unreadable; at most 1,000 per store
            are looked for.
    """

    ready: int = 0
    scheduled: int = 0
    retrying: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    canceled: int = 0
    totals: Totals = field(default_factory=Totals)
    waited: Histogram = field(default_factory=Histogram)
    ran: Histogram = field(default_factory=Histogram)
    unreadable: int = 0

    @property
    def jobs(self) -> int:
        """The number of jobs in any state."""
        return self.pending + self.running + self.succeeded + self.failed + self.canceled

    @property
    def pending(self) -> int:
        """The number of jobs that wait to be run: ready, scheduled and retrying ones."""
        return self.ready + self.scheduled + self.retrying


@dataclass(frozen=True, slots=True)
class Interval:
    """Events of a type's jobs in a minute or an hour.

    Attributes:
        begin: seconds since the epoch, by the clocks of the writing processes.
        seconds: 60 or 3600.
        totals: numbers of events.
        waited, ran: waits of the runs that began, and run times of those that ended.
    """

    begin: float
    seconds: float
    totals: Totals
    waited: Histogram
    ran: Histogram


# Pages


@dataclass(frozen=True, slots=True)
class JobsPage:
    """Some jobs, and the position of the next ones.

    Attributes:
        jobs: may be fewer than requested, even none, although more follow.
        next: the `page(after=...)` argument for the next page, URL-safe text; None at the end.
    """

    jobs: list[Job]
    next: str | None


# Schedules


@dataclass(frozen=True, slots=True)
class StoredSchedule:
    """A schedule that is kept in the store.

    Attributes:
        name: its name.
        type, data: of its jobs.
        every: seconds between two ticks; None for a cron expression.
        cron: a cron expression; None for a period.
        timezone: of the cron expression; None for a period.
        missed: what happens to missed ticks: "skip", "once" or "all".
        overlap: whether a tick's job is added before the previous tick's job has finished.
        paused: whether its ticks are held up.
        changed: when it was set or paused last, seconds since the epoch.
        last: its last tick, seconds since the epoch; None before its first one.
        next: its next tick; None while it is paused, or if it never ticks again.
    """

    name: str
    type: JobType
    data: Unchanged
    every: float | None
    cron: str | None
    timezone: str | None
    missed: str
    overlap: bool
    paused: bool
    changed: Time
    last: Time | None
    next: Time | None

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data that any JSON encoder takes; times are ISO 8601 in UTC with microseconds."""
        return {**plain(self), "data": self.data}
