"""Fields of requests and answers: names, times, locks."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
)

from jobs_service import durations, names
from jobs_service.arguments import MOST_AT_ONCE as MOST_AT_ONCE
from jobs_service.errors import InvalidJob
from jobs_service.json_types import AS_NAME
from jobs_service.json_values import seconds_of
from jobs_service.service.actions import Seen
from jobs_service.service.selection import Filter
from jobs_service.status import MEANT

_TIME_SCHEMA: Final[dict[str, Any]] = {
    "description": "A date and time with its offset (ISO 8601), or seconds since the epoch",
    "anyOf": [{"type": "string", "format": "date-time"}, {"type": "number"}, {"type": "null"}],
}
_TEXT_SCHEMA: Final[dict[str, Any]] = {"type": "string", "description": "A name in its text form: email, json:7"}
_ANY_SCHEMA: Final[dict[str, Any]] = {"description": "Any JSON"}

Name = Annotated[Any, AS_NAME]
Time = Annotated[Any, AfterValidator(seconds_of), WithJsonSchema(_TIME_SCHEMA)]
Json = Annotated[Any, WithJsonSchema(_ANY_SCHEMA)]


def _lock(text: Any) -> bytes:
    try:
        return bytes.fromhex(text)
    except (TypeError, ValueError):
        raise ValueError("a lock is hexadecimal text") from None


_LOCK_SCHEMA: Final = {"type": "string", "pattern": "^[0-9a-f]{32}$", "description": "As accept has answered it"}

Lock = Annotated[bytes, BeforeValidator(_lock), WithJsonSchema(_LOCK_SCHEMA)]

_DURATION_SCHEMA: Final = {
    "description": "Seconds, or a text such as 90s, 10m, 1h30m, 2d",
    "anyOf": [{"type": "number", "minimum": 0}, {"type": "string"}],
}

Duration = Annotated[Any, BeforeValidator(durations.plain), WithJsonSchema(_DURATION_SCHEMA)]
"""As a number; the operation that takes it checks it."""

Seconds = Annotated[float, BeforeValidator(durations.plain), Field(ge=0, le=1e9), WithJsonSchema(_DURATION_SCHEMA)]


def _allowed(what: str) -> WrapValidator:
    """Name the allowed values in one line, where pydantic has a message for each kind."""

    def check(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError:
            raise ValueError(f"allowed are {what}") from None

    return WrapValidator(check)


Spread = Annotated[int | Literal["adaptive"], _allowed('integers from 1 up and "adaptive"')]
_FILTER_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "title": "Filter",
    "description": "Which jobs; all that is given must hold, and nothing may be empty",
    "additionalProperties": False,
    "properties": {
        "state": {"enum": [*MEANT]},
        **{name: {"type": "string", "pattern": r"\S"} for name in ("prefix", "error", "text", "signature", "worker")},
        **dict.fromkeys(("older", "younger"), _DURATION_SCHEMA),
        "attempts": {"type": "integer", "minimum": 0},
        **{name: {"type": ["string", "number"]} for name in ("added_before", "added_after")},
        "data": {
            "anyOf": [
                {"type": "object", "minProperties": 1},
                {"type": "array", "minItems": 1, "items": {"type": "string", "pattern": "^[^=~]+[=~]"}},
            ]
        },
    },
}

JobFilter = Annotated[Any, BeforeValidator(Filter.of), WithJsonSchema(_FILTER_SCHEMA)]
_SEQ_SCHEMA: Final = {"type": "string", "pattern": "^[0-9a-f]{24}$", "description": "Of the job as it was looked at"}


def _seen(seq: Any) -> Seen:
    if not isinstance(seq, str):
        raise ValueError("a seq is hexadecimal text")
    try:
        return Seen.of(seq)
    except InvalidJob as error:
        raise ValueError(str(error)) from None


Seq = Annotated[Any, BeforeValidator(_seen), WithJsonSchema(_SEQ_SCHEMA)]
Unique = Annotated[bool | str | None, _allowed("true, false and a text")]


def _query_name(text: str) -> Any:
    return names.parsed(text)


def _query_time(text: str) -> Any:
    """Return the time in a query: a number is seconds."""
    try:
        return float(text)
    except ValueError:
        return seconds_of(text.replace(" ", "+"))  # an unencoded +


QueryName = Annotated[Any, BeforeValidator(_query_name), WithJsonSchema(_TEXT_SCHEMA)]
QueryTime = Annotated[Any, BeforeValidator(_query_time), WithJsonSchema({"type": "string"})]


def _state(word: Any) -> Any:
    if word not in MEANT:
        raise ValueError(f"allowed are {', '.join(MEANT)}")
    return word


State = Annotated[str, BeforeValidator(_state), WithJsonSchema({"enum": [*MEANT]})]
