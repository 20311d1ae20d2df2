"""Counters of each type: written by atomic additions in the transactions that change jobs, read in one look.

A row is one long little-endian integer, in which every counter has its lane of some bytes. An addition to the row is
the sum of the additions to each lane, shifted to its place. Carries between lanes do no harm: the row is the sum of its
lanes as numbers, so that subtracting one from a lane borrows exactly what an earlier addition has carried, and the
lanes are correct at every commit. To read them, the lowest lane is taken as a signed number and subtracted before the
next one is read: even a lane below zero, as in a damaged store, leaves the others right. So all counters of a type take
one addition per transaction, and those of a minute and of an hour one each.

| row             | lanes                                                                                    |
|-----------------|------------------------------------------------------------------------------------------|
| COUNTS          | of 8 bytes: jobs by state (8), totals (9), waited (32 and a sum), ran (32 and a sum)     |
| MINUTES, HOURS  | of 4 bytes: totals (9), waited (32), ran (32); of 8 bytes: the sums of waited and of ran |

Sums are in milliseconds. Rows of minutes and hours only grow. A process that adds to them removes old ones once an
hour: a type without monitored jobs has no monitor that could do it. For types without further events, whether removed
or idle, the type servers remove them, some types at a time.
"""

from __future__ import annotations

import functools
import math
import struct
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

import fdb.tuple

from jobs_service.errors import StoreDamaged
from jobs_service.layer.keyspace import AFTER, COUNTS, Keyspace, TypeKeys
from jobs_service.layer.record import READY, Record
from jobs_service.model import Outcome
from jobs_service.model.type_state import BUCKETS, FIRST_POWER, Histogram, Interval, Totals, TypeCounts
from jobs_service.run_data import NEWEST, crashed_last, newest_event
from jobs_service.store.base import Snapshot, Transaction

# Lanes of states: a job counts in one of them.
IS_READY: Final = 0
IS_SCHEDULED: Final = 1
IS_RUNNING: Final = 2
AFTER_CRASH: Final = 6
"""Distance from the lanes of ready and scheduled jobs to the lanes of those whose last run has crashed."""
STATES: Final = 8
IS_UNCOUNTED: Final = b"\x01"
"""The value of a row in SET_ASIDE whose job counts in no lane, since its state cannot be read."""
OF_OUTCOME: Final = {Outcome.SUCCEEDED: 3, Outcome.FAILED: 4, Outcome.CANCELED: 5}

# Events of jobs: the fields of Totals, in their order.
ADDED: Final = 0
STARTED: Final = 1
SUCCEEDED: Final = 2
FAILED: Final = 3
CANCELED: Final = 4
CRASHED: Final = 5
LOST: Final = 6
RELEASED: Final = 7
EXPIRED: Final = 8
_EVENTS: Final = 9
_NO_TOTALS: Final = Totals()
ENDED: Final = {Outcome.SUCCEEDED: SUCCEEDED, Outcome.FAILED: FAILED, Outcome.CANCELED: CANCELED}

Tally: TypeAlias = defaultdict[int | tuple[int, bytes], int]
"""Events of a type's jobs in one transaction.

Keys are events; places behind the events (a bucket of waits, a bucket of run times, the sums of both in milliseconds);
and, for starts and ends of runs, the event with the newest event in the run data before it, since which the job has
waited or run. Many jobs share the latter.
"""

_LANE: Final = 64
_SHORT_LANE: Final = 32
_WAITED: Final = _EVENTS
_RAN: Final = _EVENTS + BUCKETS
_SHORT_LANES: Final = _EVENTS + 2 * BUCKETS
_WAITED_SUM: Final = _SHORT_LANES
_RAN_SUM: Final = _SHORT_LANES + 1
COUNTS_BYTES: Final = 8 * (STATES + _EVENTS + 2 * (BUCKETS + 1))
INTERVAL_BYTES: Final = 4 * _SHORT_LANES + 16
_COUNTS = struct.Struct(f"<{COUNTS_BYTES // 8}q")
_INTERVAL = struct.Struct(f"<{_SHORT_LANES}I2Q")
_TOTALS = struct.Struct(f"<{_EVENTS}I")

MINUTE: Final = 60
HOUR: Final = 3600
MINUTES_KEPT: Final = 25 * 60
HOURS_KEPT: Final = 35 * 24
_FIRST_BOUND: Final = Histogram.bounds()[0]
_LONGEST: Final = 1e10

_PAGE: Final = 500
_FEW: Final = 4
"""Most intervals of a type that are read one by one, and not as a range."""
_ALL_LANES: Final = (1 << 8 * INTERVAL_BYTES) - 1
_NO_TIMES: Final = Histogram()
"""One object for the empty histograms of many types and intervals."""


