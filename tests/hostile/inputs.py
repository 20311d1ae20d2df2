"""Hostile values: what a caller hands over by mistake, hand-picked."""

from __future__ import annotations

import asyncio
import ctypes
import decimal
import fractions
import functools
import math
import types
import uuid
from collections import OrderedDict, UserString, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from functools import partial
from typing import Any
from unittest import mock

import fdb.tuple

from jobs_service import Job, JobState, NewJob, Outcome
from jobs_service.model import UNSET
from jobs_service.store import KeySelector
from tests.hostile.objects import (
    Agreeable,
    Array,
    AsKey,
    Level,
    Mischief,
    MisShown,
    Mixed,
    Number,
    OddZone,
    Raising,
    Word,
    mischief,
)


@dataclass(frozen=True)
class HandPicked:
    """One hostile value.

    Attributes:
        name: stands in a failing test's message.
        make: returns it, new at every call: some can be used once only.
    """

    name: str
    make: Callable[[], Any]


Point = namedtuple("Point", "x y")


@functools.cache
def nested(kind: str, depth: int) -> Any:
    """Return nesting of a kind of container, without recursion; always the same: to make it anew takes milliseconds."""
    value: Any = "bottom"
    for _ in range(depth):
        value = [value] if kind == "list" else (value,) if kind == "tuple" else {"": value}
    return value


def _cyclic_list() -> Any:
    value: list[Any] = [1]
    value.append(value)
    return value


def _cyclic_dict() -> Any:
    value: dict[str, Any] = {"a": 1}
    value["self"] = [value]
    return value


def _cyclic_tuple() -> Any:
    inner: list[Any] = []
    value = (1, inner)
    inner.append(value)
    return value


def _laughs(kind: str, depth: int) -> Any:
    """Return little that is seen as very much: every container holds the one below twice."""
    value: Any = ["ha"] if kind == "list" else ("ha",)
    for _ in range(depth):
        value = [value, value] if kind == "list" else (value, value)
    return value


def _generator() -> Iterator[Any]:
    yield from ("a", 1, None)


async def _coroutine() -> int:
    return 7


async def _asynchronous_generator() -> Any:
    yield 7


def _raising_generator() -> Iterator[Any]:
    yield NewJob("before")
    raise Mischief("a hostile object was asked")


def _constant(value: Any) -> Callable[[], Any]:
    return lambda: value


def _named(prefix: str, values: dict[str, Any]) -> list[HandPicked]:
    return [HandPicked(f"{prefix}: {name}", _constant(value)) for name, value in values.items()]


SIZES = (255, 256, 480, 494, 498, 499, 500, 510, 511, 512, 9_980, 10_000, 10_001, 65_536, 100_000, 100_001, 10_000_001)
DEPTHS = (10, 40, 64, 100, 189, 190, 191, 192, 200, 330, 500, 990, 1_000, 10_000, 100_000)

