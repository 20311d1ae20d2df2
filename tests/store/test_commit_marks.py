"""Marks of commits: what they say, which of them go, and that no two commits ever share one."""

from __future__ import annotations

import copy

import pytest

from jobs_service.errors import StoreUnavailable
from jobs_service.sources import Sources
from jobs_service.store.base import STAMP_BYTES
from jobs_service.store.commit_marks import HAPPENED, LIFETIME, Marks

NOW = 10 * LIFETIME


def marks(prefix: bytes = b"p/", **options: int) -> Marks:
    """Return the marks of a store that was just opened."""
    return Marks(prefix, Sources().token, **options)


def stamp(version: int) -> bytes:
    """Return the versionstamp of a commit."""
    return version.to_bytes(STAMP_BYTES - 2, "big") + b"\x00\x07"


def test_each_commit_has_a_mark_of_its_own_also_in_two_processes_with_the_same_memory() -> None:
    one = marks()
    one.new()
    other = copy.copy(one)
    keys = [each.new().key for each in (one, other, one, other) for _ in range(10)]
    assert len(set(keys)) == len(keys)
    assert all(key.startswith(b"p/") for key in keys)


def test_a_commit_happened_if_its_mark_says_so_and_not_if_there_is_none_or_a_tombstone() -> None:
    found = marks().stamp_of
    assert found(stamp(NOW) + HAPPENED, NOW - 1, NOW) == stamp(NOW)
    assert found(stamp(NOW), NOW - 1, NOW) is None
    assert found(None, NOW - 1, NOW) is None


def test_of_a_commit_whose_mark_may_have_been_removed_since_nobody_says_that_it_did_not_happen() -> None:
    found = marks().stamp_of
    assert found(None, NOW - LIFETIME // 2, NOW) is None
    with pytest.raises(StoreUnavailable, match="may have taken effect"):
        found(None, NOW - LIFETIME // 2 - 1, NOW)
    assert found(stamp(1) + HAPPENED, 1, NOW) == stamp(1)
    assert found(stamp(NOW), 1, NOW) is None


def test_the_mark_of_a_known_commit_is_removed_with_a_later_one() -> None:
    own = marks()
    first = own.new()
    own.committed(first)
    second = own.new()
    assert second.removed == [first.key]
    assert own.new().removed == []


def test_what_a_commit_that_did_not_happen_was_to_remove_is_removed_with_another() -> None:
    own = marks()
    first = own.new()
    own.committed(first)
    own.not_committed(own.new())
    again = own.new()
    assert again.removed == [first.key]
    own.prevented(again)
    assert sorted(own.take_settled()) == sorted([first.key, again.key])
    assert own.take_settled() == []


def test_more_marks_are_removed_than_are_made_so_that_they_do_not_pile_up() -> None:
    own = marks()
    for mark in [own.new() for _ in range(100)]:
        own.committed(mark)
    for _ in range(100):
        own.committed(own.new())
    assert len(own.take_settled()) <= 4


def test_a_mark_is_stale_by_its_versionstamp_alone() -> None:
    young, old = stamp(NOW - LIFETIME), stamp(NOW - LIFETIME - 1)
    pairs = [
        (b"young", young + HAPPENED),
        (b"young tombstone", young),
        (b"old", old + HAPPENED),
        (b"old tombstone", old),
        (b"ahead of its time", stamp(NOW + LIFETIME * 5) + HAPPENED),
    ]
    assert marks().stale(pairs, NOW) == [b"old", b"old tombstone"]
