"""How large the things of a run are: data, names, and the limits of the store. The seed draws them.

Most runs are small, and quick. The others meet the bounds of the service: their records are up to the store's limit,
and a transaction holds only a few of them.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Final
from unittest.mock import patch

from jobs_service.actors import activity_monitor, duties, notifier, process_monitor, type_server
from jobs_service.batching import group_commit, operations
from jobs_service.layer import activity, candidates, listing, strays, transaction
from jobs_service.model import JobType, Priority
from jobs_service.runner import error_description, schedule
from jobs_service.service import queries
from jobs_service.store.base import Limits

_SMALL: Final = 0.88
"""The share of runs that are small."""

_ROOM: Final = 400
"""Bytes of a record that are not its data, with a short history."""

_HANDLED: Final = 4
"""How many of the largest records every transaction has room for."""

_BESIDE = 4_000
"""Bytes that it has room for beside them: a type's counts, and some keys with a long name."""


_SMALL_PAGES: Final = 0.3
"""The share of runs whose pages hold a few keys."""

_PAGES: Final = (
    (candidates, "PAGE"),
    (duties, "_TYPES_PAGE"),
    (notifier, "_CHANGES_PAGE"),
    (group_commit, "_MOST_OPERATIONS"),
    (operations, "_MOST_JOBS"),
    (strays, "_LOOKED_AT"),
    (listing, "LARGEST_CHUNK"),
    (transaction, "COUNT_PAGE"),
    (process_monitor, "_PAGE"),
)
"""How much is read at once, module by module."""

_FEW_KEYS: Final = (2, 3, 7)
_MOSTLY: Final = 0.7
_MANY: Final = 20
"""Jobs of which more are hardly ever subscribed to."""

_MORE_PAGES: Final = (
    (activity, "_TYPES_PAGE"),
    (type_server, "_SCANNED_TOGETHER"),
    (type_server, "_SETTLED_TOGETHER"),
    (queries, "COUNT_PAGE"),
)
"""Those that are drawn last, so that a seed has of the others what it had before there were these."""

_LONG_UNREAD: Final = 0.15
"""The share of runs in which what no notifier reads stays as long as everywhere: all wait for its end."""

_DIRECTORIES: Final = re.compile(r'File "[^"]*/')
"""Of a file that a traceback names."""

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


@contextmanager
def small_pages(random: Random) -> Iterator[None]:
    """In some runs, have every page hold a few keys only until left: so the second one is read as well."""
    sizes = [random.choice(_FEW_KEYS) for _ in _PAGES]
    if random.random() >= _SMALL_PAGES:
        yield
        return
    sizes += [random.choice(_FEW_KEYS) for _ in _MORE_PAGES]
    pages = (*_PAGES, *_MORE_PAGES)
    before = [getattr(module, name) for module, name in pages]
    try:
        for (module, name), size in zip(pages, sizes, strict=True):
            setattr(module, name, size)
        yield
    finally:
        for (module, name), size in zip(pages, before, strict=True):
            setattr(module, name, size)


@contextmanager
def few_made_up(random: Random) -> Iterator[None]:
    """In some runs, have only the newest few of the ticks that were missed be made up for, until left."""
    before = schedule.MOST_MADE_UP
    schedule.MOST_MADE_UP = random.choice([before, 2, 5])  # type: ignore[misc]
    try:
        yield
    finally:
        schedule.MOST_MADE_UP = before  # type: ignore[misc]


@contextmanager
def few_subscribed(random: Random) -> Iterator[None]:
    """In most runs, have notifiers read what has changed instead of all that is subscribed to, until left."""
    before = notifier._FEW
    notifier._FEW = random.choice([0, 0, 1, before])  # type: ignore[misc]
    try:
        yield
    finally:
        notifier._FEW = before  # type: ignore[misc]


@contextmanager
def soon_unread(random: Random) -> Iterator[None]:
    """In most runs, have what no notifier reads be removed soon, and few of them read at all, until left."""
    before, few = activity_monitor._UNREAD_FOR, notifier._FEW
    activity_monitor._UNREAD_FOR = before if random.random() < _LONG_UNREAD else 3.0  # type: ignore[misc]
    if before > activity_monitor._UNREAD_FOR and random.random() < _MOSTLY:
        notifier._FEW = _MANY  # type: ignore[misc]
    try:
        yield
    finally:
        activity_monitor._UNREAD_FOR, notifier._FEW = before, few  # type: ignore[misc]


@contextmanager
def files_without_directories() -> Iterator[None]:
    """Have tracebacks name files alone, until left: so records are as large wherever the repository and Python are."""

    lines = error_description._lines

    def shortened(shown: traceback.TracebackException) -> Iterator[str]:
        return (_DIRECTORIES.sub('File "', line) for line in lines(shown))

    with patch.object(error_description, "_lines", shortened):
        yield


def pages_are_small() -> bool:
    """Whether pages hold a few keys only just now: then a transaction may take fewer jobs than are there."""
    return max(_FEW_KEYS) >= candidates.PAGE


def _elements(type: JobType) -> tuple[JobType, ...]:
    return type if isinstance(type, tuple) else (type,)
