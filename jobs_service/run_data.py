"""What is told of a job's runs beside its data: attempts, history, result, error and progress, and how they are packed.

Floor: beside the model. Every move of a job adds to its history, so the packed form is changed without unpacking it:
a head, then the events, newest first, then what is there of result, error and progress. Integers are big-endian:

| offset | bytes | field                                                                          |
|--------|-------|--------------------------------------------------------------------------------|
| 0      | 1     | what follows the history: 1 a result, 2 an error, 4 progress, 8 limits; bits 4 |
|        |       | to 7: how many runs have crashed in a row, 15 for as many or more              |
| 1      | 2     | attempts                                                                       |
| 3      | 1     | events in the history                                                          |
| 4      | 2     | h: bytes of the history                                                        |
| 6      | 8     | when the finished job expires, a double: seconds since the epoch; NaN for never |
| 14     | h     | events: kind (1), time (8, a double), d (1), detail (d)                        |
|        | 4+n   | each of the others: its length, and JSON                                       |

A result is any JSON; an error is [type, message, traceback]; progress is [done, total, message, attempt], without the
attempt where an earlier version has written it; limits, what holds for this job instead of its handler's options, are
[max_attempts, time_limit], null for what is the handler's.
"""

from __future__ import annotations

import functools
import math
import struct
from typing import Any, Final

from jobs_service import json_data
from jobs_service.errors import InvalidJob, RecordDamaged, a_kind_of, in_one_line, shown
from jobs_service.run_values import HistoryEvent, HistoryKind, JobError, Progress

MAX_HISTORY: Final = 20
"""Events that are kept unless somebody says otherwise."""

MOST_HISTORY: Final = 100
"""Events that can be kept."""

RESULT: Final = 1
ERROR: Final = 2
PROGRESS: Final = 4
LIMITS: Final = 8
_PARTS: Final = (RESULT, ERROR, PROGRESS, LIMITS)
_ALL_PARTS: Final = RESULT | ERROR | PROGRESS | LIMITS
_CRASHES_SHIFT: Final = 4
_MOST_CRASHES: Final = 15

_HEAD = struct.Struct(">BHBHd")
_EVENT = struct.Struct(">BdB")
_LENGTH = struct.Struct(">I")
_MOST_DETAIL: Final = 255
_MOST_OF_A_MESSAGE: Final = 200
_MOST_ATTEMPTS: Final = 0xFFFF
_NAN: Final = math.nan

HEAD_BYTES: Final = _HEAD.size
_NEW: Final = _HEAD.pack(0, 0, 1, _EVENT.size, _NAN)
"""The head of a job that was just added: one event, without detail."""

_ENDS_ROW: Final = frozenset({HistoryKind.ADDED, HistoryKind.STOPPED, HistoryKind.FINISHED, HistoryKind.CANCELED})
"""After these a crash is the first in a row."""

_CRASHED: Final = HistoryKind.CRASHED
_KINDS: Final = tuple(HistoryKind)
"""What an event's kind is packed as: its place here."""


# Changing the packed form


def started_anew(notes: bytes, now: float) -> bytes:
    """Return the notes of a job that was added or resubmitted: no attempts, nothing left of earlier runs but limits."""
    if not notes:
        return _NEW + _EVENT.pack(0, now, 0)
    history, count = _history(notes)
    anew = _packed(0, 0, count, len(history), history, HistoryKind.ADDED, now, "", kept_by_others(notes))
    return with_part(anew, LIMITS, _parts(notes)[LIMITS]) if notes[0] & LIMITS else anew


def noted(
    notes: bytes,
    kind: HistoryKind,
    now: float,
    detail: str = "",
    *,
    attempts: int = 0,
    most: int | None = None,
    crashes: int | None = None,
) -> bytes:
    """Return the notes with one more event; the job does not expire any more.

    Args:
        notes: as they were; empty for none.
        kind: what happened.
        now: seconds since the epoch.
        detail: cut to 255 bytes.
        attempts: to be added to the number of attempts, which stays within 0 and 65,535.
        most: events that are kept; None for as many as there are, and MAX_HISTORY at least.
        crashes: how many runs have crashed in a row, when one has; None for one more than before.

    Raises:
        RecordDamaged: the bytes are damaged.
    """
    bits, before, count, size, _ = _head(notes)
    if kind is _CRASHED:
        in_a_row = (bits >> _CRASHES_SHIFT) + 1 if crashes is None else crashes
        bits = bits & _ALL_PARTS | min(in_a_row, _MOST_CRASHES) << _CRASHES_SHIFT
    elif bits > _ALL_PARTS and kind in _ENDS_ROW:
        bits &= _ALL_PARTS
    if most is None:
        most = kept_by_others(notes)
    return _packed(bits, before + attempts, count, size, notes[HEAD_BYTES:], kind, now, detail, most)


