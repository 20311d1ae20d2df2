"""Strict JSON for a job's data: what goes in comes out equal, or is refused. Floor: beside the model.

The check and the codec are separate: no fast encoder refuses what JSON cannot carry (integer keys become strings, NaN
becomes null), so the value is walked first and then encoded by pydantic-core, which is here with pydantic-settings.
The standard library's codec steps in for what that one does not take: lone surrogates.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pydantic_core

from jobs_service.errors import InvalidJob, StoreError, shown

MAX_DEPTH = 190
"""Levels of nesting that data may have: what every decoder in use reads back."""

MAX_INTEGER_BITS = 14_000
"""Longer integers cannot be read back (Python's own limit of 4,300 decimal digits)."""

_SCALARS = frozenset({str, bool, type(None)})
_SMALL = 1 << 63
_SPLIT_CHARACTER = re.compile("[\ud800-\udbff][\udc00-\udfff]")


class _Refused(ValueError):
    """Why a value is not JSON."""


def encode(value: Any) -> bytes:
    """Encode data as compact UTF-8 JSON; None becomes no bytes at all.

    Args:
        value: None, bool, int, finite float, str, and lists, tuples and dicts with str keys of these.

    Raises:
        InvalidJob: the value holds something that JSON cannot carry.
    """
    if value is None:
        return b""
    try:
        _check(value, MAX_DEPTH)
    except _Refused as refused:
        raise InvalidJob(f"data is not JSON: {refused}") from None
    try:
        return pydantic_core.to_json(value)
    except pydantic_core.PydanticSerializationError:
        return _with_lone_surrogates(value)


def decode(encoded: bytes) -> Any:
    """Return the value that `encode` was given (tuples as lists).

    Raises:
        StoreError: the bytes are not JSON.
    """
    if not encoded:
        return None
    try:
        return pydantic_core.from_json(encoded, allow_inf_nan=False)
    except ValueError:
        try:
            return json.loads(encoded)
        except (ValueError, RecursionError) as error:
            raise StoreError(f"a job's data is damaged: {error}") from None


def _with_lone_surrogates(value: Any) -> bytes:
    """Encode a checked value whose strings are not all UTF-8."""
    if _SPLIT_CHARACTER.search(json.dumps(value, ensure_ascii=False)):
        # Escaped side by side they read back as one character.
        raise InvalidJob("data is not JSON: a str with two surrogates side by side that make one character; join them")
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def _check(value: Any, depth: int) -> None:
    kind = value.__class__
    if kind in _SCALARS:
        return
    if kind is int:
        if not -_SMALL < value < _SMALL and value.bit_length() > MAX_INTEGER_BITS:
            raise _Refused(f"an integer of {value.bit_length()} bits; {MAX_INTEGER_BITS} are allowed")
    elif kind is float:
        if value - value != 0.0:
            raise _Refused(f"the number {value!r}; only finite numbers are allowed")
    elif depth == 0:
        raise _Refused(f"nested deeper than {MAX_DEPTH} levels")
    elif kind is dict:
        for key, item in value.items():
            if key.__class__ is not str:
                raise _Refused(f"the key {shown(key)} of type {type(key).__name__}; object keys must be str")
            if item.__class__ not in _SCALARS and not (item.__class__ is int and -_SMALL < item < _SMALL):
                _check(item, depth - 1)
    elif kind is list or kind is tuple:
        for item in value:
            if item.__class__ not in _SCALARS:
                _check(item, depth - 1)
    else:
        raise _Refused(
            f"a value of type {kind.__name__}; allowed are None, bool, int, float, str, and list, tuple, dict of these"
        )
