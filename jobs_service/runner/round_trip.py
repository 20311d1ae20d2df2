"""Checks that arguments come back from the store unchanged, and names the part that would be lost.

Libraries do not read back all that they write: pydantic writes a SecretStr as asterisks, a Field(exclude=True) not at
all, and an object of a subclass as one of the field's annotated class. The caller of `enqueue` gets an error then, so
that no handler gets other values than its caller gave.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from datetime import datetime
from typing import Any, Final

from jobs_service.errors import kind_of, shown

_MISSING: Final = object()
_BY_IDENTITY: Final[Any] = object.__eq__
_DEEPEST: Final = 200


def difference(given: Any, back: Any) -> str | None:
    """Return in a few words the part of some arguments that would come back changed; None if they are equal.

    A tuple may come back as a list, as in all JSON. Objects of classes without an equality of their own are compared by
    their attributes.
    """
    if _equal(given, back):
        return None
    return _difference(given, back, "", _DEEPEST)


def _difference(given: Any, back: Any, path: str, depth: int) -> str | None:
    if given is back or _equal(given, back):
        return None
    pairs = _pairs(given, back)
    if pairs is None or depth == 0:
        return None if _cannot_be_compared(given, back) else _in_words(given, back, path)
    for name, one, other in pairs:
        if one is _MISSING or other is _MISSING:
            return f"field {(path + name).removeprefix('.')} would be lost"
        found = _difference(one, other, path + name, depth - 1)
        if found is not None:
            return found
    return None


def _equal(given: Any, back: Any) -> bool:
    try:
        return bool(given == back) or _same_time(given, back)
    except Exception:  # comparing runs the user's code
        return False


def _same_time(given: Any, back: Any) -> bool:
    """Whether both are the same wall-clock time with the same offset.

    In the hour that a clock shows twice, equal times in two time zones compare unequal in Python.
    """
    if not (isinstance(given, datetime) and isinstance(back, datetime)):
        return False
    offset = given.utcoffset()
    return offset == back.utcoffset() and given.replace(tzinfo=None) == back.replace(tzinfo=None)


def _pairs(given: Any, back: Any) -> list[tuple[str, Any, Any]] | None:
    """Return the parts of two values side by side, each with its path; None if they have no comparable parts."""
    if isinstance(given, list | tuple) and isinstance(back, list | tuple):
        if len(given) != len(back):
            return None
        return [(f"[{place}]", *pair) for place, pair in enumerate(zip(given, back, strict=True))]
    if isinstance(given, Mapping) and isinstance(back, Mapping):
        return _side_by_side(given, back)
    if type(given) is not type(back):
        return None
    fields = fields_of(given)
    return None if fields is None else _side_by_side(fields, fields_of(back) or {})


def _side_by_side(given: Mapping[Any, Any], back: Mapping[Any, Any]) -> list[tuple[str, Any, Any]]:
    names = [*given, *(name for name in back if name not in given)]
    return [(f".{name}", given.get(name, _MISSING), back.get(name, _MISSING)) for name in names]


def is_declared(kind: type) -> bool:
    """Whether a class declares its fields: a dataclass, a pydantic model, a msgspec.Struct."""
    # Written out because this is called for every value that is enqueued: a generator takes three times as long.
    return (
        hasattr(kind, "__dataclass_fields__")
        or hasattr(kind, "__pydantic_fields__")
        or hasattr(kind, "__struct_fields__")
    )


def fields_of(value: Any) -> dict[str, Any] | None:
    """Return the fields of an object whose class declares them."""
    kind = type(value)
    names: list[str] = []
    if (declared := getattr(kind, "__dataclass_fields__", None)) is not None:
        names = [name for name, field in declared.items() if field.compare]
    elif (model := getattr(kind, "__pydantic_fields__", None)) is not None:
        # Private attributes of a model are no part of its data.
        names = [*model, *(getattr(value, "__pydantic_extra__", None) or {})]
    elif (struct := getattr(kind, "__struct_fields__", None)) is not None:
        names = [*struct]
    else:
        return None
    return {name: getattr(value, name, _MISSING) for name in names}


def _cannot_be_compared(given: Any, back: Any) -> bool:
    """Whether two objects are incomparable: their class defines no equality, or its equality fails."""
    if type(given) is not type(back):
        return False
    if getattr(type(given), "__eq__", None) is _BY_IDENTITY:
        return bool(getattr(given, "__dict__", None) == getattr(back, "__dict__", None))
    try:
        return not isinstance(given == back, bool)
    except Exception:
        return True


def _in_words(given: Any, back: Any, path: str) -> str:
    where = f"field {path.removeprefix('.')}: " if path else ""
    if type(given) is not type(back):
        return f"{where}{_a(given)} would come back as {_a(back)}"
    before, after = shown(given), shown(back)
    if before == after:
        return f"{where}{_a(given)} would not come back as it is"
    return f"{where}{before} would come back as {after}"


def _a(value: Any) -> str:
    name = kind_of(value)
    return f"{'an' if name[:1] in 'AEIOUaeiou' else 'a'} {name}"


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
