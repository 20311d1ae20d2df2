"""Types, ids and priorities: their check, and their forms as text and as JSON on the command line and over HTTP.

A string is written as it is. All other values, and strings that would not survive a terminal or a shell (empty, with
spaces around them, with control characters, starting with "-" or "json:"), are written as `json:` and a JSON value:
`json:7`, `json:["a",1]` for a tuple, `json:{"bytes":"00ff"}` for bytes in hexadecimal, `json:"\n"`.
"""

from __future__ import annotations

import json
import re
from itertools import chain
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from jobs_service import json_data
from jobs_service.errors import InvalidJob, JobTooLarge, a_kind_of
from jobs_service.errors import shown as quoted

if TYPE_CHECKING:
    from jobs_service.run_data import JobError

PREFIX = "json:"
MAX_NESTING: Final = 50
"""Most levels of tuples in a type or a priority: any stack can decode them."""

_INTEGER = re.compile(r"[+-]?\d+", re.ASCII)
_MAX_INTEGER_BITS: Final = 8 * 255
_MAX_BYTES: Final = 20_000
"""Approximate most bytes in tuples: more than the longest key of any store, and quickly counted."""


def check_name(what: str, value: Any) -> None:
    """Refuse what can be no type or priority; text that is not UTF-8 is found when it is encoded.

    Args:
        what: the argument's name, for messages.
        value: allowed are str, bytes, int, and tuples of these.

    Raises:
        InvalidJob: the value is something else, is nested too deeply, or has an integer of too many bits.
        JobTooLarge: it holds more than any key.
    """
    if isinstance(value, str | bytes):
        return
    tuples: list[tuple[Any, ...]] = [(value,)]
    left = _MAX_BYTES
    for _ in range(MAX_NESTING + 1):
        deeper = []
        for each in chain.from_iterable(tuples):
            if isinstance(each, int) and not isinstance(each, bool):
                if each.bit_length() > _MAX_INTEGER_BITS:
                    refused = f"an integer of {each.bit_length()} bits; {_MAX_INTEGER_BITS} are allowed"
                    raise InvalidJob(f"{what} {quoted(value)}: {refused}")
                continue
            if not isinstance(each, str | bytes | tuple):
                allowed = "allowed are str, bytes, int and tuples of these"
                raise InvalidJob(f"{what} {quoted(value)}: {a_kind_of(each)}; {allowed}")
            left -= 1 + len(each)
            if left < 0:
                raise JobTooLarge(f"{what}: tuples of more than {_MAX_BYTES} bytes; no store takes so long a key")
            if isinstance(each, tuple):
                deeper.append(each)
        if not deeper:
            return
        tuples = deeper
    raise InvalidJob(f"{what} {quoted(value)}: nested deeper than {MAX_NESTING} levels")


# As text


def shown(value: Any) -> str:
    """Return a type, id or priority as text; `parsed` is the inverse."""
    if isinstance(value, str) and _is_plain(value):
        return value
    return PREFIX + compact(name(value))


def parsed(text: str) -> Any:
    """Return the value of a text; the inverse of `shown`.

    Raises:
        ValueError: the text begins with `json:`, and the rest is not a valid value; the message says why.
    """
    if not text.startswith(PREFIX):
        return _encodable(text)
    try:
        form = json_data.parsed(text[len(PREFIX) :])
    except ValueError as error:
        raise ValueError(f"{brief(text)}: behind json: is {error}; quote it for the shell") from None
    try:
        return from_json(form)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def priority_text(priority: Any) -> str:
    """Return a priority as text; `parsed_priority` is the inverse."""
    if isinstance(priority, int):
        return str(priority)
    return compact(priority) if isinstance(priority, str) else shown(priority)


def parsed_priority(text: str) -> Any:
    """Return the priority of a text: an integer, a string in JSON's quotes, or `json:` and a value.

    Strings come before all integers. They need quotes, so that a mistyped number does not jump the queue.

    Raises:
        ValueError: the text is no priority; the message says why.
    """
    if _INTEGER.fullmatch(text):
        return int(text)
    if text.startswith('"'):
        return parsed(PREFIX + text)
    if text.startswith(PREFIX):
        return parsed(text)
    raise ValueError(f"""{brief(text)} is no integer; a string is written in JSON's quotes: '"text"'""")


def segment(value: Any) -> str:
    """Return a type or id as one percent-encoded URL segment; "." and ".." get a prefix, because clients drop them."""
    text = PREFIX + compact(value) if value in (".", "..") else shown(value)
    return quote(text, safe="")


# As plain data that every JSON encoder takes


def name(value: Any) -> Any:
    """Return a type, id or priority: bytes as {"bytes": hexadecimal}, a tuple as a list, str and int as they are."""
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    return [name(item) for item in value] if isinstance(value, tuple) else value


def from_json(value: Any) -> Any:
    """Return the type, id or priority of a JSON value that `name` made.

    Raises:
        ValueError: the value has another form; the message says why.
    """
    if isinstance(value, str):
        return _encodable(value)
    if isinstance(value, list):
        return tuple(from_json(item) for item in value)
    if not isinstance(value, dict):
        return value
    if len(value) == 1 and isinstance(digits := value.get("bytes"), str):
        return _from_hexadecimal(digits)
    raise ValueError('the only object allowed is {"bytes":"HEX"}')


def error(value: JobError | None) -> dict[str, str] | None:
    """Return a run's error as an object."""
    return None if value is None else {"type": value.type, "message": value.message, "traceback": value.traceback}


# Texts for terminals and messages


def compact(value: Any) -> str:
    """Return a value as JSON on one line, without control characters for a terminal."""
    return printable(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def printable(text: str) -> str:
    """Return the text with \\uXXXX in place of characters that are not printable."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def brief(text: str) -> str:
    """Return a text quoted for messages."""
    return repr(text if len(text) <= 60 else f"{text[:59]}…")


def one_line(text: str, most: int) -> str:
    """Return a text on one line, of at most so many characters, all printable."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def _is_plain(text: str) -> bool:
    return bool(text) and text.isprintable() and text == text.strip() and not text.startswith((PREFIX, "-"))


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f'{brief(text)} is not UTF-8; bytes are written json:{{"bytes":"HEX"}}') from None
    return text


def _from_hexadecimal(digits: str) -> bytes:
    try:
        return bytes.fromhex(digits)
    except ValueError:
        raise ValueError(f"{brief(digits)} is not hexadecimal") from None