def with_no_attempts(notes: bytes) -> bytes:
    """Return the notes of a job that is to run once more, as if it had not run yet; what the last run left stays."""
    bits, _, count, size, expires = _head(notes)
    return _HEAD.pack(bits, 0, count, size, expires) + notes[HEAD_BYTES:]


def with_part(notes: bytes, part: int, json: bytes | None) -> bytes:
    """Return the notes with another result, error, progress or limits; None for none."""
    if not json and not (notes and notes[0] & part):
        return notes  # nothing was there, and nothing comes
    bits, attempts, count, size, expires = _head(notes)
    end = HEAD_BYTES + size
    parts = _parts(notes)
    if json is None:
        parts.pop(part, None)
    else:
        parts[part] = json
    bits = bits & ~_ALL_PARTS | sum(parts)
    tail = b"".join(_LENGTH.pack(len(parts[each])) + parts[each] for each in _PARTS if each in parts)
    return _HEAD.pack(bits, attempts, count, size, expires) + notes[HEAD_BYTES:end] + tail


def expiring(notes: bytes, at: float) -> bytes:
    """Return the notes of a job that expires then, seconds since the epoch."""
    bits, attempts, count, size, _ = _head(notes)
    return _HEAD.pack(bits, attempts, count, size, at) + notes[HEAD_BYTES:]


def without_history(notes: bytes) -> bytes:
    """Return the notes with an empty history: what gives way when a record grows too large."""
    bits, attempts, _, size, expires = _head(notes)
    return _HEAD.pack(bits, attempts, 0, 0, expires) + notes[HEAD_BYTES + size :]


# Looking into it


def attempts_of(notes: bytes) -> int:
    """Return how many runs have begun since the job was added or resubmitted, without those that were stopped."""
    return int.from_bytes(notes[1:3], "big")


def crashes_of(notes: bytes) -> int:
    """Return how many runs have crashed in a row, 15 for as many or more."""
    return notes[0] >> _CRASHES_SHIFT if notes else 0


def kept_by_others(notes: bytes) -> int:
    """Return how many events those keep who do not know the handler's own number: no fewer than it has kept so far."""
    return max(MAX_HISTORY, notes[3] if len(notes) > 3 else 0)


def expires_at(notes: bytes) -> float | None:
    """Return when the job expires, seconds since the epoch; None for never."""
    expires = _head(notes)[4]
    return None if expires != expires else expires


def size_of_history(notes: bytes) -> int:
    """Return the bytes that the history takes."""
    return int.from_bytes(notes[4:6], "big")


def history_of(notes: bytes) -> tuple[HistoryEvent, ...]:
    """Return the history, newest first.

    Raises:
        RecordDamaged: the bytes are damaged.
    """
    packed, count = _history(notes)
    events: list[HistoryEvent] = []
    position = 0
    try:
        for _ in range(count):
            code, at, size = _EVENT.unpack_from(packed, position)
            position += _EVENT.size
            detail = packed[position : position + size].decode()
            position += size
            events.append(HistoryEvent(_KINDS[code], at, detail))
    except (struct.error, ValueError, IndexError) as error:
        raise RecordDamaged(f"a job's history is damaged: {error}") from None
    if position != len(packed):
        raise RecordDamaged(f"a job's history is damaged: it has {len(packed)} bytes; its events take {position}")
    return tuple(events)


def result_of(notes: bytes) -> Any:
    """Return what the last run left as its result, None for nothing. Raises like `history_of`."""
    return json_data.decode(_parts(notes).get(RESULT, b""))


def error_of(notes: bytes) -> JobError | None:
    """Return how the last failed run ended. Raises like `history_of`."""
    json = _parts(notes).get(ERROR)
    return None if json is None else JobError(*_values(json, 3))


def progress_of(notes: bytes) -> Progress | None:
    """Return how far the job has come, as it said last. Raises like `history_of`."""
    json = _parts(notes).get(PROGRESS)
    return None if json is None else Progress(*_values(json, 4))


def limits_of(notes: bytes) -> tuple[int | None, float | None]:
    """Return the most attempts and the time limit in seconds that hold for this job; None for what is its handler's.

    Limits that are damaged are none: whoever runs jobs goes on.
    """
    if not notes or not notes[0] & LIMITS:
        return None, None
    try:
        return _limits(notes)
    except RecordDamaged:
        return None, None


def _limits(notes: bytes) -> tuple[int | None, float | None]:
    values = json_data.decode(_parts(notes).get(LIMITS, b"[null,null]"))
    if type(values) is list and len(values) == 2:
        most, seconds = values
        if (most is None or (type(most) is int and most > 0)) and (
            seconds is None or (type(seconds) in (int, float) and seconds > 0)
        ):
            return most, seconds
    raise RecordDamaged(f"a job's notes are damaged: two limits are packed as {shown(values)}")


