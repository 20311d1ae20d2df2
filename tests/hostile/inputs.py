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
from collections import OrderedDict, UserDict, UserString, defaultdict, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import fdb.tuple

from jobs_service import Job, JobsService, JobState, NewJob, Outcome
from jobs_service.model import UNSET
from jobs_service.store import KeySelector
from tests.hostile.objects import (
    Agreeable,
    Array,
    AsKey,
    Colour,
    Flags,
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
    "NULs": "\x00\x00\xff\x00",
    "line feeds": "a\nb\r\nc\u2028d\u2029e\x85f\x0b\x0cg",
    "escape sequence": "\x1b[31mred\x1b]0;title\x07",
    "every control character": "".join(map(chr, range(32))) + "\x7f\x80\x9f",
    "backspaces": "abc\b\b\bxyz",
    "lone high surrogate": "\ud800",
    "lone low surrogate": "x\udfffy",
    "surrogates the wrong way round": "\udc00\ud800",
    "surrogate pair": "\ud83d\ude00",
    "undecodable byte": "\udcff",
    "beyond the plane": "\U0010ffff\U0001f600",
    "noncharacters": "\ufffe\uffff\ufdd0",
    "right to left": "\u202eabc\u202d\u2066\u2069\u200f",
    "byte order mark": "\ufeffx",
    "combining": "e" + "\u0301" * 500,
    "zero width": "\u200b\u200d\u2060",
    "format string": "%s%n{0}{type.__class__}",
    "path": "../../etc/passwd",
    "json": '{"__proto__": null}',
    "quotes": "'\"\\`$(id);--",
    "digits": "0",
    "not a number": "NaN",
    "uppercase state": "PENDING",
    "a state and NUL": "pending\x00",
    "option": "--force",
    "long word": "ﷺ" * 100,
    "private": "\ue000\U000f0000",
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
    "one": 1,
    "minus one": -1,
    "false": False,
    "true": True,
    "2**31": 2**31,
    "2**53+1": 2**53 + 1,
    "2**63-1": 2**63 - 1,
    "2**63": 2**63,
    "-2**63": -(2**63),
    "-2**63-1": -(2**63) - 1,
    "2**64-1": 2**64 - 1,
    "2**64": 2**64,
    "-2**64": -(2**64),
    "2**128": 2**128,
    "2**1024": 2**1024,
    "255 bytes": 2**2040 - 1,
    "256 bytes": 2**2040,
    "-255 bytes": -(2**2040) + 1,
    "-256 bytes": -(2**2040),
    "14,000 bits": 2**13_999,
    "14,001 bits": 2**14_000,
    "4,300 digits": 10**4_299,
    "4,301 digits": 10**4_300,
    "5,000 digits": 10**4_999,
    "10,000 digits": 10**9_999,
    "-10,000 digits": -(10**9_999),
    "0.0": 0.0,
    "-0.0": -0.0,
    "-1.5": -1.5,
    "NaN": math.nan,
    "inf": math.inf,
    "-inf": -math.inf,
    "denormal": 5e-324,
    "tiny": 1e-300,
    "1e15": 1e15,
    "1e16": 1e16,
    "greatest": 1.7976931348623157e308,
    "least": -1.7976931348623157e308,
    "before the year 1": -62_135_596_801.0,
    "the year 10000": 253_402_300_800,
    "complex": 1j,
    "decimal": decimal.Decimal("1.5"),
    "decimal NaN": decimal.Decimal("sNaN"),
    "decimal beyond": decimal.Decimal("1e999999"),
    "fraction": fractions.Fraction(1, 3),
    "c_float": ctypes.c_float(1.5),
    "c_int": ctypes.c_int(1),
}
TIMES: dict[str, Any] = {
    "naive": datetime(2030, 1, 1),
    "naive least": datetime.min,
    "naive greatest": datetime.max,
    "least": datetime.min.replace(tzinfo=UTC),
    "greatest": datetime.max.replace(tzinfo=UTC),
    "least far east": datetime.min.replace(tzinfo=timezone(timedelta(hours=23, minutes=59))),
    "greatest far west": datetime.max.replace(tzinfo=timezone(-timedelta(hours=23, minutes=59))),
    "odd offset": datetime(2030, 1, 1, tzinfo=timezone(timedelta(seconds=1, microseconds=1))),
    "fold": datetime(2030, 1, 1, fold=1, tzinfo=UTC),
    "offset of a day": datetime(2030, 1, 1, tzinfo=OddZone(timedelta(days=1))),
    "offset of no kind": datetime(2030, 1, 1, tzinfo=OddZone("east")),
    "offset unknown": datetime(2030, 1, 1, tzinfo=OddZone(None)),
    "offset that raises": datetime(2030, 1, 1, tzinfo=OddZone(mischief)),
    "abstract zone": datetime(2030, 1, 1, tzinfo=tzinfo()),  # type: ignore[abstract]
    "date": date(2030, 1, 1),
    "greatest date": date.max,
    "time": time(12, tzinfo=UTC),
    "duration": timedelta.max,
}
OBJECTS: dict[str, Any] = {
    "None": None,
    "...": ...,
    "NotImplemented": NotImplemented,
    "UNSET": UNSET,
    "object": object(),
    "class": int,
    "generic": list[int],
    "function": _constant,
    "lambda": lambda *_arguments: None,
    "method": "".join,
    "module": math,
    "namespace": types.SimpleNamespace(type="t", id="x"),
    "exception": ValueError("a\nb"),
    "slice": slice(None, None, 2),
    "range": range(3),
    "huge range": range(10**12),
    "set": {1},
    "frozenset": frozenset("ab"),
    "bytearray": bytearray(b"ab"),
    "memoryview": memoryview(b"ab"),
    "path": Path("x"),
    "UUID": uuid.UUID(int=7),
    "single": fdb.tuple.SingleFloat(1.5),
    "versionstamp": fdb.tuple.Versionstamp(bytes(10), 1),
    "incomplete versionstamp": fdb.tuple.Versionstamp(),
    "key selector": KeySelector(b"a", True, 1),
    "new job": NewJob("x"),
    "new job of nothing": NewJob(None),  # type: ignore[arg-type]
    "state": JobState.PENDING,
    "removed": JobState.REMOVED,
    "outcome": Outcome.FAILED,
    "class of jobs": Job,
    "class of services": JobsService,
    "enum": Colour.RED,
    "enum of str": Mixed.RED,
    "StrEnum": Word.ERROR,
    "StrEnum state": Word.PENDING,
    "IntEnum": Level.ONE,
    "IntFlag": Flags.A | Flags.B,
    "class of an enum": Colour,
    "agreeable": Agreeable(),
    "mis-shown": MisShown(),
    "number": Number(),
    "array": Array(),
    "raising": Raising(),
    "UserString": UserString("error"),
    "UserDict": UserDict(a=1),
    "OrderedDict": OrderedDict(a=1),
    "defaultdict": defaultdict(list, a=1),
    "named tuple": Point("a", 1),
    "as key": AsKey(),
    "mock": mock.Mock(),
}
MIXTURES: dict[str, Any] = {
    "()": (),
    "[]": [],
    "{}": {},
    "bytes and text": (b"a", "a"),
    "bytes and text both ways": (("a", b"a"), (b"a", "a")),
    "list in a tuple": ("a", [1, [2]]),
    "dict in a tuple": ("a", {"b": 1}),
    "set in a tuple": ({1},),
    "None in a tuple": (None, (None, (None,))),
    "bool in a tuple": (True, 1),
    "float in a tuple": (1.5, math.nan, math.inf, -0.0),
    "UUID in a tuple": (uuid.UUID(int=7),),
    "single in a tuple": (fdb.tuple.SingleFloat(math.nan),),
    "versionstamp in a tuple": ("a", fdb.tuple.Versionstamp(bytes(10))),
    "hidden versionstamp": ([fdb.tuple.Versionstamp(bytes(10))],),
    "surrogate in a tuple": ("a", ("\ud800",)),
    "huge number in a tuple": (2**2040,),
    "datetime in a tuple": (datetime(2030, 1, 1, tzinfo=UTC),),
    "raising in a tuple": (Raising(),),
    "mock in a tuple": (mock.Mock(),),
    "array in a tuple": (Array(),),
    "UNSET in a tuple": (UNSET,),
    "pairs": [("t1", "x"), ("t1", "y")],
    "no pairs": [("t1",), ("t1", "x", "y")],
    "pairs of nothing": [(None, None), 7],
    "integer keys": {1: "a"},
    "mixed keys": {"a": 1, b"a": 2, None: 3, (): 4},
    "surrogate keys": {"\ud800": "\udfff"},
    "split surrogates": ["\ud83d\ude00"],
    "control characters": {"\x00": "\x1b[0m", "\u2028": "\u202e"},
    "bytes within": {"a": [b"a"]},
    "NaN within": [[math.nan]],
    "inf within": {"a": {"b": math.inf}},
    "subclasses within": [Level.ONE, Word.ERROR, OrderedDict(a=Point(1, 2))],
    "raising within": [Raising()],
    "raising key": {Number(): 1},
    "huge numbers within": [2**64, 2**128, -(2**13_999)],
    "too huge numbers within": {"a": [10**9_999]},
    "times within": [datetime(2030, 1, 1, tzinfo=UTC)],
    "mock within": [mock.Mock()],
    "many": list(range(40_000)),
    "wide": {str(number): number for number in range(9_000)},
    "jobs": [NewJob("x1"), NewJob("x2", {"a": 1})],
    "jobs twice": [NewJob("x"), NewJob("x")],
    "jobs and others": [NewJob("x"), "y", None],
    "jobs of nothing": [NewJob(None, object(), priority=[], run_at="soon")],  # type: ignore[arg-type]
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
