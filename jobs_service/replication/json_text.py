"""JSON of databases: decoded and encoded fast, without changing copied values."""

import json
from typing import Any, Final, NoReturn

import pydantic_core

from jobs_service.replication.errors import ProtocolError

MOST_SHOWN: Final = 300
"""Most characters shown of a server's reason."""


def decoded(text: bytes | bytearray) -> Any:
    """Return the value of a JSON text. Raises `ProtocolError` for invalid JSON."""
    try:
        return pydantic_core.from_json(text, allow_inf_nan=False, cache_strings="keys")
    except ValueError:
        pass
    try:  # The standard library's decoder takes half a surrogate pair, which documents may hold.
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise ProtocolError("an answer is not JSON") from None


def encoded(value: Any) -> bytes:
    """Return the value as compact JSON. An infinite number stays one; the target refuses it."""
    try:
        return pydantic_core.to_json(value, inf_nan_mode="constants")
    except (ValueError, UnicodeEncodeError):
        return json.dumps(value, separators=(",", ":")).encode()


def reason_of(body: bytes | bytearray) -> str:
    """Return the reason in an error answer as one short line; "" without a reason."""
    try:
        form = decoded(body)
    except ProtocolError:
        return ""  # A proxy answers errors with HTML pages.
    if not isinstance(form, dict):
        return ""
    text = ": ".join(str(form[name]) for name in ("error", "reason") if form.get(name))
    return " ".join(text.split())[:MOST_SHOWN]


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)