def limits_json(max_attempts: int | None, time_limit: float | None) -> bytes:
    """Return limits as the notes keep them."""
    return json_data.encode([max_attempts, time_limit])


def told_of(notes: bytes) -> bytes:
    """Return what subscribers are told of: result, error and progress, as packed."""
    return notes[HEAD_BYTES + size_of_history(notes) :]


def error_json(error: JobError) -> bytes:
    """Return an error as the notes keep it."""
    return json_data.encode([error.type, error.message, error.traceback])


def progress_of_values(done: Any, total: Any, message: Any, attempt: int | None = None) -> Progress:
    """Return progress of what an application gave.

    Raises:
        InvalidJob: no numbers, or no text.
    """
    for what, number in (("done", done), ("total", total)):
        is_number = isinstance(number, int | float) and not isinstance(number, bool)
        if not is_number and not (what == "total" and number is None):
            raise InvalidJob(f"progress: {what}={shown(number)}: {a_kind_of(number)}; allowed are numbers")
    if not isinstance(message, str):
        raise InvalidJob(f"progress: message={shown(message)}: {a_kind_of(message)}; allowed is str")
    return Progress(done, total, in_one_line(message, _MOST_OF_A_MESSAGE), attempt)


def progress_json(progress: Progress) -> bytes:
    """Return progress as the notes keep it.

    Raises:
        InvalidJob: it has a number that JSON cannot carry.
    """
    said: list[Any] = [progress.done, progress.total, progress.message]
    return json_data.encode(said if progress.attempt is None else [*said, progress.attempt])


def check(notes: bytes) -> None:
    """Check that notes are what this module packs.

    Raises:
        RecordDamaged: they are damaged.
    """
    history_of(notes)
    result_of(notes)
    error_of(notes)
    progress_of(notes)
    _limits(notes)


def check_sizes(notes: bytes) -> None:
    """Check that notes are as long as their history and their parts say. Raises like `check`."""
    _parts(notes)


def _values(json: bytes, most: int) -> list[Any]:
    """Return the three values of an error or of progress, and of the latter perhaps a fourth."""
    values = json_data.decode(json)
    if type(values) is not list or not 3 <= len(values) <= most:
        raise RecordDamaged(f"a job's notes are damaged: {most} values are packed as {shown(values)}")
    return values


def _packed(
    bits: int,
    attempts: int,
    count: int,
    size: int,
    rest: bytes,
    kind: HistoryKind,
    now: float,
    detail: str,
    most: int,
) -> bytes:
    """Pack one more event before the rest: a history of so many events and bytes, and what follows it."""
    if count >= most:
        count = most - 1
        end = _end_of(rest[:size], count)
        rest = rest[:end] + rest[size:]
        size = end
    event = _event(kind, now, detail)
    attempts = 0 if attempts < 0 else _MOST_ATTEMPTS if attempts > _MOST_ATTEMPTS else attempts
    return _HEAD.pack(bits, attempts, count + 1, size + len(event), _NAN) + event + rest


@functools.lru_cache(maxsize=16)  # those of many jobs that one transaction moves are the same
def _event(kind: HistoryKind, now: float, detail: str) -> bytes:
    said = detail.encode(errors="replace")
    if len(said) > _MOST_DETAIL:
        said = said[:_MOST_DETAIL].decode(errors="ignore").encode()
    return _EVENT.pack(_KINDS.index(kind), now, len(said)) + said


def _end_of(history: bytes, count: int) -> int:
    """Return where so many events end."""
    position = 0
    try:
        for _ in range(count):
            position += _EVENT.size + history[position + _EVENT.size - 1]
    except IndexError:
        raise RecordDamaged("a job's history is damaged: it ends within an event") from None
    return position


def _head(notes: bytes) -> tuple[int, int, int, int, float]:
    if not notes:
        return 0, 0, 0, 0, _NAN
    try:
        return _HEAD.unpack_from(notes)
    except struct.error as error:
        raise RecordDamaged(f"a job's notes are damaged: {error}") from None


def _history(notes: bytes) -> tuple[bytes, int]:
    _, _, count, size, _ = _head(notes)
    return notes[HEAD_BYTES : HEAD_BYTES + size], count


def _parts(notes: bytes) -> dict[int, bytes]:
    """Return the JSON of result, error and progress, as far as they are there."""
    bits, _, _, size, _ = _head(notes)
    position = HEAD_BYTES + size
    parts: dict[int, bytes] = {}
    for part in _PARTS:
        if bits & part:
            try:
                [length] = _LENGTH.unpack_from(notes, position)
            except struct.error as error:
                raise RecordDamaged(f"a job's notes are damaged: {error}") from None
            position += _LENGTH.size
            parts[part] = notes[position : position + length]
            position += length
    if position != (len(notes) or HEAD_BYTES):
        raise RecordDamaged(f"a job's notes are damaged: they have {len(notes)} bytes; their parts take {position}")
    return parts
