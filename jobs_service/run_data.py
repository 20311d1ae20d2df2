"""The run data of a record, packed: attempts, history, result, error and progress of the job's runs.

Every move of a job adds to its history, so the packed form is changed without unpacking it: a head, then the events,
newest first, then the parts that exist: result, error, progress, limits. Integers are big-endian:

| offset | bytes | field                                                                          |
|--------|-------|--------------------------------------------------------------------------------|
| 0      | 1     | parts behind the history: 1 a result, 2 an error, 4 progress, 8 limits; bits 4 |
|        |       | to 7: number of runs that have crashed in a row, 15 for as many or more        |
| 1      | 2     | attempts                                                                       |
| 3      | 1     | events in the history                                                          |
| 4      | 2     | h: bytes of the history                                                        |
| 6      | 8     | when the finished job expires, a double: seconds since the epoch; NaN for never |
| 14     | h     | events: kind (1), time (8, a double), d (1), detail (d)                        |
|        | 4+n   | each part: its length, and JSON                                                |

A result is any JSON; an error is [type, message, traceback]; progress is [done, total, message, attempt]. Limits
override the handler's options for this job: [max_attempts, time_limit], null for the handler's own, and optionally
traceparent and tracestate (`tracing`), and the context, an object of strings (`job_context`).

The module has more than 600 lines because the packed form is read and written by the same offsets and counts.
"""

from __future__ import annotations

import bisect
import dataclasses
import enum
import functools
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from jobs_service import json_data
from jobs_service.errors import InvalidJob, RecordDamaged, a_kind_of, in_one_line, shown
from jobs_service.json_types import Time

_MOST_OF_A_MESSAGE: Final = 200

_DEFAULT_HISTORY: Final = 20
"""Events that are kept if no other number is given."""

MOST_HISTORY: Final = 100
"""Most events that can be kept."""

_KEPT_EVENTS: Final = 3
"""Newest events that are always kept: a start, how that run went wrong, and how the job ended."""

RESULT: Final = 1
ERROR: Final = 2
PROGRESS: Final = 4
LIMITS: Final = 8
_PARTS: Final = (RESULT, ERROR, PROGRESS, LIMITS)
_ALL_PARTS: Final = RESULT | ERROR | PROGRESS | LIMITS
_OF_ERROR: Final = ((str,),) * 3
_OF_PROGRESS: Final = ((int, float), (int, float, type(None)), (str,), (int, type(None)))
_CRASHES_SHIFT: Final = 4
_MOST_CRASHES: Final = 15

_HEAD = struct.Struct(">BHBHd")
_EVENT = struct.Struct(">BdB")
_LENGTH = struct.Struct(">I")
_MOST_DETAIL: Final = 255
_MOST_ATTEMPTS: Final = 0xFFFF
_NAN: Final = math.nan

ALL_ATTEMPTS: Final = -_MOST_ATTEMPTS
"""Added to any number of attempts, it leaves none."""

HEAD_BYTES: Final = _HEAD.size
_NOTHING: Final = _HEAD.pack(0, 0, 0, 0, _NAN)
"""The head of an empty history."""

_NEW: Final = _HEAD.pack(0, 0, 1, _EVENT.size, _NAN)
"""The head of a new job: one event, without detail."""

_NEWEST_KIND: Final = slice(HEAD_BYTES, HEAD_BYTES + 1)

NEWEST: Final = slice(3, HEAD_BYTES + _EVENT.size)
"""Where run data hold the newest event. Jobs that moved at once have the same bytes there."""


# The parts that an application sees


