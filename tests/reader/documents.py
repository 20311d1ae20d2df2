"""JSON, as the service writes it."""

from __future__ import annotations

import json
from functools import lru_cache, partial
from typing import Any, Final

from tests.reader.tuples import Undocumented

REMEMBERED: Final = 2_000
"""Bytes of values that are kept with what was read of them: the same ones are read again and again."""

_DECODER: Final = json.JSONDecoder(parse_constant=lambda name: _refuse(name))


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def json_of(what: str, raw: bytes) -> Any:
    """Return the value that JSON stands for; what it is says so in the error."""
    try:
        return _DECODER.decode(raw.decode())
    except ValueError as error:
        raise Undocumented(f"{what} is no JSON: {error}") from None


def value_of(raw: bytes) -> Any:
    """Return the value that JSON stands for, None for no bytes. Others get the same object: it is not to change."""
    if not raw:
        return None
    return _remembered_value(raw) if len(raw) <= REMEMBERED else json_of("this", raw)


def check_values(what: str, raw: bytes, *kinds: tuple[type | None, ...], optional: int = 0) -> None:
    """Check that JSON is a list of values of these kinds, the last of which may be missing."""
    values = json_of(what, raw)
    good = values.__class__ is list and len(kinds) - optional <= len(values) <= len(kinds)
    if not good or any(
        (None if value is None else value.__class__) not in kind for value, kind in zip(values, kinds, strict=False)
    ):
        raise Undocumented(f"{what}: {len(kinds)} values of other kinds are wanted, not {values!r}")


_remembered_value = lru_cache(4_096)(partial(json_of, "this"))
