"""What every store promises: serializable transactions over an ordered map of bytes, in FoundationDB's vocabulary.

Floor: store. The promises are stated here and checked for every store by tests/contract.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias, TypeVar

from jobs_service.errors import StoreError, kind_of, shown
from jobs_service.store.key_selector import KeySelector

T = TypeVar("T")

KeyValue: TypeAlias = tuple[bytes, bytes]

SYSTEM_KEYS = b"\xff"
"""Keys from here on belong to the store."""

STAMP_BYTES = 10
"""A versionstamp: 8 bytes of commit version, 2 bytes of place within the batch, both big-endian."""


@dataclass(frozen=True)
class Limits:
    """What one transaction may be: FoundationDB's limits, on every store.

    Attributes:
        key: bytes of the longest key.
        value: bytes of the longest value.
        transaction: bytes of all keys and values that one transaction writes.
        seconds: longest run of a transaction function.
    """

    key: int = 10_000
    value: int = 100_000
    transaction: int = 10_000_000
    seconds: float = 5.0


OFFSET_BYTES = 4
"""What FoundationDB adds to a key or a value that is to get a versionstamp: where in it; it counts for the limits."""

LONGEST_STAMPED_KEY = Limits.key - OFFSET_BYTES
"""Bytes of the longest key with a versionstamp that FoundationDB takes."""


Bound: TypeAlias = bytes | KeySelector


class CommitStamp:
    """The versionstamp of one transaction: `value` is None until it has committed, then its 10 bytes."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: bytes | None = None


class Watch:
    """Told once when a key's value is no longer what the transaction that asked saw (or left).

    May fire for nothing: whoever waits looks again. Used on the loop's thread only, but for its creation.
    """

    __slots__ = ("_callback", "_event", "_forget", "baseline", "error", "key")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.baseline: bytes | None = None
        self.error: StoreError | None = None
        self._event = asyncio.Event()
        self._callback: Callable[[], object] | None = None
        self._forget: Callable[[Watch], None] | None = None

    def attach(self, forget: Callable[[Watch], None]) -> None:
        """Name the store's function that drops the watch when nobody waits any more."""
        self._forget = forget

    @property
    def fired(self) -> bool:
        """Whether it has fired or failed."""
        return self._event.is_set()

    def fire(self, error: StoreError | None = None) -> None:
        """Wake whoever waits, with an error if the watch was lost."""
        if not self._event.is_set():
            self.error = error
            self._event.set()
            if self._callback is not None:
                self._callback()

    def on_fire(self, callback: Callable[[], object]) -> None:
        """Call this when it fires or fails: at once, if it has already. One callback only."""
        self._callback = callback
        if self._event.is_set():
            callback()

    async def wait(self) -> None:
        """Return when the value has changed.

        Raises:
            StoreError: the watch was lost (its store closed or its transaction did not commit): look again.
        """
        await self._event.wait()
        if self.error is not None:
            raise self.error

    def cancel(self) -> None:
        """Forget the watch; it does not fire any more. Whoever waits is not told."""
        if self._forget is not None:
            self._forget(self)
            self._forget = None


class Snapshot(ABC):
    """Reads of one transaction."""

    __slots__ = ()

    @abstractmethod
    async def get(self, key: bytes) -> bytes | None:
        """Return the key's value, None when it has none."""

    @abstractmethod
    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the keys' values in their order; the reads go out together."""

    def expect(self, keys: Iterable[bytes]) -> None:
        """Say which keys will be read later on: a store that is some way off asks for them with what is read next."""
        return

    @abstractmethod
    async def get_range(self, begin: Bound, end: Bound, *, limit: int = 0, reverse: bool = False) -> list[KeyValue]:
        """Return the pairs from `begin` up to, not including, `end`, in key order.

        Args:
            begin, end: keys, or selectors resolved in this transaction.
            limit: at most so many pairs; 0 for all.
            reverse: from the end backwards.
        """


