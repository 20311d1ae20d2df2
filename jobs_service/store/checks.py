"""Checks shared by all stores, with one message for each: types, sizes, the store's own keys, forbidden writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from jobs_service.errors import StoreError, TransactionTooLarge, kind_of, shown
from jobs_service.store.base import SYSTEM_KEYS, Bound, KeySelector, Limits, Transaction


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
        if max(only_bytes(begin, "key"), only_bytes(end, "key")) > SYSTEM_KEYS:
            raise system_key(max(begin, end))
        self._writable(len(begin) + len(end))

    def _check_conflict(self, begin: bytes, end: bytes) -> None:
        """Refuse read conflicts on the store's own keys."""
        if max(only_bytes(begin, "key"), only_bytes(end, "key")) > SYSTEM_KEYS:
            raise system_key(max(begin, end))

    def _check_watch(self, key: bytes) -> None:
        """Refuse to watch an invalid key."""
        if not 0 < len(only_bytes(key, "key")) <= self.limits.key:
            raise bad_length(key, self.limits)
        if key >= SYSTEM_KEYS:
            raise system_key(key)

    def _writable(self, size: int) -> None:
        """Add so many bytes to `size`."""
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
