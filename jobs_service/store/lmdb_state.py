"""A transaction on LMDB: what it sees, what it buffers, and how that is written. Floor: store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import lmdb

from jobs_service.store.base import STAMP_BYTES, KeyValue, Limits
from jobs_service.store.buffer import (
    ADD,
    CLEAR,
    CLEAR_RANGE,
    SET,
    STAMPED_VALUE,
    BaseState,
    BufferedTransaction,
    added,
)


class State:
    """What an LMDB transaction sees, as a base state."""

    __slots__ = ("_cursor", "_transaction", "get")

    def __init__(self, transaction: lmdb.Transaction[bytes]) -> None:
        self.get = transaction.get
        self._transaction = transaction
        self._cursor: lmdb.Cursor[bytes] | None = None

    def scan(self, begin: bytes, end: bytes, reverse: bool) -> Iterator[KeyValue]:
        """Yield pairs from begin up to, not including, end. One scan at a time: they share the cursor."""
        cursor = self._cursor
        if cursor is None:
            cursor = self._cursor = self._transaction.cursor()
        if reverse:
            if not (cursor.prev() if cursor.set_range(end) else cursor.last()):
                return
            for pair in cursor.iterprev():
                if pair[0] < begin:
                    return
                yield pair
        else:
            if not (cursor.set_range(begin) if begin else cursor.first()):
                return
            for pair in cursor.iternext():
                if pair[0] >= end:
                    return
                yield pair


class LmdbTransaction(BufferedTransaction):
    """A buffered transaction that takes what a unit of work leaves as a whole: most of what is written here.

    Attributes:
        values, keys: as given to `stamp_all`.
    """

    __slots__ = ("keys", "values")

    def __init__(self, base: BaseState, limits: Limits, *, read_only: bool = False) -> None:
        super().__init__(base, limits, read_only=read_only)
        self.values: Sequence[tuple[bytes, bytes, bytes]] = ()
        self.keys: Sequence[tuple[bytes, bytes, bytes]] = ()

    def stamp_all(
        self, values: Sequence[tuple[bytes, bytes, bytes]], keys: Sequence[tuple[bytes, bytes, bytes]]
    ) -> None:
        key_limit = self.limits.key
        value_limit = self.limits.value - STAMP_BYTES
        size = 0
        for key, before, after in values:
            written = len(before) + len(after)
            size += len(key) + written
            if len(key) > key_limit or written > value_limit:
                self._check(key, before + bytes(STAMP_BYTES) + after)
        key_limit -= STAMP_BYTES
        for before, after, value in keys:
            written = len(before) + len(after)
            size += written + len(value)
            if written > key_limit or len(value) > value_limit:
                self._check(before + bytes(STAMP_BYTES) + after, value)
        self._writable(size + STAMP_BYTES * (len(values) + len(keys)))
        self.values = values
        self.keys = keys

    @property
    def writes(self) -> bool:
        """Whether there is anything to commit."""
        return bool(self.log or self.values or self.keys)


def apply_log(
    transaction: lmdb.Transaction[bytes],
    own: LmdbTransaction,
    stamp: bytes,
    written: dict[bytes, bytes | None],
) -> None:
    """Write one transaction's log into the LMDB transaction, and note what each key holds now (None: nothing)."""
    put = transaction.put
    for operation, key, argument, last in own.log:
        if operation == SET:
            value = argument
        elif operation == STAMPED_VALUE:
            value = argument + stamp + last
        elif operation == CLEAR:
            transaction.delete(key)
            written[key] = None
            continue
        elif operation == ADD:
            value = added(transaction.get(key), argument)
        elif operation == CLEAR_RANGE:
            _clear_range(transaction, key, argument, written)
            continue
        else:
            key = key + stamp + argument
            value = last
        put(key, value)
        written[key] = value
    if own.values or own.keys:
        pairs = [(key, before + stamp + after) for key, before, after in own.values]
        pairs += [(before + stamp + after, value) for before, after, value in own.keys]
        with transaction.cursor() as cursor:
            cursor.putmulti(pairs)
        written.update(pairs)
    for watch in own.watches:
        if watch.key in written:
            watch.baseline = written[watch.key]


def _clear_range(
    transaction: lmdb.Transaction[bytes], begin: bytes, end: bytes, written: dict[bytes, bytes | None]
) -> None:
    with transaction.cursor() as cursor:
        found = cursor.set_range(begin) if begin else cursor.first()
        while found and cursor.key() < end:
            written[cursor.key()] = None
            found = cursor.delete()
            # Deleting moves the cursor to the next key, or past the last one.
            found = found and bool(cursor.key())
