"""Transactions with plain methods, for plain code; and transactions whose writes are held back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jobs_service.errors import StoreError
from jobs_service.store.base import Bound, KeySelector, KeyValue, Snapshot, Transaction, Watch, drive
from jobs_service.store.overlay import LOWEST_STAMP

# Plain methods


class PlainReads:
    """The reads of a transaction: each blocks the calling thread until its answer.

    Args:
        reads: returns the transaction or its snapshot; raises while it must not be used.
    """

    def __init__(self, reads: Callable[[], Snapshot]) -> None:
        self._reads = reads

    def get(self, key: bytes) -> bytes | None:
        """Return the key's value; None for none."""
        return drive(self._reads().get(key))

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the keys' values in their order; the reads go out together."""
        return drive(self._reads().get_many(keys))

    def get_range(self, begin: Bound, end: Bound, *, limit: int = 0, reverse: bool = False) -> list[KeyValue]:
        """Return the pairs from `begin` up to, not including, `end`, in key order.

        Args:
            begin, end: keys, or selectors resolved in this transaction.
            limit: at most so many pairs; 0 for all.
            reverse: whether to read from the end backwards.
        """
        return drive(self._reads().get_range(begin, end, limit=limit, reverse=reverse))


class PlainTransaction(PlainReads):
    """The reads and writes of a transaction, in FoundationDB's vocabulary. Writes go to the transaction at once.

    There are no watches: plain code cannot wait for them.

    Args:
        transaction: returns the transaction; raises while it must not be used.
    """

    def __init__(self, transaction: Callable[[], Transaction]) -> None:
        super().__init__(transaction)
        self._transaction = transaction

    @property
    def snapshot(self) -> PlainReads:
        """The same reads without read conflicts."""
        return PlainReads(lambda: self._transaction().snapshot)

    def set(self, key: bytes, value: bytes) -> None:
        """Write a value."""
        self._transaction().set(key, value)

    def clear(self, key: bytes) -> None:
        """Remove a key; a missing key is no error."""
        self._transaction().clear(key)

    def clear_range(self, begin: bytes, end: bytes) -> None:
        """Remove the keys from `begin` up to, not including, `end`."""
        self._transaction().clear_range(begin, end)

    def add(self, key: bytes, operand: bytes) -> None:
        """Add a little-endian integer to the value (zero if missing) without a read: adds never conflict."""
        self._transaction().add(key, operand)

    def set_versionstamped_key(self, key: bytes, value: bytes) -> None:
        """Write under a key whose 10-byte placeholder becomes the transaction's versionstamp.

        Args:
            key: the key with a placeholder, then 4 bytes: the placeholder's offset, little-endian.
        """
        self._transaction().set_versionstamped_key(key, value)

    def set_versionstamped_value(self, key: bytes, value: bytes) -> None:
        """Write a value whose 10-byte placeholder becomes the transaction's versionstamp (offset as for the key)."""
        self._transaction().set_versionstamped_value(key, value)

    def add_read_conflict_key(self, key: bytes) -> None:
        """Fail if another transaction changes this key, as after a read."""
        self._transaction().add_read_conflict_key(key)

    def add_read_conflict_range(self, begin: bytes, end: bytes) -> None:
        """Fail if another transaction changes a key in this range, as after a read."""
        self._transaction().add_read_conflict_range(begin, end)

    def __setitem__(self, key: bytes, value: bytes) -> None:
        self._transaction()[key] = value

    def __delitem__(self, key: bytes | slice) -> None:
        del self._transaction()[key]


# Writes held back, so that in the end either all or none of them are written


