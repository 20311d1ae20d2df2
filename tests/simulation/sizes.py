"""How large the things of a run are: data, names, and the limits of the store. The seed draws them.

Most runs are small, and quick. The others meet the bounds of the service: their records are up to the store's limit,
and a transaction holds only a few of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from jobs_service.model import JobType, Priority
from jobs_service.store.base import Limits

_SMALL: Final = 0.88
"""The share of runs that are small."""

_ROOM: Final = 400
"""Bytes of a record that are not its data, with a short history."""

_HANDLED: Final = 4
"""How many of the largest records every transaction has room for."""

_BESIDE = 4_000
"""Bytes that it has room for beside them: a type's counts, and some keys with a long name."""

_MIX: Final = 2_654_435_761
"""Spreads neighbouring numbers (Knuth, The Art of Computer Programming, 6.4)."""


@dataclass(frozen=True)
class Sizes:
    """How large things are in one run.

    Attributes:
        limits: of the store; None for those that a small run draws.
        padding: bytes that are added to jobs' data, one of them each time.
        name: how many characters are added to the names of types and of some jobs.
        priorities: what is drawn beside the short ones.
    """

    limits: Limits | None = None
    padding: Sequence[int] = (0,)
    name: int = 0
    priorities: Sequence[Priority] = ()

    @property
    def large(self) -> bool:
        """Whether the run is to meet the bounds."""
        return self.limits is not None

    def pad(self, number: int) -> str:
        """Return what is added to a job's data: the same for the same number, such as that of a call."""
        return "x" * self.padding[(number * _MIX >> 16) % len(self.padding)]

    def type(self, type: JobType) -> JobType:
        """Return a type with a name of the run's length."""
        if not self.name:
            return type
        return type + "y" * self.name if isinstance(type, str) else ("y" * self.name, *_elements(type))


def draw_sizes(random: Random) -> Sizes:
    """Draw the sizes of a run."""
    if random.random() < _SMALL:
        return Sizes()
    value = random.choice([1_500, 1_500, 4_000, 4_000, 100_000])
    transaction = max(value * random.choice([_HANDLED, 8, 30, 100]), value * _HANDLED + _BESIDE)
    key = random.choice([300, 10_000, 10_000])
    edge = value - value // 32 - _ROOM
    padding = random.choice(
        [(0, edge), (edge // 3, edge // 3 + 1), (0, 0, 0, edge - 100, edge, edge + 200, value + 100)]
    )
    name = random.choice([0, 0, 60, key // 2 if key < value else 60])
    priorities: Sequence[Priority] = random.choice([(), (), ("p" * 60, "q" * 120)])
    return Sizes(Limits(key=key, value=value, transaction=transaction), padding, name, priorities)


def _elements(type: JobType) -> tuple[JobType, ...]:
    return type if isinstance(type, tuple) else (type,)