def lane_of(record: Record) -> int:
    """Return the lane of a job with this record."""
    if record.lock is not None:
        return IS_RUNNING
    if record.place:
        lane = IS_READY if record.place == READY else IS_SCHEDULED
        return lane + AFTER_CRASH if crashed_last(record.run_data) else lane
    return OF_OUTCOME[record.outcome]  # type: ignore[index]


def lane_of_damaged(keys: TypeKeys, index_key: bytes, is_retrying: bool) -> int:
    """Return the lane of a job with an unreadable record.

    Args:
        keys: of the type.
        index_key: of the entry by which it was found; empty for none, as of most finished jobs.
        is_retrying: whether it has a row in RETRYING.
    """
    if index_key.startswith(keys.activity):
        return IS_RUNNING
    for section, lane in (keys.ready, IS_READY), (keys.scheduled, IS_SCHEDULED):
        if index_key.startswith(section):
            return lane + AFTER_CRASH * is_retrying
    return OF_OUTCOME[Outcome.FAILED if index_key.startswith(keys.failed_head) else Outcome.SUCCEEDED]


def new_tally() -> Tally:
    """Return an empty tally."""
    return defaultdict(int)


def count_starts(tally: Tally, records: Iterable[Record], now: float) -> None:
    """Count starts of pending jobs, and their waits, if their records tell the times."""
    for record in records:
        newest = record.run_data[NEWEST]
        if record.run_at is not None and (added := _since(STARTED, newest)) is not None and record.run_at > added:
            tally[STARTED] += 1
            _count_time(tally, _WAITED, now - record.run_at, 1)
        else:
            tally[STARTED, newest] += 1


def _since(event: int, newest: bytes) -> float | None:
    """Return since when a started job had waited, or an ended run had run; None if unknown."""
    found = newest_event(newest)
    return None if found is None or found[0] is (event == STARTED) else found[1]


def _count_time(tally: Tally, histogram: int, seconds: float, times: int) -> None:
    # A clock may have been set back; a damaged record's time may be invalid.
    if not seconds <= _LONGEST:
        return
    if seconds > 0:
        tally[_WAITED_SUM if histogram == _WAITED else _RAN_SUM] += times * int(1000 * seconds)
    tally[histogram + bucket_of(seconds)] += times


def bucket_of(seconds: float) -> int:
    """Return the bucket of a time; a negative time, after a clock was set back, counts as 0 seconds."""
    if not seconds >= _FIRST_BOUND:
        return 0
    # seconds = m * 2**e with 0.5 <= m < 1
    bucket = math.frexp(seconds)[1] - 1 - FIRST_POWER
    return bucket if bucket < BUCKETS else BUCKETS - 1


def _places(tally: Tally, now: float) -> dict[int, int]:
    """Return a tally by place, with times in their buckets."""
    places = new_tally()
    for key, count in tally.items():
        if isinstance(key, int):
            places[key] += count
            continue
        event, newest = key
        places[event] += count
        if (since := _since(event, newest)) is not None:
            _count_time(places, _WAITED if event == STARTED else _RAN, now - since, count)
    return places  # type: ignore[return-value]


def write(
    transaction: Transaction,
    states: dict[TypeKeys, list[int]],
    tallies: dict[TypeKeys, Tally],
    now: float,
    *,
    sweeps: bool,
) -> None:
    """Add the changes of one transaction.

    Args:
        transaction: of the changes.
        states: for each type, the change of the number of jobs in each lane.
        tallies: for each type, the events of its jobs.
        now: seconds since the epoch.
        sweeps: whether old rows may be removed as well.
    """
    for keys in {**states, **tallies}:
        tally = tallies.get(keys)
        places = _places(tally, now) if tally else {}
        counts, interval = _operands(tuple(states.get(keys, ())), tuple(places.items()))
        if places:
            _add_intervals(transaction, keys, interval, now, sweeps)
        if counts:
            transaction.add(keys.counts, counts)


@functools.lru_cache(32)  # most transactions that change one job do the same as others
def _operands(states: tuple[int, ...], places: tuple[tuple[int, int], ...]) -> tuple[bytes, bytes]:
    """Return the operands for a row of COUNTS, empty for nothing, and for rows of MINUTES and HOURS."""
    total = short = 0
    for lane, count in enumerate(states):
        if count:
            total += count << _LANE * lane
    for place, count in places:
        total += count << _PLACES[place]
        short += count << _SHORT_PLACES[place]
    counts = total.to_bytes(COUNTS_BYTES, "little", signed=True) if total else b""
    return counts, short.to_bytes(INTERVAL_BYTES, "little")


