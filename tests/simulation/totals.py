"""Whether each commit has counted exactly what has happened to jobs: of the type, of its minute and of its hour."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from jobs_service.model import JobType
from tests.simulation.entry import Entry
from tests.simulation.rows import names_in, section

EVENTS: Final = ("added", "started", "succeeded", "failed", "canceled", "crashed", "lost", "released", "expired")
"""What is counted, in the order of its lanes."""

_OF_TYPE: Final = struct.Struct(f"<{len(EVENTS)}q")
_BEFORE: Final = 64  # bytes of the lanes of states
_OF_INTERVAL: Final = struct.Struct(f"<{len(EVENTS)}I")
_SECONDS: Final = {"COUNTS": 0, "MINUTES": 60, "HOURS": 3600}
_NOTHING: Final = (0,) * len(EVENTS)


class Totals:
    """The totals as the commits so far have left them."""

    def __init__(self) -> None:
        self._rows: dict[bytes, tuple[int, ...]] = {}
        self._families = {section(family): (family, seconds) for family, seconds in _SECONDS.items()}
        self._head = len(section("COUNTS"))

    def wrong(
        self, written: Mapping[bytes, bytes | None], happened: Sequence[tuple[JobType, str]], journal: Sequence[Entry]
    ) -> Iterator[str]:
        """Yield what a commit has counted wrongly.

        Args:
            written: by it.
            happened: to jobs of which type, as the model has it.
            journal: of its operations.
        """
        counted: dict[tuple[str, JobType], Counter[str]] = {}
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
            if len(raw) < _BEFORE + _OF_TYPE.size:
                continue
            now = _OF_INTERVAL.unpack_from(raw) if seconds else _OF_TYPE.unpack_from(raw, _BEFORE)
            before, self._rows[key] = self._rows.get(key, _NOTHING), now
            new = counted.setdefault((family, type), Counter())
            new.update({event: after - then for event, after, then in zip(EVENTS, now, before, strict=True)})
        wanted: dict[JobType, Counter[str]] = {}
        for type, event in happened:
            wanted.setdefault(type, Counter())[event] += 1
        for family in _SECONDS:
            for type in wanted.keys() | {type for each, type in counted if each == family}:
                found, there = counted.get((family, type), Counter()), wanted.get(type, Counter())
                if any(found[event] != there[event] for event in EVENTS):
                    shown = {event: count for event, count in found.items() if count}
                    yield f"{family} of {type!r} have {shown} more, and what has happened is {dict(there)}"


def _is_of(journal: Sequence[Entry], type: JobType, number: Any, seconds: int) -> bool:
    """Whether an interval is that of an operation on jobs of a type."""
    return any(entry.type == type and int(entry.now // seconds) == number for entry in journal)
