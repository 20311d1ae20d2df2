"""Whether each commit has counted exactly what has happened to jobs: of the type, of its minute and of its hour."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from operator import add, sub
from typing import Any, Final, TypeAlias

from jobs_service.model import JobType
from tests.simulation.entry import Entry
from tests.simulation.rows import names_in, section

EVENTS: Final = ("added", "started", "succeeded", "failed", "canceled", "crashed", "lost", "released", "expired")
"""What is counted, in the order of its lanes."""

Numbers: TypeAlias = tuple[int, ...]
"""Events; times that were waited by bucket, and their sum in milliseconds; and the same of times that runs took."""

_STATES: Final = 8
_BUCKETS: Final = 32
_LEAST: Final = 9
"""Times below 2^-9 seconds are in the first bucket."""
_TIMES: Final = {"waited": len(EVENTS), "ran": len(EVENTS) + _BUCKETS + 1}
_OF_TYPE: Final = struct.Struct(f"<{_STATES + len(EVENTS) + 2 * (_BUCKETS + 1)}q")
_OF_INTERVAL: Final = struct.Struct(f"<{len(EVENTS) + 2 * _BUCKETS}I2Q")
_SECONDS: Final = {"COUNTS": 0, "MINUTES": 60, "HOURS": 3600}
_NOTHING: Final[Numbers] = (0,) * (len(EVENTS) + 2 * (_BUCKETS + 1))


class Totals:
    """The numbers as the commits so far have left them."""

    def __init__(self) -> None:
        self._rows: dict[bytes, Numbers] = {}
        self._families = {section(family): (family, seconds) for family, seconds in _SECONDS.items()}
        self._head = len(section("COUNTS"))

    def wrong(
        self,
        written: Mapping[bytes, bytes | None],
        happened: Sequence[tuple[JobType, str]],
        took: Sequence[tuple[JobType, str, float]],
        journal: Sequence[Entry],
    ) -> Iterator[str]:
        """Yield what a commit has counted wrongly.

        Args:
            written: by it.
            happened: to jobs of which type, as the model has it.
            took: for how many seconds jobs of which type have waited, or ran.
            journal: of its operations.
        """
        counted: dict[tuple[str, JobType], Numbers] = {}
        for key, raw in written.items():
            known = self._families.get(key[: self._head])
            if known is None or len(key) == self._head:
                continue
            family, seconds = known
            if raw is None:
                self._rows.pop(key, None)
                continue
            type, *number = names_in(key)
            if seconds and not _is_of(journal, type, number[0], seconds):
                yield f"something was counted in {family} of {type!r}, {number}, which is not now"
            now = _numbers(raw, seconds)
            more = tuple(map(sub, now, self._rows.get(key, _NOTHING)))
            self._rows[key] = now
            there = counted.get((family, type))
            counted[family, type] = more if there is None else tuple(map(add, there, more))
        wanted = _wanted(happened, took)
        for family in _SECONDS:
            for type in wanted.keys() | {type for each, type in counted if each == family}:
                found, must_be = counted.get((family, type), _NOTHING), wanted.get(type, _NOTHING)
                if found != must_be:
                    yield f"{family} of {type!r} have {_shown(found)} more, and what has happened is {_shown(must_be)}"


def _numbers(raw: bytes, seconds: int) -> Numbers:
    """Return the numbers in a row."""
    if not seconds:
        return _OF_TYPE.unpack(raw)[_STATES:] if len(raw) == _OF_TYPE.size else _NOTHING
    if len(raw) != _OF_INTERVAL.size:
        return _NOTHING
    lanes = _OF_INTERVAL.unpack(raw)
    ran = len(EVENTS) + _BUCKETS
    return (*lanes[:ran], lanes[-2], *lanes[ran:-2], lanes[-1])


def _wanted(
    happened: Sequence[tuple[JobType, str]], took: Sequence[tuple[JobType, str, float]]
) -> dict[JobType, Numbers]:
    found: dict[JobType, list[int]] = {}
    for type, event in happened:
        found.setdefault(type, [*_NOTHING])[EVENTS.index(event)] += 1
    for type, what, seconds in took:
        numbers, begin = found.setdefault(type, [*_NOTHING]), _TIMES[what]
        bucket = math.frexp(seconds)[1] + _LEAST if seconds > 0 else 0
        numbers[begin + min(max(bucket, 0), _BUCKETS - 1)] += 1
        numbers[begin + _BUCKETS] += int(1000 * seconds) if seconds > 0 else 0
    return {type: tuple(numbers) for type, numbers in found.items()}


def _shown(numbers: Numbers) -> dict[str, int]:
    """Return numbers by name, without those that are 0."""
    times = [f"{what} {bucket}" for what in _TIMES for bucket in [*range(_BUCKETS), "ms"]]
    return {name: number for name, number in zip((*EVENTS, *times), numbers, strict=True) if number}


def _is_of(journal: Sequence[Entry], type: JobType, number: Any, seconds: int) -> bool:
    """Whether an interval is that of an operation on jobs of a type."""
    return any(entry.type == type and int(entry.now // seconds) == number for entry in journal)
