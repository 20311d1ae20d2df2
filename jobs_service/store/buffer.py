"""A transaction as a base state plus a buffer of its own writes, for stores whose reads are answered at once.

Floor: store. Reading its own writes, versionstamps that cannot be read back, key selectors and limits are the same
for every such store because they are here; a store gives the base reads and applies the log when it commits.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

from jobs_service.errors import StoreError, TransactionTooLarge
from jobs_service.store.base import (
    STAMP_BYTES,
    SYSTEM_KEYS,
    Bound,
    CommitStamp,
    KeySelector,
    KeyValue,
    Limits,
    Snapshot,
    Transaction,
    Watch,
)

SET: Final = 0
CLEAR: Final = 1
CLEAR_RANGE: Final = 2
ADD: Final = 3
STAMPED_KEY: Final = 4
STAMPED_VALUE: Final = 5

Write = tuple[int, bytes, Any, int]
"""(operation, key, value or end or operand, offset of the placeholder)."""

_MISSING: Final = object()
_UNREADABLE: Final = object()
_LOWEST_STAMP = b"\x00" * STAMP_BYTES
_HIGHEST_STAMP = b"\xff" * STAMP_BYTES


class BaseState(Protocol):
    """The committed state that a transaction sees."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key."""

    def scan(self, begin: bytes, end: bytes, reverse: bool) -> Iterator[KeyValue]:
        """Yield the pairs from begin up to, not including, end; lazily, in either direction."""


class Reads(Protocol):
    """Keeps what a transaction has read, for the store that checks conflicts when it commits."""

    def add(self, begin: bytes, end: bytes) -> None:
        """Note that the range from begin up to, not including, end was read."""

    def clear(self) -> None:
        """Forget what was read."""


class _Operands:
    """Atomic adds to a key whose base value nobody has read yet."""

    __slots__ = ("operands",)

    def __init__(self, operand: bytes) -> None:
        self.operands = [operand]


def added(value: bytes | None, operand: bytes) -> bytes:
    """Return the little-endian sum, as long as the operand, wrapping on overflow."""
    size = len(operand)
    total = int.from_bytes((value or b"")[:size], "little") + int.from_bytes(operand, "little")
    return (total & ((1 << (8 * size)) - 1)).to_bytes(size, "little")


def stamped(template: bytes, offset: int, stamp: bytes) -> bytes:
    """Return the template with its placeholder replaced by the versionstamp."""
    return template[:offset] + stamp + template[offset + STAMP_BYTES :]


