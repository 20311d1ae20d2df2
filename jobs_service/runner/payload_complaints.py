"""Complaints of validation libraries about a handler's arguments, in one line that names the field."""

from __future__ import annotations

import re
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from jobs_service.errors import in_one_line, kind_of, shown

LONGEST_REASON: Final = 160
"""Most characters of a library's reason that a message quotes."""

_MISSING: Final = frozenset({"missing", "missing_argument", "missing_keyword_only_argument"})
_UNKNOWN: Final = frozenset({"extra_forbidden", "unexpected_keyword_argument"})
_RAISED: Final = frozenset({"value_error", "assertion_error"})
_MSGSPEC_TEXT: Final = re.compile(r"(?P<reason>.*?)(?: - at `\$\.?(?P<path>.*)`)?", re.DOTALL)
_MSGSPEC_FIELD: Final = re.compile(r"Object (?P<how>missing required|contains unknown) field `(?P<name>.*)`", re.DOTALL)
_UNEXPECTED: Final = re.compile(
    r"PydanticSerializationUnexpectedValue\(Expected (?P<expected>.*?) - serialized value may not be as expected "
    r"\[(?:field_name='(?P<field>[^']*)', )?input_value=(?P<value>.*), input_type=\w+\]\)",
    re.DOTALL,
)


def pydantic_complaint(error: Exception) -> str:
    """Return the complaint of pydantic, or of a validator called by it, about a value."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_context=False)[0]
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        return _first_complaint(first["type"], path_text(first["loc"]), first["msg"], first["input"]) + more
    if isinstance(error, PydanticSerializationError) and (found := _UNEXPECTED.search(str(error))):
        expected, field, value = found.group("expected", "field", "value")
        where = f"field {in_one_line(field, 80)}: " if field else ""
        return f"{where}expected {in_one_line(expected, 60)}; it is {in_one_line(value, 60)}"
    return _foreign_complaint(error)


def _first_complaint(kind: str, path: str, reason: str, value: Any) -> str:
    if kind in _MISSING:
        return f"field {path} is missing"
    if kind in _UNKNOWN:
        return f"field {path} is unknown"
    where = f"field {path}: " if path else ""
    if kind in _RAISED:
        reason = reason.partition(", ")[2] or reason  # pydantic puts the class of the exception before its message
    return f"{where}{in_one_line(reason[:1].lower() + reason[1:], LONGEST_REASON)}; it is {shown(value)}"


def msgspec_complaint(error: Exception) -> str:
    """Return the complaint of msgspec, or of a hook called by it, about a value."""
    import msgspec

    if not isinstance(error, msgspec.ValidationError):
        return _foreign_complaint(error)
    text = _MSGSPEC_TEXT.fullmatch(str(error))
    assert text is not None
    reason, path = text["reason"], text["path"] or ""
    if field := _MSGSPEC_FIELD.fullmatch(reason):
        within = f"{path}.{field['name']}".removeprefix(".")
        return f"field {in_one_line(within, 80)} is {'missing' if 'missing' in field['how'] else 'unknown'}"
    where = f"field {in_one_line(path, 80)}: " if path else ""
    return where + in_one_line(reason[:1].lower() + reason[1:], LONGEST_REASON)


def _foreign_complaint(error: Exception) -> str:
    try:
        return f"{kind_of(error)}: {in_one_line(str(error), LONGEST_REASON)}"
    except Exception:  # __str__ of a user's exception is the user's code
        return kind_of(error)


def path_text(location: tuple[int | str, ...]) -> str:
    """Return a field's path in the form of messages: `items[3].name`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return in_one_line(text.removeprefix("."), 80)
