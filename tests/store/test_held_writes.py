"""Writes that are held back: read as if they were written, there when they are handed over, and not before."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs_service.errors import TransactionTooLarge
from jobs_service.store.base import Limits, Snapshot, Transaction, drive
from jobs_service.store.memory import Versions, View
from jobs_service.store.overlay import SET, BufferedTransaction, ReadRanges
from jobs_service.store.sync_transaction import HeldBack

KEY = st.integers(0, 9).map(lambda number: b"%d" % number)
WRITES = st.lists(st.tuples(KEY, st.none() | st.sampled_from([b"x", b"y"])), max_size=8)
RANGES = st.lists(st.tuples(KEY, KEY, st.integers(0, 4), st.booleans(), st.booleans()), min_size=1, max_size=6)


def over(stored: dict[bytes, bytes], limits: Limits | None = None) -> BufferedTransaction:
    """Return a transaction over these keys and values."""
    versions = Versions()
    versions.apply([(SET, key, value, None) for key, value in stored.items()])
    return BufferedTransaction(View(versions, versions.enter()), limits or Limits())


def write(transaction: Transaction, writes: list[tuple[bytes, bytes | None]]) -> None:
    for key, value in writes:
        if value is None:
            transaction.clear(key)
        else:
            transaction.set(key, value)


def seen(reads: Snapshot, begin: bytes, end: bytes, limit: int, reverse: bool) -> object:
    return (
        drive(reads.get_range(begin, end, limit=limit, reverse=reverse)),
        drive(reads.get(begin)),
        drive(reads.get_many([end, begin, end])),
    )


@given(stored=st.dictionaries(KEY, st.just(b"s")), before=WRITES, writes=WRITES, ranges=RANGES)
def test_reads_are_those_of_a_transaction_that_has_the_writes(
    stored: dict[bytes, bytes],
    before: list[tuple[bytes, bytes | None]],
    writes: list[tuple[bytes, bytes | None]],
    ranges: list[tuple[bytes, bytes, int, bool, bool]],
) -> None:
    plain, under = over(stored), over(stored)
    write(plain, before + writes)
    write(under, before)
    held = HeldBack(under)
    write(held, writes)
    for begin, end, limit, reverse, snapshot in ranges:
        wanted = seen(plain, begin, end, limit, reverse)
        assert seen(held.snapshot if snapshot else held, begin, end, limit, reverse) == wanted
    held.hand_over()
    for reads in (held, under):
        assert drive(reads.get_range(b"", b"\xff")) == drive(plain.get_range(b"", b"\xff"))


@pytest.mark.parametrize(("reverse", "wanted"), [(False, [b"2", b"4"]), (True, [b"5", b"4"])])
def test_a_range_has_as_many_pairs_as_are_wanted_although_some_are_cleared(reverse: bool, wanted: list[bytes]) -> None:
    held = HeldBack(over({b"%d" % number: b"x" for number in range(6)}))
    for key in (b"0", b"1", b"3"):
        held.clear(key)
    assert [key for key, _ in drive(held.get_range(b"", b"9", limit=2, reverse=reverse))] == wanted


def test_nothing_is_written_before_it_is_handed_over() -> None:
    under = over({b"a": b"1"})
    held = HeldBack(under)
    held[b"b"] = b"2"
    del held[b"a"]
    held.add(b"c", b"\1")
    held.stamp_key(b"d", b"", b"")
    held.stamp_value(b"e", b"", b"")
    assert under.log == []
    held.hand_over()
    held.hand_over()
    assert len(under.log) == 5
    assert drive(under.get_range(b"", b"d")) == [(b"b", b"2"), (b"c", b"\1")]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda held: held.set(bytes(31), b""),
        lambda held: held.set(b"c", bytes(101)),
        lambda held: [held.set(b"c", bytes(100)), held.stamp_value(b"d", b"", bytes(10))],
        lambda held: held.stamp_key(bytes(15), bytes(6), b""),
        lambda held: held.stamp_value(b"c", bytes(50), bytes(41)),
        lambda held: held.add(b"c", bytes(101)),
    ],
    ids=["a key", "a value", "the whole", "a stamped key", "a stamped value", "an operand"],
)
def test_nothing_is_written_when_not_all_of_it_can_be(wrong: Callable[[HeldBack], object]) -> None:
    under = over({b"a": b"1"}, Limits(key=30, value=100, transaction=300))
    under.set(b"before", bytes(80))
    held = HeldBack(under)
    held.set(b"b", bytes(100))
    held.clear(b"a")
    wrong(held)
    size, log = under.size, list(under.log)
    with pytest.raises(TransactionTooLarge):
        held.hand_over()
    assert (under.size, under.log) == (size, log)


@pytest.mark.parametrize("read", ["get", "get_many", "get_range", "key", "range", None])
def test_reads_conflict_unless_they_are_snapshots(read: str | None) -> None:
    reads = ReadRanges()
    versions = Versions()
    held = HeldBack(BufferedTransaction(View(versions, versions.enter()), Limits(), reads=reads))
    held.set(b"own", b"")
    drive(held.snapshot.get(b"a"))
    drive(held.snapshot.get_many([b"a"]))
    drive(held.snapshot.get_range(b"a", b"b"))
    if read == "get":
        drive(held.get(b"a"))
    elif read == "get_many":
        drive(held.get_many([b"own", b"a"]))
    elif read == "get_range":
        drive(held.get_range(b"a", b"b"))
    elif read == "key":
        held.add_read_conflict_key(b"a")
    elif read == "range":
        held.add_read_conflict_range(b"a", b"b")
    assert any(begin <= b"a" < end for begin, end in reads.ranges) == (read is not None)
    assert not any(begin <= b"own" < end for begin, end in reads.ranges)