class BufferedTransaction(Transaction):
    """A transaction over a base state.

    Args:
        base: the committed state it reads.
        limits: what it may write.
        reads: keeps what was read; None where transactions run one after the other.
        read_only: whether writes are refused.
    """

    __slots__ = (
        "_base",
        "_cleared",
        "_read_only",
        "_reads",
        "_unreadable",
        "_written",
        "_written_keys",
        "limits",
        "log",
        "size",
        "stamp",
        "watches",
    )

    def __init__(self, base: BaseState, limits: Limits, *, reads: Reads | None = None, read_only: bool = False) -> None:
        self._base = base
        self.limits = limits
        self._reads = reads
        self._read_only = read_only
        self._written: dict[bytes, Any] = {}
        self._written_keys: list[bytes] | None = None
        self._cleared: list[tuple[bytes, bytes]] = []
        self._unreadable: list[tuple[bytes, bytes]] = []
        self.log: list[Write] = []
        self.size = 0
        self.stamp = CommitStamp()
        self.watches: list[Watch] = []

    @property
    def snapshot(self) -> Snapshot:
        return _SnapshotReads(self)

    # Reads

    async def get(self, key: bytes) -> bytes | None:
        return self.get_now(key, self._reads)

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        reads = self._reads
        return [self.get_now(key, reads) for key in keys]

    async def get_range(self, begin: Bound, end: Bound, *, limit: int = 0, reverse: bool = False) -> list[KeyValue]:
        return self.get_range_now(begin, end, limit, reverse, self._reads)

    def get_now(self, key: bytes, reads: Reads | None) -> bytes | None:
        """Return the key's value as this transaction sees it, noting the read in `reads`."""
        written = self._written
        if written or self._cleared or self._unreadable:
            value = written.get(key, _MISSING)
            if value is _MISSING:
                if any(begin <= key < end for begin, end in self._unreadable):
                    raise _unreadable(key)
                if self._is_cleared(key):
                    return None
            elif value is _UNREADABLE:
                raise _unreadable(key)
            elif value.__class__ is _Operands:
                return self._settle(key, value, reads)
            else:
                return value  # type: ignore[no-any-return]
        if reads is not None:
            reads.add(key, key + b"\x00")
        return self._base.get(key) if 0 < len(key) <= self.limits.key else None

    def get_range_now(self, begin: Bound, end: Bound, limit: int, reverse: bool, reads: Reads | None) -> list[KeyValue]:
        """Return pairs as this transaction sees them, noting what was read in `reads`."""
        if begin.__class__ is not bytes:
            begin = self._resolve(begin, reads)
        if end.__class__ is not bytes:
            end = self._resolve(end, reads)
        assert isinstance(begin, bytes)
        assert isinstance(end, bytes)
        end = min(end, SYSTEM_KEYS)
        if begin >= end:
            return []
        if self._written or self._cleared or self._unreadable:
            pairs = self._merged(begin, end, reverse)
        else:
            pairs = self._base.scan(begin, end, reverse)
        found: list[KeyValue] = []
        for pair in pairs:
            found.append(pair)
            if len(found) == limit:
                if reverse:
                    begin = pair[0]
                else:
                    end = pair[0] + b"\x00"
                break
        for low, high in self._unreadable:
            if low < end and begin < high:
                raise _unreadable(low)
        if reads is not None:
            reads.add(begin, end)
        return found

    # Writes

    def set(self, key: bytes, value: bytes) -> None:
        self._check(key, value)
        self._written[key] = value
        self._written_keys = None
        self.log.append((SET, key, value, 0))

    def clear(self, key: bytes) -> None:
        self._check(key, b"")
        self._written[key] = None
        self._written_keys = None
        self.log.append((CLEAR, key, None, 0))

    def clear_range(self, begin: bytes, end: bytes) -> None:
        _bytes(begin, "key")
        end = min(_bytes(end, "key"), SYSTEM_KEYS)
        self._writable(len(begin) + len(end))
        if begin >= end:
            return
        for key in [key for key in self._written if begin <= key < end]:
            del self._written[key]
        self._written_keys = None
        self._cleared.append((begin, end))
        self.log.append((CLEAR_RANGE, begin, end, 0))

    def add(self, key: bytes, operand: bytes) -> None:
        self._check(key, operand)
        value = self._written.get(key, _MISSING)
        if value is _UNREADABLE:
            pass
        elif value.__class__ is _Operands:
            value.operands.append(operand)
        elif value is not _MISSING:
            self._written[key] = added(value, operand)
        elif self._is_cleared(key):
            self._written[key] = added(None, operand)
        else:
            self._written[key] = _Operands(operand)
            self._written_keys = None
        self.log.append((ADD, key, operand, 0))

    def set_versionstamped_key(self, key: bytes, value: bytes) -> None:
        template, offset = _template(key, "key")
        self._check(template, value)
        self._unreadable.append(
            (stamped(template, offset, _LOWEST_STAMP), stamped(template, offset, _HIGHEST_STAMP) + b"\x00")
        )
        self.log.append((STAMPED_KEY, template, value, offset))

    def set_versionstamped_value(self, key: bytes, value: bytes) -> None:
        template, offset = _template(value, "value")
        self._check(key, template)
        self._written[key] = _UNREADABLE
        self._written_keys = None
        self.log.append((STAMPED_VALUE, key, template, offset))

    def add_read_conflict_key(self, key: bytes) -> None:
        if self._reads is not None:
            self._reads.add(key, key + b"\x00")

    def add_read_conflict_range(self, begin: bytes, end: bytes) -> None:
        if self._reads is not None:
            self._reads.add(begin, end)

    def watch(self, key: bytes) -> Watch:
        watch = Watch(_bytes(key, "key"))
        self.watches.append(watch)
        return watch

    def discard(self) -> None:
        self.log.clear()
        self.watches.clear()
        self._written.clear()
        self._written_keys = None
        self._cleared.clear()
        self._unreadable.clear()
        if self._reads is not None:
            self._reads.clear()

    def settle_watches(self) -> None:
        """Note what each watched key holds at the end of the transaction; called before the log is applied.

        A key that is to get a versionstamp has no value yet: its watch's baseline is set by `applied`.
        """
        for watch in self.watches:
            value = self._written.get(watch.key, _MISSING)
            if value is not _UNREADABLE:
                watch.baseline = self.get_now(watch.key, None)

    # How the transaction sees the base state

    def _is_cleared(self, key: bytes) -> bool:
        return any(begin <= key < end for begin, end in self._cleared)

    def _settle(self, key: bytes, adds: _Operands, reads: Reads | None) -> bytes:
        if reads is not None:
            reads.add(key, key + b"\x00")
        value = self._base.get(key)
        for operand in adds.operands:
            value = added(value, operand)
        assert value is not None
        self._written[key] = value
        return value

    def _merged(self, begin: bytes, end: bytes, reverse: bool) -> Iterator[KeyValue]:
        """Yield the base's pairs and the own ones in order; an own one wins."""
        if self._written_keys is None:
            self._written_keys = sorted(self._written)
        keys = self._written_keys
        own = keys[bisect_left(keys, begin) : bisect_left(keys, end)]
        if reverse:
            own.reverse()
        position = 0
        for key, value in self._uncleared(begin, end, reverse):
            while position < len(own) and ((own[position] > key) if reverse else (own[position] < key)):
                yield from self._own(own[position])
                position += 1
            if position < len(own) and own[position] == key:
                yield from self._own(key)
                position += 1
            else:
                yield key, value
        for key in own[position:]:
            yield from self._own(key)

    def _own(self, key: bytes) -> Iterator[KeyValue]:
        value = self.get_now(key, self._reads)
        if value is not None:
            yield key, value

    def _uncleared(self, begin: bytes, end: bytes, reverse: bool) -> Iterator[KeyValue]:
        """Yield the base's pairs outside of the cleared ranges, without reading through those."""
        gaps: list[tuple[bytes, bytes]] = []
        position = begin
        for low, high in sorted(self._cleared):
            if low >= end:
                break
            if high > position:
                if low > position:
                    gaps.append((position, low))
                position = high
        if position < end:
            gaps.append((position, end))
        for low, high in reversed(gaps) if reverse else gaps:
            yield from self._base.scan(low, high, reverse)

    def _resolve(self, selector: Bound, reads: Reads | None) -> bytes:
        """Return the key that a selector names in this transaction's view, clamped to the ends."""
        assert isinstance(selector, KeySelector)
        start = selector.key + b"\x00" if selector.or_equal else selector.key
        if selector.offset > 0:
            found = self.get_range_now(start, SYSTEM_KEYS, selector.offset, False, reads)
            return found[-1][0] if len(found) == selector.offset else SYSTEM_KEYS
        back = 1 - selector.offset
        found = self.get_range_now(b"", start, back, True, reads)
        return found[-1][0] if len(found) == back else b""

    # Limits

    def _check(self, key: bytes, value: bytes) -> None:
        limits = self.limits
        if key.__class__ is not bytes or value.__class__ is not bytes:
            _bytes(key, "key")
            _bytes(value, "value")
        if not 0 < len(key) <= limits.key:
            raise TransactionTooLarge(f"a key of {len(key)} bytes; from 1 to {limits.key} are allowed")
        if len(value) > limits.value:
            raise TransactionTooLarge(f"a value of {len(value)} bytes; the limit is {limits.value}")
        if key >= SYSTEM_KEYS:
            raise StoreError(f"the key {key[:20]!r} belongs to the store; keys must be less than b'\\xff'")
        self._writable(len(key) + len(value))

    def _writable(self, size: int) -> None:
        if self._read_only:
            raise StoreError("this transaction only reads; write in transact()")
        self.size += size
        if self.size > self.limits.transaction:
            raise TransactionTooLarge(
                f"a transaction that writes more than {self.limits.transaction} bytes; split it into several"
            )


