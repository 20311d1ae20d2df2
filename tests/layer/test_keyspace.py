"""The keys: what is encoded by hand is what the tuple layer makes of it, and what no job can be called is refused."""

from __future__ import annotations

import enum
import math
import struct
import tracemalloc
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import fdb.tuple
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs_service import InvalidJob
from jobs_service.arguments import to_seconds
from jobs_service.layer.keyspace import (
    _MAX_CACHED_TYPES,
    AFTER,
    STAMP_CODE,
    Keyspace,
    pack_id,
    pack_priority,
    pack_seconds,
    pack_type,
    unpack_id,
    unpack_seconds,
)
from jobs_service.model import unpack_priority
from tests.layer.tuples import IDS, NAMES, RealStamp

PREFIX = b"\x15\x2a"
TIMES = st.one_of(st.floats(allow_nan=False), st.sampled_from([0.0, -0.0, 1.7e9, math.inf, -math.inf, 5e-324]))


def one_line(error: InvalidJob) -> str:
    """Return an error's message, checked to be one short line."""
    message = str(error)
    assert len(message.splitlines()) == 1
    assert len(message) < 300
    return message


class Name(str):
    pass


class Raw(bytes):
    pass


class Color(enum.StrEnum):
    RED = "red"


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


@pytest.mark.parametrize("id", [Name("a\x00b"), Raw(b"\x00\x01"), Color.RED])
def test_an_id_of_a_subclass_is_stored_as_what_it_extends(id: Any) -> None:
    assert pack_id(id) == fdb.tuple.pack((id,))
    assert unpack_id(pack_id(id)) == id


@given(TIMES)
def test_times_are_encoded_as_doubles_of_the_tuple_layer(seconds: float) -> None:
    assert pack_seconds(seconds) == fdb.tuple.pack((seconds,))
    unpacked = unpack_seconds(pack_seconds(seconds) + b"whatever follows")
    assert struct.pack(">d", unpacked) == struct.pack(">d", seconds)


@given(TIMES, TIMES)
def test_packed_times_are_in_the_order_of_the_times(one: float, other: float) -> None:
    if one != other:
        assert (pack_seconds(one) < pack_seconds(other)) == (one < other)
        assert not pack_seconds(one).startswith(pack_seconds(other))


@given(st.binary(min_size=10, max_size=10), st.integers(0, 0xFFFF))
def test_stamps_are_encoded_as_versionstamps_of_the_tuple_layer(stamp: bytes, order: int) -> None:
    assert STAMP_CODE + stamp + order.to_bytes(2, "big") == fdb.tuple.pack((RealStamp(stamp, order),))


@given(NAMES)
def test_priorities_come_back_as_they_were_given(priority: Any) -> None:
    packed = pack_priority(priority)
    assert packed == fdb.tuple.pack((priority,))
    assert fdb.tuple.pack((unpack_priority(packed),)) == packed


@given(NAMES, IDS)
def test_a_data_key_is_the_tuple_of_section_type_and_id(type: Any, id: str | bytes) -> None:
    keyspace = Keyspace(PREFIX)
    key = keyspace.of(type).data + pack_id(id)
    assert key == PREFIX + fdb.tuple.pack((1, type, id))
    found, found_id = keyspace.split_data_key(key)
    assert found is keyspace.of(type)
    assert found_id == id


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


@pytest.mark.parametrize(
    ("one", "other"), [("a", "a\x00"), ("a", "a\x00\xff"), (b"", b"\x00\xff"), ((), (None,)), (("a",), ("a", None))]
)
def test_a_type_whose_encoding_begins_like_anothers_is_kept_apart(one: Any, other: Any) -> None:
    keyspace = Keyspace(PREFIX)
    begin = keyspace.of(one).data
    assert not begin <= keyspace.of(other).data + pack_id("x") < begin + AFTER
    assert begin <= keyspace.of(one).data + pack_id("x") < begin + AFTER


# types


@pytest.mark.parametrize("alike", [((1,), (True,), (1.0,)), ((0,), (False,), (0.0,), (-0.0,)), (((1,),), ((True,),))])
def test_types_that_are_equal_in_python_but_not_in_the_tuple_layer_are_kept_apart(alike: tuple[Any, ...]) -> None:
    keyspace = Keyspace(PREFIX)
    keys = [keyspace.of(type) for type in alike]
    assert len({each.data for each in keys}) == len(alike)
    assert [repr(each.type) for each in keys] == [repr(type) for type in alike]
    assert [keyspace.of(type) for type in alike] == keys
    assert [keyspace.of_packed(pack_type(type)) for type in alike] == keys


def test_one_is_a_type_and_true_is_none() -> None:
    keyspace = Keyspace(PREFIX)
    assert keyspace.of(1).type == 1
    with pytest.raises(InvalidJob, match="type True: a bool; allowed are str, bytes, int and tuples of these"):
        keyspace.of(True)


def test_text_and_bytes_of_the_same_letters_are_two_types() -> None:
    keyspace = Keyspace(PREFIX)
    assert keyspace.of("a").data != keyspace.of(b"a").data


def test_types_of_the_same_encoding_are_one_type() -> None:
    keyspace = Keyspace(PREFIX)
    assert keyspace.of("red") is keyspace.of(Color.RED) is keyspace.of(Name("red"))
    assert keyspace.of((1, (2,))) is keyspace.of((1, [2]))


