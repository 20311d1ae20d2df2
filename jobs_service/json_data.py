"""Strict JSON for a job's data: decoding returns an equal value, or encoding refuses it.

The check and the codec are separate. No fast encoder refuses values that JSON cannot carry (integer keys become
strings, NaN becomes null), so the value is walked first, and then encoded by pydantic-core, which is installed with
pydantic-settings. The standard library's codec handles the values that pydantic-core treats differently: lone
surrogates, and objects of subclasses of JSON's classes.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NoReturn

import pydantic_core

from jobs_service.errors import InvalidJob, JobTooLarge, RecordDamaged, kind_of, shown

MAX_DEPTH = 190
"""Levels of nesting that data may have: every decoder in use can read them."""

MAX_INTEGER_BITS = 14_000
"""Longer integers cannot be read back (Python's own limit of 4,300 decimal digits)."""

MAX_VALUES: Final = 100_000
"""Most values in data, counting repeated references: more than any store takes, quickly counted."""

_SCALARS = frozenset({str, bool, type(None)})
_SMALL = 1 << 63
_FEW: Final = 100
_SPLIT_CHARACTER = re.compile("[\ud800-\udbff][\udc00-\udfff]")


class _Refused(ValueError):
    """The reason why a value is not JSON."""


def encode(value: Any) -> bytes:
    """Encode data as compact UTF-8 JSON; None becomes no bytes at all.

    Args:
        value: None, bool, int, finite float, str, and lists, tuples and dicts with str keys of these. An object of a
            subclass, such as an OrderedDict or a member of a StrEnum, is encoded as its base class.

    Raises:
        InvalidJob: the value holds something that JSON cannot carry.
        JobTooLarge: it is more than any store takes.
    """
    if value is None:
        return b""
    try:
        if type(value) not in _SCALARS and not _is_plain(value):
            check = _Check()
            check.check(value, MAX_DEPTH)
            if check.has_subclasses:
                return _by_standard_library(value)
    except _Refused as refused:
        raise InvalidJob(f"data is not JSON: {refused}") from None
    try:
        return pydantic_core.to_json(value)
    except pydantic_core.PydanticSerializationError:
        return _with_lone_surrogates(value)


def decode(encoded: bytes) -> Any:
    """Return the value that `encode` encoded (tuples as lists, objects of subclasses as plain ones).

    Raises:
        RecordDamaged: the bytes are not JSON.
    """
    if not encoded:
        return None
    try:
        return pydantic_core.from_json(encoded, allow_inf_nan=False)
    except ValueError:
        try:
            return json.loads(encoded)
        except (ValueError, RecursionError) as error:
            raise RecordDamaged(f"a job's data is damaged: {error}") from None


def parsed(text: str | bytes) -> Any:
    """Return the value of JSON that a person or another program wrote.

    Raises:
        ValueError: it is not JSON, as bytes in UTF-8; the message says why.
    """
    try:
        return _STRICT.decode(text if isinstance(text, str) else text.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        where = f"character {error.pos + 1}" if error.lineno == 1 else f"line {error.lineno}, column {error.colno}"
        raise ValueError(f"not JSON ({error.msg} at {where})") from None
    except UnicodeDecodeError:
        raise ValueError("not JSON (not UTF-8)") from None
    except RecursionError:
        raise ValueError("not usable JSON (nested too deeply)") from None
    except ValueError as error:
        raise ValueError(f"not usable JSON ({error})") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


_STRICT: Final = json.JSONDecoder(parse_constant=_refuse_constant)


def same(one: Any, other: Any) -> bool:
    """Whether two decoded values are equal and of the same types: 0, 0.0 and False differ."""
    if one is other:
        return True
    kind = type(one)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if kind is not type(other):
        return False
    if kind is dict:
        return one.keys() == other.keys() and all(same(item, other[key]) for key, item in one.items())
    if kind is list:
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def canonical(value: Any) -> bytes:
    """Encode data so that equal values give equal bytes, whatever the order of keys. Raises like `encode`."""
    return encode(_canonical(decode(encode(value))))


def _canonical(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _canonical(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [*map(_canonical, value)]
    # 1.0 and 1 are equal; so are 0.0 and -0.0.
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _by_standard_library(value: Any) -> bytes:
    """Encode a checked value that contains objects of subclasses: a dict that is also a dataclass remains a dict."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return _with_lone_surrogates(value)


def _with_lone_surrogates(value: Any) -> bytes:
    """Encode a checked value with strings that are not valid UTF-8."""
    if _SPLIT_CHARACTER.search(json.dumps(value, ensure_ascii=False)):
        # Escaped side by side they read back as one character.
        raise InvalidJob("data is not JSON: a str with two surrogates side by side that make one character; join them")
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def _is_plain(value: Any) -> bool:
    """Whether a value is a small dict of scalars that need no further check, as most data are."""
    if type(value) is not dict or len(value) > _FEW:
        return False
    for key, item in value.items():
        if type(key) is not str:
            return False
        kind = type(item)
        if kind not in _SCALARS and not (kind is int and -_SMALL < item < _SMALL):
            return False
    return True


class _Check:
    """One walk through a value.

    Attributes:
        has_subclasses: whether the walk met an object of a subclass of one of JSON's classes.
    """

    __slots__ = ("_left", "has_subclasses")

    def __init__(self) -> None:
        self._left = MAX_VALUES
        self.has_subclasses = False

    def check(self, value: Any, depth: int) -> None:
        """Refuse a value that is not JSON."""
        kind = type(value)
        if kind in _SCALARS:
            return
        if kind is int:
            if not -_SMALL < value < _SMALL and value.bit_length() > MAX_INTEGER_BITS:
                raise _Refused(f"an integer of {value.bit_length()} bits; {MAX_INTEGER_BITS} are allowed")
        elif kind is float:
            if value - value != 0.0:
                raise _Refused(f"the number {value!r}; only finite numbers are allowed")
        elif depth == 0:
            raise _Refused(f"nested deeper than {MAX_DEPTH} levels")
        elif kind is dict:
            self._count(value)
            for key, item in value.items():
                if type(key) is not str:
                    self._check_key(key)
                if type(item) not in _SCALARS and not (type(item) is int and -_SMALL < item < _SMALL):
                    self.check(item, depth - 1)
        elif kind is list or kind is tuple:
            self._count(value)
            for item in value:
                if type(item) not in _SCALARS:
                    self.check(item, depth - 1)
        else:
            self._check_subclass(value, depth)

    def _check_subclass(self, value: Any, depth: int) -> None:
        """Check the contents of an object of a subclass, as the standard library's json writes them."""
        self.has_subclasses = True
        if isinstance(value, dict):
            self.check(dict(value), depth)
        elif isinstance(value, list | tuple):
            self.check([*value], depth)
        elif isinstance(value, int):
            self.check(int(value), depth)
        elif isinstance(value, float):
            self.check(float(value), depth)
        elif not isinstance(value, str):
            raise _Refused(
                f"a value of type {kind_of(value)}; allowed are None, bool, int, float, str, "
                "and list, tuple, dict of these"
            )

    def _check_key(self, key: Any) -> None:
        if not isinstance(key, str):
            raise _Refused(f"the key {shown(key)} of type {kind_of(key)}; object keys must be str")
        self.has_subclasses = True

    def _count(self, values: Any) -> None:
        """Count the values of a container: with many references to one container, encoding would take for ever."""
        self._left -= len(values)
        if self._left < 0:
            raise JobTooLarge(f"data of more than {MAX_VALUES} values; no store takes that much")
