"""The promises of every store: serializable transactions over an ordered map of bytes, in FoundationDB's vocabulary.

The promises are stated here and checked for every store by tests/contract. The module has more than 600 lines because
the parts that stores share are in it as well: each of them is small, and every store imports most of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, ClassVar, Final, NoReturn, TypeAlias, TypeVar

import fdb.tuple

from jobs_service.errors import (
    OTHER_LOOP,
    StoreError,
    StoreLost,
    TransactionTooLarge,
    TransactionTooOld,
    kind_of,
    shown,
)

_FIRST_POWER: Final = -14
_BUCKETS: Final = 20

BOUNDS: Final = (*(2.0 ** (_FIRST_POWER + number) for number in range(_BUCKETS - 1)), math.inf)
"""Upper bounds of the buckets of CommitTimes, in seconds: from 61 microseconds to 16 seconds, and infinity."""

_BACKGROUND: Final[ContextVar[bool]] = ContextVar("jobs_service_background", default=False)

T = TypeVar("T")

KeyValue: TypeAlias = tuple[bytes, bytes]

SYSTEM_KEYS = b"\xff"  # keys from here on belong to the store

_PREFIX: bytes = fdb.tuple.pack(("jobs_service",))  # in a store that has no directories

ONE: Final = (1).to_bytes(8, "little")
"""The operand that adds one to a counter."""

STAMP_BYTES = 10
"""The length of a versionstamp: 8 bytes of commit version, 2 bytes of position within the batch, both big-endian."""

OFFSET_BYTES = 4
"""FoundationDB takes the offset of a versionstamp in 4 bytes behind the key or value; they count for the limits."""


# Transactions


@dataclass(frozen=True)
class Limits:
    """The limits of one transaction: FoundationDB's limits, on every store.

    Attributes:
        key: bytes of the longest key.
        value: bytes of the longest value.
        transaction: most bytes of keys and values that one transaction writes.
        seconds: longest run of a transaction function.
    """

    key: int = 10_000
    value: int = 100_000
    transaction: int = 10_000_000
    seconds: float = 5.0


@dataclass(frozen=True, slots=True)
class KeySelector:
    """Names a key by its position: the last key less than (or equal to) `key`, moved on by `offset` keys.

    Source: FoundationDB, "Key selectors". Results beyond the ends are clamped to b"" and b"\\xff".
    """

    key: bytes
    or_equal: bool
    offset: int

    @classmethod
    def last_less_than(cls, key: bytes) -> KeySelector:
        """Select the last key before `key`."""
        return cls(key, False, 0)

    @classmethod
    def last_less_or_equal(cls, key: bytes) -> KeySelector:
        """Select the last key up to and including `key`."""
        return cls(key, True, 0)

    @classmethod
    def first_greater_than(cls, key: bytes) -> KeySelector:
        """Select the first key after `key`."""
        return cls(key, True, 1)

    @classmethod
    def first_greater_or_equal(cls, key: bytes) -> KeySelector:
        """Select the first key from `key` on."""
        return cls(key, False, 1)

    def __add__(self, offset: int) -> KeySelector:
        return KeySelector(self.key, self.or_equal, self.offset + offset)

    def __sub__(self, offset: int) -> KeySelector:
        return KeySelector(self.key, self.or_equal, self.offset - offset)


LONGEST_STAMPED_KEY = Limits.key - OFFSET_BYTES
"""Bytes of FoundationDB's longest key with a versionstamp."""

Bound: TypeAlias = bytes | KeySelector


class CommitStamp:
    """The versionstamp of one transaction: `value` is None until the commit, then its 10 bytes."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: bytes | None = None


class Watch:
    """Fires once, when a key's value differs from the value that the watching transaction saw or left.

    It may fire without a change, so its waiter reads the key again. A watch may be made on any thread; everything else
    happens on the loop's.
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
        """Set the store's function that drops a canceled watch; called at once if the watch is canceled already."""
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
        """Set the one callback for the firing or failure of the watch; after that it is called at once."""
        self._callback = callback
        if self._event.is_set():
            callback()

    async def wait(self) -> None:
        """Wait for a change of the value.

        Raises:
            StoreError: the watch was lost (its store closed or its transaction did not commit): read the key again.
        """
        await self._event.wait()
        if self.error is not None:
            raise self.error

    def cancel(self) -> None:
        """Drop the watch: it never fires, and does not wake its waiter."""
        self._canceled = True
        if self._forget is not None:
            self._forget(self)
            self._forget = None


