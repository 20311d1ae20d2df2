"""A transaction's own writes over a base state that fails."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jobs_service.errors import StoreDamaged, StoreError
from jobs_service.store.base import KeyValue, Limits, drive
from jobs_service.store.overlay import BufferedTransaction

ONE = b"\x01" + bytes(7)


class Broken:
    """A base state whose pages cannot be read."""

    def get(self, key: bytes) -> bytes | None:
        raise OSError("a page is damaged")

    def scan(self, begin: bytes, end: bytes, reverse: bool) -> Iterator[KeyValue]:
        yield begin, self.get(begin) or b""


class OnBroken(BufferedTransaction):
    __slots__ = ()

    base_errors = (OSError,)

    def base_failure(self, error: Exception) -> StoreError:
        return StoreDamaged(str(error))


def test_every_read_of_a_base_that_fails_is_an_error_of_the_store() -> None:
    transaction = OnBroken(Broken(), Limits())
    transaction.add(b"counter", ONE)
    for read in (
        transaction.get(b"a"),
        transaction.get_many([b"a"]),
        transaction.get_range(b"a", b"b"),
        transaction.get(b"counter"),
        transaction.get_range(b"c", b"d"),
    ):
        with pytest.raises(StoreDamaged, match="a page is damaged"):
            drive(read)