class HistoryKind(enum.StrEnum):
    """Kinds of events in a job's history."""

    ADDED = "added"
    """It was added, or resubmitted."""
    STARTED = "started"
    """A worker accepted it; the detail names the worker."""
    STOPPED = "stopped"
    """It was given back unfinished, by rotation, on shutdown, or to continue later; the detail is the reason."""
    CRASHED = "crashed"
    """Its run failed; the detail is the reason."""
    LOST = "lost"
    """Its worker fell silent."""
    FINISHED = "finished"
    """Its run ended; `outcome` tells how."""
    CANCELED = "canceled"
    """It ended because it was removed while it ran."""


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """One event of a job's history.

    Attributes:
        kind: the kind of event.
        at: its time, seconds since the epoch.
        detail: the worker of a start, or the reason of a crash or stop; at most 255 bytes.
    """

    kind: HistoryKind
    at: Time
    detail: str = ""

    @property
    def time(self) -> datetime:
        """The event's time, as an aware datetime (UTC).

        Raises:
            RecordDamaged: `at` is outside the range of dates.
        """
        try:
            return datetime.fromtimestamp(self.at, UTC)
        except (ValueError, OverflowError, OSError):
            raise RecordDamaged(f"a job's history is damaged: an event at {self.at} s since the epoch") from None


@dataclass(frozen=True, slots=True)
class JobError:
    """How a job's last failed run ended.

    Attributes:
        type: name of the exception's class.
        message: the exception's message.
        traceback: the last lines of its traceback; empty when there is none.
    """

    type: str
    message: str
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a running job.

    Attributes:
        done: completed amount, in any unit.
        total: total amount; None if unknown.
        message: description of the current work.
        attempt: number of the run that reported it, 1 for the first; None if unknown. Equality ignores it.
    """

    done: int | float
    total: int | float | None = None
    message: str = ""
    attempt: int | None = field(default=None, compare=False)


def progress_of_values(done: Any, total: Any, message: Any, attempt: int | None = None) -> Progress:
    """Return an application's progress report, checked.

    Raises:
        InvalidJob: the amounts are no numbers, or the message is no text.
    """
    for what, number in (("done", done), ("total", total)):
        is_number = isinstance(number, int | float) and not isinstance(number, bool)
        if not is_number and not (what == "total" and number is None):
            raise InvalidJob(f"progress: {what}={shown(number)}: {a_kind_of(number)}; allowed are numbers")
    if not isinstance(message, str):
        raise InvalidJob(f"progress: message={shown(message)}: {a_kind_of(message)}; allowed is str")
    return Progress(done, total, in_one_line(message, _MOST_OF_A_MESSAGE), attempt)


_ENDS_ROW: Final = frozenset({HistoryKind.ADDED, HistoryKind.STOPPED, HistoryKind.FINISHED, HistoryKind.CANCELED})
"""After these events a crash is the first in a row."""

_CRASHED: Final = HistoryKind.CRASHED
_KINDS: Final = tuple(HistoryKind)
"""The kinds; a kind's packed number is its index here."""
_CRASHED_BYTE: Final = bytes((_KINDS.index(HistoryKind.CRASHED),))
_STARTED_CODE: Final = _KINDS.index(HistoryKind.STARTED)


# Changing the packed form


def started_anew(run_data: bytes, now: float) -> bytes:
    """Return the run data of an added or resubmitted job: no attempts, and only the limits of earlier runs."""
    if not run_data:
        return _NEW + _EVENT.pack(0, now, 0)
    history, count = _history(run_data)
    anew = with_event(_HEAD.pack(0, 0, count, len(history), _NAN) + history, HistoryKind.ADDED, now)
    return with_part(anew, LIMITS, _parts(run_data)[LIMITS]) if run_data[0] & LIMITS else anew