def test_a_type_is_known_again_whichever_way_it_came() -> None:
    keyspace = Keyspace(PREFIX)
    assert keyspace.of_packed(pack_type("email")) is keyspace.of("email")
    assert keyspace.of(("email", 1)) is keyspace.of_packed(pack_type(("email", 1)))
    assert repr(keyspace.of("email")) == "TypeKeys('email')"


def test_keyspaces_of_different_prefixes_share_no_key() -> None:
    assert Keyspace(b"a").of("email").data != Keyspace(b"b").of("email").data
    assert Keyspace(b"a").of("email") != Keyspace(b"b").of("email")


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
NOT_ENCODABLE: list[Any] = [
    "\ud800",
    ("\ud800",),
    ({},),
    (object(), "\n"),
    (TwoLines(),),
    (Unshowable(),),
    1 << 2040,
    -(1 << 2040),
    10**5000,
    (10**5000,),
    (fdb.tuple.Versionstamp(None, 1),),
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


@pytest.mark.parametrize("type", NO_NAMES, ids=lambda value: value.__class__.__name__)
def test_what_is_no_type_is_refused_with_its_kind(type: Any) -> None:
    with pytest.raises(InvalidJob) as caught:
        Keyspace(PREFIX).of(type)
    assert one_line(caught.value).endswith(f": {called(type)}; allowed are str, bytes, int and tuples of these")
    assert caught.value.type is type


@pytest.mark.parametrize("type", [*NOT_ENCODABLE, nested(100_000)], ids=lambda value: value.__class__.__name__)
def test_a_type_that_the_tuple_layer_cannot_encode_is_refused(type: Any) -> None:
    with pytest.raises(InvalidJob) as caught:
        Keyspace(PREFIX).of(type)
    assert "the tuple layer cannot encode it" in one_line(caught.value)
    assert caught.value.type is type


@pytest.mark.parametrize("priority", NO_NAMES, ids=lambda value: value.__class__.__name__)
def test_what_is_no_priority_is_refused_with_its_kind(priority: Any) -> None:
    with pytest.raises(InvalidJob) as caught:
        pack_priority(priority)
    assert one_line(caught.value).endswith(f": {called(priority)}; allowed are int, str, bytes and tuples of these")


@pytest.mark.parametrize("priority", NOT_ENCODABLE, ids=lambda value: value.__class__.__name__)
def test_a_priority_that_the_tuple_layer_cannot_encode_is_refused(priority: Any) -> None:
    with pytest.raises(InvalidJob) as caught:
        pack_priority(priority)
    assert one_line(caught.value).startswith("priority ")


@pytest.mark.parametrize("id", [*NO_NAMES, 1, ("a",), 10**5000], ids=lambda value: value.__class__.__name__)
def test_what_is_no_id_is_refused_with_its_kind(id: Any) -> None:
    with pytest.raises(InvalidJob) as caught:
        pack_id(id)
    assert one_line(caught.value).endswith(f": {called(id)}; allowed are str and bytes")


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


def test_no_time_stays_none() -> None:
    assert to_seconds(None) is None


@given(st.floats(-62135510400.0, 253402128000.0) | st.integers(-62135510400, 253402128000))
def test_seconds_since_the_epoch_are_taken_as_they_are(seconds: float) -> None:
    assert to_seconds(seconds) == seconds
    assert type(to_seconds(seconds)) is float


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


def test_a_naive_datetime_is_refused() -> None:
    with pytest.raises(InvalidJob) as caught:
        to_seconds(datetime(2030, 1, 2, 3, 4, 5), "due_by")
    assert one_line(caught.value) == "due_by 2030-01-02T03:04:05: a naive datetime; give it a time zone"


@pytest.mark.parametrize("time", [True, "2030-01-01", b"1", timedelta(1), [1.0], Unshowable(), TwoLines()])
def test_what_is_no_time_is_refused_with_its_kind(time: Any) -> None:
    with pytest.raises(InvalidJob) as caught:
        to_seconds(time)
    assert one_line(caught.value).endswith(
        f": a {time.__class__.__name__}; allowed are aware datetimes and seconds since the epoch"
    )


@pytest.mark.parametrize(
    "time", [math.nan, math.inf, -math.inf, 1e300, -6.3e10, 2.6e11, 10**400, pytest.param(10**5000, id="huge")]
)
def test_a_time_that_no_datetime_can_hold_is_refused(time: float) -> None:
    with pytest.raises(InvalidJob) as caught:
        to_seconds(time)
    assert one_line(caught.value).endswith("allowed are times of the years 1 to 9999")


@pytest.mark.parametrize("moment", [datetime.min, datetime.max])
def test_a_datetime_at_the_very_end_of_all_is_refused(moment: datetime) -> None:
    with pytest.raises(InvalidJob, match="allowed are times of the years 1 to 9999"):
        to_seconds(moment.replace(tzinfo=UTC))


def test_a_versionstamp_is_no_part_of_a_type_or_a_priority() -> None:
    stamp = fdb.tuple.Versionstamp(b"0123456789", 1)
    for pack in (pack_type, pack_priority):
        with pytest.raises(InvalidJob, match="versionstamp"):
            pack(("nested", (stamp,)))