class Transaction(Snapshot):
    """One serializable transaction. Reads are awaited and see the transaction's own writes; writes are plain calls.

    A key or value that is to get a versionstamp cannot be read back in the same transaction: StoreError
    (FoundationDB's error 1036, accessed_unreadable).
    """

    __slots__ = ()

    stamp: CommitStamp
    limits: Limits

    @property
    @abstractmethod
    def snapshot(self) -> Snapshot:
        """The same reads without read conflicts."""

    @abstractmethod
    def set(self, key: bytes, value: bytes) -> None:
        """Write a value."""

    @abstractmethod
    def clear(self, key: bytes) -> None:
        """Remove a key; nothing happens when it is not there."""

    @abstractmethod
    def clear_range(self, begin: bytes, end: bytes) -> None:
        """Remove the keys from `begin` up to, not including, `end`."""

    @abstractmethod
    def add(self, key: bytes, operand: bytes) -> None:
        """Add a little-endian integer to the value (zero when missing) without reading it: adds never conflict.

        The result has the operand's length; the value is cut or zero-extended to it, and overflow wraps.
        """

    @abstractmethod
    def stamp_key(self, before: bytes, after: bytes, value: bytes) -> None:
        """Write under the key that is the transaction's versionstamp between `before` and `after`."""

    @abstractmethod
    def stamp_value(self, key: bytes, before: bytes, after: bytes) -> None:
        """Write the value that is the transaction's versionstamp between `before` and `after`."""

    def stamp_all(
        self, values: Sequence[tuple[bytes, bytes, bytes]], keys: Sequence[tuple[bytes, bytes, bytes]]
    ) -> None:
        """Do `stamp_value` with each of `values`, then `stamp_key` with each of `keys`; nothing may follow."""
        for key, before, after in values:
            self.stamp_value(key, before, after)
        for before, after, value in keys:
            self.stamp_key(before, after, value)

    def set_versionstamped_key(self, key: bytes, value: bytes) -> None:
        """Write under a key in which 10 bytes become the transaction's versionstamp.

        Args:
            key: the key with a placeholder, then 4 bytes: the placeholder's offset, little-endian.
        """
        before, after = _around_placeholder(key, "key")
        self.stamp_key(before, after, value)

    def set_versionstamped_value(self, key: bytes, value: bytes) -> None:
        """Write a value in which 10 bytes become the transaction's versionstamp (offset as for the key)."""
        before, after = _around_placeholder(value, "value")
        self.stamp_value(key, before, after)

    def claim_room(self, size: int) -> None:
        """Say that so many bytes more are about to be written that the store could do without: something is added.

        Raises:
            StoreFull: only a reserve is left, on a store that has one; these bytes are not claimed then.
        """

    def use_reserve(self) -> None:
        """Say that this transaction is one that keeps work going or makes room: a full store has a reserve for it."""

    @abstractmethod
    def add_read_conflict_key(self, key: bytes) -> None:
        """Fail if another transaction changes this key, as if it had been read."""

    @abstractmethod
    def add_read_conflict_range(self, begin: bytes, end: bytes) -> None:
        """Fail if another transaction changes a key in this range, as if it had been read."""

    @abstractmethod
    def watch(self, key: bytes) -> Watch:
        """Return a watch on the key, alive once the transaction has committed."""

    @abstractmethod
    def require_room(self, writes: Sequence[tuple[bytes, bytes]]) -> None:
        """Check that writes may follow, all of them, beside what was written already; write nothing.

        Args:
            writes: keys and values; of versionstamped ones with ten bytes in place of the stamp.

        Raises:
            StoreError: one of them would be refused, or all together are too much for one transaction.
        """

    def __setitem__(self, key: bytes, value: bytes) -> None:
        self.set(key, value)

    def __delitem__(self, key: bytes | slice) -> None:
        if type(key) is slice:
            if key.step is not None:
                raise StoreError(f"a range of keys with step {shown(key.step)}; ranges have none")
            begin = key.start if key.start is not None else b""
            self.clear_range(begin, key.stop if key.stop is not None else SYSTEM_KEYS)
        else:
            self.clear(key)


TransactionFunction: TypeAlias = Callable[[Transaction], Coroutine[Any, Any, T]]


