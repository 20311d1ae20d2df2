"""A transaction whose writes are held back until they are wanted: nothing is left of them if they never are.

Floor: store.
"""

from __future__ import annotations

from collections.abc import Sequence

from jobs_service.errors import StoreError
from jobs_service.store.base import Bound, KeySelector, KeyValue, Snapshot, Transaction, Watch


class _Reads(Snapshot):
    """Reads that see writes which are held back.

    Args:
        reads: what the writes are to go to.
        writes: the values of keys, None for those that were cleared.
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
        # As many more as can have been cleared: beyond the last one found nobody has to look.
        found = await self._reads.get_range(begin, end, limit=limit and limit + len(own), reverse=reverse)
        pairs = [(key, value) for key, value in {**dict(found), **own}.items() if value is not None]
        pairs.sort(reverse=reverse)
        return pairs[:limit] if limit else pairs


class HeldBack(_Reads, Transaction):
    """Holds back what `set` and `clear` write to single keys, and reads as if it were written.

    Everything else goes to the transaction at once: call `hand_over` before.

    Args:
        transaction: gets the writes.
    """

    __slots__ = ("_held", "_transaction", "limits", "stamp")

    def __init__(self, transaction: Transaction) -> None:
        super().__init__(transaction, {})
        self._transaction = transaction
        self._held = True
        self.stamp = transaction.stamp
        self.limits = transaction.limits

    def hand_over(self) -> None:
        """Write what was held back; from now on nothing is."""
        for key, value in self._writes.items():
            if value is None:
                self._transaction.clear(key)
            else:
                self._transaction.set(key, value)
        self._writes.clear()
        self._held = False

    @property
    def snapshot(self) -> Snapshot:
        return _Reads(self._transaction.snapshot, self._writes)

    def set(self, key: bytes, value: bytes) -> None:
        if self._held:
            self._writes[key] = value
        else:
            self._transaction.set(key, value)

    def clear(self, key: bytes) -> None:
        if self._held:
            self._writes[key] = None
        else:
            self._transaction.clear(key)

    def clear_range(self, begin: bytes, end: bytes) -> None:
        self._transaction.clear_range(begin, end)

    def add(self, key: bytes, operand: bytes) -> None:
        self._transaction.add(key, operand)

    def stamp_key(self, before: bytes, after: bytes, value: bytes) -> None:
        self._transaction.stamp_key(before, after, value)

    def stamp_value(self, key: bytes, before: bytes, after: bytes) -> None:
        self._transaction.stamp_value(key, before, after)

    def add_read_conflict_key(self, key: bytes) -> None:
        self._transaction.add_read_conflict_key(key)

    def add_read_conflict_range(self, begin: bytes, end: bytes) -> None:
        self._transaction.add_read_conflict_range(begin, end)

    def watch(self, key: bytes) -> Watch:
        return self._transaction.watch(key)
