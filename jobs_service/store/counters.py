"""Counters of every store: runs of transactions, commits, and their durations."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Final

_FIRST_POWER: Final = -14
_BUCKETS: Final = 20

BOUNDS: Final = (*(2.0 ** (_FIRST_POWER + number) for number in range(_BUCKETS - 1)), math.inf)
"""Upper bounds of the buckets of CommitTimes, in seconds: from 61 microseconds to 16 seconds, and infinity."""


@dataclass(slots=True)
class Counters:
    """Counts since the store was opened.

    Attributes:
        transactions: begun runs of transaction functions.
        commits: transactions with writes that took effect.
        retries: runs that repeated an earlier one.
        conflicts: commits that failed because other transactions had written keys that they had read.
    """

    transactions: int = 0
    commits: int = 0
    retries: int = 0
    conflicts: int = 0

    def as_dict(self) -> dict[str, int]:
        """Return the counts by name."""
        return asdict(self)


class CommitTimes:
    """Durations of commits, in buckets that are powers of two.

    Attributes:
        bounds: upper bounds of the buckets, in seconds.
        counts: number of commits in each bucket, up to and including its bound.
        seconds: sum of all durations.
    """

    __slots__ = ("counts", "seconds")
    bounds: Final = BOUNDS

    def __init__(self) -> None:
        self.counts = [0] * _BUCKETS
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        """Count a commit."""
        # frexp: seconds = m * 2**e with 0.5 <= m < 1; a power of two itself belongs to the bucket that it ends.
        mantissa, power = math.frexp(seconds)
        place = power - _FIRST_POWER - (mantissa == 0.5)
        self.counts[0 if place < 0 or seconds <= 0 else min(place, _BUCKETS - 1)] += 1
        self.seconds += seconds
