"""A job's data: what goes in comes out equal, or is refused and says why."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import http
import itertools
import json
import math
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs_service import InvalidJob
from jobs_service.json_data import MAX_DEPTH, MAX_INTEGER_BITS, decode, encode

INTEGERS = st.one_of(
    st.integers(),
    st.integers(0, MAX_INTEGER_BITS).map(lambda bits: (1 << bits) - 1),
    st.integers(0, MAX_INTEGER_BITS - 1).map(lambda bits: -(1 << bits)),
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
ANY_TEXT = st.text(st.one_of(st.characters(), st.characters(categories=["Cs"]), st.sampled_from('\x00"\\/\u2028😀')))


def values(text: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    """JSON values with such strings, and tuples in them."""
    return st.recursive(
        st.one_of(
            st.none(), st.booleans(), INTEGERS, st.floats(allow_nan=False, allow_infinity=False), text, st.just(-0.0)
        ),
        lambda inner: st.one_of(
            st.lists(inner, max_size=5),
            st.lists(inner, max_size=3).map(tuple),
            st.dictionaries(text, inner, max_size=5),
        ),
        max_leaves=20,
    )


def typed(value: Any) -> Any:
    """Return a form of a value that tells 1 from True and 1.0, 0.0 from -0.0, and not a tuple from a list."""
    if isinstance(value, list | tuple):
        return ["list", *map(typed, value)]
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}
    return type(value).__name__, repr(value) if isinstance(value, float) else value


def splits_a_character(value: Any) -> bool:
    """Whether a string in the value has two surrogates side by side that make one character."""
    if isinstance(value, dict):
        return any(splits_a_character(key) or splits_a_character(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return any(map(splits_a_character, value))
    return isinstance(value, str) and any(
        "\ud800" <= one <= "\udbff" and "\udc00" <= other <= "\udfff" for one, other in itertools.pairwise(value)
    )


def refusal(value: Any) -> str:
    """Return why data is refused, checked to be one line."""
    with pytest.raises(InvalidJob) as caught:
        encode(value)
    message = str(caught.value)
    assert message.startswith("data is not JSON: ")
    assert len(message.splitlines()) == 1
    assert len(message) < 300
    return message


def nested(levels: int, wrap: Any) -> Any:
    """Return a value of so many levels around a number."""
    value: Any = 1
    for _ in range(levels):
        value = wrap(value)
    return value


# round trips


@given(values(TEXT))
def test_what_goes_in_comes_out_equal(value: Any) -> None:
    assert typed(decode(encode(value))) == typed(value)


@given(values(ANY_TEXT))
def test_text_with_lone_surrogates_comes_out_equal_or_is_refused(value: Any) -> None:
    if splits_a_character(value):
        assert "two surrogates side by side" in refusal(value)
    else:
        assert typed(decode(encode(value))) == typed(value)


# limits


@pytest.mark.parametrize("value", [1 << MAX_INTEGER_BITS, -(1 << MAX_INTEGER_BITS)], ids=["positive", "negative"])
@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: [value], lambda value: {"a": value}])
def test_integers_that_cannot_be_read_back_are_refused(value: int, wrap: Any) -> None:
    assert "an integer of 14001 bits; 14000 are allowed" in refusal(wrap(value))


@pytest.mark.parametrize(
    ("levels", "wrap"),
    [
        (1, lambda value: [value]),
        (1, lambda value: (value,)),
        (1, lambda value: {"a": value}),
        (2, lambda value: [{"\ud800": value}]),
        (2, lambda value: {"a": [1 << 100, value]}),
    ],
)
def test_nesting_up_to_the_limit_is_carried_and_beyond_it_refused(levels: int, wrap: Any) -> None:
    deepest = nested(MAX_DEPTH // levels, wrap)
    assert typed(decode(encode(deepest))) == typed(deepest)
    assert f"nested deeper than {MAX_DEPTH} levels" in refusal([deepest])


# what is refused


class Text(str):
    pass


class Number(int):
    pass


class Choice(enum.StrEnum):
    ONE = "one"


class Level(enum.IntEnum):
    HIGH = 3


class Mixed(str, enum.Enum):  # noqa: UP042 (as programs wrote it before StrEnum)
    ONE = "one"


class Other(enum.Enum):
    ONE = 1


@dataclasses.dataclass
class Fields(dict[str, Any]):
    """A dict, whatever else it is."""

    own: int = 7

    def __init__(self, **fields: Any) -> None:
        super().__init__(fields)


Pair = collections.namedtuple("Pair", "a b")


class Fraction(float):
    pass


class Items(list[Any]):
    pass


@dataclasses.dataclass
class Point:
    x: int = 1


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (b"bytes", "bytes"),
        ({1, 2}, "set"),
        (frozenset(), "frozenset"),
        (range(3), "range"),
        (datetime.datetime(2030, 1, 1), "datetime"),
        (decimal.Decimal("1.5"), "Decimal"),
        (uuid.UUID(int=1), "UUID"),
        (1j, "complex"),
        (Point(), "Point"),
        (Other.ONE, "Other"),
        (collections.deque(), "deque"),
        (collections.UserDict(a=1), "UserDict"),
        (object(), "object"),
        (..., "ellipsis"),
        (Unshowable(), "Unshowable"),
    ],
)
@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: [value], lambda value: {"a": (value,)}])
def test_values_that_json_has_no_form_for_are_refused_with_their_kind(value: Any, kind: str, wrap: Any) -> None:
    assert f"a value of type {kind}; allowed are None, bool, int, float, str" in refusal(wrap(value))


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Text("a"), "a"),
        (Number(1), 1),
        (Number(1 << 100), 1 << 100),
        (Fraction(1.5), 1.5),
        (Choice.ONE, "one"),
        (Mixed.ONE, "one"),
        (Level.HIGH, 3),
        (http.HTTPStatus.OK, 200),
        (collections.OrderedDict(b=1, a=Choice.ONE), {"b": 1, "a": "one"}),
        (collections.defaultdict(list, a=[1]), {"a": [1]}),
        (collections.Counter("aa"), {"a": 2}),
        (Pair(1, Level.HIGH), [1, 3]),
        (Items([Items([1])]), [[1]]),
        ({Text("a"): 1, Choice.ONE: 2}, {"a": 1, "one": 2}),
        (Fields(x=1), {"x": 1}),
        (Text("\ud800"), "\ud800"),
        ([1, {"a": (collections.OrderedDict(b=None),)}], [1, {"a": [{"b": None}]}]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_objects_of_subclasses_come_back_as_the_plain_values_that_they_hold(value: Any, plain: Any) -> None:
    for holder, wanted in ((value, plain), ([value], [plain]), ({"a": value}, {"a": plain})):
        back = decode(encode(holder))
        assert typed(back) == typed(wanted)
        assert back == json.loads(json.dumps(holder))


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: [value], lambda value: {"a": value}])
def test_numbers_that_are_not_finite_are_refused(number: float, wrap: Any) -> None:
    assert f"the number {number!r}; only finite numbers are allowed" in refusal(wrap(number))


@pytest.mark.parametrize("key", [1, None, True, 1.5, b"a", ("a",), Number(1), Other.ONE])
@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: [value], lambda value: {"a": value}])
def test_keys_that_are_not_text_are_refused(key: Any, wrap: Any) -> None:
    assert f"of type {type(key).__name__}; object keys must be str" in refusal(wrap({key: "value"}))
