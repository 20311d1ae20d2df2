"""An independent reader of what a store holds: written from docs/layout.md alone, it imports nothing of the package.

A mistake that the package makes when it writes, and again when it reads, is none to the package. It is one here.
"""

from __future__ import annotations

import json
import math
import struct
import uuid
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple, TypeAlias

RECORD_VERSIONS: Final = (2, 3)
NOTE_VERSION: Final = 1

_STATES: Final = {1: "running", 2: "ready", 4: "scheduled"}
_OUTCOMES: Final = (None, "succeeded", "failed", "canceled")
_KINDS: Final = ("added", "started", "stopped", "crashed", "lost", "finished", "canceled")
_PHASES: Final = ("running", "ready", "rest", "settings", "removing")
_LOCK_BYTES: Final = 16
_STAMP_BYTES: Final = 10
_SEQ_BYTES: Final = 12
_EARLIEST: Final = -62_135_596_800.0
_LATEST: Final = 253_402_300_800.0
_REMEMBERED: Final = 2_000
"""Bytes of values that are kept with what was read of them: the same ones are read again and again."""

_HEAD = struct.Struct(">BB12sdH")
_NEXT = struct.Struct(">dH")
_NOTES = struct.Struct(">BHBHd")
_EVENT = struct.Struct(">BdB")
_LENGTH = struct.Struct(">I")


class Undocumented(ValueError):
    """Bytes that docs/layout.md does not explain."""


# Tuples


class Stamp(bytes):
    """A versionstamp with a number: 12 bytes."""


class Single(float):
    """A float of 4 bytes."""


Element: TypeAlias = tuple[Any, bytes]
"""What was packed, and how."""


def elements(packed: bytes) -> list[Element]:
    """Return the elements of a tuple, each with its bytes.

    Raises:
        Undocumented: these bytes are no tuple.
    """
    found: list[Element] = []
    place = 0
    try:
        while place < len(packed):
            value, end = _element(packed, place)
            found.append((value, packed[place:end]))
            place = end
    except (IndexError, ValueError, struct.error) as error:
        raise Undocumented(f"no tuple: {packed!r}: {error}") from None
    return found


def _element(packed: bytes, place: int) -> tuple[Any, int]:
    """Return the element that begins at a place, and where it ends."""
    code = packed[place]
    place += 1
    if code in (0x01, 0x02):
        end = packed.index(b"\x00", place)
        while packed[end + 1 : end + 2] == b"\xff":
            end = packed.index(b"\x00", end + 2)
        raw = packed[place:end].replace(b"\x00\xff", b"\x00")
        return (raw if code == 0x01 else raw.decode()), end + 1
    if 0x0B <= code <= 0x1D:
        return _integer(packed, code, place)
    if code == 0x33:
        return Stamp(_taken(packed, place, _SEQ_BYTES)), place + _SEQ_BYTES
    if code in (0x20, 0x21):
        size = 8 if code == 0x21 else 4
        return _double(_taken(packed, place, size)), place + size
    if code == 0x05:
        return _nested(packed, place)
    if code == 0x30:
        return uuid.UUID(bytes=_taken(packed, place, 16)), place + 16
    if code in (0x00, 0x26, 0x27):
        return {0x00: None, 0x26: False, 0x27: True}[code], place
    raise ValueError(f"no element begins with {code:#04x}")


def _taken(packed: bytes, place: int, size: int) -> bytes:
    if len(packed) < place + size:
        raise ValueError(f"it ends within an element of {size} bytes")
    return packed[place : place + size]


def _integer(packed: bytes, code: int, place: int) -> tuple[int, int]:
    negative = code < 0x14
    if code in (0x0B, 0x1D):
        size = packed[place] ^ (0xFF if negative else 0)
        place += 1
        # Python's tuple layer, alone among its like, writes the farthest numbers of 8 bytes so as well.
        shortest = 8 if packed[place : place + 8] == (b"\x00" if negative else b"\xff") * 8 else 9
    else:
        size = shortest = abs(code - 0x14)
    raw = _taken(packed, place, size)
    # A leading byte that says nothing.
    if size < shortest or (raw and raw[0] == (0xFF if negative else 0)):
        raise ValueError(f"an integer in {size} bytes that has a shorter form")
    value = int.from_bytes(raw, "big")
    return (value - (1 << 8 * size) + 1 if negative else value), place + size


