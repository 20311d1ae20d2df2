"""The keys: what is encoded by hand is what the tuple layer makes of it, and what no job can be called is refused."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import fdb.tuple
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs_service import InvalidJob, JobTooLarge
from jobs_service.arguments import to_seconds
from jobs_service.layer.keyspace import (
    _MAX_CACHED_TYPES,
    AFTER,
    STAMP_CODE,
    Keyspace,
    is_priority,
    pack_id,
    pack_priority,
    pack_type,
    type_in,
    unpack_id,
)
from jobs_service.names import MAX_NESTING
from tests.layer.tuples import IDS, NAMES

PREFIX = b"\x15\x2a"


def one_line(error: InvalidJob) -> str:
    """Return an error's message, checked to be one short line."""
    message = str(error)
    assert len(message.splitlines()) == 1
    assert len(message) < 300
    return message


class Name(str):
    pass


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


class TwoLines:
    def __repr__(self) -> str:
        return "one\ntwo"


# encodings


@given(IDS)
def test_ids_are_encoded_as_by_the_tuple_layer(id: str | bytes) -> None:
    assert pack_id(id) == fdb.tuple.pack((id,))
    assert unpack_id(pack_id(id)) == id
    assert type(unpack_id(pack_id(id))) is type(id)


@given(IDS, IDS)
def test_packed_ids_are_in_the_order_of_the_ids(one: str | bytes, other: str | bytes) -> None:
    assert (pack_id(one) == pack_id(other)) == (one == other)
    if isinstance(one, bytes) and isinstance(other, bytes):
        assert (pack_id(one) < pack_id(other)) == (one < other)
    if isinstance(one, str) and isinstance(other, str):
        assert (pack_id(one) < pack_id(other)) == (one.encode() < other.encode())


@given(NAMES)
def test_every_section_of_a_type_is_the_tuple_of_its_number_and_the_type(type: Any) -> None:
    keys = Keyspace(PREFIX).of(type)
    sections = [keys.data, keys.ready, keys.scheduled, keys.watch_pending, keys.watch_activity, keys.timeout]
    assert [*sections, keys.activity] == [PREFIX + fdb.tuple.pack((number, type)) for number in range(1, 8)]
    assert keys.activity_head == keys.activity + b"\x33"


@given(NAMES, NAMES, st.sampled_from(["priority", "id", "stamp"]))
def test_what_is_read_of_a_type_or_priority_is_none_of_anothers(one: Any, other: Any, behind: str) -> None:
    following = {"priority": pack_priority(0), "id": pack_id("x"), "stamp": STAMP_CODE}[behind]
    begin, key = pack_type(one), pack_type(other) + following
    assert (begin <= key < begin + AFTER) == (begin == pack_type(other))


# types


def test_a_type_is_known_again_whichever_way_it_came() -> None:
    keyspace = Keyspace(PREFIX)
    assert keyspace.of_packed(pack_type("email")) is keyspace.of("email")
    assert keyspace.of(("email", 1)) is keyspace.of_packed(pack_type(("email", 1)))
    assert repr(keyspace.of("email")) == "TypeKeys('email')"


@pytest.mark.unmeasured
def test_the_keys_of_a_type_are_the_same_value_after_very_many_others_were_looked_up() -> None:
    keyspace = Keyspace(PREFIX)
    before = {type: keyspace.of(type) for type in ("email", 7, (1,))}
    known = {keys: type for type, keys in before.items()}
    for number in range(_MAX_CACHED_TYPES):
        keyspace.of(f"no such type {number}")
        keyspace.of((number, "neither"))
    for type, keys in before.items():
        again = keyspace.of(type)
        assert again is not keys, "nothing was pushed out of the cache"
        assert (again, hash(again), known[again]) == (keys, hash(keys), type)
    assert keyspace.of("email") != keyspace.of(b"email")
    assert keyspace.of("email") != "email"


@pytest.mark.unmeasured
def test_looking_types_up_fills_no_more_memory_than_a_bound() -> None:
    tracemalloc.start()
    try:
        keyspace = Keyspace(PREFIX)
        for number in range(_MAX_CACHED_TYPES + 1_000):
            keyspace.of(f"first {number}")
        first, _ = tracemalloc.get_traced_memory()
        for number in range(_MAX_CACHED_TYPES + 1_000):
            keyspace.of(f"other {number}")
        then, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert then < 1.1 * first


