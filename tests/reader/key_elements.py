"""What keys are made of, beside the number of their family: what a type, an id, a time and other elements may be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tests.reader.tuples import Stamp, Undocumented

_EARLIEST: Final = -62_135_596_800.0
_LATEST: Final = 253_402_300_800.0


def check_name(what: str, value: Any) -> None:
    """Check what may be a type or a priority."""
    for each in leaves(value):
        if each.__class__ not in (str, bytes, int):
            raise Undocumented(f"{what} {value!r}: a {type(each).__name__}")


def leaves(value: Any) -> Iterator[Any]:
    """Yield what a name is made of, tuples within it taken apart."""
    if value.__class__ is tuple:
        for each in value:
            yield from leaves(each)
    else:
        yield value


def check_id(what: str, value: Any) -> None:
    """Check what may be an id."""
    if value.__class__ not in (str, bytes):
        raise Undocumented(f"id {value!r}: a {type(value).__name__}")


def check_seq(what: str, value: Any) -> None:
    """Check what may be a versionstamp with a number."""
    if value.__class__ is not Stamp:
        raise Undocumented(f"{what} {value!r}: no versionstamp")


def check_time(what: str, value: Any) -> None:
    """Check what may be a time, seconds since the epoch."""
    if value.__class__ is not float or not _EARLIEST <= value < _LATEST:
        raise Undocumented(f"{what} {value!r}: no time")


def check_number(what: str, value: Any) -> None:
    """Check what may be the number of a minute or an hour."""
    if value.__class__ is not int:
        raise Undocumented(f"{what} {value!r}: no integer")


def check_text(value: Any) -> None:
    """Check what may be a text: of a token, a request, a session."""
    if value.__class__ is not str or not value:
        raise Undocumented(f"no text: {value!r}")


def check_process_id(value: Any) -> None:
    """Check what may be the id of a process."""
    if value.__class__ is not str or len(value) != 12 or not set(value) <= set("0123456789abcdef"):
        raise Undocumented(f"no id of a process: {value!r}")
