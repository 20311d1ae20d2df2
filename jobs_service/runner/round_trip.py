"""Checks that arguments come back from the store equal, and names the field that would not.

Libraries do not read back all that they write: pydantic writes a SecretStr as asterisks, a Field(exclude=True) not at
all, and an object of a subclass as one of the field's annotated class. The caller of `enqueue` gets an error then, so
that no handler gets other values than its caller gave.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from datetime import datetime
from typing import Any, Final

from jobs_service.errors import a_kind_of, shown

_LOST: Final = object()
_DEEPEST: Final = 200


def difference(given: Any, back: Any, path: str = "", depth: int = _DEEPEST) -> str | None:
    """Return in a few words the first part of some arguments that would come back changed; None if they are equal.

    A tuple may come back as a list, as in all JSON.

    Args:
        given, back: the values before and after.
        path: of these within all arguments.
        depth: most levels that are compared part by part.
    """
    if back is _LOST:
        return f"field {path.removeprefix('.')} would be lost"
    if _equal(given, back):
        return None
    pairs = _pairs(given, back) if depth else None
    if pairs is not None:
        found = (difference(one, other, path + name, depth - 1) for name, one, other in pairs)
        return next(filter(None, found), None)
    where = f"field {path.removeprefix('.')}: " if path else ""
    if type(given) is not type(back):
        return f"{where}{a_kind_of(given)} would come back as {a_kind_of(back)}"
    before, after = shown(given), shown(back)
    if before == after:
        return f"{where}{a_kind_of(given)} would not come back as it is"
    return f"{where}{before} would come back as {after}"


def _equal(given: Any, back: Any) -> bool:
    try:
        # In the hour that a clock shows twice, equal times in two time zones compare unequal in Python.
        return bool(given == back) or (isinstance(given, datetime) and given.isoformat() == back.isoformat())
    except Exception:  # comparing runs the user's code
        return False


def _pairs(given: Any, back: Any) -> list[tuple[str, Any, Any]] | None:
    """Return the parts of two values side by side, each with its path; None if they have no comparable parts."""
    if isinstance(given, list | tuple) and isinstance(back, list | tuple) and len(given) == len(back):
        return [(f"[{place}]", *pair) for place, pair in enumerate(zip(given, back, strict=True))]
    if type(given) is type(back) and is_declared(type(given)):
        given, back = fields_of(given), fields_of(back)
    if isinstance(given, Mapping) and isinstance(back, Mapping) and len(given) == len(back):
        return [(f".{name}", value, back.get(name, _LOST)) for name, value in given.items()]
    return None


def is_declared(kind: type) -> bool:
    """Whether a class declares its fields: a dataclass, a pydantic model, a msgspec.Struct."""
    # Written out because this is called for every value that is enqueued: a generator takes three times as long.
    return (
        hasattr(kind, "__dataclass_fields__")
        or hasattr(kind, "__pydantic_fields__")
        or hasattr(kind, "__struct_fields__")
    )


def fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of an object whose class declares them; private attributes of a model are none of them."""
    kind = type(value)
    declared = ("__dataclass_fields__", "__pydantic_fields__", "__struct_fields__")
    names = next(filter(None, (getattr(kind, name, None) for name in declared)), ())
    return {name: getattr(value, name, None) for name in (*names, *(getattr(value, "__pydantic_extra__", None) or ()))}


def in_order(given: Any, data: Any) -> Any:
    """Return encoded arguments with the members of sets sorted by their JSON.

    The iteration order of a set differs from process to process.
    """
    kind = type(data)
    if kind is list:
        if len(data) != _length(given):
            return data
        members = [in_order(one, other) for one, other in zip(given, data, strict=True)]
        return sorted(members, key=repr) if isinstance(given, Set) else members
    if kind is dict:
        return {name: in_order(one, data[name]) for name, one in _members(given, data)}
    return data


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list | tuple | Set) else -1


def _members(given: Any, data: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each name in the data with its original value; None if that is not known."""
    if isinstance(given, Mapping) and len(given) == len(data):
        yield from zip(data, given.values(), strict=True)
        return
    names = getattr(type(given), "__struct_fields__", None)
    own = {} if names is None else dict(zip(type(given).__struct_encode_fields__, names, strict=True))
    for name in data:
        yield name, getattr(given, own.get(name, name), None)
