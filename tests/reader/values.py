"""The values of rows, but for counts and records: one function for each kind."""

from __future__ import annotations

import json
import math
from typing import Any, Final

from tests.reader.key_elements import check_id, check_name, check_time
from tests.reader.tuples import Undocumented, elements, one

_STAMP_BYTES: Final = 10
_MARK_BYTES: Final = 8


def nothing(raw: bytes) -> None:
    if raw:
        raise Undocumented(f"holds {raw!r}, not nothing")


def counter(raw: bytes) -> int:
    value = int.from_bytes(raw, "little")
    if len(raw) != 8 or not value:
        raise Undocumented(f"no counter of 8 bytes above 0: {raw!r}")
    return value


def stamp(raw: bytes) -> bytes:
    if len(raw) != _STAMP_BYTES:
        raise Undocumented(f"no versionstamp of 10 bytes: {raw!r}")
    return raw


def followed(raw: bytes) -> bytes | None:
    """Return the versionstamp; None while it is in doubt whether anybody follows the type."""
    if len(raw) == _STAMP_BYTES + 1 and raw.endswith(b"\x02"):
        return None
    return stamp(raw.removesuffix(b"\x01") if len(raw) > _STAMP_BYTES else raw)


def token(raw: bytes) -> dict[str, Any]:
    value = json.loads(raw)
    if not isinstance(value, dict) or set(value) != {"role", "hash", "created"} or len(value["hash"]) != 64:
        raise Undocumented(f"no role, hash and time: {raw!r}")
    check_time("created", value["created"])
    return value


def session(raw: bytes) -> dict[str, Any]:
    value = json.loads(raw)
    if not isinstance(value, dict) or set(value) != {"token", "hash"} or len(value["hash"]) != 64:
        raise Undocumented(f"no token and hash: {raw!r}")
    return value


def process(raw: bytes) -> dict[str, Any]:
    value = json.loads(raw)
    if not isinstance(value, dict) or {name: kind.__class__ for name, kind in value.items()} != _OF_PROCESS:
        raise Undocumented(f"no process: {raw!r}")
    check_time("started", value["started"])
    check_time("heard", value["heard"])
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
    for name, rows, oldest, aside, error in value["outboxes"]:
        kinds = [each.__class__ for each in (name, rows, aside, error)]
        if kinds != [str, int, int, str] or not (oldest is None or oldest >= 0):
            raise Undocumented(f"no outbox with its rows: {raw!r}")
    return value


_OF_PROCESS: Final = {
    **dict.fromkeys(("host", "worker", "version", "role", "state", "instance"), str),
    **dict.fromkeys(("pid", "slots", "taken", "unnamed"), int),
    **dict.fromkeys(("started", "heard", "period"), float),
    **dict.fromkeys(("handlers", "outboxes"), list),
}


def outbox(raw: bytes) -> dict[str, Any]:
    value = json.loads(raw)
    if not isinstance(value, dict) or set(value) != {"owner", "tokens"} or value["owner"].__class__ is not str:
        raise Undocumented(f"no owner and tokens: {raw!r}")
    if any(token.__class__ is not str for token in value["tokens"]):
        raise Undocumented(f"no tokens of rows: {raw!r}")
    return value


def process_request(raw: bytes) -> dict[str, Any]:
    value = json.loads(raw)
    if not isinstance(value, dict) or set(value) != {"action", "who", "at"} or value["who"].__class__ is not str:
        raise Undocumented(f"no action, who and time: {raw!r}")
    if value["action"] not in ("quiet", "resume", "stop"):
        raise Undocumented(f"nothing to ask of a process: {raw!r}")
    check_time("at", value["at"])
    return value


def schedule(raw: bytes) -> dict[str, Any]:
    value = json.loads(raw)
    times = {"every"} if "every" in value else {"cron", "timezone"}
    if set(value) != times | {"type", "data", "missed", "overlap", "timeout", "paused", "changed", "last"}:
        raise Undocumented(f"no schedule: {raw!r}")
    check_time("changed", value["changed"])
    check_time("last", value["last"])
    kinds = [value[name].__class__ for name in ("overlap", "paused", *sorted(times))]
    if kinds != [bool, bool, *([float] if "every" in times else [str, str])]:
        raise Undocumented(f"no times of a schedule: {raw!r}")
    if value["missed"] not in ("skip", "once", "all") or value["timeout"].__class__ not in (float, None.__class__):
        raise Undocumented(f"no schedule: {raw!r}")
    return value  # type: ignore[no-any-return]


def request(raw: bytes) -> tuple[bytes, Any, float]:
    fingerprint, id, until = _values("fingerprint, id and time", raw)
    if fingerprint.__class__ is not bytes:
        raise Undocumented(f"no fingerprint: {fingerprint!r}")
    check_id("", id)
    check_time("it is kept until", until)
    return fingerprint, id, until


def mark(raw: bytes) -> bytes:
    if len(raw) != _MARK_BYTES:
        raise Undocumented(f"no mark of 8 bytes: {raw!r}")
    return raw


def packed_time(raw: bytes) -> float:
    value = one(raw)
    check_time("it holds", value)
    return value  # type: ignore[no-any-return]


def packed_time_or_nothing(raw: bytes) -> float | None:
    return packed_time(raw) if raw else None


def packed_priority(raw: bytes) -> bytes:
    check_name("it holds the priority", one(raw))
    return raw


def packed_id(raw: bytes) -> bytes:
    check_id("", one(raw))
    return raw


def packed_ids(raw: bytes) -> tuple[bytes, ...]:
    found = elements(raw)
    if not found:
        raise Undocumented("no ids")
    for value, _ in found:
        check_id("", value)
    return tuple(packed for _, packed in found)


def timeout(raw: bytes) -> float:
    values = _values("seconds", raw)
    if len(values) != 1 or values[0].__class__ is not float or not 0 < values[0] < math.inf:
        raise Undocumented(f"{values!r} is no positive, finite number of seconds")
    return values[0]


def retention(raw: bytes) -> tuple[float | None, ...]:
    values = _values("two numbers", raw)
    if len(values) != 2 or not all(map(_is_kept, values)):
        raise Undocumented(f"no two numbers of seconds: {values!r}")
    return values


def declared(raw: bytes) -> tuple[float | None, ...]:
    values = _values("options", raw)
    timeout, kept = values[:1], values[1:]
    if len(values) not in (0, 1, 3) or not all(map(_is_kept, kept)) or (timeout and timeout[0].__class__ is not float):
        raise Undocumented(f"nothing that a program declares: {values!r}")
    return values


def redaction(raw: bytes) -> tuple[tuple[str, ...] | None, ...]:
    values = _values("paths", raw)
    if len(values) != 2 or not _are_paths(values[0]) or not (values[1] is None or _are_paths(values[1])):
        raise Undocumented(f"no paths: {values!r}")
    return values


def _are_paths(value: Any) -> bool:
    return value.__class__ is tuple and all(path.__class__ is str for path in value)


def _is_kept(value: Any) -> bool:
    return value is None or (value.__class__ is float and 0 <= value < math.inf)


def tick(raw: bytes) -> float:
    values = _values("time", raw)
    if len(values) != 1:
        raise Undocumented(f"no time: {values!r}")
    check_time("the last tick", values[0])
    return values[0]  # type: ignore[no-any-return]


def _values(what: str, raw: bytes) -> tuple[Any, ...]:
    try:
        return tuple(value for value, _ in elements(raw))
    except Undocumented as error:
        raise Undocumented(f"no {what}: {error}") from None
