"""Hostile objects: they raise, agree with everything, or are not what they look like."""

from __future__ import annotations

import enum
from datetime import datetime, tzinfo
from typing import Any, NoReturn


class Mischief(Exception):
    """What hostile objects raise: nobody but themselves may let it out."""


def mischief(*_arguments: Any, **_keywords: Any) -> NoReturn:
    raise Mischief("a hostile object was asked")


_QUESTIONS = """
    repr str eq ne lt le gt ge hash bool iter next len contains getitem index int float bytes format add radd sub rsub
    mul and neg call await aiter enter fspath reduce_ex mod abs
"""


class Raising:
    """Raises whatever it is asked."""


for _question in _QUESTIONS.split():
    setattr(Raising, f"__{_question}__", mischief)


class Agreeable:
    """Is equal to everything, less and more than everything, true, and of every length."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 7

    def __lt__(self, other: object) -> bool:
        return True

    __le__ = __gt__ = __ge__ = __lt__

    def __len__(self) -> int:
        return 1 << 40

    def __repr__(self) -> str:
        return "error\n\x1b[31m\u202e" * 50


class MisShown:
    """Its text is no text."""

    def __repr__(self) -> Any:
        return 7

    __str__ = __repr__


class Number:
    """Looks like a number to whoever asks politely, as numpy's do."""

    shape: tuple[int, ...] = ()
    dtype = "int64"

    def __index__(self) -> int:
        return 7

    def __int__(self) -> int:
        return 7

    def __float__(self) -> float:
        return 7.0


class Array:
    """Compares element by element, as numpy's arrays do."""

    def __eq__(self, other: object) -> Any:
        return [False, True]

    def __ne__(self, other: object) -> Any:
        return self

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> NoReturn:
        raise ValueError("the truth value of an array is ambiguous")


class OddZone(tzinfo):
    """A time zone with an offset of its own making."""

    def __init__(self, offset: Any) -> None:
        self.offset = offset

    def utcoffset(self, _time: datetime | None) -> Any:
        return self.offset() if callable(self.offset) else self.offset

    def dst(self, _time: datetime | None) -> Any:
        return self.utcoffset(_time)

    def tzname(self, _time: datetime | None) -> Any:
        return 7

    def __deepcopy__(self, _memory: Any) -> Any:
        raise Mischief("a hostile object was asked")


class Colour(enum.Enum):
    """Plain members."""

    RED = "error"


class Mixed(str, enum.Enum):  # noqa: UP042 - its str() is not its value, other than a StrEnum's
    """Members that are strings, and say something else."""

    RED = "error"


class Word(enum.StrEnum):
    """Members that are strings."""

    ERROR = "error"
    PENDING = "pending"


class Level(enum.IntEnum):
    """Members that are integers."""

    ONE = 1


class Flags(enum.IntFlag):
    """Members that are integers of bits."""

    A = 1
    B = 2


class AsKey:
    """Offers the tuple layer its own encoding."""

    def as_foundationdb_key(self) -> bytes:
        return b"\xff\xff"

    def to_bytes(self, *_arguments: Any) -> bytes:
        return b"\x00"
