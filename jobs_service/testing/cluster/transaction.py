"""A transaction of the simulated cluster: one run of a transaction function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jobs_service.errors import StoreError, TransactionTooOld
from jobs_service.store.base import Bound, KeyValue, Snapshot
from jobs_service.store.fdb.errors import error_of
from jobs_service.store.mvcc import View
from jobs_service.store.read_your_writes import BufferedTransaction, Reads
from jobs_service.testing.cluster.faults import timed_out

if TYPE_CHECKING:
    from jobs_service.testing.cluster.client import SimulatedStore


class SimulatedTransaction(BufferedTransaction):
    """One run of a transaction function.

    Attributes:
        store: its connection.
        process: the process of the connection.
        version: the version that it reads.
        began: the virtual time of this version, in seconds.
        commit_version: the version of its writes; None without writes or before a commit.
        written: after a commit, the new value of each written key.
        journal: a list for the notes of observers about this run.
        call: number of its call of `transact` or `read`, unique in the cluster; 0 for a transaction of the connection
            itself.
        timed_out: whether the answer to its commit was the error for its time limit.
        blocking: whether its reads are answered at once, as for plain code that waits for each.
    """

    def __init__(self, store: SimulatedStore, call: int, *, read_only: bool) -> None:
        cluster = store.cluster
        self.store = store
        self.process = store.process
        self.version = cluster.versions.enter()
        self.began = cluster.loop.time()
        self.commit_version: int | None = None
        self.written: dict[bytes, bytes | None] = {}
        self.journal: list[Any] = []
        self.call = call
        self.submitted = False
        self.timed_out = False
        self.blocking = False
        self.ended = False
        self.conflicts = Reads()
        self._snapshot_reads: Snapshot | None = None
        view = View(cluster.versions, self.version)
        super().__init__(view, store.limits, reads=None if read_only else self.conflicts, read_only=read_only)
        cluster.opened(self)

    @property
    def is_housekeeping(self) -> bool:
        """Whether the transaction is the connection's own, without a transaction function."""
        return not self.call

    @property
    def snapshot(self) -> Snapshot:
        if self.store.handle.sees_own_writes:
            if self._snapshot_reads is None:
                self._snapshot_reads = _SnapshotReads(self, super().snapshot)
            return self._snapshot_reads
        before = BufferedTransaction(View(self.store.cluster.versions, self.version), self.limits, read_only=True)
        return _SnapshotReads(self, before.snapshot)

    async def get(self, key: bytes) -> bytes | None:
        await self.pause()
        return await super().get(key)

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        await self.pause()
        return await super().get_many(keys)

    async def get_range(self, begin: Bound, end: Bound, *, limit: int = 0, reverse: bool = False) -> list[KeyValue]:
        await self.pause()
        return await super().get_range(begin, end, limit=limit, reverse=reverse)

    async def pause(self) -> None:
        """Wait for the cluster, like every read."""
        store = self.store
        if not self.blocking:
            await store.cluster.read_pause()
        took = store.cluster.loop.time() - self.began
        if took > self.limits.seconds:
            raise self.too_old()
        if store.handle.time_limit is not None and self.is_overdue:
            raise error_of(timed_out().code, timed_out().description)

    @property
    def too_long(self) -> bool:
        """Whether the transaction exceeds the lifetime of transactions."""
        return self.store.cluster.loop.time() - self.began > self.limits.seconds

    @property
    def is_overdue(self) -> bool:
        """Whether the transaction exceeds the time limit of its handle."""
        limit = self.store.handle.time_limit
        return limit is not None and self.store.cluster.loop.time() - self.began > limit

    def too_old(self) -> TransactionTooOld:
        """Return the error for a transaction that is too old, by the clock or by a fault."""
        return TransactionTooOld(
            f"transaction_too_old (1007): the simulated cluster keeps {self.limits.seconds:g} s of the past"
        )

    def _too_large(self) -> StoreError:
        self.store.cluster.on_too_large(self)
        return super()._too_large()

    def end(self) -> None:
        """Release the read version. Idempotent."""
        if not self.ended:
            self.ended = True
            super().end()
            self.store.cluster.closed(self)

    __hash__ = object.__hash__


class _SnapshotReads(Snapshot):
    """The transaction's reads without read conflicts, with the same pauses."""

    __slots__ = ("_reads", "_transaction")

    def __init__(self, transaction: SimulatedTransaction, reads: Snapshot) -> None:
        self._transaction = transaction
        self._reads = reads

    async def get(self, key: bytes) -> bytes | None:
        await self._transaction.pause()
        return await self._reads.get(key)

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        await self._transaction.pause()
        return await self._reads.get_many(keys)

    async def get_range(self, begin: Bound, end: Bound, *, limit: int = 0, reverse: bool = False) -> list[KeyValue]:
        await self._transaction.pause()
        return await self._reads.get_range(begin, end, limit=limit, reverse=reverse)