TEXTS = {
    "empty": "",
    "space": " ",
    "NUL": "\x00",
    "line feeds": "a\nb\r\nc\u2028d\u2029e\x85f\x0b\x0cg",
    "escape sequence": "\x1b[31mred\x1b]0;title\x07",
    "every control character": "".join(map(chr, range(32))) + "\x7f\x80\x9f",
    "lone high surrogate": "\ud800",
    "lone low surrogate": "x\udfffy",
    "surrogate pair": "\ud83d\ude00",
    "undecodable byte": "\udcff",
    "beyond the plane": "\U0010ffff\U0001f600",
    "right to left": "\u202eabc\u202d\u2066\u2069\u200f",
    "byte order mark": "\ufeffx",
    "combining": "e" + "\u0301" * 500,
    "format string": "%s%n{0}{type.__class__}",
    "path": "../../etc/passwd",
    "json": '{"__proto__": null}',
    "quotes": "'\"\\`$(id);--",
    "digits": "0",
    "not a number": "NaN",
    "a state and NUL": "pending\x00",
    "option": "--force",
}
BYTES = {
    "empty": b"",
    "NUL": b"\x00",
    "escaped NUL": b"\x00\xff\x00\xff",
    "not UTF-8": b"\xff\xfe\xc0\x80",
    "system": b"\xff",
    "special": b"\xff\xff/status/json",
    "overlong": b"\xc0\xaf\xed\xa0\x80",
    "every byte": bytes(range(256)),
    "text": b"error",
    "versionstamp code": b"\x33" * 13,
}
NUMBERS: dict[str, Any] = {
    "zero": 0,
    "minus one": -1,
    "false": False,
    "true": True,
    "2**53+1": 2**53 + 1,
    "2**63-1": 2**63 - 1,
    "2**63": 2**63,
    "-2**63": -(2**63),
    "-2**63-1": -(2**63) - 1,
    "2**64": 2**64,
    "255 bytes": 2**2040 - 1,
    "256 bytes": 2**2040,
    "-256 bytes": -(2**2040),
    "14,000 bits": 2**13_999,
    "14,001 bits": 2**14_000,
    "4,300 digits": 10**4_299,
    "4,301 digits": 10**4_300,
    "5,000 digits": 10**4_999,
    "10,000 digits": 10**9_999,
    "0.0": 0.0,
    "-0.0": -0.0,
    "-1.5": -1.5,
    "NaN": math.nan,
    "inf": math.inf,
    "-inf": -math.inf,
    "denormal": 5e-324,
    "greatest": 1.7976931348623157e308,
    "before the year 1": -62_135_596_801.0,
    "the year 10000": 253_402_300_800,
    "complex": 1j,
    "decimal": decimal.Decimal("1.5"),
    "decimal NaN": decimal.Decimal("sNaN"),
    "decimal beyond": decimal.Decimal("1e999999"),
    "fraction": fractions.Fraction(1, 3),
    "c_float": ctypes.c_float(1.5),
}
TIMES: dict[str, Any] = {
    "naive": datetime(2030, 1, 1),
    "greatest": datetime.max.replace(tzinfo=UTC),
    "least far east": datetime.min.replace(tzinfo=timezone(timedelta(hours=23, minutes=59))),
    "greatest far west": datetime.max.replace(tzinfo=timezone(-timedelta(hours=23, minutes=59))),
    "odd offset": datetime(2030, 1, 1, tzinfo=timezone(timedelta(seconds=1, microseconds=1))),
    "offset of a day": datetime(2030, 1, 1, tzinfo=OddZone(timedelta(days=1))),
    "offset of no kind": datetime(2030, 1, 1, tzinfo=OddZone("east")),
    "offset unknown": datetime(2030, 1, 1, tzinfo=OddZone(None)),
    "offset that raises": datetime(2030, 1, 1, tzinfo=OddZone(mischief)),
    "abstract zone": datetime(2030, 1, 1, tzinfo=tzinfo()),  # type: ignore[abstract]
    "date": date(2030, 1, 1),
    "duration": timedelta.max,
}
OBJECTS: dict[str, Any] = {
    "None": None,
    "...": ...,
    "NotImplemented": NotImplemented,
    "UNSET": UNSET,
    "object": object(),
    "class": int,
    "function": _constant,
    "exception": ValueError("a\nb"),
    "huge range": range(10**12),
    "set": {1},
    "bytearray": bytearray(b"ab"),
    "UUID": uuid.UUID(int=7),
    "single": fdb.tuple.SingleFloat(1.5),
    "versionstamp": fdb.tuple.Versionstamp(bytes(10), 1),
    "incomplete versionstamp": fdb.tuple.Versionstamp(),
    "key selector": KeySelector(b"a", True, 1),
    "new job": NewJob("x"),
    "new job of nothing": NewJob(None),  # type: ignore[arg-type]
    "removed": JobState.REMOVED,
    "outcome": Outcome.FAILED,
    "class of jobs": Job,
    "enum of str": Mixed.RED,
    "StrEnum": Word.ERROR,
    "StrEnum state": Word.PENDING,
    "IntEnum": Level.ONE,
    "agreeable": Agreeable(),
    "mis-shown": MisShown(),
    "number": Number(),
    "array": Array(),
    "raising": Raising(),
    "UserString": UserString("error"),
    "named tuple": Point("a", 1),
    "as key": AsKey(),
    "mock": mock.Mock(),
}
MIXTURES: dict[str, Any] = {
    "()": (),
    "bytes and text": (b"a", "a"),
    "list in a tuple": ("a", [1, [2]]),
    "set in a tuple": ({1},),
    "bool in a tuple": (True, 1),
    "float in a tuple": (1.5, math.nan, math.inf, -0.0),
    "single in a tuple": (fdb.tuple.SingleFloat(math.nan),),
    "versionstamp in a tuple": ("a", fdb.tuple.Versionstamp(bytes(10))),
    "surrogate in a tuple": ("a", ("\ud800",)),
    "huge number in a tuple": (2**2040,),
    "raising in a tuple": (Raising(),),
    "pairs": [("t1", "x"), ("t1", "y")],
    "integer keys": {1: "a"},
    "mixed keys": {"a": 1, b"a": 2, None: 3, (): 4},
    "surrogate keys": {"\ud800": "\udfff"},
    "control characters": {"\x00": "\x1b[0m", "\u2028": "\u202e"},
    "bytes within": {"a": [b"a"]},
    "NaN within": [[math.nan]],
    "subclasses within": [Level.ONE, Word.ERROR, OrderedDict(a=Point(1, 2))],
    "raising within": [Raising()],
    "huge numbers within": [2**64, 2**128, -(2**13_999)],
    "too huge numbers within": {"a": [10**9_999]},
    "many": list(range(40_000)),
    "wide": {str(number): number for number in range(9_000)},
    "jobs": [NewJob("x1"), NewJob("x2", {"a": 1})],
    "jobs and others": [NewJob("x"), "y", None],
    "huge job": [NewJob("x", "y" * 200_000)],
}
ONCE = [
    HandPicked("very many", lambda: [0] * 3_000_000),
    HandPicked("generator", _generator),
    HandPicked("raising generator", _raising_generator),
    HandPicked("generator of jobs", lambda: (NewJob(f"g{number}") for number in range(3))),
    HandPicked("coroutine", _coroutine),
    HandPicked("asynchronous generator", _asynchronous_generator),
    HandPicked("iterator", lambda: iter(["a"])),
    HandPicked("map", lambda: map(int, "12x")),
    HandPicked("future", lambda: asyncio.get_running_loop().create_future()),
    HandPicked("cyclic list", _cyclic_list),
    HandPicked("cyclic dict", _cyclic_dict),
    HandPicked("cyclic tuple", _cyclic_tuple),
    HandPicked("laughing lists", lambda: _laughs("list", 100)),
    HandPicked("laughing tuples", lambda: _laughs("tuple", 30)),
    HandPicked("many laughing tuples", lambda: _laughs("tuple", 100)),
]


def hand_picked() -> list[HandPicked]:
    """Return all hand-picked values, always in the same order."""
    return [
        *_named("object", OBJECTS),
        *_named("number", NUMBERS),
        *_named("text", TEXTS),
        *_named("bytes", BYTES),
        *_named("time", TIMES),
        *_named("mixture", MIXTURES),
        *(HandPicked(f"text of {size}", _constant("x" * size)) for size in SIZES),
        *(HandPicked(f"bytes of {size}", _constant(b"\x01" * size)) for size in SIZES),
        *(HandPicked(f"NULs of {size}", _constant(b"\x00" * size)) for size in SIZES[:9]),
        *(
            HandPicked(f"{kind} {depth} deep", partial(nested, kind, depth))
            for kind in ("list", "tuple", "dict")
            for depth in DEPTHS
        ),
        *ONCE,
    ]


def dispose(value: Any) -> None:
    """End what complains when it is left alone."""
    if isinstance(value, types.CoroutineType):
        value.close()
    elif isinstance(value, asyncio.Future):
        value.cancel()