def with_event(
    run_data: bytes,
    kind: HistoryKind,
    now: float,
    detail: str = "",
    *,
    attempts: int = 0,
    most: int | None = None,
    crashes: int | None = None,
) -> bytes:
    """Return the run data with one more event; the job does not expire any more.

    Args:
        run_data: the present run data; empty for none.
        kind: the kind of event.
        now: seconds since the epoch.
        detail: cut to 255 bytes.
        attempts: added to the number of attempts, which stays within 0 and 65,535.
        most: events that are kept; None for the present number, and _DEFAULT_HISTORY at least.
        crashes: how many runs have crashed in a row, for a crash; None for one more than before.

    Raises:
        RecordDamaged: the bytes are damaged.
    """
    try:  # as `_head`, without its call: each move of a job comes here
        bits, before, count, size, _ = _HEAD.unpack_from(run_data or _NOTHING)
    except struct.error as error:
        raise RecordDamaged(f"a job's run data are damaged: {error}") from None
    if kind is _CRASHED:
        in_a_row = (bits >> _CRASHES_SHIFT) + 1 if crashes is None else crashes
        bits = bits & _ALL_PARTS | min(in_a_row, _MOST_CRASHES) << _CRASHES_SHIFT
    elif bits > _ALL_PARTS and kind in _ENDS_ROW:
        bits &= _ALL_PARTS
    if most is None:
        most = kept_by_others(run_data)
    rest = run_data[HEAD_BYTES:]
    if count >= most:
        # The history is cut here: the new event takes the room of the oldest ones. (`fitted` cuts it further where the
        # record is too large for the store.)
        count = most - 1
        end = _end_of(rest[:size], count)
        rest = rest[:end] + rest[size:]
        size = end
    event = _event(kind, now, detail)
    attempts += before
    attempts = 0 if attempts < 0 else _MOST_ATTEMPTS if attempts > _MOST_ATTEMPTS else attempts
    return _HEAD.pack(bits, attempts, count + 1, size + len(event), _NAN) + event + rest


def with_no_attempts(run_data: bytes) -> bytes:
    """Return the run data of a job that is to run again, with no attempts counted; the last run's parts stay."""
    bits, _, count, size, expires = _head(run_data)
    return _HEAD.pack(bits, 0, count, size, expires) + run_data[HEAD_BYTES:]


def healthy(run_data: bytes) -> bytes:
    """Return the run data of a job whose run is healthy: this run is its only attempt, and no crashes are counted."""
    bits, _, count, size, expires = _head(run_data)
    return _HEAD.pack(bits & _ALL_PARTS, 1, count, size, expires) + run_data[HEAD_BYTES:]


def with_part(run_data: bytes, part: int, json: bytes | None) -> bytes:
    """Return the run data with another result, error, progress or limits; None removes the part."""
    if not json and not (run_data and run_data[0] & part):
        return run_data  # nothing was there, and nothing comes
    bits, attempts, count, size, expires = _head(run_data)
    end = HEAD_BYTES + size
    parts = _parts(run_data)
    if json is None:
        parts.pop(part, None)
    else:
        parts[part] = json
    bits = bits & ~_ALL_PARTS | sum(parts)
    tail = b"".join(_LENGTH.pack(len(parts[each])) + parts[each] for each in _PARTS if each in parts)
    return _HEAD.pack(bits, attempts, count, size, expires) + run_data[HEAD_BYTES:end] + tail


def expiring(run_data: bytes, at: float) -> bytes:
    """Return the run data of a job that expires at a time, seconds since the epoch."""
    bits, attempts, count, size, _ = _head(run_data)
    return _HEAD.pack(bits, attempts, count, size, at) + run_data[HEAD_BYTES:]


def with_details(run_data: bytes, change: Callable[[HistoryEvent], str]) -> bytes:
    """Return the run data with changed details of its events. Raises like `history_of`."""
    bits, attempts, count, size, expires = _head(run_data)
    history = b"".join(_event(event.kind, event.at, change(event)) for event in history_of(run_data))
    return _HEAD.pack(bits, attempts, count, len(history), expires) + history + run_data[HEAD_BYTES + size :]


def set_back(run_data: bytes, now: float) -> bytes:
    """Return the run data with the newest event moved back to the present time, and all later times moved as much.

    Raises like `history_of`.
    """
    bits, attempts, count, size, expires = _head(run_data)
    events = history_of(run_data)
    ahead = events[0].at - now
    history = b"".join(
        _event(event.kind, event.at - ahead if event.at > now else event.at, event.detail) for event in events
    )
    return _HEAD.pack(bits, attempts, count, size, expires - ahead) + history + run_data[HEAD_BYTES + size :]


