"""What each commit must add to the counts of types, to the lane: worked out from its operations, by docs/layout.md."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import fdb.tuple

from jobs_service.model import JobType, Outcome
from tests.reader import Undocumented
from tests.reader.counts import counts, interval
from tests.simulation.entry import Entry
from tests.simulation.model_job import READY, RUNNING, SCHEDULED, Key, ModelJob
from tests.simulation.rows import names_in, section

_LANES: Final = {
    name: lane
    for lane, name in enumerate((READY, SCHEDULED, RUNNING, Outcome.SUCCEEDED, Outcome.FAILED, Outcome.CANCELED))
}
_AFTER_CRASH: Final = {READY: 6, SCHEDULED: 7}
_TOTALS: Final = {
    name: lane
    for lane, name in enumerate(
        ("added", "started", "succeeded", "failed", "canceled", "crashed", "lost", "released", "expired"), 8
    )
}
_WAITED: Final = 17
_RAN: Final = 50
_BUCKETS: Final = 32
_BOUNDS: Final = [2.0**power for power in range(-9, 22)]
"""Where the buckets of times begin, but the first, seconds."""

_ENDS: Final = {"crash": "crashed", "stop": "released", "lost": "lost", "bury": "lost"}
_BYTES: Final = {"COUNTS": 664, "MINUTES": 308, "HOURS": 308}
_SECONDS: Final = {"MINUTES": 60, "HOURS": 3600}
_KEPT: Final = {"MINUTES": 25 * 60, "HOURS": 35 * 24}
_SECTIONS: Final = {family: section(family) for family in _BYTES}

_Lanes = Counter[int]


class Tallies:
    """What the operations of the present transaction have to count; and what was counted so far.

    Args:
        jobs: all as they are now, by type and id.
        left: those that have left with their end in the present transaction.
    """

    def __init__(self, jobs: Mapping[Key, ModelJob], left: Callable[[], Mapping[Key, ModelJob | None]]) -> None:
        self._jobs = jobs
        self._left = left
        # Of each type, by the clock of each unit of work: what has happened.
        self._happened: dict[tuple[JobType, float], _Lanes] = {}
        self._rows: dict[bytes, bytes] = {}

    def begin(self) -> None:
        """Forget the transaction before."""
        self._happened.clear()

    def note(self, entry: Entry, changes: list[tuple[Key, ModelJob | None]]) -> None:
        """Note what an operation has done: the jobs that it has changed, as they were before, in this order."""
        lanes = _Lanes()
        seen: set[Key] = set()
        for key, before in changes:
            if key not in seen:
                seen.add(key)
                self._count(lanes, entry, key, before)
        if lanes:
            self._happened.setdefault((entry.type, entry.now), _Lanes()).update(lanes)

    def _count(self, lanes: _Lanes, entry: Entry, key: Key, before: ModelJob | None) -> None:
        name, after = entry.name, self._jobs.get(key)
        if name in ("add", "enqueue", "resubmit"):
            if after is not None and after.pending and (before is None or after.place != before.place):
                lanes[_TOTALS["added"]] += 1
        elif name == "expire":
            lanes[_TOTALS["expired"]] += 1
        elif name == "give up":
            lanes[_TOTALS["failed"]] += 1
            if after is None:
                lanes[_TOTALS["expired"]] += 1
        elif before is not None and name == "accept":
            lanes[_TOTALS["started"]] += 1
            since = _newest(before, is_start=False)
            if since is not None:
                _time(lanes, _WAITED, entry.now - max(since, since if before.run_at is None else before.run_at))
        elif before is not None and before.lock is not None and name in ("finish", *_ENDS):
            self._count_end(lanes, entry, key, before, after)

    def _count_end(self, lanes: _Lanes, entry: Entry, key: Key, before: ModelJob, after: ModelJob | None) -> None:
        left = self._left().get(key) if after is None else None
        ended = after or left
        if entry.name == "finish":
            outcome, said = entry.arguments[2:4]
            if ended is not None and ended.outcome is not None:
                outcome = ended.outcome
            lanes[_TOTALS[outcome.value]] += 1
            if said.reason:
                lanes[_TOTALS["crashed"]] += 1
        else:
            lanes[_TOTALS[_ENDS[entry.name]]] += 1
            if ended is not None and ended.outcome is not None:
                lanes[_TOTALS["canceled"]] += 1
        if left is not None:
            lanes[_TOTALS["expired"]] += 1
        since = _newest(before, is_start=True)
        if since is not None:
            _time(lanes, _RAN, entry.now - since)

    # What was written

    def wrong(
        self, touched: Mapping[Key, ModelJob | None], written: Mapping[bytes, bytes | None], *, told: bool
    ) -> Iterator[str]:
        """Yield what was counted wrongly.

        Args:
            touched: the jobs that the transaction has changed, as they were before.
            written: rows, None for those that were removed.
            told: whether that is to be said; else it is only taken note of.
        """
        rows = {key: raw for key, raw in written.items() if key.startswith(tuple(_SECTIONS.values()))}
        if told:
            wanted = self._wanted(touched)
            for key in {**wanted, **rows}:
                if key in rows or wanted[key]:
                    yield from self._compare(key, wanted.get(key, 0), rows.get(key, b""))
        for key, raw in rows.items():
            if raw is None:
                self._rows.pop(key, None)
            else:
                self._rows[key] = raw

    def _wanted(self, touched: Mapping[Key, ModelJob | None]) -> dict[bytes, int]:
        """Return what is to be added to which row."""
        of_types: dict[JobType, _Lanes] = {}
        wanted: dict[bytes, int] = {}
        for key, before in touched.items():
            lanes = of_types.setdefault(key[0], _Lanes())
            for job, number in ((before, -1), (self._jobs.get(key), 1)):
                if job is not None:
                    lanes[_lane(job)] += number
        for (type, now), happened in self._happened.items():
            of_types.setdefault(type, _Lanes()).update(happened)
            for family, seconds in _SECONDS.items():
                row = interval_key(family, type, int(now // seconds))
                wanted[row] = wanted.get(row, 0) + sum(count << _short(lane) for lane, count in happened.items())
        for type, lanes in of_types.items():
            wanted[counts_key(type)] = sum(count << 64 * lane for lane, count in lanes.items())
        return wanted

    def _compare(self, key: bytes, wanted: int, raw: bytes | None) -> Iterator[str]:
        family, *names = _named(key)
        if not names:
            return  # How far a store was converted.
        before = self._rows.get(key, b"")
        if raw is None:
            yield from self._compare_removed(family, *names)
        elif raw == b"":
            yield f"counts: {family} {names} must become other than {_shown(family, before)}, but was not written"
        elif int.from_bytes(raw, "little", signed=True) != int.from_bytes(before, "little", signed=True) + wanted:
            added = _shown(family, (wanted % (1 << 8 * _BYTES[family])).to_bytes(_BYTES[family], "little"))
            yield (
                f"counts: {family} {names} was {_shown(family, before)} and is {_shown(family, raw)}; "
                f"to be added was {added}"
            )

    def _compare_removed(self, family: str, type: JobType, number: int | None = None) -> Iterator[str]:
        clocks = [now for each, now in self._happened if each == type]
        if number is None or not clocks or number >= max(clocks) // _SECONDS[family] - _KEPT[family]:
            yield f"counts: {family} of {type!r}, number {number}, was removed at {clocks}"


def counts_key(type: JobType) -> bytes:
    """Return where what is counted of a type is."""
    packed: bytes = fdb.tuple.pack((type,))
    return _SECTIONS["COUNTS"] + packed


def interval_key(family: str, type: JobType, number: int) -> bytes:
    """Return where what is counted of a minute or an hour is."""
    packed: bytes = fdb.tuple.pack((type, number))
    return _SECTIONS[family] + packed


def _named(key: bytes) -> tuple[Any, ...]:
    family = next(name for name, head in _SECTIONS.items() if key.startswith(head))
    return (family, *(names_in(key) if key != _SECTIONS[family] else ()))


def _shown(family: str, raw: bytes) -> str:
    """Return what is counted in a row, without what there is none of."""
    if not raw:
        return "nothing"
    try:
        found = counts(raw) if family == "COUNTS" else interval(raw)
    except Undocumented as error:
        return f"{error}"
    some = {name: count for name, count in (found.states | found.totals).items() if count}
    times = [{bucket: count for bucket, count in enumerate(each) if count} for each in (found.waited, found.ran)]
    return f"{some}, waited {times[0]}, ran {times[1]}, {found.sums} ms"


def _lane(job: ModelJob) -> int:
    if job.outcome is not None:
        return _LANES[job.outcome]
    if job.retrying:
        return _AFTER_CRASH[job.state]
    return _LANES[job.state]


def _short(lane: int) -> int:
    """Return by how many bits what is in a lane of COUNTS is shifted in a row of MINUTES or HOURS."""
    totals = len(_TOTALS)
    if lane < _WAITED:
        return 32 * (lane - 8)
    if lane < _WAITED + _BUCKETS:
        return 32 * (totals + lane - _WAITED)
    if lane == _WAITED + _BUCKETS:
        return 32 * (totals + 2 * _BUCKETS)
    if lane < _RAN + _BUCKETS:
        return 32 * (totals + _BUCKETS + lane - _RAN)
    return 32 * (totals + 2 * _BUCKETS) + 64


def _newest(job: ModelJob, *, is_start: bool) -> float | None:
    """Return when the newest event of a job was; None if its record does not tell it, or it is no fitting one."""
    if not job.notes.history or (job.notes.history[0][0] == "started") is not is_start:
        return None
    return job.notes.history[0][1]


def _time(lanes: _Lanes, first: int, seconds: float) -> None:
    """Count a time: none where a clock was set back."""
    lanes[first + bisect_right(_BOUNDS, seconds)] += 1
    if seconds > 0:
        lanes[first + _BUCKETS] += int(1000 * seconds)
