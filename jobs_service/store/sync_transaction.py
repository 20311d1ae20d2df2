"""Runs transaction functions whose reads are answered at once, and gives transactions of such stores plain methods."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from jobs_service.errors import StoreError, TransactionTooOld, shown
from jobs_service.store.base import Bound, KeyValue, Limits, Snapshot, Transaction

T = TypeVar("T")


# Running


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