def _double(raw: bytes) -> float:
    """Return the number of so many bytes in the order of the numbers."""
    raw = bytes((raw[0] ^ 0x80, *raw[1:])) if raw[0] & 0x80 else bytes(byte ^ 0xFF for byte in raw)
    [value] = struct.unpack(">d" if len(raw) == 8 else ">f", raw)
    return value if len(raw) == 8 else Single(value)


def _nested(packed: bytes, place: int) -> tuple[tuple[Any, ...], int]:
    values: list[Any] = []
    while True:
        if packed[place] == 0:
            if packed[place + 1 : place + 2] != b"\xff":
                return tuple(values), place + 1
            values.append(None)
            place += 2
            continue
        value, place = _element(packed, place)
        values.append(value)


def _one(packed: bytes) -> Any:
    """Return the only element of a tuple."""
    found = elements(packed)
    if len(found) != 1:
        raise Undocumented(f"{len(found)} elements, not 1: {packed!r}")
    return found[0][0]


# What keys are made of


def _name(what: str, value: Any) -> None:
    """Check what may be a type or a priority."""
    if value.__class__ not in (str, bytes, int, tuple):
        raise Undocumented(f"{what} {value!r}: a {type(value).__name__}")
    if value.__class__ is tuple and any(isinstance(each, Stamp) for each in _leaves(value)):
        raise Undocumented(f"{what} {value!r}: with a versionstamp")


def _leaves(value: Any) -> Iterator[Any]:
    if value.__class__ is tuple:
        for each in value:
            yield from _leaves(each)
    else:
        yield value


def _id(what: str, value: Any) -> None:
    if value.__class__ not in (str, bytes):
        raise Undocumented(f"id {value!r}: a {type(value).__name__}")


def _seq(what: str, value: Any) -> None:
    if value.__class__ is not Stamp:
        raise Undocumented(f"{what} {value!r}: no versionstamp")


def _time(what: str, value: Any) -> None:
    if value.__class__ is not float or not _EARLIEST <= value < _LATEST:
        raise Undocumented(f"{what} {value!r}: no time")


# Values


def _nothing(raw: bytes) -> None:
    if raw:
        raise Undocumented(f"holds {raw!r}, not nothing")


def _counter(raw: bytes) -> int:
    value = int.from_bytes(raw, "little")
    if len(raw) != 8 or not value:
        raise Undocumented(f"no counter of 8 bytes above 0: {raw!r}")
    return value


def _stamp(raw: bytes) -> bytes:
    if len(raw) != _STAMP_BYTES:
        raise Undocumented(f"no versionstamp of 10 bytes: {raw!r}")
    return raw


def _followed(raw: bytes) -> bytes | None:
    """Return the versionstamp; None while it is in doubt whether anybody follows the type."""
    if len(raw) == _STAMP_BYTES + 1 and raw.endswith(b"\x02"):
        return None
    return _stamp(raw.removesuffix(b"\x01") if len(raw) > _STAMP_BYTES else raw)


def _token(raw: bytes) -> dict[str, Any]:
    value = json.loads(raw)
    if not isinstance(value, dict) or set(value) != {"role", "hash", "created"} or len(value["hash"]) != 64:
        raise Undocumented(f"no role, hash and time: {raw!r}")
    _time("created", value["created"])
    return value


def _session(raw: bytes) -> dict[str, Any]:
    value = json.loads(raw)
    if not isinstance(value, dict) or set(value) != {"token", "hash"} or len(value["hash"]) != 64:
        raise Undocumented(f"no token and hash: {raw!r}")
    return value


