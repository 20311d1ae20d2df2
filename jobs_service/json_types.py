"""The JSON of frozen records such as JobEvent and TypeCounts: their fields' annotations write, read and describe it."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any, Final, TypeVar

from pydantic import GetPydanticSchema, TypeAdapter
from pydantic_core import core_schema

from jobs_service import json_forms
from jobs_service.json_values import name_of, seconds_of, time

T = TypeVar("T")


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
    json_forms.name,
    {
        "description": 'A string or an integer; bytes as {"bytes": hexadecimal}, a tuple as an array',
        "anyOf": [
            {"type": "string"},
            {"type": "integer"},
            {"type": "array"},
            {"type": "object", "properties": {"bytes": {"type": "string"}, "packed": {"type": "string"}}},
        ],
    },
)
_TIME_SCHEMA: Final[dict[str, Any]] = {
    "description": "ISO 8601 in UTC; seconds since the epoch beyond all dates; null for a damaged time",
    "anyOf": [{"type": "string", "format": "date-time"}, {"type": "number"}, {"type": "null"}],
}

Time = Annotated[float, _form(_seconds, time, _TIME_SCHEMA)]
"""Seconds since the epoch."""

Date = Annotated[
    datetime,
    _form(
        lambda form: datetime.fromtimestamp(_seconds(form), UTC),
        lambda value: time(value.timestamp()),
        _TIME_SCHEMA,
    ),
]
"""An aware time."""

Hexadecimal = Annotated[bytes, _form(_hexadecimal, bytes.hex, {"type": "string", "pattern": "^[0-9a-f]*$"})]

Unchanged = Annotated[Any, _form(lambda value: value, lambda value: None, {"description": "Any JSON"})]
"""Somebody's JSON. It may be large, and hold what is no UTF-8: the writer sets it."""


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


_ADAPTERS: Final[dict[Any, TypeAdapter[Any]]] = {}


def _adapter(kind: Any) -> TypeAdapter[Any]:
    found = _ADAPTERS.get(kind)
    if found is None:
        found = _ADAPTERS[kind] = TypeAdapter(kind)
    return found