class _SnapshotReads(Snapshot):
    """The transaction's reads without read conflicts."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: BufferedTransaction) -> None:
        self._transaction = transaction

    async def get(self, key: bytes) -> bytes | None:
        return self._transaction.get_now(key, None)

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self._transaction.get_now(key, None) for key in keys]

    async def get_range(self, begin: Bound, end: Bound, *, limit: int = 0, reverse: bool = False) -> list[KeyValue]:
        return self._transaction.get_range_now(begin, end, limit, reverse, None)


def _bytes(value: Any, what: str) -> bytes:
    if not isinstance(value, bytes):
        raise StoreError(f"a {what} of type {type(value).__name__}; only bytes are allowed")
    return value


def _template(value: bytes, what: str) -> tuple[bytes, int]:
    """Split a versionstamp operand into the template and the placeholder's offset."""
    size = len(_bytes(value, what)) - 4
    offset = int.from_bytes(value[-4:], "little")
    if size < 0 or offset + STAMP_BYTES > size:
        raise StoreError(f"a versionstamped {what} needs 10 bytes of placeholder and ends with its 4-byte offset")
    return value[:size], offset


def _unreadable(key: bytes) -> StoreError:
    return StoreError(
        f"accessed_unreadable (1036): {key[:40]!r} gets its versionstamp when this transaction commits, "
        "so it cannot be read back in it"
    )