_PLACES: Final = [
    *(_LANE * (STATES + place) for place in range(_RAN)),
    *(_LANE * (STATES + place + 1) for place in range(_RAN, _SHORT_LANES)),
    _LANE * (STATES + _RAN),
    _LANE * (STATES + _RAN_SUM),
]
"""Bit shifts of a tally's places in a row of COUNTS, where a sum follows each histogram."""

_SHORT_PLACES: Final = [
    *(_SHORT_LANE * place for place in range(_SHORT_LANES)),
    _SHORT_LANE * _SHORT_LANES,
    _SHORT_LANE * _SHORT_LANES + _LANE,
]
"""The same in a row of MINUTES or HOURS."""


def new_states() -> list[int]:
    """Return lanes of states without changes."""
    return [0] * STATES


def _add_intervals(transaction: Transaction, keys: TypeKeys, operand: bytes, now: float, sweeps: bool) -> None:
    minute, hour = int(now // MINUTE), int(now // HOUR)
    transaction.add(keys.minutes + _number(minute), operand)
    transaction.add(keys.hours + _number(hour), operand)
    if sweeps and keys.swept != hour:
        keys.swept = hour
        remove_old(transaction, [keys], now)


@functools.lru_cache(2048)
def _number(number: int) -> bytes:
    packed: bytes = fdb.tuple.pack((number,))
    return packed


def remove_old(transaction: Transaction, types: Iterable[TypeKeys], now: float) -> None:
    """Remove the types' rows of minutes and hours that are too old at `now`, in seconds since the epoch."""
    for keys in types:
        for begin, end in _old(keys, now):
            transaction.clear_range(begin, end)


async def with_old(transaction: Snapshot, types: Iterable[TypeKeys], now: float) -> list[TypeKeys]:
    """Return the types that have such old rows, by two short reads for each."""
    return [
        keys
        for keys in types
        if any([await transaction.get_range(begin, end, limit=1) for begin, end in _old(keys, now)])
    ]


def _old(keys: TypeKeys, now: float) -> Iterable[tuple[bytes, bytes]]:
    for section, seconds in (keys.minutes, MINUTE), (keys.hours, HOUR):
        yield section, section + _number(first_kept(seconds, now))


# Reading


async def of_types(transaction: Snapshot, types: Sequence[TypeKeys]) -> list[TypeCounts | None]:
    """Return the counts of types; the reads go out together; None for a type that never had any."""
    rows = await transaction.get_many([keys.counts for keys in types])
    return [None if row is None else decoded(row) for row in rows]


async def page(
    transaction: Snapshot, keyspace: Keyspace, after: bytes | None
) -> tuple[list[tuple[bytes, TypeCounts]], bytes | None]:
    """Return the counts of some packed types, and the type behind which others may follow; None at the end."""
    section = keyspace.sections[COUNTS]
    begin = section + (b"" if after is None else after) + b"\x00"
    rows = await transaction.get_range(begin, section + AFTER, limit=_PAGE)
    found = [(key[len(section) :], decoded(row)) for key, row in rows]
    return found, found[-1][0] if len(found) == _PAGE else None


@functools.lru_cache(2048)  # the counts of all types are read again and again, and those of most have not changed
def decoded(row: bytes) -> TypeCounts:
    """Return the counts in a row of COUNTS.

    Raises:
        StoreDamaged: the row is damaged.
    """
    lanes = _lanes(row)
    ready, scheduled, running, succeeded, failed, canceled, retrying_ready, retrying_scheduled = lanes[:STATES]
    begin = STATES + _EVENTS
    end = begin + BUCKETS
    return TypeCounts(
        ready,
        scheduled,
        retrying_ready + retrying_scheduled,
        running,
        succeeded,
        failed,
        canceled,
        totals=Totals(*lanes[STATES:begin]),
        waited=_histogram(lanes[begin:end], lanes[end]),
        ran=_histogram(lanes[end + 1 : -1], lanes[-1]),
    )


def _lanes(row: bytes) -> list[int]:
    if len(row) != COUNTS_BYTES:
        raise StoreDamaged(
            f"the counts of a type have {len(row)} bytes, not {COUNTS_BYTES}: a copy of the store counts anew"
        )
    found = [*_COUNTS.unpack(row)]
    if min(found) >= 0:
        return found
    lanes = []
    carried = 0
    for lane in found:
        lanes.append(lane + carried)
        carried = int(lane < 0)
    return lanes


def _histogram(counts: Sequence[int], milliseconds: int) -> Histogram:
    if not milliseconds and not any(counts):
        return _NO_TIMES
    return Histogram(tuple(counts), milliseconds / 1000)


async def intervals(transaction: Snapshot, keys: TypeKeys, seconds: int, first: int, last: int) -> list[Interval]:
    """Return the intervals from one number to another, both included, with empty ones.

    Args:
        transaction, keys: of the type.
        seconds: MINUTE or HOUR.
        first, last: numbers of intervals since the epoch.
    """
    head = keys.minutes if seconds == MINUTE else keys.hours
    rows = dict(await transaction.get_range(head + _number(first), head + _number(last) + AFTER))
    return [_interval(number, seconds, rows.get(head + _number(number))) for number in range(first, last + 1)]


async def sums(
    transaction: Snapshot, types: Sequence[TypeKeys], seconds: int, first: int, last: int, size: int = 1
) -> list[list[int]]:
    """Return the sums of each type's intervals as `summed` reads them, an item for each `size` intervals, 0 for none.

    Rows are added as the numbers that they are, which takes a thirtieth of the time of decoding them: a lane overflows
    after four billion events.

    Args:
        transaction, types: of the types.
        seconds: MINUTE or HOUR.
        first, last: numbers of intervals since the epoch.
        size: intervals per item.
    """
    places = {_number(number): (number - first) // size for number in range(first, last + 1)}
    found = [[0] * ((last - first) // size + 1) for _ in types]
    place_of, as_number = places.get, int.from_bytes
    for (start, rows), into in zip(await _rows(transaction, types, seconds, [*places]), found, strict=True):
        for key, row in rows:
            if (place := place_of(key[start:])) is not None and len(row) == INTERVAL_BYTES:
                into[place] += as_number(row, "little")
    return found


def summed(number: int, seconds: int, total: int, size: int = 1, *, times: bool = True) -> Interval:
    """Return the interval with a sum of rows.

    Args:
        number: of the first of them, since the epoch.
        seconds: of each.
        total, size: of `sums`.
        times: whether the histograms are wanted.
    """
    begin, length = float(number * seconds), float(size * seconds)
    if not total:
        return Interval(begin, length, _NO_TOTALS, _NO_TIMES, _NO_TIMES)
    row = (total & _ALL_LANES).to_bytes(INTERVAL_BYTES, "little")
    if times:
        return replace(_interval(number, seconds, row), seconds=length)
    return Interval(begin, length, Totals(*_TOTALS.unpack_from(row)), _NO_TIMES, _NO_TIMES)


async def totals(
    transaction: Snapshot, types: Sequence[TypeKeys], seconds: int, first: int, last: int
) -> list[list[Totals]]:
    """Return the totals of each type's intervals, without their times; arguments as for `sums`."""
    numbers = [_number(number) for number in range(first, last + 1)]
    return [
        [
            Totals(*_TOTALS.unpack_from(row)) if len(row := rows.get(number, b"")) == INTERVAL_BYTES else _NO_TOTALS
            for number in numbers
        ]
        for start, found in await _rows(transaction, types, seconds, numbers)
        for rows in [{key[start:]: row for key, row in found}]
    ]


async def _rows(
    transaction: Snapshot, types: Sequence[TypeKeys], seconds: int, numbers: Sequence[bytes]
) -> list[tuple[int, Sequence[tuple[bytes, bytes]]]]:
    """Return each type's rows of intervals, and where their keys have the packed number."""
    heads = [keys.minutes if seconds == MINUTE else keys.hours for keys in types]
    if len(numbers) <= _FEW:
        raws = iter(await transaction.get_many([head + number for head in heads for number in numbers]))
        return [(0, [(number, row) for number in numbers if (row := next(raws)) is not None]) for _ in heads]
    return [(len(head), await transaction.get_range(head + numbers[0], head + numbers[-1] + AFTER)) for head in heads]


def _interval(number: int, seconds: int, row: bytes | None) -> Interval:
    begin = float(number * seconds)
    if row is None or len(row) != INTERVAL_BYTES:
        return Interval(begin, float(seconds), _NO_TOTALS, _NO_TIMES, _NO_TIMES)
    *lanes, waited_ms, ran_ms = _INTERVAL.unpack(row)
    return Interval(
        begin,
        float(seconds),
        Totals(*lanes[:_EVENTS]),
        _histogram(lanes[_WAITED:_RAN], waited_ms),
        _histogram(lanes[_RAN:], ran_ms),
    )


def first_kept(seconds: int, now: float) -> int:
    """Return the number of the first interval that is kept."""
    return int(now // seconds) - (MINUTES_KEPT if seconds == MINUTE else HOURS_KEPT)