def with_newest_events(run_data: bytes, count: int) -> bytes:
    """Return the run data cut to a number of newest events."""
    bits, attempts, _, size, expires = _head(run_data)
    rest = run_data[HEAD_BYTES:]
    end = _end_of(rest[:size], count)
    return _HEAD.pack(bits, attempts, count, end, expires) + rest[:end] + rest[size:]


def fitted(run_data: bytes, most: int) -> bytes:
    """Return the run data reduced to at most so many bytes, as far as possible.

    The oldest events go first, except the newest three; then the traceback, the progress message, and the end of the
    error message. Only in a record with less room than every job is accepted with (see `kept_bytes`), the rest of the
    history, the progress and the error go as well. The result and the limits stay.
    """
    if len(run_data) <= most:
        return run_data
    count = run_data[3]
    while count > _KEPT_EVENTS and len(run_data) > most:
        count -= 1
        run_data = with_newest_events(run_data, count)
    for smaller in _SMALLER:
        if len(run_data) <= most:
            break
        run_data = smaller(run_data, most)
    return run_data


def kept_bytes(run_data: bytes, room: int) -> int:
    """Return the least bytes that the run data need until the end of their job.

    Args:
        run_data: packed.
        room: bytes that every job has for data about its runs, beside its result.
    """
    try:
        parts = _parts(run_data)
    except RecordDamaged:  # no reason to refuse a heartbeat; a reader will report it
        return HEAD_BYTES + room
    packed = {part: _LENGTH.size + len(json) for part, json in parts.items()}
    return HEAD_BYTES + packed.get(RESULT, 0) + max(room, packed.get(LIMITS, 0))


def of_values(attempts: int, crashes: int, history: Sequence[HistoryEvent], expires: float | None) -> bytes:
    """Return the run data of an imported job from plain values; the history newest first."""
    packed = b"".join(_event(event.kind, event.at, event.detail) for event in history)
    at = _NAN if expires is None else expires
    return _HEAD.pack(crashes << _CRASHES_SHIFT, attempts, len(history), len(packed), at) + packed


# Reading the packed form


def attempts_of(run_data: bytes) -> int:
    """Return the number of runs since the count began, without stopped ones."""
    return int.from_bytes(run_data[1:3], "big")


def crashes_of(run_data: bytes) -> int:
    """Return the number of runs that have crashed in a row, 15 for as many or more."""
    return run_data[0] >> _CRASHES_SHIFT if run_data else 0


def kept_by_others(run_data: bytes) -> int:
    """Return the number of events kept by callers that do not know the handler's own number: no fewer than before."""
    return max(_DEFAULT_HISTORY, run_data[3] if len(run_data) > 3 else 0)


def expires_at(run_data: bytes) -> float | None:
    """Return when the job expires, seconds since the epoch; None for never."""
    expires = _head(run_data)[4]
    return None if expires != expires else expires


def newest_event(part: bytes) -> tuple[bool, float] | None:
    """Return whether the newest event is a start, and its time in seconds since the epoch; None if there is none.

    Args:
        part: the slice NEWEST of run data.
    """
    if len(part) < NEWEST.stop - NEWEST.start or not part[0]:
        return None
    code, at, _ = _EVENT.unpack(part[-_EVENT.size :])
    return code == _STARTED_CODE, at


def crashed_last(run_data: bytes) -> bool:
    """Whether the newest event is a crash."""
    return run_data[_NEWEST_KIND] == _CRASHED_BYTE and run_data[3] > 0


def history_of(run_data: bytes) -> tuple[HistoryEvent, ...]:
    """Return the history, newest first.

    Raises:
        RecordDamaged: the bytes are damaged.
    """
    packed, count = _history(run_data)
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


