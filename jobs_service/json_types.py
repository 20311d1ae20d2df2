"""JSON, and names and times in it; and frozen records such as JobEvent and TypeCounts as JSON.

The annotations of a record's fields write, read and describe it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, TypeVar

import pydantic_core
from pydantic import GetPydanticSchema, TypeAdapter
from pydantic_core import core_schema

from jobs_service import json_data, names

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NO_TIME: Final = "no time: allowed are texts as 2026-11-22T22:00:00Z and seconds since the epoch"

T = TypeVar("T")

_TIME_SCHEMA: Final[dict[str, Any]] = {
    "description": "ISO 8601 in UTC; seconds since the epoch beyond all dates; null for a damaged time",
    "anyOf": [{"type": "string", "format": "date-time"}, {"type": "number"}, {"type": "null"}],
}

_ADAPTERS: Final[dict[Any, TypeAdapter[Any]]] = {}


# Values


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
        try:
            text = encoded if isinstance(encoded, str) else encoded.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            raise ValueError("not JSON (not UTF-8)") from None
        return json_data.parsed(text)


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


# Records


def _form(read: Callable[[Any], Any], write: Callable[[Any], Any], schema: dict[str, Any]) -> GetPydanticSchema:
    """Return the annotation of values that have a form of their own."""
    serialization = core_schema.plain_serializer_function_ser_schema(write)
    return GetPydanticSchema(
        lambda source, handler: core_schema.no_info_plain_validator_function(read, serialization=serialization),
        lambda source, handler: dict(schema),
    )


def _hexadecimal(form: Any) -> bytes:
    try:
        return bytes.fromhex(form)
    except TypeError:
        raise ValueError("allowed is hexadecimal text") from None


def _seconds(form: Any) -> float:
    """Return seconds since the epoch; NaN for null, the form of a damaged time."""
    seconds = seconds_of(form)
    return math.nan if seconds is None else seconds


AS_NAME: Final = _form(
    name_of,
    names.name,
    {
        "description": 'A string or an integer; bytes as {"bytes": hexadecimal}, a tuple as an array',
        "anyOf": [
            {"type": "string"},
            {"type": "integer"},
            {"type": "array"},
            {"type": "object", "properties": {"bytes": {"type": "string"}}},
        ],
    },
)

Time = Annotated[float, _form(_seconds, time, _TIME_SCHEMA)]
"""Seconds since the epoch."""

Date = Annotated[
    datetime,
    _form(
        lambda form: datetime.fromtimestamp(_seconds(form), UTC), lambda value: time(value.timestamp()), _TIME_SCHEMA
    ),
]
"""An aware time."""

Hexadecimal = Annotated[bytes, _form(_hexadecimal, bytes.hex, {"type": "string", "pattern": "^[0-9a-f]*$"})]

Unchanged = Annotated[Any, _form(lambda value: value, lambda value: None, {"description": "Any JSON"})]
"""Somebody's JSON. It may be large, and hold bytes that are no UTF-8: the writer sets it."""


def plain(value: Any) -> dict[str, Any]:
    """Return a record as plain data that any JSON encoder takes.

    Args:
        value: a dataclass whose fields are annotated.
    """
    found: dict[str, Any] = _adapter(type(value)).dump_python(value, mode="json")
    return found


def read(kind: type[T], form: Any) -> T:
    """Return the inverse of `plain`.

    Args:
        kind: class of the record.
        form: plain data; unknown fields are ignored.

    Raises:
        ValueError: the data are malformed.
    """
    found: T = _adapter(kind).validate_python(form)
    return found


def _adapter(kind: Any) -> TypeAdapter[Any]:
    found = _ADAPTERS.get(kind)
    if found is None:
        found = _ADAPTERS[kind] = TypeAdapter(kind)
    return found