def _process(raw: bytes) -> dict[str, Any]:
    value = json.loads(raw)
    if not isinstance(value, dict) or {name: kind.__class__ for name, kind in value.items()} != _OF_PROCESS:
        raise Undocumented(f"no process: {raw!r}")
    _time("started", value["started"])
    _time("heard", value["heard"])
    states, roles = ("running", "quiet", "stopping"), ("daemon", "runner")
    if value["state"] not in states or value["role"] not in roles or not value["period"] > 0:
        raise Undocumented(f"no state, role or period of a process: {raw!r}")
    if len(bytes.fromhex(value["instance"])) not in (0, 8):
        raise Undocumented(f"no instance: {raw!r}")
    for name, slots, taken in value["handlers"]:
        if [each.__class__ for each in (name, slots, taken)] != [str, int, int]:
            raise Undocumented(f"no handler with slots: {raw!r}")
    if len(value["handlers"]) > 100:
        raise Undocumented(f"more than 100 handlers: {raw!r}")
    return value


_OF_PROCESS: Final = {
    **dict.fromkeys(("host", "worker", "version", "role", "state", "instance"), str),
    **dict.fromkeys(("pid", "slots", "taken", "unnamed"), int),
    **dict.fromkeys(("started", "heard", "period"), float),
    "handlers": list,
}


def _process_request(raw: bytes) -> dict[str, Any]:
    value = json.loads(raw)
    if not isinstance(value, dict) or set(value) != {"action", "who", "at"} or value["who"].__class__ is not str:
        raise Undocumented(f"no action, who and time: {raw!r}")
    if value["action"] not in ("quiet", "resume", "stop"):
        raise Undocumented(f"nothing to ask of a process: {raw!r}")
    _time("at", value["at"])
    return value


def _process_id(value: Any) -> None:
    if value.__class__ is not str or len(value) != 12 or not set(value) <= set("0123456789abcdef"):
        raise Undocumented(f"no id of a process: {value!r}")


def _request(raw: bytes) -> tuple[bytes, Any, float]:
    fingerprint, id, until = _values("fingerprint, id and time", raw)
    if fingerprint.__class__ is not bytes:
        raise Undocumented(f"no fingerprint: {fingerprint!r}")
    _id("", id)
    _time("it is kept until", until)
    return fingerprint, id, until


def _text(value: Any) -> None:
    if value.__class__ is not str or not value:
        raise Undocumented(f"no text: {value!r}")


def _mark(raw: bytes) -> tuple[bytes, int]:
    if len(raw) != _STAMP_BYTES + 1 or raw[-1] > 3:
        raise Undocumented(f"no versionstamp and flags: {raw!r}")
    return raw[:-1], raw[-1]


def _packed_time(raw: bytes) -> float:
    value = _one(raw)
    _time("it holds", value)
    return value  # type: ignore[no-any-return]


def _packed_time_or_nothing(raw: bytes) -> float | None:
    return _packed_time(raw) if raw else None


def _packed_priority(raw: bytes) -> bytes:
    _name("it holds the priority", _one(raw))
    return raw


def _packed_id(raw: bytes) -> bytes:
    _id("", _one(raw))
    return raw


def _packed_type_and_id(raw: bytes) -> bytes:
    found = elements(raw)
    if len(found) != 2:
        raise Undocumented(f"no type and id: {raw!r}")
    return raw


def _packed_ids(raw: bytes) -> tuple[bytes, ...]:
    found = elements(raw)
    if not found:
        raise Undocumented("no ids")
    for value, _ in found:
        _id("", value)
    return tuple(packed for _, packed in found)


def _timeout(raw: bytes) -> float:
    values = _values("seconds", raw)
    if len(values) != 1 or values[0].__class__ is not float or not 0 < values[0] < math.inf:
        raise Undocumented(f"{values!r} is no positive, finite number of seconds")
    return values[0]


def _retention(raw: bytes) -> tuple[float | None, ...]:
    values = _values("two numbers", raw)
    if len(values) != 2 or not all(map(_is_kept, values)):
        raise Undocumented(f"no two numbers of seconds: {values!r}")
    return values


def _declared(raw: bytes) -> tuple[float | None, ...]:
    values = _values("options", raw)
    timeout, kept = values[:1], values[1:]
    if len(values) not in (0, 1, 3) or not all(map(_is_kept, kept)) or (timeout and timeout[0].__class__ is not float):
        raise Undocumented(f"nothing that a program declares: {values!r}")
    return values


