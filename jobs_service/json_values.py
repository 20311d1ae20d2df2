"""JSON, and names and times in it, over HTTP and wherever records are written as JSON."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pydantic_core

from jobs_service import names

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NO_TIME: Final = "no time: allowed are texts as 2026-11-22T22:00:00Z and seconds since the epoch"


def dumps(value: Any) -> bytes:
    """Encode a value of JSON's types."""
    try:
        return pydantic_core.to_json(value)
    except pydantic_core.PydanticSerializationError:  # lone surrogates in somebody's data
        return json.dumps(value, separators=(",", ":")).encode("ascii")


def loads(encoded: bytes | str) -> Any:
    """Decode JSON.

    Raises:
        ValueError: the text is not JSON.
    """
    try:
        return pydantic_core.from_json(encoded, allow_inf_nan=False)
    except ValueError:  # not JSON, or lone surrogates
        # The standard library would guess the encoding; JSON in UTF-16, for instance, is refused here.
        text = encoded if isinstance(encoded, str) else encoded.decode("utf-8", "surrogatepass")
        try:
            return json.loads(text, parse_constant=_refuse_constant)
        except RecursionError:
            raise ValueError("nested too deeply") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def name_of(form: Any) -> Any:
    """Return the type, id or priority of a JSON value.

    Raises:
        ValueError: the value is no name; the message says why.
    """
    try:
        return names.from_json(form)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def time(seconds: float | None) -> Any:
    """Return seconds since the epoch as text, in microseconds; as a number beyond all dates, None if not finite."""
    if seconds is None or not math.isfinite(seconds):
        return None
    try:
        date = _EPOCH + timedelta(seconds=seconds)
    except OverflowError:
        return seconds
    return f"{date.replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def seconds_of(form: Any) -> float | None:
    """Return the seconds since the epoch of a JSON value: a date and time, or a number.

    Raises:
        ValueError: the value is no time.
    """
    if form is None or (isinstance(form, int | float) and not isinstance(form, bool)):
        return form
    try:
        date = datetime.fromisoformat(form)
    except (TypeError, ValueError):
        raise ValueError(_NO_TIME) from None
    if date.tzinfo is None:
        raise ValueError("a time without a time zone; write Z for UTC")
    return (date - _EPOCH).total_seconds()
