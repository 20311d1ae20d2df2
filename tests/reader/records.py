"""A job's record, and what it tells of the job's runs."""

from __future__ import annotations

import json
import struct
from functools import lru_cache
from typing import Final, NamedTuple

from tests.reader.documents import REMEMBERED, check_values, json_of, value_of
from tests.reader.key_elements import check_name, check_time
from tests.reader.tuples import Undocumented, one

RECORD_VERSION: Final = 1

_STATES: Final = {1: "running", 2: "ready", 4: "scheduled"}
_OUTCOMES: Final = (None, "succeeded", "failed", "canceled")
_KINDS: Final = ("added", "started", "stopped", "crashed", "lost", "finished", "canceled")
_LOCK_BYTES: Final = 16

_HEAD = struct.Struct(">BB12sdH")
_NEXT = struct.Struct(">dH")
_NOTES = struct.Struct(">BHBHd")
_EVENT = struct.Struct(">BdB")
_LENGTH = struct.Struct(">I")


class Event(NamedTuple):
    """What happened to a job, when (seconds since the epoch), and a detail."""

    kind: str
    at: float
    detail: str


class Notes(NamedTuple):
    """What is told of a job's runs.

    Attributes:
        attempts: that count.
        history: the newest first.
        result, error, progress, limits: JSON; None for none.
        expires: seconds since the epoch; None for never.
        crashes: in a row, 15 for as many or more.
    """

    attempts: int = 0
    history: tuple[Event, ...] = ()
    result: bytes | None = None
    error: bytes | None = None
    progress: bytes | None = None
    limits: bytes | None = None
    expires: float | None = None
    crashes: int = 0


class Record(NamedTuple):
    """One state of a job.

    Attributes:
        state: "ready", "scheduled", "running" or "finished".
        seq: 12 bytes.
        priority: packed.
        run_at: seconds since the epoch; None for none.
        outcome: "succeeded", "failed" or "canceled"; None unless finished.
        next: priority and run_at of the run after this one; None when there is to be none.
        cancel: whether the running job was canceled.
        lock: 16 bytes; None unless running.
        notes: what is told of its runs.
        data: JSON; empty for none.
    """

    state: str
    seq: bytes
    priority: bytes
    run_at: float | None
    outcome: str | None
    next: tuple[bytes, float | None] | None
    cancel: bool
    lock: bytes | None
    notes: Notes
    data: bytes


def record(raw: bytes) -> Record:
    """Return a job's record.

    Raises:
        Undocumented: these bytes are none.
    """
    return _remembered_record(raw) if len(raw) <= REMEMBERED else _remembered_large_record(raw)


def last(raw: bytes) -> Record:
    """Return the record of a job that has left with its end."""
    found = record(raw)
    if found.outcome is None or found.notes.expires is None:
        raise Undocumented(f"no record of a job that has left with its end: {found}")
    return found


def _record(raw: bytes) -> Record:
    if raw[:1] != bytes((RECORD_VERSION,)):
        raise Undocumented(f"a record of version {raw[:1].hex() or 'none'}")
    if len(raw) < _HEAD.size:
        raise Undocumented(f"the record is damaged: it has {len(raw)} bytes")
    _, flags, seq, run_at, size = _HEAD.unpack_from(raw)
    rest = _Rest(raw, _HEAD.size)
    priority = rest.take(size)
    lock = rest.take(_LOCK_BYTES) if flags & 1 else None
    following = None
    if flags & 8:
        next_run_at, size = _NEXT.unpack(rest.take(_NEXT.size))
        following = (rest.take(size), _time_or_none("the next run_at", next_run_at))
    told = notes(rest.take_sized()) if flags & 128 else Notes()
    data = rest.all()
    outcome = _OUTCOMES[flags >> 5 & 3]
    state = _state(flags, outcome)
    if outcome is not None and following is not None:
        raise Undocumented("the resubmit flag of a finished job")
    for what, packed in (("priority", priority), ("next priority", None if following is None else following[0])):
        if packed is not None and packed != b"\x14":
            _check_priority(what, packed)
    if data:
        try:
            value_of(data)
        except Undocumented as error:
            raise Undocumented(f"its data: {error}") from None
    return Record(
        state,
        seq,
        priority,
        _time_or_none("run_at", run_at),
        outcome,
        following,
        flags & 16 > 0,
        lock,
        told,
        data,
    )