def _redaction(raw: bytes) -> tuple[tuple[str, ...] | None, ...]:
    values = _values("paths", raw)
    if len(values) != 2 or not _are_paths(values[0]) or not (values[1] is None or _are_paths(values[1])):
        raise Undocumented(f"no paths: {values!r}")
    return values


def _are_paths(value: Any) -> bool:
    return value.__class__ is tuple and all(path.__class__ is str for path in value)


def _is_kept(value: Any) -> bool:
    return value is None or (value.__class__ is float and 0 <= value < math.inf)


def _tick(raw: bytes) -> float:
    values = _values("time", raw)
    if len(values) != 1:
        raise Undocumented(f"no time: {values!r}")
    _time("the last tick", values[0])
    return values[0]  # type: ignore[no-any-return]


def _values(what: str, raw: bytes) -> tuple[Any, ...]:
    try:
        return tuple(value for value, _ in elements(raw))
    except Undocumented as error:
        raise Undocumented(f"no {what}: {error}") from None


# Counts

_LANES_OF_STATES: Final = (
    "ready",
    "scheduled",
    "running",
    "succeeded",
    "failed",
    "canceled",
    "ready after a crash",
    "scheduled after a crash",
)
_TOTALS: Final = ("added", "started", "succeeded", "failed", "canceled", "crashed", "lost", "released", "expired")
_BUCKETS: Final = 32


class Counts(NamedTuple):
    """What is counted of a type, or of a minute or an hour of it.

    Attributes:
        states: jobs by the name of their lane; empty in an interval.
        totals: events by name.
        waited, ran: times by bucket.
        sums: of both, in milliseconds.
    """

    states: dict[str, int]
    totals: dict[str, int]
    waited: tuple[int, ...]
    ran: tuple[int, ...]
    sums: tuple[int, int]


def _number(what: str, value: Any) -> None:
    if value.__class__ is not int:
        raise Undocumented(f"{what} {value!r}: no integer")


def _lane_or_nothing(raw: bytes) -> str | None:
    if len(raw) > 1 or (raw and raw[0] >= len(_LANES_OF_STATES)):
        raise Undocumented(f"no lane of a state: {raw!r}")
    return _LANES_OF_STATES[raw[0]] if raw else None