# what is refused

NO_NAMES: list[Any] = [None, True, 1.5, [1], {"a": 1}, object(), bytearray(b"a"), TwoLines(), Unshowable()]
NOT_ENCODABLE: list[tuple[Any, str]] = [
    ("\ud800", "the tuple layer cannot encode it"),
    (("\ud800",), "the tuple layer cannot encode it"),
    (1 << 2040, "an integer of 2041 bits; 2040 are allowed"),
    (-(1 << 2040), "an integer of 2041 bits; 2040 are allowed"),
    ((10**5000,), "an integer of 16610 bits; 2040 are allowed"),
]


def called(value: object) -> str:
    """Return what messages call a value of this kind."""
    name = value.__class__.__name__
    return f"an {name}" if name in ("int", "object") else f"a {name}"


def nested(levels: int) -> tuple[Any, ...]:
    """Return a tuple in a tuple in a tuple."""
    value: tuple[Any, ...] = ()
    for _ in range(levels):
        value = (value,)
    return value


@pytest.mark.parametrize("pack", [pack_type, pack_priority])
@pytest.mark.parametrize("value", NO_NAMES, ids=lambda value: value.__class__.__name__)
def test_a_type_or_priority_of_another_kind_is_refused_in_tuples_too(pack: Callable[[Any], bytes], value: Any) -> None:
    for name in (value, ("a", (value,))):
        with pytest.raises(InvalidJob) as caught:
            pack(name)
        assert one_line(caught.value).endswith(f": {called(value)}; allowed are str, bytes, int and tuples of these")
        assert caught.value.type is (name if pack is pack_type else None)


@pytest.mark.parametrize(("type", "why"), NOT_ENCODABLE, ids=lambda value: value.__class__.__name__)
def test_a_type_that_the_tuple_layer_cannot_encode_is_refused(type: Any, why: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        Keyspace(PREFIX).of(type)
    assert why in one_line(caught.value)
    assert caught.value.type is type


def test_tuples_are_nested_up_to_a_bound_and_no_larger_than_a_key() -> None:
    deepest = nested(MAX_NESTING - 1)
    assert pack_type(deepest) == fdb.tuple.pack((deepest,))
    for levels in (MAX_NESTING, 100_000):
        with pytest.raises(InvalidJob, match="nested deeper than 50 levels"):
            pack_type(nested(levels))
    with pytest.raises(JobTooLarge, match="no store takes so long a key"):
        pack_type(("x",) * 20_000)


@pytest.mark.parametrize("element", [None, 1.5, False])
def test_bytes_with_another_element_are_no_type_and_no_priority(element: Any) -> None:
    packed = fdb.tuple.pack((("a", element),))
    assert type_in(packed) is None
    assert not is_priority(packed)


@pytest.mark.parametrize("id", ["a\ud800b", Name("\udfff")])
def test_an_id_with_a_lone_surrogate_is_refused(id: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        pack_id(id)
    assert "not UTF-8 (a lone surrogate)" in one_line(caught.value)
    assert caught.value.id == id


def test_long_values_are_cut_in_messages() -> None:
    with pytest.raises(InvalidJob) as caught:
        pack_id(["x" * 1000])
    assert one_line(caught.value).startswith("id ['xxx")
    assert "xxx...: a list" in str(caught.value)


# times


@given(
    st.datetimes(
        datetime(2, 1, 1),
        datetime(9998, 12, 31),
        timezones=st.integers(-23, 23).map(lambda hours: timezone(timedelta(hours=hours))),
    )
)
def test_aware_datetimes_are_taken_as_their_moment(moment: datetime) -> None:
    seconds = to_seconds(moment)
    assert seconds is not None
    assert abs(datetime.fromtimestamp(seconds, UTC) - moment) < timedelta(milliseconds=1)


@pytest.mark.parametrize(
    "time", [math.nan, math.inf, -math.inf, 1e300, -6.3e10, 2.6e11, 10**400, pytest.param(10**5000, id="huge")]
)
def test_a_time_that_no_datetime_can_hold_is_refused(time: float) -> None:
    with pytest.raises(InvalidJob) as caught:
        to_seconds(time)
    assert one_line(caught.value).endswith("allowed are times of the years 1 to 9999")