def result_of(run_data: bytes) -> Any:
    """Return the latest result of a run; None if there is none. Raises like `history_of`."""
    return json_data.decode(_parts(run_data).get(RESULT, b""))


def error_of(run_data: bytes) -> JobError | None:
    """Return how the last failed run ended. Raises like `history_of`."""
    json = _parts(run_data).get(ERROR)
    return None if json is None else JobError(*_values(json, _OF_ERROR))


def progress_of(run_data: bytes) -> Progress | None:
    """Return the job's progress as its worker last reported it. Raises like `history_of`."""
    json = _parts(run_data).get(PROGRESS)
    return None if json is None else Progress(*_values(json, _OF_PROGRESS))


def limits_of(run_data: bytes) -> tuple[int | None, float | None]:
    """Return the most attempts and the time limit in seconds of this job; None for its handler's.

    Damaged limits count as none, so that the job still runs.
    """
    if not run_data or not run_data[0] & LIMITS:
        return None, None
    try:
        return _limits(run_data)
    except RecordDamaged:
        return None, None


def _limits(run_data: bytes) -> tuple[int | None, float | None]:
    values = json_data.decode(_parts(run_data).get(LIMITS, b"[null,null]"))
    if type(values) is list and len(values) >= 2 and _is_origin(values[2:]):
        most, seconds = values[:2]
        if (most is None or (type(most) is int and most > 0)) and (
            seconds is None or (type(seconds) in (int, float) and seconds > 0)
        ):
            return most, seconds
    raise RecordDamaged(f"a job's run data are damaged: two limits are packed as {shown(values)}")


def limits_json(
    max_attempts: int | None,
    time_limit: float | None,
    trace: tuple[str, str] | None = None,
    context: Mapping[str, str] | None = None,
) -> bytes:
    """Return limits as they are packed in run data, with where the job comes from: a trace, and a context."""
    return json_data.encode([max_attempts, time_limit, *(trace or ()), *([dict(context)] if context else ())])


def origin_of(run_data: bytes) -> tuple[tuple[str, str] | None, Mapping[str, str] | None]:
    """Return the traceparent and tracestate, and the context; None for a missing or unreadable one."""
    if not run_data or not run_data[0] & LIMITS:
        return None, None
    try:
        values = json_data.decode(_parts(run_data).get(LIMITS, b""))
    except RecordDamaged:
        return None, None
    if type(values) is not list or len(values) < 2 or not _is_origin(rest := values[2:]):
        return None, None
    context = rest.pop() if rest and type(rest[-1]) is dict else None
    return (rest[0], rest[1]) if rest else None, context


def _is_origin(values: list[Any]) -> bool:
    """Whether the values behind two limits are a trace, a context, both or none."""
    *trace, context = values or [{}]
    if type(context) is not dict:
        trace, context = values, {}
    texts = [*trace, *context.values()]
    return len(trace) in (0, 2) and all(type(text) is str for text in texts)


def parts_of(run_data: bytes) -> bytes:
    """Return the packed result, error, progress and limits: subscribers are told of their changes."""
    return run_data[HEAD_BYTES + int.from_bytes(run_data[4:6], "big") :]


def error_json(error: JobError) -> bytes:
    """Return an error as it is packed in run data."""
    return json_data.encode([error.type, error.message, error.traceback])


def progress_json(progress: Progress) -> bytes:
    """Return progress as it is packed in run data.

    Raises:
        InvalidJob: JSON cannot carry one of its numbers.
    """
    return json_data.encode([progress.done, progress.total, progress.message, progress.attempt])


def check(run_data: bytes) -> None:
    """Check that run data have the form that this module packs.

    Raises:
        RecordDamaged: they are damaged.
    """
    history_of(run_data)
    result_of(run_data)
    error_of(run_data)
    progress_of(run_data)
    _limits(run_data)


def check_sizes(run_data: bytes) -> None:
    """Check that the length of run data matches their history and parts. Raises like `check`."""
    _parts(run_data)


