"""What is known of a type without reading its jobs: counts, totals, histograms; and a page of jobs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Final, Self

from jobs_service.model.job import Job

BUCKETS: Final = 32
"""Buckets of a histogram."""

FIRST_POWER: Final = -10
"""The first bucket ends at two to this power and one, in seconds: about 2 ms; the last one begins at 24 days."""


@dataclass(frozen=True, slots=True)
class Totals:
    """How often something happened to jobs of a type.

    Attributes:
        added: jobs were added, or resubmitted while they did not run.
        started: runs began.
        succeeded, failed, canceled: runs ended so, and did not come back by themselves.
        crashed: runs raised, whether they were tried again or not.
        lost: workers fell silent.
        released: workers gave jobs back, as if they had not begun.
        expired: finished jobs were removed because they had been kept long enough.
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
    def together(cls, totals: Sequence[Self]) -> Self:
        """Return the sums of several."""
        return cls(**{each.name: sum(getattr(one, each.name) for one in totals) for each in fields(cls)})


NO_COUNTS: Final = (0,) * BUCKETS


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many times of which length there were, in buckets that are powers of two.

    Attributes:
        counts: of the times of 2**(k-10) seconds and more, and less than twice that, by k from 0 to 31. What is shorter
            is in the first one, what is longer in the last one.
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
        """How many times there were."""
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """Their average in seconds, None when there are none."""
        count = self.count
        return self.sum / count if count else None

    def percentile(self, p: float) -> float | None:
        """Return the seconds within which so many percent of the times lie, about: no more than twice as long.

        Args:
            p: from 0 to 100.

        Returns:
            The end of the bucket in which that time is, of the last one its beginning; None when there are no times.
        """
        wanted = max(1, math.ceil(self.count * min(max(p, 0), 100) / 100))
        seen = 0
        for count, bound in zip(self.counts, _BOUNDS, strict=True):
            seen += count
            if seen >= wanted:
                return bound if bound != math.inf else _BOUNDS[-2]
        return None


_BOUNDS: Final = (*(2.0 ** (FIRST_POWER + k + 1) for k in range(BUCKETS - 1)), math.inf)


def bucket_of(seconds: float) -> int:
    """Return the bucket in which a time is counted; a clock that was set back makes it 0 seconds."""
    if not seconds >= _BOUNDS[0]:
        return 0
    # seconds = m * 2**e with 0.5 <= m < 1
    bucket = math.frexp(seconds)[1] - 1 - FIRST_POWER
    return bucket if bucket < BUCKETS else BUCKETS - 1


@dataclass(frozen=True, slots=True)
class TypeCounts:
    """What is counted of a type.

    Attributes:
        ready, scheduled, running, succeeded, failed, canceled: how many jobs are so now. A job that has come due counts
            as scheduled until somebody has made it ready, which is done within seconds. One whose record cannot be
            read counts as what it was until somebody comes across it.
        retrying: how many wait for another attempt, because their last run has crashed; due or not, they count as
            nothing else.
        totals: since the type was made.
        waited: how long jobs that were started had been due before, since the type was made.
        ran: how long runs took, however they ended, since the type was made.
        unreadable: how many jobs are in none of these states, because their records were found unreadable; more than
            1,000 of a store are not looked for.
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
        """How many jobs there are, in whatever state."""
        return self.pending + self.running + self.succeeded + self.failed + self.canceled

    @property
    def pending(self) -> int:
        """How many jobs wait to be run: ready, scheduled and retrying ones."""
        return self.ready + self.scheduled + self.retrying


@dataclass(frozen=True, slots=True)
class Interval:
    """What happened to jobs of a type in a minute or an hour.

    Attributes:
        begin: seconds since the epoch, by the clocks of the processes that have written it.
        seconds: 60 or 3600.
        totals: what happened.
        waited, ran: of the runs that began, and of those that ended.
    """

    begin: float
    seconds: float
    totals: Totals
    waited: Histogram
    ran: Histogram


@dataclass(frozen=True, slots=True)
class JobsPage:
    """Some jobs, and where the next ones are.

    Attributes:
        jobs: may be fewer than were asked for, even none, although there are more.
        next: what `page(after=...)` takes for those that follow, text that a URL may have as it is; None at the end.
    """

    jobs: list[Job]
    next: str | None