def _state(flags: int, outcome: str | None) -> str:
    """Return the state that the flags say a job is in."""
    states = [name for flag, name in _STATES.items() if flags & flag] + (["finished"] if outcome else [])
    if len(states) != 1:
        raise Undocumented(f"it is in several states, or in none: flags {flags:#x}: {states}, outcome {outcome}")
    if flags & 16 and states != ["running"]:
        raise Undocumented(f"the cancel flag of a {states[0]} job")
    return states[0]


def _check_priority(what: str, packed: bytes) -> None:
    try:
        check_name(what, one(packed))
    except Undocumented as error:
        raise Undocumented(f"{what} {packed!r} is none: {error}") from None


def _time_or_none(what: str, value: float) -> float | None:
    if value != value:
        return None
    check_time(what, value)
    return value


def notes(raw: bytes) -> Notes:
    """Return what is told of a job's runs; no bytes tell nothing.

    Raises:
        Undocumented: these bytes are no notes.
    """
    if not raw:
        return Notes()
    return _remembered_notes(raw) if len(raw) <= REMEMBERED else _notes(raw)


def _notes(raw: bytes) -> Notes:
    if len(raw) < _NOTES.size:
        raise Undocumented(f"the notes are damaged: they have {len(raw)} bytes")
    bits, attempts, count, size, expires = _NOTES.unpack_from(raw)
    rest = _Rest(raw, _NOTES.size)
    history = _history(rest.take(size), count)
    parts = [rest.take_sized() if bits & part else None for part in (1, 2, 4, 8)]
    if rest.all():
        raise Undocumented(f"the notes are damaged: {rest.all()!r} follows them")
    result, error, progress, limits = parts
    if result:
        json_of("the result", result)
    if error is not None:
        check_values("an error", error, (str,), (str,), (str,))
    if progress is not None:
        check_values("progress", progress, (int, float), (int, float, None), (str,), (int, None))
    if limits is not None:
        _check_limits(limits)
    return Notes(
        attempts,
        history,
        result or None,
        error,
        progress,
        limits,
        _time_or_none("the time of expiry", expires),
        bits >> 4,
    )


def _check_limits(raw: bytes) -> None:
    found = json_of("limits", raw)
    *values, context = found if found.__class__ is list and len(found) % 2 else [*found, {"": ""}]
    kinds = (int, None), (int, float, None), (str,), (str,)
    if context.__class__ is not dict or not context or len(values) not in (2, 4):
        raise Undocumented(f"limits: {found!r}")
    check_values("limits", json.dumps(values).encode(), *kinds, optional=2)
    check_values("a context", json.dumps([*context.values()]).encode(), *[(str,)] * len(context))


def _history(raw: bytes, count: int) -> tuple[Event, ...]:
    rest = _Rest(raw, 0)
    events = []
    try:
        for _ in range(count):
            kind, at, size = _EVENT.unpack(rest.take(_EVENT.size))
            check_time("an event's time", at)
            events.append(Event(_KINDS[kind], at, rest.take(size).decode()))
        left = rest.all()
    except (Undocumented, IndexError, UnicodeDecodeError) as error:
        raise Undocumented(f"the history is damaged: {error}") from None
    if left:
        raise Undocumented(f"the history is damaged: {left!r} follows its events")
    return tuple(events)


class _Rest:
    """What is left of some bytes, taken from the front."""

    def __init__(self, raw: bytes, place: int) -> None:
        self._raw = raw
        self._place = place

    def take(self, size: int) -> bytes:
        begin, end = self._place, self._place + size
        if end > len(self._raw):
            raise Undocumented(f"the record is damaged: it has {len(self._raw)} bytes, and its fields take {end}")
        self._place = end
        return self._raw[begin:end]

    def take_sized(self) -> bytes:
        [size] = _LENGTH.unpack(self.take(_LENGTH.size))
        return self.take(size)

    def all(self) -> bytes:
        return self._raw[self._place :]


_remembered_record = lru_cache(4_096)(_record)
_remembered_large_record = lru_cache(256)(_record)
_remembered_notes = lru_cache(4_096)(_notes)