def _without_traceback(run_data: bytes, most: int) -> bytes:
    return _with_error(run_data, lambda error: error_json(JobError(error.type, error.message)))


def _with_less_progress(run_data: bytes, most: int) -> bytes:
    try:
        progress = progress_of(run_data)
    except RecordDamaged:
        progress = None
    json = None if progress is None else progress_json(dataclasses.replace(progress, message=""))
    return with_part(run_data, PROGRESS, json)


def _with_less_of_the_message(run_data: bytes, most: int) -> bytes:
    left = most - len(with_part(run_data, ERROR, None)) - _LENGTH.size

    def cut(error: JobError) -> bytes:
        def upto(length: int) -> bytes:
            return error_json(JobError(error.type, error.message[:length] + "…"))

        length = bisect.bisect_right(range(len(error.message)), left, key=lambda each: len(upto(each))) - 1
        return upto(max(0, length))

    return _with_error(run_data, cut)


def _with_error(run_data: bytes, packed: Callable[[JobError], bytes]) -> bytes:
    try:
        error = error_of(run_data)
    except RecordDamaged:
        error = None
    return with_part(run_data, ERROR, None if error is None else packed(error))


_SMALLER: Final[tuple[Callable[[bytes, int], bytes], ...]] = (
    _without_traceback,
    _with_less_progress,
    _with_less_of_the_message,
    lambda run_data, most: with_newest_events(run_data, 0),
    lambda run_data, most: with_part(run_data, PROGRESS, None),
    lambda run_data, most: with_part(run_data, ERROR, None),
)
"""The steps of `fitted`, in order, until the run data are small enough."""


def _values(json: bytes, classes: Sequence[tuple[type, ...]]) -> list[Any]:
    """Return the three or four checked values of an error or of progress."""
    values = json_data.decode(json)
    is_list = type(values) is list and len(values) == len(classes)
    if not is_list or any(type(value) not in allowed for value, allowed in zip(values, classes, strict=True)):
        raise RecordDamaged(f"a job's run data are damaged: {len(classes)} values are packed as {shown(values)}")
    return [*values]


@functools.lru_cache(maxsize=16)  # jobs that move in one transaction get the same event
def _event(kind: HistoryKind, now: float, detail: str) -> bytes:
    text = detail.encode(errors="replace")
    if len(text) > _MOST_DETAIL:
        text = text[:_MOST_DETAIL].decode(errors="ignore").encode()
    return _EVENT.pack(_KINDS.index(kind), now, len(text)) + text


def _end_of(history: bytes, count: int) -> int:
    """Return the position behind a number of events."""
    position = 0
    try:
        for _ in range(count):
            position += _EVENT.size + history[position + _EVENT.size - 1]
    except IndexError:
        raise RecordDamaged("a job's history is damaged: it ends within an event") from None
    return position


def _head(run_data: bytes) -> tuple[int, int, int, int, float]:
    try:
        return _HEAD.unpack_from(run_data or _NOTHING)
    except struct.error as error:
        raise RecordDamaged(f"a job's run data are damaged: {error}") from None


def _history(run_data: bytes) -> tuple[bytes, int]:
    _, _, count, size, _ = _head(run_data)
    return run_data[HEAD_BYTES : HEAD_BYTES + size], count


def _parts(run_data: bytes) -> dict[int, bytes]:
    """Return the JSON of each existing part."""
    bits, _, _, size, _ = _head(run_data)
    position = HEAD_BYTES + size
    parts: dict[int, bytes] = {}
    for part in _PARTS:
        if bits & part:
            try:
                [length] = _LENGTH.unpack_from(run_data, position)
            except struct.error as error:
                raise RecordDamaged(f"a job's run data are damaged: {error}") from None
            position += _LENGTH.size
            parts[part] = run_data[position : position + length]
            position += length
    if position != (len(run_data) or HEAD_BYTES):
        raise RecordDamaged(
            f"a job's run data are damaged: they have {len(run_data)} bytes; their parts take {position}"
        )
    return parts