class _Reads(Snapshot):
    """Reads that see held-back writes.

    Args:
        reads: the reads of the transaction for the writes.
        writes: the values by key; None for a cleared key.
    """

    __slots__ = ("_reads", "_writes")

    def __init__(self, reads: Snapshot, writes: dict[bytes, bytes | None]) -> None:
        self._reads = reads
        self._writes = writes

    async def get(self, key: bytes) -> bytes | None:
        if key in self._writes:
            return self._writes[key]
        return await self._reads.get(key)

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        missing = [key for key in keys if key not in self._writes]
        values = {**dict(zip(missing, await self._reads.get_many(missing), strict=True)), **self._writes}
        return [values[key] for key in keys]

    async def get_range(self, begin: Bound, end: Bound, *, limit: int = 0, reverse: bool = False) -> list[KeyValue]:
        if not self._writes:
            return await self._reads.get_range(begin, end, limit=limit, reverse=reverse)
        if isinstance(begin, KeySelector) or isinstance(end, KeySelector):
            raise StoreError("a range's bounds must be keys while writes are held back")
        own = {key: value for key, value in self._writes.items() if begin <= key < end}
        # The writes may clear so many of the pairs that are found.
        found = await self._reads.get_range(begin, end, limit=limit and limit + len(own), reverse=reverse)
        pairs = [(key, value) for key, value in {**dict(found), **own}.items() if value is not None]
        pairs.sort(reverse=reverse)
        return pairs[:limit] if limit else pairs


class HeldBack(_Reads, Transaction):
    """Holds back all writes. Reads see `set` and `clear` of single keys like written ones.

    The results of `add`, `stamp_key` and `stamp_value` cannot be read back. Clearing ranges is not supported.

    Args:
        transaction: gets the writes.
    """

    __slots__ = ("_adds", "_stamped_keys", "_stamped_values", "_transaction", "limits", "stamp")

    def __init__(self, transaction: Transaction) -> None:
        super().__init__(transaction, {})
        self._transaction = transaction
        self._adds: list[KeyValue] = []
        self._stamped_values: list[tuple[bytes, bytes, bytes]] = []
        self._stamped_keys: list[tuple[bytes, bytes, bytes]] = []
        self.stamp = transaction.stamp
        self.limits = transaction.limits

    def hand_over(self) -> None:
        """Write all held-back writes.

        Raises:
            StoreError: the transaction refuses one of the writes, or all together are too large; nothing was written.
        """
        transaction = self._transaction
        stamped = [(key, before + LOWEST_STAMP + after) for key, before, after in self._stamped_values]
        stamped += [(before + LOWEST_STAMP + after, value) for before, after, value in self._stamped_keys]
        plain = [(key, value or b"") for key, value in self._writes.items()]
        transaction.require_room([*plain, *self._adds, *stamped])
        for key, value in self._writes.items():
            if value is None:
                transaction.clear(key)
            else:
                transaction.set(key, value)
        for key, operand in self._adds:
            transaction.add(key, operand)
        if stamped:
            transaction.stamp_all(self._stamped_values, self._stamped_keys)
        self._writes.clear()
        self._adds, self._stamped_values, self._stamped_keys = [], [], []

    def require_room(self, writes: Sequence[tuple[bytes, bytes]]) -> None:
        self._transaction.require_room(writes)

    @property
    def snapshot(self) -> Snapshot:
        return _Reads(self._transaction.snapshot, self._writes)

    def set(self, key: bytes, value: bytes) -> None:
        self._writes[key] = value

    def clear(self, key: bytes) -> None:
        self._writes[key] = None

    def clear_range(self, begin: bytes, end: bytes) -> None:
        raise StoreError("a range cannot be cleared while writes are held back")

    def add(self, key: bytes, operand: bytes) -> None:
        self._adds.append((key, operand))

    def stamp_key(self, before: bytes, after: bytes, value: bytes) -> None:
        self._stamped_keys.append((before, after, value))

    def stamp_value(self, key: bytes, before: bytes, after: bytes) -> None:
        self._stamped_values.append((key, before, after))

    def add_read_conflict_key(self, key: bytes) -> None:
        self._transaction.add_read_conflict_key(key)

    def add_read_conflict_range(self, begin: bytes, end: bytes) -> None:
        self._transaction.add_read_conflict_range(begin, end)

    def watch(self, key: bytes) -> Watch:
        return self._transaction.watch(key)
