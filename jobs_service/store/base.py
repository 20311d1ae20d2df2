"""What every store promises: serializable transactions over an ordered map of bytes, in FoundationDB's vocabulary.

The promises are stated here and checked for every store by tests/contract.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeAlias, TypeVar

import fdb.tuple

from jobs_service.errors import StoreError, StoreLost, kind_of, shown
from jobs_service.store.convertible import Convertible
from jobs_service.store.counters import CommitTimes
from jobs_service.store.key_selector import KeySelector
from jobs_service.store.process_tracking import ProcessTracking
from jobs_service.store.tenants import Tenants

T = TypeVar("T")

KeyValue: TypeAlias = tuple[bytes, bytes]

SYSTEM_KEYS = b"\xff"  # keys from here on belong to the store

_PREFIX: bytes = fdb.tuple.pack(("jobs_service",))  # in a store that has no directories

STAMP_BYTES = 10
"""The length of a versionstamp: 8 bytes of commit version, 2 bytes of position within the batch, both big-endian."""


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
"""FoundationDB wants the offset of a versionstamp in 4 bytes behind the key or value; they count for the limits."""

LONGEST_STAMPED_KEY = Limits.key - OFFSET_BYTES
"""Bytes of the longest key with a versionstamp that FoundationDB takes."""

Bound: TypeAlias = bytes | KeySelector


class CommitStamp:
    """The versionstamp of one transaction: `value` is None until it has committed, then its 10 bytes."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: bytes | None = None


class Watch:
    """Fires once, when a key's value is no longer the one that the watching transaction saw or left.

    It may fire without a change, so whoever waits reads the key again. A watch may be made on any thread; everything
    else is done on the loop's.
    """

    __slots__ = ("_callback", "_canceled", "_event", "_forget", "baseline", "error", "key")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.baseline: bytes | None = None
        self.error: StoreError | None = None
        self._event = asyncio.Event()
        self._callback: Callable[[], object] | None = None
        self._forget: Callable[[Watch], None] | None = None
        self._canceled = False

    def attach(self, forget: Callable[[Watch], None]) -> None:
        """Set the store's function that drops the watch when nobody waits any more; called at once if that is so."""
        self._forget = forget
        if self._canceled:
            self.cancel()

    @property
    def fired(self) -> bool:
        """Whether it has fired or failed."""
        return self._event.is_set()

    def fire(self, error: StoreError | None = None) -> None:
        """Wake the waiter, with an error if the watch was lost."""
        if not self._event.is_set():
            self.error = error
            self._event.set()
            if self._callback is not None:
                self._callback()

    def on_fire(self, callback: Callable[[], object]) -> None:
        """Set the one callback for when the watch fires or fails; it is called at once if that has happened already."""
        self._callback = callback
        if self._event.is_set():
            callback()

    async def wait(self) -> None:
        """Return when the value has changed.

        Raises:
            StoreError: the watch was lost (its store closed or its transaction did not commit): read the key again.
        """
        await self._event.wait()
        if self.error is not None:
            raise self.error

    def cancel(self) -> None:
        """Drop the watch: it never fires. A waiter is not woken."""
        self._canceled = True
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
        """Announce keys that will be read later: a store across a network requests them together with the next read."""
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
        """Announce that so many bytes more are about to be added: a store that is nearly full refuses additions first.

        Raises:
            StoreFull: only a reserve is left, on a store that has one; these bytes are not claimed then.
        """

    def use_reserve(self) -> None:
        """Announce that this transaction keeps work going or makes room: a full store lets it use the reserve."""

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
        if isinstance(key, slice):
            if key.step is not None:
                raise StoreError(f"a range of keys with step {shown(key.step)}; ranges have none")
            begin = key.start if key.start is not None else b""
            self.clear_range(begin, key.stop if key.stop is not None else SYSTEM_KEYS)
        else:
            self.clear(key)


TransactionFunction: TypeAlias = Callable[[Transaction], Coroutine[Any, Any, T]]