class Store(ABC):
    """An ordered map of bytes with serializable transactions.

    Promised by every store, and checked by tests/contract:
    isolation (a transaction sees one state plus its own writes, and commits only if that is as good as one after the
    other), order of keys (bytewise), atomicity (a function that raises leaves no trace), limits, versionstamps (unique,
    growing in commit order, across processes and restarts), watches, and that what a call of transact() does happens
    at most once: a function is run again after a conflict, but after a commit with unknown outcome only when the store
    has found out that it did not happen.
    """

    address: str
    limits: Limits
    instance: bytes = b""
    """Names this opening of the store among all that live. Empty where nobody can tell whether they do."""
    overlaps: ClassVar[bool] = False
    """Whether transactions go on at the same time, so that two small ones are sooner done than a large one."""

    @property
    def location(self) -> str:
        """The address, such that it names the same store wherever it is read: for logs."""
        return self.address

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether it can be used."""

    @abstractmethod
    async def open(self) -> None:
        """Open it, making it when missing.

        Raises:
            StoreError: it cannot be opened; the message says why and what to do.
        """

    @abstractmethod
    async def close(self) -> None:
        """Let running transactions end, fail the watches, and let go of threads and files. Idempotent."""

    @abstractmethod
    async def prefix(self) -> bytes:
        """Return the prefix under which the jobs' keys live."""

    @abstractmethod
    async def transact(self, function: TransactionFunction[T], *, abandoned: Callable[[T], None] | None = None) -> T:
        """Run the function in a transaction until it has committed, and return its result.

        Args:
            function: may be run several times; awaits nothing but its transaction and has no effect but through it.
            abandoned: called on the loop with the result when the caller does not get it, because it was cancelled
                or its time was up, and the transaction committed all the same.

        Raises:
            StoreUnavailable: no answer within the transaction's time limit.
            StoreError: limits, a full store, a function that awaits something else.
            Exception: whatever the function raised; nothing was written.
        """

    async def transact_after(self, before: asyncio.Future[Any], function: TransactionFunction[T]) -> T:
        """Do `transact`, but write nothing before another call has ended, and nothing at all when that has failed.

        Args:
            before: the other call. A store on which functions wait for answers runs this one's meanwhile, which may
                then see a state without what the other writes; what it reads of that makes it run again.
            function: as for `transact`.

        Raises:
            BaseException: what the other call raised; else as `transact`.
        """
        await asyncio.shield(before)
        return await self.transact(function)

    @abstractmethod
    async def read(self, function: TransactionFunction[T]) -> T:
        """Run the function in a transaction that only reads (and watches); it never waits for a writer."""

    def adopt(self, transaction: object) -> Transaction:
        """Return a transaction that the application drives itself as one of this store: whoever began it commits it.

        Its reads block the calling thread and never suspend, so that `drive` runs the coroutines that use it, on any
        thread. Errors of the application's transaction come out as they are: its retry loop must see them. The stamp
        is not promised to be known after the commit.

        Raises:
            StoreError: the store has no such transactions, or this is none of its.
        """
        raise StoreError(
            f"store {self.address}: within() needs an fdb: store and an fdb.Transaction of its cluster; "
            "use transact() here"
        )

    async def dead_instances(self) -> list[bytes]:
        """Return instances of this store, of other processes, that have ended without closing it: their process died.

        They are left to this one until it calls `forget_instances` or ends itself; there may be more.
        """
        return []

    async def other_processes(self) -> tuple[int, int] | None:
        """Return how many others have this store open, and how many more died with it open and were not buried yet.

        None where nobody can tell.
        """
        return None

    async def forget_instances(self, instances: Sequence[bytes]) -> None:
        """Clear away what is left of dead instances: nobody is told of them any more."""
        assert not instances, "there were none"

    def metrics(self) -> dict[str, int]:
        """Return what the store counts of its own work since it was opened, by name; a store may count nothing."""
        return {}

    async def backup(self, path: str) -> int:
        """Write a consistent copy of the store to a new file while it is in use, and return its size in bytes.

        Raises:
            StoreError: the store has no such copy, or the file exists or cannot be written.
        """
        raise StoreError(f"store {self.address} cannot be backed up to a file; an lmdb: store can")


def _around_placeholder(operand: Any, what: str) -> tuple[bytes, bytes]:
    """Split FoundationDB's versionstamp operand into what is before and what is after the placeholder."""
    if type(operand) is not bytes:
        raise StoreError(f"a {what} of type {kind_of(operand)}; only bytes are allowed")
    size = len(operand) - 4
    offset = int.from_bytes(operand[-4:], "little")
    if size < 0 or offset + STAMP_BYTES > size:
        raise StoreError(f"a versionstamped {what} needs 10 bytes of placeholder and ends with its 4-byte offset")
    return operand[:offset], operand[offset + STAMP_BYTES : size]