def _counts(raw: bytes) -> Counts:
    states, totals, waited, ran = len(_LANES_OF_STATES), len(_TOTALS), _BUCKETS + 1, _BUCKETS + 1
    if len(raw) != 8 * (states + totals + waited + ran):
        raise Undocumented(f"counts of {len(raw)} bytes")
    lanes = []
    whole = int.from_bytes(raw, "little", signed=True)
    for _ in range(len(raw) // 8):
        lane = whole & 0xFFFF_FFFF_FFFF_FFFF
        lanes.append(lane - (lane >> 63 << 64))
        whole = (whole - lanes[-1]) >> 64
    behind = states + totals
    waited_lanes, ran_lanes = lanes[behind : behind + waited], lanes[behind + waited :]
    return Counts(
        dict(zip(_LANES_OF_STATES, lanes, strict=False)),
        dict(zip(_TOTALS, lanes[states:], strict=False)),
        tuple(waited_lanes[:-1]),
        tuple(ran_lanes[:-1]),
        (waited_lanes[-1], ran_lanes[-1]),
    )


def _interval(raw: bytes) -> Counts:
    layout = struct.Struct(f"<{len(_TOTALS) + 2 * _BUCKETS}I2Q")
    if len(raw) != layout.size:
        raise Undocumented(f"counts of {len(raw)} bytes")
    *lanes, waited, ran = layout.unpack(raw)
    totals = dict(zip(_TOTALS, lanes, strict=False))
    buckets = lanes[len(_TOTALS) :]
    return Counts({}, totals, tuple(buckets[:_BUCKETS]), tuple(buckets[_BUCKETS:]), (waited, ran))


def _copy(raw: bytes) -> dict[str, Any]:
    note = _json("the note of a copy", raw)
    expected = {
        "version": int,
        "source": str,
        "fingerprint": str,
        "phase": str,
        "after": str,
        "jobs": int,
        "skipped": int,
        "forced": bool,
    }
    if note.__class__ is not dict or {name: value.__class__ for name, value in note.items()} != expected:
        raise Undocumented(f"no note of a copy: {note!r}")
    if note["version"] != NOTE_VERSION or note["phase"] not in _PHASES:
        raise Undocumented(f"a note of another version, or of no phase: {note!r}")
    bytes.fromhex(note["after"]), bytes.fromhex(note["fingerprint"])
    return note


# Records


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
        is_counted: whether its type's counts have it.
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
    is_counted: bool


def record(raw: bytes) -> Record:
    """Return a job's record.

    Raises:
        Undocumented: these bytes are none.
    """
    return _remembered_record(raw) if len(raw) <= _REMEMBERED else _remembered_large_record(raw)


def _last(raw: bytes) -> Record:
    found = record(raw)
    if found.outcome is None or found.notes.expires is None or not found.is_counted:
        raise Undocumented(f"no record of a job that has left with its end: {found}")
    return found


def _record(raw: bytes) -> Record:
    if not raw or raw[0] not in RECORD_VERSIONS:
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
        raw[0] > 2,
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
        _name(what, _one(packed))
    except Undocumented as error:
        raise Undocumented(f"{what} {packed!r} is none: {error}") from None


def _time_or_none(what: str, value: float) -> float | None:
    if value != value:
        return None
    _time(what, value)
    return value


def notes(raw: bytes) -> Notes:
    """Return what is told of a job's runs; no bytes tell nothing.

    Raises:
        Undocumented: these bytes are no notes.
    """
    if not raw:
        return Notes()
    return _remembered_notes(raw) if len(raw) <= _REMEMBERED else _notes(raw)


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
        _json("the result", result)
    if error is not None:
        _check_values("an error", error, (str,), (str,), (str,))
    if progress is not None:
        _check_values("progress", progress, (int, float), (int, float, None), (str,), (int, None), optional=1)
    if limits is not None:
        _check_values("limits", limits, (int, None), (int, float, None), (str,), (str,), optional=2)
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


def _history(raw: bytes, count: int) -> tuple[Event, ...]:
    rest = _Rest(raw, 0)
    events = []
    try:
        for _ in range(count):
            kind, at, size = _EVENT.unpack(rest.take(_EVENT.size))
            _time("an event's time", at)
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


_DECODER: Final = json.JSONDecoder(parse_constant=lambda name: _refuse(name))


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _json(what: str, raw: bytes) -> Any:
    try:
        return _DECODER.decode(raw.decode())
    except ValueError as error:
        raise Undocumented(f"{what} is no JSON: {error}") from None


def value_of(raw: bytes) -> Any:
    """Return the value that JSON stands for, None for no bytes. Others get the same object: it is not to change."""
    if not raw:
        return None
    return _remembered_value(raw) if len(raw) <= _REMEMBERED else _json("this", raw)


def _check_values(what: str, raw: bytes, *kinds: tuple[type | None, ...], optional: int = 0) -> None:
    """Check that JSON is a list of values of these kinds, the last of which may be missing."""
    values = _json(what, raw)
    good = values.__class__ is list and len(kinds) - optional <= len(values) <= len(kinds)
    if not good or any(
        (None if value is None else value.__class__) not in kind for value, kind in zip(values, kinds, strict=False)
    ):
        raise Undocumented(f"{what}: {len(kinds)} values of other kinds are wanted, not {values!r}")


# Rows


class Row(NamedTuple):
    """One key with its value.

    Attributes:
        family: its name.
        names: the elements of the key behind the family's number.
        packed: the same, as they are packed.
        value: as read; a Record in DATA.
    """

    family: str
    names: tuple[Any, ...]
    packed: tuple[bytes, ...]
    value: Any


_type = partial(_name, "type")
_priority = partial(_name, "priority")
_id_at, _seq_at, _time_at = partial(_id, "id"), partial(_seq, "seq"), partial(_time, "time")
_number_at = partial(_number, "number")

Family: TypeAlias = tuple[str, tuple[Callable[[Any], None], ...], Callable[[bytes], Any]]
"""The name of a family, what checks each element of its keys, and what reads its values."""

_FAMILIES: Final[dict[int, tuple[Family, ...]]] = {
    1: (("DATA", (_type, _id_at), record),),
    2: (("READY", (_type, _priority, _seq_at, _id_at), _packed_time_or_nothing),),
    3: (("SCHEDULED", (_type, _time_at, _id_at), _packed_priority),),
    4: (("WATCH_PENDING", (_type,), _counter),),
    5: (("WATCH_ACTIVITY", (_type,), _stamp),),
    6: (("ACTIVITY_TIMEOUT", (_type,), _timeout),),
    7: (("ACTIVITY", (_type, _seq_at), _packed_id),),
    8: (("WATCH_CANCELED", (_type,), _counter),),
    9: (("PAUSED", (_type,), _nothing),),
    10: (("RETENTION", (_type,), _retention),),
    11: (("EXPIRING", (_type, _time_at, _id_at), _nothing),),
    12: (("PERIODIC", (_type,), _tick),),
    13: (("COPYING", (), _copy), ("COPYING", (_type,), _mark)),
    14: (("DECLARED", (_type,), _declared),),
    15: (("SET_ASIDE", (_type, _id_at), _lane_or_nothing),),
    16: (("AWAKE", (), _counter), ("AWAKE", (_type,), _nothing)),
    17: (("ASLEEP", (_type,), _packed_time),),
    18: (("ALARM", (), _nothing), ("ALARM", (_time_at, _type), _nothing)),
    19: (("FOLLOWED", (_type,), _followed),),
    20: (("CHANGES", (_type,), _stamp), ("CHANGES", (_type, _seq_at), _packed_ids)),
    21: (("COUNTS", (), _packed_type_and_id), ("COUNTS", (_type,), _counts)),
    22: (("MINUTES", (_type, _number_at), _interval),),
    23: (("HOURS", (_type, _number_at), _interval),),
    24: (("FAILED", (_type, _seq_at), _packed_id),),
    25: (("REDACTION", (_type,), _redaction),),
    26: (("LAST", (_type, _id_at), _last),),
    40: (("TOKENS", (), _counter), ("TOKENS", (_text,), _token)),
    41: (("REQUESTS", (_type, _text), _request),),
    42: (("REQUESTS_BY_TIME", (_time_at, _type, _text), _nothing),),
    43: (("SESSIONS", (_time_at, _text), _session),),
    50: (("PROCESSES", (_process_id,), _process),),
    51: (("PROCESS_REQUESTS", (_process_id,), _process_request),),
}


def row(key: bytes, value: bytes) -> Row:
    """Return what a key, without the store's prefix, and its value say.

    Raises:
        Undocumented: docs/layout.md does not explain them.
    """
    family, names, packed = _key(key)
    try:
        return Row(family[0], names, packed, family[2](value))
    except ValueError as error:
        raise Undocumented(f"{family[0]} {names}: {error}") from None


def names(key: bytes) -> tuple[Any, ...]:
    """Return the elements of a key, without the store's prefix, behind the number of its family. Raises like `row`."""
    return _key(key)[1]


@lru_cache(8_192)
def _key(key: bytes) -> tuple[Family, tuple[Any, ...], tuple[bytes, ...]]:
    """Return the family of a key, and its other elements, read and packed."""
    try:
        (number, _), *rest = elements(key)
    except ValueError as error:
        raise Undocumented(f"key {key!r}: no tuple: {error}") from None
    if number.__class__ is not int or number not in _FAMILIES:
        raise Undocumented(f"key {key!r}: unknown section {number!r}")
    names = tuple(value for value, _ in rest)
    for family in _FAMILIES[number]:
        if len(family[1]) == len(rest):
            break
    else:
        raise Undocumented(f"{family[0]} key {names}: {len(rest)} elements, not {len(family[1])}")
    for check, value in zip(family[1], names, strict=True):
        try:
            check(value)
        except Undocumented as error:
            raise Undocumented(f"{family[0]} key {names}: {error}") from None
    return family, names, tuple(packed for _, packed in rest)


_remembered_value = lru_cache(4_096)(partial(_json, "this"))
_remembered_record = lru_cache(4_096)(_record)
_remembered_large_record = lru_cache(256)(_record)
_remembered_notes = lru_cache(4_096)(_notes)
