"""Transactions on LMDB: base state, buffer, and the write of the log; and LMDB's errors as errors of the store."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import takewhile

import lmdb

from jobs_service.errors import StoreDamaged, StoreError, StoreFull, StoreUnavailable
from jobs_service.store.base import STAMP_BYTES, KeyValue, Limits
from jobs_service.store.overlay import ADD, CLEAR, CLEAR_RANGE, SET, STAMPED_VALUE, BufferedTransaction, outcome

# Errors


def store_error(address: str, error: Exception) -> StoreError:
    """Return the store's error for an LMDB error: the only mapping between them."""
    if isinstance(error, StoreError):
        return error
    if isinstance(error, lmdb.MapFullError):
        return StoreFull(
            f"store {address} is full (its map's size): nothing was written; set JOBS_SERVICE_LMDB_MAP_SIZE higher"
        )
    if is_out_of_room(error):
        return StoreFull(
            f"store {address}: the disk is full or fails ({error}): nothing was written; make room and try again"
        )
    if isinstance(error, lmdb.MapResizedError):
        return StoreUnavailable(f"store {address} was grown by another process meanwhile; try again")
    if isinstance(error, lmdb.ReadonlyError):
        return StoreError(f"store {address} is on a read-only file system: nothing was written")
    if isinstance(error, lmdb.CorruptedError | lmdb.PageNotFoundError | lmdb.PageFullError):
        return StoreDamaged(
            f"a page of store {address} is damaged ({error}): end all programs that use it, and restore a backup "
            "(docs/stores.md, A damaged store)"
        )
    return StoreError(f"store {address} failed: {error}")


def is_out_of_room(error: Exception) -> bool:
    """Whether LMDB, or the system, had no room for a write."""
    code = error.errno if isinstance(error, OSError) else getattr(error, "code", 0)
    # EIO is what LMDB makes of a write that came out short.
    return isinstance(error, lmdb.DiskError) or code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


# Transactions


class TransactionState:
    """The state of an LMDB transaction.

    Args:
        transaction: the transaction of the reads.

    Attributes:
        get: returns the value of a key.
        failure: the last error of a read, after which LMDB's transaction is useless; None for none.
    """

    __slots__ = ("_cursor", "_transaction", "failure", "get")

    def __init__(self, transaction: lmdb.Transaction[bytes]) -> None:
        self.failure: StoreError | None = None
        self.get: Callable[[bytes], bytes | None] = transaction.get
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
    """A buffered transaction that takes the writes of a unit of work, the majority of all writes, as two lists.

    LMDB writes them with one call, which saves a call and a log entry for each.

    Args:
        base, limits, read_only: as for every buffered transaction.
        address: address of the store, for messages.
        claim: raises StoreFull if there is no room for so many bytes; None for readers.

    Attributes:
        values, keys: as given to `stamp_all`.
        is_urgent: whether it may use the store's reserve.
    """

    __slots__ = ("_address", "_claim", "_claimed", "_state", "is_urgent", "keys", "values")

    base_errors = (lmdb.Error,)

    def __init__(
        self,
        base: TransactionState,
        limits: Limits,
        address: str,
        *,
        read_only: bool = False,
        claim: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(base, limits, read_only=read_only)
        self.values: Sequence[tuple[bytes, bytes, bytes]] = ()
        self.keys: Sequence[tuple[bytes, bytes, bytes]] = ()
        self.is_urgent = False
        self._state = base
        self._address = address
        self._claim = claim
        self._claimed = 0

    def base_failure(self, error: Exception) -> StoreError:
        failure = self._state.failure = store_error(self._address, error)
        return failure

    def committed(self, key: bytes) -> bytes | None:
        """Return a key's value without this transaction's writes."""
        return self._base.get(key)

    def committed_in(self, begin: bytes, end: bytes) -> Iterator[KeyValue]:
        """Yield a range's pairs without this transaction's writes."""
        return self._base.scan(begin, end, False)

    def claim_room(self, size: int) -> None:
        claimed = self._claimed + size
        if self._claim is not None:
            self._claim(claimed)
        self._claimed = claimed

    def use_reserve(self) -> None:
        self.is_urgent = True

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


# Writes


def grows(own: LmdbTransaction) -> bool:
    """Return whether a transaction writes more bytes than it replaces or clears; called before its end."""
    get = own.committed
    growth = sum(len(before) + len(after) + len(value) + STAMP_BYTES for before, after, value in own.keys)
    for key, before, after in own.values:
        growth += len(before) + STAMP_BYTES + len(after) - _size(key, get(key))
    for operation, key, argument, last in own.log:
        if operation == CLEAR:
            value = get(key)
            growth -= 0 if value is None else len(key) + len(value)
        elif operation in (SET, ADD):
            growth += len(argument) - _size(key, get(key))
        elif operation == STAMPED_VALUE:
            growth += len(argument) + STAMP_BYTES + len(last) - _size(key, get(key))
        elif operation != CLEAR_RANGE:
            growth += len(key) + STAMP_BYTES + len(argument) + len(last)
    if growth <= 0:
        return False
    for operation, begin, end, _ in own.log:
        if operation == CLEAR_RANGE:
            for key, value in own.committed_in(begin, end):
                growth -= len(key) + len(value)
                if growth <= 0:  # the rest of the range does not matter
                    return False
    return True


def _size(key: bytes, value: bytes | None) -> int:
    """Return the bytes of a replaced value; for a new key, minus the bytes of the key."""
    return -len(key) if value is None else len(value)


def apply_log(
    transaction: lmdb.Transaction[bytes],
    own: LmdbTransaction,
    stamp: bytes,
    written: dict[bytes, bytes | None],
) -> None:
    """Write one transaction's log into the LMDB transaction; add each key's new value (None: removed) to `written`."""
    if own.log:
        put, delete = transaction.put, transaction.delete
        changes = outcome(own.log, stamp, transaction.get, partial(_keys_in, transaction))
        for key, value in changes.items():
            if value is None:
                delete(key)
            else:
                put(key, value)
        written.update(changes)
    if own.values or own.keys:
        pairs = [(key, before + stamp + after) for key, before, after in own.values]
        pairs += [(before + stamp + after, value) for before, after, value in own.keys]
        with transaction.cursor() as cursor:
            cursor.putmulti(pairs)
        written.update(pairs)
    for watch in own.watches:
        if watch.key in written:
            watch.baseline = written[watch.key]


def _keys_in(transaction: lmdb.Transaction[bytes], begin: bytes, end: bytes) -> Iterator[bytes]:
    with transaction.cursor() as cursor:
        if cursor.set_range(begin) if begin else cursor.first():
            yield from takewhile(end.__gt__, cursor.iternext(values=False))