class Store(Convertible, ProcessTracking, ABC):
    """An ordered map of bytes with serializable transactions.

    Every store promises isolation (one state plus its own writes; a commit only if that is as good as one after the
    other), order of keys (bytewise), atomicity (an error leaves no trace), limits, versionstamps (unique, growing in
    commit order, across processes and restarts), watches, and that the effects of transact() happen at most once: a
    function is run again after a conflict, after a commit of unknown outcome only when the store has found out that it
    did not happen.
    """

    address: str
    limits: Limits
    commit_times: CommitTimes
    overlaps: ClassVar[bool] = False
    """Whether transactions run in parallel, so that two small ones end sooner than one large one."""
    serves_threads: ClassVar[bool] = False
    """Whether it has `transact_in_thread`."""

    @cached_property
    def tenants(self) -> Tenants:
        """The services of this process that use it."""
        return Tenants(self)

    @property
    def location(self) -> str:
        """The address in a form that names the same store in every working directory, for logs."""
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
        """Wait for running transactions, fail the watches, and release threads and files. Idempotent."""

    def on_lost(self, callback: Callable[[StoreLost], object]) -> Callable[[], object]:
        """Have `callback` called on the loop, once, when the store is found lost: before anybody else is told.

        Only the embedded store can be lost. What waits for it then, and what is asked of it later, fails.

        Returns:
            A function that takes the request back.
        """
        return lambda: None

    async def prefix(self) -> bytes:
        """Return the prefix under which the jobs' keys live: `_PREFIX`, unless the store knows better."""
        return _PREFIX

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
        """Do as `transact`, but commit only after another call has ended, and not at all if that call failed.

        Args:
            before: the other call. A store across a network runs this function meanwhile. The function may then see a
                state without the other call's writes; if it has read any of those keys, it runs again.
            function: as for `transact`.

        Raises:
            BaseException: what the other call raised; else as `transact`.
        """
        await asyncio.shield(before)
        return await self.transact(function)

    def transact_in_thread(self, function: TransactionFunction[T], answered: Callable[[T], object]) -> None:
        """Run the function in a transaction, in a thread that waits for it, while the loop may stand still.

        Args:
            function: as for `transact`; its effects may happen twice.
            answered: called on the loop with the result of a transaction that has committed, when it turns again.

        Raises:
            StoreError: as `transact`; or the store works on the loop alone, see `serves_threads`.
        """
        raise StoreError(f"store {self.address} serves no threads")

    @abstractmethod
    async def read(self, function: TransactionFunction[T]) -> T:
        """Run the function in a transaction that only reads (and watches); it never waits for a writer."""

    def adopt(self, transaction: object) -> Transaction:
        """Wrap a transaction that the application began, and will commit, as one of this store.

        Its reads block the calling thread and never suspend, so that `drive` runs the coroutines that use it, on any
        thread. Errors of the application's transaction come out as they are: its retry loop must see them. The stamp
        is not promised to be known after the commit.

        Raises:
            StoreError: the store has no such transactions, or this one is not from this store.
        """
        raise StoreError(
            f"store {self.address}: within() needs an fdb: store and an fdb.Transaction of its cluster; "
            "use transact() here"
        )

    def metrics(self) -> dict[str, int]:
        """Return what Counters has, by name, and how many "watches" are alive; a store may count more."""
        return {}

    async def backup(self, path: str) -> int:
        """Write a consistent copy of the store to a new file while it is in use, and return its size in bytes.

        Raises:
            StoreError: the store has no such copy, or the file exists or cannot be written.
        """
        raise StoreError(f"store {self.address} cannot be backed up to a file; an lmdb: store can")


def _around_placeholder(operand: Any, what: str) -> tuple[bytes, bytes]:
    """Split FoundationDB's versionstamp operand into what is before and what is after the placeholder."""
    if not isinstance(operand, bytes):
        raise StoreError(f"a {what} of type {kind_of(operand)}; only bytes are allowed")
    size = len(operand) - 4
    offset = int.from_bytes(operand[-4:], "little")
    if size < 0 or offset + STAMP_BYTES > size:
        raise StoreError(f"a versionstamped {what} needs 10 bytes of placeholder and ends with its 4-byte offset")
    return operand[:offset], operand[offset + STAMP_BYTES : size]