class Snapshot(ABC):
    """The reads of one transaction."""

    __slots__ = ()

    @abstractmethod
    async def get(self, key: bytes) -> bytes | None:
        """Return the key's value; None for none."""

    @abstractmethod
    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the keys' values in their order; the reads go out together."""

    def expect(self, keys: Iterable[bytes]) -> None:
        """Announce keys of later reads: a store across a network requests them together with the next read."""
        return

    @abstractmethod
    async def get_range(self, begin: Bound, end: Bound, *, limit: int = 0, reverse: bool = False) -> list[KeyValue]:
        """Return the pairs from `begin` up to, not including, `end`, in key order.

        Args:
            begin, end: keys, or selectors resolved in this transaction.
            limit: at most so many pairs; 0 for all.
            reverse: whether to read from the end backwards.
        """


class Transaction(Snapshot):
    """One serializable transaction. Reads are awaited and see the transaction's own writes; writes are plain calls.

    A key or value that awaits a versionstamp cannot be read back in the same transaction: StoreError (FoundationDB's
    error 1036, accessed_unreadable).
    """

    __slots__ = ()

    stamp: CommitStamp
    limits: Limits

    @property
    @abstractmethod
    def snapshot(self) -> Snapshot:
        """The same reads without read conflicts."""

    def block(self, whether: bool) -> None:
        """Have reads block the thread, for plain code, or suspend the function again. Most stores answer at once."""

    @abstractmethod
    def set(self, key: bytes, value: bytes) -> None:
        """Write a value."""

    @abstractmethod
    def clear(self, key: bytes) -> None:
        """Remove a key; a missing key is no error."""

    @abstractmethod
    def clear_range(self, begin: bytes, end: bytes) -> None:
        """Remove the keys from `begin` up to, not including, `end`."""

    @abstractmethod
    def add(self, key: bytes, operand: bytes) -> None:
        """Add a little-endian integer to the value (zero if missing) without a read: adds never conflict.

        The result has the operand's length; the value is cut or zero-extended to it, and overflow wraps.
        """

    @abstractmethod
    def stamp_key(self, before: bytes, after: bytes, value: bytes) -> None:
        """Write a value under a key: `before`, the transaction's versionstamp, `after`."""

    @abstractmethod
    def stamp_value(self, key: bytes, before: bytes, after: bytes) -> None:
        """Write a value: `before`, the transaction's versionstamp, `after`."""

    def stamp_all(
        self, values: Sequence[tuple[bytes, bytes, bytes]], keys: Sequence[tuple[bytes, bytes, bytes]]
    ) -> None:
        """Call `stamp_value` with each of `values`, then `stamp_key` with each of `keys`; nothing may follow."""
        for key, before, after in values:
            self.stamp_value(key, before, after)
        for before, after, value in keys:
            self.stamp_key(before, after, value)

    def set_versionstamped_key(self, key: bytes, value: bytes) -> None:
        """Write under a key whose 10-byte placeholder becomes the transaction's versionstamp.

        Args:
            key: the key with a placeholder, then 4 bytes: the placeholder's offset, little-endian.
        """
        before, after = _around_placeholder(key, "key")
        self.stamp_key(before, after, value)

    def set_versionstamped_value(self, key: bytes, value: bytes) -> None:
        """Write a value whose 10-byte placeholder becomes the transaction's versionstamp (offset as for the key)."""
        before, after = _around_placeholder(value, "value")
        self.stamp_value(key, before, after)

    def claim_room(self, size: int) -> None:
        """Announce an addition of so many bytes: a nearly full store refuses additions first.

        Raises:
            StoreFull: only the store's reserve is left; these bytes are not claimed then.
        """

    def use_reserve(self) -> None:
        """Announce that this transaction keeps work going or makes room: a full store lets it use the reserve."""

    async def sql(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run a statement on the application's tables in the store's file, as part of this transaction.

        Raises:
            StoreError: the store has no tables, or the statement is none for a transaction of the store.
            sqlite3.Error: SQLite has refused the statement.
        """
        raise StoreError("this store has no tables: tx.sql() needs an sqlite:PATH store")

    @abstractmethod
    def add_read_conflict_key(self, key: bytes) -> None:
        """Fail if another transaction changes this key, as after a read."""

    @abstractmethod
    def add_read_conflict_range(self, begin: bytes, end: bytes) -> None:
        """Fail if another transaction changes a key in this range, as after a read."""

    @abstractmethod
    def watch(self, key: bytes) -> Watch:
        """Return a watch on the key, alive after the commit."""

    @abstractmethod
    def require_room(self, writes: Sequence[tuple[bytes, bytes]]) -> None:
        """Check that all of these writes may follow beside the earlier ones; write nothing.

        Args:
            writes: keys and values; with ten bytes in place of each versionstamp.

        Raises:
            StoreError: one of them would be refused, or all together exceed the transaction's limits.
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


def _around_placeholder(operand: Any, what: str) -> tuple[bytes, bytes]:
    """Split FoundationDB's versionstamp operand into the parts before and after the placeholder."""
    if not isinstance(operand, bytes):
        raise StoreError(f"a {what} of type {kind_of(operand)}; only bytes are allowed")
    size = len(operand) - 4
    offset = int.from_bytes(operand[-4:], "little")
    if size < 0 or offset + STAMP_BYTES > size:
        raise StoreError(f"a versionstamped {what} needs 10 bytes of placeholder and ends with its 4-byte offset")
    return operand[:offset], operand[offset + STAMP_BYTES : size]


# Stores


class ProcessTracking:
    """The part of a store about its processes; this default tracks none.

    Attributes:
        instance: id of this opening of the store among other processes' openings; empty without tracking.
    """

    instance: bytes = b""

    async def dead_instances(self) -> list[bytes]:
        """Return instances of this store whose processes died without closing it.

        Other processes do not see them until this one calls `forget_instances` or ends; there may be more.
        """
        return []

    async def other_processes(self) -> tuple[int, int] | None:
        """Return the number of other processes with this store open, and of dead ones that have not been forgotten.

        None if the store does not track processes.
        """
        return None

    async def ended_instances(self, instances: Collection[bytes]) -> set[bytes]:
        """Return the instances among these whose processes have ended, or have closed the store.

        They stay visible to `dead_instances` of other processes. The set is empty if the store does not track
        processes.
        """
        return set()

    async def forget_instances(self, instances: Sequence[bytes]) -> None:
        """Remove the traces of dead instances: no `dead_instances` of any process returns them again."""
        assert not instances, "there were none"


TransactionFunction: TypeAlias = Callable[[Transaction], Coroutine[Any, Any, T]]


class Store(ProcessTracking, ABC):
    """An ordered map of bytes with serializable transactions.

    Every store promises isolation (a transaction sees one state plus its own writes; it commits only if the result
    equals a serial execution), order of keys (bytewise), atomicity (an error leaves no trace), limits, versionstamps
    (unique, growing in commit order, across processes and restarts), watches, and that the effects of transact() happen
    at most once: a function runs again after a conflict; after a commit of unknown outcome, only when the store has
    established that the commit did not happen.
    """

    address: str
    limits: Limits
    commit_times: CommitTimes
    overlaps: ClassVar[bool] = False
    """Whether transactions run in parallel, so that two small ones end sooner than one large one."""
    serves_threads: ClassVar[bool] = False
    """Whether the store has `transact_in_thread`."""
    is_open: bool = False
    """Whether the store is open."""

    @cached_property
    def tenants(self) -> Tenants:
        """The services of this process that use the store."""
        return Tenants(self)

    @property
    def location(self) -> str:
        """The address for logs: it names the same store in every working directory."""
        return self.address

    @abstractmethod
    async def open(self) -> None:
        """Open the store; make a missing one.

        Raises:
            StoreError: it cannot be opened; the message gives the reason and a remedy.
        """

    @abstractmethod
    async def close(self) -> None:
        """Wait for running transactions, fail the watches, and release threads and files. Idempotent."""

    def on_lost(self, callback: Callable[[StoreLost], object]) -> Callable[[], object]:
        """Register `callback` for the loss of the store: called on the loop, once, before any waiter gets the error.

        Only the embedded store can be lost. Waiting and later calls then fail.

        Returns:
            A function that removes the registration.
        """
        return lambda: None

    async def prefix(self) -> bytes:
        """Return the prefix of the jobs' keys: `_PREFIX`, unless the store has its own."""
        return _PREFIX

    @abstractmethod
    async def transact(self, function: TransactionFunction[T], *, abandoned: Callable[[T], None] | None = None) -> T:
        """Run the function in a transaction until it has committed, and return its result.

        Args:
            function: may run several times; it awaits nothing but its transaction and has no effect but through it.
            abandoned: called on the loop with the result if the caller does not get it, because it was cancelled or out
                of time, and the transaction committed all the same.

        Raises:
            StoreUnavailable: no answer within the transaction's time limit.
            StoreError: limits, a full store, a function with a foreign await.
            Exception: the function's exception; nothing was written.
        """

    async def transact_after(self, before: asyncio.Future[Any], function: TransactionFunction[T]) -> T:
        """Run `transact`, but commit only after the end of another call, and not at all if that call failed.

        Args:
            before: the other call. A store across a network runs this function meanwhile. The function may then see a
                state without the other call's writes; if it has read any of those keys, it runs again.
            function: as for `transact`.

        Raises:
            BaseException: the other call's exception; else as `transact`.
        """
        await asyncio.shield(before)
        return await self.transact(function)

    def transact_in_thread(self, function: TransactionFunction[T], answered: Callable[[T], object]) -> None:
        """Run the function in a transaction, in a thread that waits for it, while the loop may be blocked.

        Args:
            function: as for `transact`; its effects may happen twice.
            answered: called on the loop, when it turns again, with the result of a committed transaction.

        Raises:
            StoreError: as `transact`; or the store works on the loop alone, see `serves_threads`.
        """
        raise StoreError(f"store {self.address} serves no threads")

    @abstractmethod
    async def read(self, function: TransactionFunction[T]) -> T:
        """Run the function in a transaction that only reads (and watches); it never waits for a writer."""

    def adopt(self, transaction: object) -> Transaction:
        """Wrap a transaction of the application, which will commit it, as one of this store.

        Its reads block the calling thread and never suspend, so `drive` can run coroutines with it on any thread.
        Errors of the application's transaction pass unchanged: its retry loop must see them. The stamp may stay unknown
        after the commit.

        Raises:
            StoreError: the store has no such transactions, or this one is from another store.
        """
        raise StoreError(
            f"store {self.address}: within() needs an fdb: store and an fdb.Transaction of its cluster; "
            "use transact() here"
        )

    def metrics(self) -> dict[str, int]:
        """Return the counts of Counters by name, and the number of living "watches"; a store may count more."""
        return {}

    async def backup(self, path: str) -> int:
        """Write a consistent copy of the store in use to a new file, and return its size in bytes.

        Raises:
            StoreError: the store has no backups, or the file exists or cannot be written.
        """
        raise StoreError(f"store {self.address} cannot be backed up to a file; an lmdb: or sqlite: store can")


# Parts that stores share


class Tenants:
    """Counts the services that use a store, and closes it after the last; a store opened by the application stays open.

    Args:
        store: the store.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._count = 0
        self._is_kept = False
        # A service that comes during another one's opening or closing waits for its end.
        self._changing = asyncio.Lock()

    async def enter(self) -> None:
        """Add a service, and open the store if it is not open.

        Raises:
            StoreError: the store cannot be opened.
        """
        async with self._changing:
            if not self._count:
                self._is_kept = self._store.is_open
            if not self._store.is_open:
                await self._store.open()
            self._count += 1

    async def leave(self) -> bool:
        """Remove a service; return whether the store was closed."""
        async with self._changing:
            self._count -= 1
            if self._count or self._is_kept:
                return False
            await self._store.close()
            return True


class Calls:
    """Counts the calls in progress, so that closing a store can wait for them."""

    __slots__ = ("_idle", "number")

    def __init__(self) -> None:
        self.number = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def enter(self) -> None:
        """A call begins."""
        self.number += 1
        self._idle.clear()

    def leave(self) -> None:
        """A call has ended."""
        self.number -= 1
        if not self.number:
            self._idle.set()

    async def ended(self) -> None:
        """Wait until no call is left."""
        await self._idle.wait()


@dataclass(slots=True)
class Counters:
    """Counts since the store was opened.

    Attributes:
        transactions: begun runs of transaction functions.
        commits: transactions with writes that took effect.
        retries: runs that repeated an earlier one.
        conflicts: commits that failed because other transactions had written keys that they had read.
    """

    transactions: int = 0
    commits: int = 0
    retries: int = 0
    conflicts: int = 0

    def as_dict(self) -> dict[str, int]:
        """Return the counts by name."""
        return asdict(self)


class CommitTimes:
    """Durations of commits, in buckets that are powers of two.

    Attributes:
        bounds: upper bounds of the buckets, in seconds.
        counts: number of commits in each bucket, up to and including its bound.
        seconds: sum of all durations.
    """

    __slots__ = ("counts", "seconds")
    bounds: Final = BOUNDS

    def __init__(self) -> None:
        self.counts = [0] * _BUCKETS
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        """Count a commit."""
        # frexp: seconds = m * 2**e with 0.5 <= m < 1; a power of two itself belongs to the bucket that it ends.
        mantissa, power = math.frexp(seconds)
        place = power - _FIRST_POWER - (mantissa == 0.5)
        self.counts[0 if place < 0 or seconds <= 0 else min(place, _BUCKETS - 1)] += 1
        self.seconds += seconds


@contextmanager
def background() -> Iterator[None]:
    """Give low priority to the transactions that begin within the block, and in tasks that are started there.

    FoundationDB calls it batch priority: a busy cluster serves them after all others, and a saturated one not at all.
    It is for work without a waiting caller and without a promise.
    """
    token = _BACKGROUND.set(True)
    try:
        yield
    finally:
        _BACKGROUND.reset(token)


def in_background() -> bool:
    """Whether the present code is within `background()`."""
    return _BACKGROUND.get()


def not_open(address: str) -> StoreError:
    """Return the error for a call on a store that is not open."""
    return StoreError(f"store {address} is not open")


def open_loop(address: str, is_open: bool, loop: asyncio.AbstractEventLoop | None) -> asyncio.AbstractEventLoop:
    """Return the event loop of a store's `open`.

    Raises:
        StoreError: the store is not open, or another loop runs on this thread.
        RuntimeError: no loop runs on this thread.
    """
    if not is_open or loop is None:
        raise not_open(address)
    if asyncio.get_running_loop() is not loop:
        raise StoreError(f"store {address} {OTHER_LOOP}")
    return loop


# The running of transaction functions


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a never suspending coroutine to its end, and return its result.

    Stores that answer every read at once run transaction functions with this, on any thread.

    Raises:
        StoreError: it awaited something else than its transaction, or is no coroutine.
    """
    try:
        awaited = coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    except (RuntimeError, AttributeError) as error:
        if not isinstance(coroutine, Coroutine):
            raise no_coroutine(coroutine) from error
        if _needs_a_loop(error):
            raise foreign_await("something that needs the event loop") from error
        raise
    raise stray_await(coroutine, awaited)


def stray_await(coroutine: Coroutine[Any, Any, Any], awaited: object) -> StoreError:
    """Close a coroutine with a foreign await, and return the error for it.

    Args:
        coroutine: the suspended coroutine of a transaction function.
        awaited: the object that it awaits.
    """
    # It may await something else while it unwinds, or fail: the error must name the first await.
    with contextlib.suppress(Exception):
        coroutine.close()
    return foreign_await(shown(awaited, 150) if awaited is not None else "a bare yield, such as asyncio.sleep(0)")


def ran_too_long(seconds: float, limits: Limits) -> TransactionTooOld:
    """Return the error for a transaction function that ran for so many seconds."""
    return TransactionTooOld(
        f"transaction_too_old (1007): a transaction function ran for {seconds:.1f} s; the limit is {limits.seconds:g} s"
    )


def no_coroutine(returned: object) -> StoreError:
    """Return the error for a transaction function that returns no coroutine."""
    return StoreError(f"a transaction function must return a coroutine, as an async def does, not {shown(returned)}")


def foreign_await(what: str) -> StoreError:
    """Return the error for a transaction function that awaits anything but its transaction."""
    return StoreError(
        f"a transaction function may await nothing but its transaction; this one awaited {what}. "
        "Do it before or after transact()"
    )


def _needs_a_loop(error: Exception) -> bool:
    """Return whether the error comes from asyncio, anyio or sniffio, called without a running loop."""
    if "event loop" in str(error):  # said by functions written in C, which leave no frame
        return True
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    module = str(frame.tb_frame.f_globals.get("__name__")) if frame is not None else ""
    return module.partition(".")[0] in ("asyncio", "anyio", "sniffio")


# Checks of arguments


class CheckedTransaction(Transaction):
    """A transaction that checks each write before taking it, and counts the bytes.

    Args:
        limits: limits of its writes.
        read_only: whether writes are refused.

    Attributes:
        size: bytes of the keys and values written so far.
    """

    __slots__ = ("_ended", "_read_only", "limits", "size")

    def __init__(self, limits: Limits, *, read_only: bool) -> None:
        self.limits = limits
        self.size = 0
        self._read_only = read_only
        self._ended = False

    def end(self) -> None:
        """Refuse every write from now on; called when the transaction has committed or never will."""
        self._read_only = True
        self._ended = True

    def _check(self, key: bytes, value: bytes) -> None:
        """Check a write, and add its bytes to `size`.

        Raises:
            StoreError: the write is refused.
        """
        # Nearly always both are exactly bytes, and finding that out is cheaper than two calls.
        if key.__class__ is not bytes or value.__class__ is not bytes:
            only_bytes(key, "key")
            only_bytes(value, "value")
        limits = self.limits
        key_size, value_size = len(key), len(value)
        self.size = size = self.size + key_size + value_size
        if (
            key_size > limits.key
            or not key_size
            or value_size > limits.value
            or key >= SYSTEM_KEYS
            or self._read_only
            or size > limits.transaction
        ):
            self.size -= key_size + value_size
            self._refuse(key, value)

    def _check_cleared(self, key: bytes) -> None:
        """Check the clearing of a key, in fewer steps than `_check` if nothing is wrong."""
        if isinstance(key, bytes) and b"" < key < SYSTEM_KEYS and not self._read_only:
            limits = self.limits
            size = len(key)
            if size <= limits.key and self.size + size <= limits.transaction:
                self.size += size
                return
        self._check(key, b"")

    def require_room(self, writes: Sequence[tuple[bytes, bytes]]) -> None:
        size = self.size
        self.size = self._size_with_others()
        try:
            for key, value in writes:
                self._check(key, value)
        finally:
            self.size = size

    def _size_with_others(self) -> int:
        """Return the bytes of the whole transaction, including writes by other code."""
        return self.size

    def _check_clear(self, begin: bytes, end: bytes) -> None:
        """Check the clearing of a range, and add its bytes to `size`."""
        self._check_bounds(begin, end)
        self._add_size(len(begin) + len(end))

    def _check_bounds(self, begin: bytes, end: bytes) -> None:
        """Refuse a range with the store's own keys."""
        if max(only_bytes(begin, "key"), only_bytes(end, "key")) > SYSTEM_KEYS:
            raise system_key(max(begin, end))

    def _check_watch(self, key: bytes) -> None:
        """Refuse to watch an invalid key."""
        if not 0 < len(only_bytes(key, "key")) <= self.limits.key:
            raise bad_length(key, self.limits)
        if key >= SYSTEM_KEYS:
            raise system_key(key)

    def _add_size(self, size: int) -> None:
        """Add so many bytes to `size`. Raises like `_check`."""
        if self._read_only:
            raise self._refusal()
        self.size += size
        if self.size > self.limits.transaction:
            raise self._too_large()

    def _refuse(self, key: bytes, value: bytes) -> NoReturn:
        """Raise the error for a write that `_check` refuses."""
        limits = self.limits
        if not 0 < len(key) <= limits.key:
            raise bad_length(key, limits)
        if len(value) > limits.value:
            raise TransactionTooLarge(f"a value of {len(value)} bytes; the limit is {limits.value}")
        if key >= SYSTEM_KEYS:
            raise system_key(key)
        if self._read_only:
            raise self._refusal()
        raise self._too_large()

    def _too_large(self) -> StoreError:
        return TransactionTooLarge(
            f"a transaction that writes more than {self.limits.transaction} bytes; split it into several"
        )

    def _refusal(self) -> StoreError:
        if self._ended:
            return transaction_ended()
        return StoreError("this transaction only reads; write in transact()")


def transaction_ended() -> StoreError:
    """Return the error for a use of a transaction after its end."""
    return StoreError("this transaction has ended; it is of use only inside its transaction function")


def only_bytes(value: Any, what: str) -> bytes:
    """Return the value if it is bytes.

    Raises:
        StoreError: it is not.
    """
    if not isinstance(value, bytes):
        raise StoreError(f"a {what} of type {kind_of(value)}; only bytes are allowed")
    return value


def only_keys(keys: Any) -> Sequence[bytes]:
    """Return the keys if they are a list or a tuple."""
    if not isinstance(keys, list | tuple):
        raise StoreError(f"keys of type {kind_of(keys)}; only lists and tuples are allowed")
    return keys


def check_selector(selector: Bound) -> KeySelector:
    """Return a range's bound that is not bytes, if it is a selector that names a key."""
    if not isinstance(selector, KeySelector):
        raise StoreError(f"a range's bound of type {kind_of(selector)}; only bytes and KeySelector are allowed")
    if not isinstance(selector.key, bytes) or selector.key > SYSTEM_KEYS:
        raise not_readable(selector.key)
    if type(selector.offset) is not int:
        raise StoreError(f"a selector with offset {shown(selector.offset)}; only integers are allowed")
    if selector.or_equal is not True and selector.or_equal is not False:
        raise StoreError(f"a selector with or_equal={shown(selector.or_equal)}; allowed are True and False")
    return selector


def check_range(limit: int, reverse: bool) -> None:
    """Refuse an invalid limit or direction of a range read."""
    if type(limit) is not int or limit < 0:
        raise StoreError(f"a range with limit {shown(limit)}; 0 for all pairs, or more")
    if reverse is not True and reverse is not False:
        raise StoreError(f"a range with reverse={shown(reverse)}; allowed are True and False")


def bad_length(key: bytes, limits: Limits) -> StoreError:
    """Return the error for an empty or too long key."""
    return TransactionTooLarge(f"a key of {len(key)} bytes; from 1 to {limits.key} are allowed")


def system_key(key: bytes) -> StoreError:
    """Return the error for a key of the store's own."""
    return StoreError(f"the key {key[:20]!r} belongs to the store; keys must be less than b'\\xff'")


def not_readable(key: Any) -> StoreError:
    """Return the error for an unreadable key: the store's own, or not bytes."""
    return system_key(only_bytes(key, "key"))


def not_readable_yet(key: bytes) -> StoreError:
    """Return the error for a key that awaits a versionstamp, in itself or in its value."""
    return StoreError(
        f"accessed_unreadable (1036): {key[:40]!r} gets its versionstamp when this transaction commits, "
        "so it cannot be read back in it"
    )
