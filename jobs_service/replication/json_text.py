"""JSON as databases send it: decoded and encoded fast, and so that what is copied stays what it was."""

import json
from typing import Any, Final, NoReturn

import pydantic_core

from jobs_service.replication.errors import ProtocolError

MOST_SHOWN: Final = 300
"""Characters that are shown of a server's reason."""


def decoded(text: bytes | bytearray) -> Any:
    """What the text holds. Raises `ProtocolError` where it is not JSON."""
    try:
        return pydantic_core.from_json(text, allow_inf_nan=False, cache_strings="keys")
    except ValueError:
        pass
    try:  # The standard library's decoder takes half a surrogate pair, which documents may hold.
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise ProtocolError("an answer is not JSON") from None


def encoded(value: Any) -> bytes:
    """The value as compact JSON. A number beyond all bounds stays one, which the target then refuses."""
    try:
        return pydantic_core.to_json(value, inf_nan_mode="constants")
    except (ValueError, UnicodeEncodeError):
        return json.dumps(value, separators=(",", ":")).encode()


def reason_of(body: bytes | bytearray) -> str:
    """Return what an answer that reports an error says, in one short line; "" where it does not say anything."""
    try:
        form = decoded(body)
    except ProtocolError:
        return ""  # What stands before a server answers errors with pages.
    if not isinstance(form, dict):
        return ""
    text = ": ".join(str(form[name]) for name in ("error", "reason") if form.get(name))
    return " ".join(text.split())[:MOST_SHOWN]


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)
