"""A transaction's own writes over the state that it reads: its log, and what it can read back.

`BufferedTransaction` is for stores whose reads are answered at once. It reads its own writes, refuses to read
versionstamps back, resolves key selectors and enforces the limits, the same for every such store. The store supplies
the base state, and applies the log at the commit. The module has more than 600 lines because log, sets of keys and
buffers are one model of a transaction's writes, which FoundationDB's transactions use in part.
"""

from __future__ import annotations

import functools
import operator
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from sys import maxsize
from typing import Any, ClassVar, Final, Protocol

from jobs_service.errors import StoreError
from jobs_service.store.base import (
    STAMP_BYTES,
    SYSTEM_KEYS,
    Bound,
    CheckedTransaction,
    CommitStamp,
    KeyValue,
    Limits,
    Snapshot,
    Watch,
    check_range,
    check_selector,
    not_readable,
    not_readable_yet,
    only_bytes,
    only_keys,
    system_key,
    transaction_ended,
)

SET: Final = 0
CLEAR: Final = 1
CLEAR_RANGE: Final = 2
ADD: Final = 3
STAMPED_KEY: Final = 4
STAMPED_VALUE: Final = 5

Write = tuple[int, bytes, Any, Any]
"""(operation, key, value or end or operand, None); with a versionstamp between `before` and `after`
(STAMPED_KEY, before, after, value) and (STAMPED_VALUE, key, before, after)."""

LOWEST_STAMP: Final = b"\x00" * STAMP_BYTES
HIGHEST_STAMP: Final = b"\xff" * STAMP_BYTES

_MISSING: Final = object()


# The log


def added(value: bytes | None, operand: bytes) -> bytes:
    """Return the little-endian sum, as long as the operand, wrapping on overflow."""
    if not value:
        return operand
    size = len(operand)
    if len(value) != size:
        value = value[:size].ljust(size, b"\x00")
    number, end = _number(operand)
    total = int.from_bytes(value[:end], "little") + number
    if total.bit_length() <= 8 * end:
        return total.to_bytes(end, "little") + value[end:]
    total = int.from_bytes(value, "little") + number
    return (total & ((1 << (8 * size)) - 1)).to_bytes(size, "little")


@functools.lru_cache(64)  # most additions to the counts are the same as others
def _number(operand: bytes) -> tuple[int, int]:
    """Return an operand as a number, and the count of a value's low bytes that change without a carry.

    Mostly these are few: the rest of the operand is zero.
    """
    number = int.from_bytes(operand, "little")
    return number, min((number.bit_length() + 63) // 64 * 8, len(operand))


def outcome(
    log: list[Write],
    stamp: bytes,
    get: Callable[[bytes], bytes | None],
    keys_in: Callable[[bytes, bytes], Iterable[bytes]],
) -> dict[bytes, bytes | None]:
    """Return the new value of each key that the log writes; None for a removed key.

    Args:
        log: the log of one transaction.
        stamp: the transaction's versionstamp.
        get: returns the value of a key before the transaction.
        keys_in: returns the existing keys from begin up to, not including, end.
    """
    written: dict[bytes, bytes | None] = {}
    for operation, key, argument, last in log:
        if operation == SET:
            written[key] = argument
        elif operation == STAMPED_VALUE:
            written[key] = argument + stamp + last
        elif operation == CLEAR:
            written[key] = None
        elif operation == ADD:
            written[key] = added(written[key] if key in written else get(key), argument)
        elif operation == CLEAR_RANGE:
            written.update((own, None) for own in list(written) if key <= own < argument)
            written.update((found, None) for found in keys_in(key, argument))
        else:
            written[key + stamp + argument] = last
    return written


# Sets of keys


class Ranges:
    """A set of keys, as disjoint ranges in order."""

    __slots__ = ("_begins", "_ends")

    def __init__(self) -> None:
        self._begins: list[bytes] = []
        self._ends: list[bytes] = []

    def __contains__(self, key: bytes) -> bool:
        place = bisect_right(self._begins, key) - 1
        return place >= 0 and key < self._ends[place]

    def add(self, begin: bytes, end: bytes) -> None:
        """Add the keys from begin up to, not including, end (> begin)."""
        first = bisect_left(self._ends, begin)
        last = bisect_right(self._begins, end)
        if first < last:
            begin = min(begin, self._begins[first])
            end = max(end, self._ends[last - 1])
        self._begins[first:last] = [begin]
        self._ends[first:last] = [end]

    def remove(self, begin: bytes, end: bytes) -> None:
        """Remove the keys from begin up to, not including, end (> begin)."""
        first = bisect_right(self._ends, begin)
        last = bisect_left(self._begins, end)
        if first < last:
            lowest, highest = self._begins[first], self._ends[last - 1]
            self._begins[first:last] = [lowest] * (lowest < begin) + [end] * (end < highest)
            self._ends[first:last] = [begin] * (lowest < begin) + [highest] * (end < highest)

    def first_within(self, begin: bytes, end: bytes) -> bytes | None:
        """Return the lowest of the set's keys from begin up to, not including, end."""
        place = bisect_right(self._ends, begin)
        if place == len(self._begins) or self._begins[place] >= end:
            return None
        return max(begin, self._begins[place])

    def last_within(self, begin: bytes, end: bytes) -> bytes | None:
        """Return the end of the set's last range with keys from begin up to, not including, end; at most end."""
        place = bisect_left(self._begins, end) - 1
        if place < 0 or self._ends[place] <= begin:
            return None
        return min(end, self._ends[place])

    def gaps(self, begin: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
        """Return the gaps of the set between begin and end, in order."""
        gaps = []
        for place in range(bisect_right(self._ends, begin), bisect_left(self._begins, end)):
            if begin < self._begins[place]:
                gaps.append((begin, self._begins[place]))
            begin = self._ends[place]
        if begin < end:
            gaps.append((begin, end))
        return gaps


class Stamped:
    """The keys that await a versionstamp in themselves or their value; they become ranges only for a read."""

    __slots__ = ("_new", "_ranges")

    def __init__(self) -> None:
        self._new: list[tuple[bytes, bytes | None]] = []
        self._ranges: Ranges | None = None

    def add_value(self, key: bytes) -> None:
        """Add a key whose value awaits a stamp."""
        self._new.append((key, None))

    def add_key(self, before: bytes, after: bytes) -> None:
        """Add all keys that can result from a stamp between the two parts."""
        self._new.append((before, after))

    def forget(self) -> None:
        """Remove all of them."""
        self._new.clear()
        self._ranges = None

    def unreadable(self) -> Ranges | None:
        """Return the keys that cannot be read back, as ranges; None for none."""
        if self._new:
            if self._ranges is None:
                self._ranges = Ranges()
            for key, after in self._new:
                if after is None:
                    self._ranges.add(key, key + b"\x00")
                else:
                    self._ranges.add(key + LOWEST_STAMP + after, key + HIGHEST_STAMP + after + b"\x00")
            self._new.clear()
        return self._ranges


# A base state under own writes


class BaseState(Protocol):
    """The committed state under a transaction."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key."""

    def scan(self, begin: bytes, end: bytes, reverse: bool) -> Iterator[KeyValue]:
        """Yield the pairs from begin up to, not including, end; lazily, in either direction."""


class ReadRanges:
    """The ranges that a transaction has read; the commit looks for conflicts in them."""

    __slots__ = ("ranges",)

    def __init__(self) -> None:
        self.ranges: list[tuple[bytes, bytes]] = []

    def add(self, begin: bytes, end: bytes) -> None:
        """Record a read of the range from begin up to, not including, end."""
        self.ranges.append((begin, end))


class _Operands:
    """Atomic adds to a key without a read of its value."""

    __slots__ = ("operands",)

    def __init__(self, operand: bytes) -> None:
        self.operands = [operand]

    def add(self, operand: bytes) -> None:
        """Add an operand; operands of one length are kept as their sum."""
        if len(operand) == len(self.operands[-1]):
            self.operands[-1] = added(self.operands[-1], operand)
        else:
            self.operands.append(operand)


class BufferedTransaction(CheckedTransaction):
    """A transaction over a base state.

    Args:
        base: the committed state for its reads.
        limits: limits of its writes.
        reads: collects the ranges of its reads; None if transactions run one after the other, without conflicts.
        read_only: whether writes are refused.
    """

    __slots__ = ("_base", "_cleared", "_reads", "_stamped", "_written", "_written_keys", "log", "stamp", "watches")

    base_errors: ClassVar[tuple[type[Exception], ...]] = ()
    """Exceptions of the base state's reads that `base_failure` translates."""

    def base_failure(self, error: Exception) -> StoreError:
        """Return the store's error for one of `base_errors`."""
        raise NotImplementedError

    def __init__(
        self, base: BaseState, limits: Limits, *, reads: ReadRanges | None = None, read_only: bool = False
    ) -> None:
        super().__init__(limits, read_only=read_only)
        self._base = base
        self._reads = reads
        self._written: dict[bytes, Any] = {}
        self._written_keys: list[bytes] | None = None
        self._cleared: Ranges | None = None
        self._stamped = Stamped()
        self.log: list[Write] = []
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
        keys = only_keys(keys)
        if reads is None and self._are_plain(keys) and self._are_untouched(keys):
            try:
                return list(map(self._base.get, keys))
            except self.base_errors as error:
                raise self.base_failure(error) from error
        return [self.get_now(key, reads) for key in keys]

    async def get_range(self, begin: Bound, end: Bound, *, limit: int = 0, reverse: bool = False) -> list[KeyValue]:
        return self.get_range_now(begin, end, limit, reverse, self._reads)

    def _are_plain(self, keys: Sequence[bytes]) -> bool:
        """Whether all of these are valid keys."""
        return (
            set(map(type, keys)) == {bytes}
            and min(keys) > b""
            and max(keys) < SYSTEM_KEYS
            and max(map(len, keys)) <= self.limits.key
        )

    def _are_untouched(self, keys: Sequence[bytes]) -> bool:
        """Whether this transaction sees the base's values of these keys."""
        return not self.log or (
            self._cleared is None and self._stamped.unreadable() is None and self._written.keys().isdisjoint(keys)
        )

    def get_now(self, key: bytes, reads: ReadRanges | None) -> bytes | None:
        """Return the key's value in this transaction's view, and record the read in `reads`."""
        if not isinstance(key, bytes):
            raise not_readable(key)
        if self.log:
            unreadable = self._stamped.unreadable()
            if unreadable is not None and key in unreadable:
                raise not_readable_yet(key)
            value = self._written.get(key, _MISSING)
            if value is _MISSING:
                if self._cleared is not None and key in self._cleared:
                    return None
            elif value.__class__ is _Operands:
                return self._sum(key, value, reads)
            else:
                return value  # type: ignore[no-any-return]
        if key >= SYSTEM_KEYS:
            raise system_key(key)
        if reads is not None:
            reads.add(key, key + b"\x00")
        try:
            return self._base.get(key) if 0 < len(key) <= self.limits.key else None
        except self.base_errors as error:
            raise self.base_failure(error) from error

    def get_range_now(
        self, begin: Bound, end: Bound, limit: int, reverse: bool, reads: ReadRanges | None
    ) -> list[KeyValue]:
        """Return pairs in this transaction's view, and record the range of the read in `reads`."""
        if not isinstance(begin, bytes):
            begin = self._resolve(begin, reads)
        if not isinstance(end, bytes):
            end = self._resolve(end, reads)
        if end > SYSTEM_KEYS or begin > SYSTEM_KEYS:
            raise not_readable(max(begin, end))
        check_range(limit, reverse)
        if begin >= end:
            return []
        pairs = self._merged(begin, end, reverse) if self.log else self._base.scan(begin, end, reverse)
        try:
            found = list(islice(pairs, min(limit, maxsize) or None))
        except self.base_errors as error:
            raise self.base_failure(error) from error
        if limit and len(found) == limit:
            if reverse:
                begin = found[-1][0]
            else:
                end = found[-1][0] + b"\x00"
        unreadable = self._stamped.unreadable()
        if unreadable is not None and (key := unreadable.first_within(begin, end)) is not None:
            raise not_readable_yet(key)
        if reads is not None:
            reads.add(begin, end)
        return found

    # Writes

    def set(self, key: bytes, value: bytes) -> None:
        self._check(key, value)
        self._written[key] = value
        self._written_keys = None
        self.log.append((SET, key, value, None))

    def clear(self, key: bytes) -> None:
        self._check_cleared(key)
        if (unreadable := self._stamped.unreadable()) is not None:
            unreadable.remove(key, key + b"\x00")
        self._written[key] = None
        self._written_keys = None
        self.log.append((CLEAR, key, None, None))

    def clear_range(self, begin: bytes, end: bytes) -> None:
        self._check_clear(begin, end)
        if begin >= end:
            return
        if (unreadable := self._stamped.unreadable()) is not None:
            unreadable.remove(begin, end)
        for key in [key for key in self._written if begin <= key < end]:
            del self._written[key]
        self._written_keys = None
        if self._cleared is None:
            self._cleared = Ranges()
        self._cleared.add(begin, end)
        self.log.append((CLEAR_RANGE, begin, end, None))

    def add(self, key: bytes, operand: bytes) -> None:
        self._check(key, operand)
        value = self._written.get(key, _MISSING)
        if value is _MISSING:
            is_cleared = self._cleared is not None and key in self._cleared
            self._written[key] = operand if is_cleared else _Operands(operand)
            self._written_keys = None
        elif value.__class__ is _Operands:
            value.add(operand)
        else:
            self._written[key] = added(value, operand)
        self.log.append((ADD, key, operand, None))

    def stamp_key(self, before: bytes, after: bytes, value: bytes) -> None:
        self._check(only_bytes(before, "key") + LOWEST_STAMP + only_bytes(after, "key"), value)
        self._stamped.add_key(before, after)
        self.log.append((STAMPED_KEY, before, after, value))

    def stamp_value(self, key: bytes, before: bytes, after: bytes) -> None:
        self._check(key, only_bytes(before, "value") + LOWEST_STAMP + only_bytes(after, "value"))
        self._stamped.add_value(key)
        self.log.append((STAMPED_VALUE, key, before, after))

    def add_read_conflict_key(self, key: bytes) -> None:
        self._check_bounds(key, key)
        if self._reads is not None:
            self._reads.add(key, key + b"\x00")

    def add_read_conflict_range(self, begin: bytes, end: bytes) -> None:
        self._check_bounds(begin, end)
        if self._reads is not None and begin < end:
            self._reads.add(begin, end)

    def watch(self, key: bytes) -> Watch:
        self._check_watch(key)
        watch = Watch(key)
        self.watches.append(watch)
        return watch

    def end(self) -> None:
        """Refuse every read and write from now on; called when the transaction has committed or never will."""
        super().end()
        self._base = _ENDED
        self.log = []

    def settle_watches(self) -> None:
        """Set each watch's baseline, the key's value at the end of the transaction. Called before the log is applied.

        A key that awaits a versionstamp has no value yet: the store sets its watch's baseline when it applies the log.
        """
        self._stamped.forget()
        for watch in self.watches:
            watch.baseline = self.get_now(watch.key, None)

    # How the transaction sees the base state

    def _sum(self, key: bytes, adds: _Operands, reads: ReadRanges | None) -> bytes:
        """Return the base's value with the adds; they stay adds, so that a later read is recorded as well."""
        if reads is not None:
            reads.add(key, key + b"\x00")
        try:
            value = self._base.get(key)
        except self.base_errors as error:
            raise self.base_failure(error) from error
        for operand in adds.operands:
            value = added(value, operand)
        assert value is not None
        return value

    def _merged(self, begin: bytes, end: bytes, reverse: bool) -> Iterator[KeyValue]:
        """Return the pairs of the base and of this transaction, in order; its own pair hides the base's."""
        if self._written_keys is None:
            self._written_keys = sorted(self._written)
        keys = self._written_keys
        own = keys[bisect_left(keys, begin) : bisect_left(keys, end)]
        if not own and self._cleared is None:
            return self._base.scan(begin, end, reverse)
        return self._mixed(own[::-1] if reverse else own, begin, end, reverse)

    def _mixed(self, own: list[bytes], begin: bytes, end: bytes, reverse: bool) -> Iterator[KeyValue]:
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
        value = self._written[key]
        if value.__class__ is _Operands:
            yield key, self._sum(key, value, None)  # the range read records the whole range
        elif value is not None:
            yield key, value

    def _uncleared(self, begin: bytes, end: bytes, reverse: bool) -> Iterator[KeyValue]:
        """Yield the base's pairs outside of the cleared ranges, without reading through these."""
        gaps = [(begin, end)] if self._cleared is None else self._cleared.gaps(begin, end)
        for low, high in reversed(gaps) if reverse else gaps:
            yield from self._base.scan(low, high, reverse)

    def _resolve(self, selector: Bound, reads: ReadRanges | None) -> bytes:
        """Return the key of a selector in this transaction's view, clamped to the ends."""
        selector = check_selector(selector)
        start = min(selector.key + b"\x00", SYSTEM_KEYS) if selector.or_equal else selector.key
        if selector.offset > 0:
            found = self.get_range_now(start, SYSTEM_KEYS, selector.offset, False, reads)
            return found[-1][0] if len(found) == selector.offset else SYSTEM_KEYS
        back = 1 - selector.offset
        found = self.get_range_now(b"", start, back, True, reads)
        return found[-1][0] if len(found) == back else b""


class _Ended:
    """The base state of an ended transaction."""

    def get(self, key: bytes) -> bytes | None:
        raise transaction_ended()

    def scan(self, begin: bytes, end: bytes, reverse: bool) -> Iterator[KeyValue]:
        raise transaction_ended()


_ENDED: Final = _Ended()


class _SnapshotReads(Snapshot):
    """The transaction's reads without read conflicts."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: BufferedTransaction) -> None:
        self._transaction = transaction

    async def get(self, key: bytes) -> bytes | None:
        return self._transaction.get_now(key, None)

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self._transaction.get_now(key, None) for key in only_keys(keys)]

    async def get_range(self, begin: Bound, end: Bound, *, limit: int = 0, reverse: bool = False) -> list[KeyValue]:
        return self._transaction.get_range_now(begin, end, limit, reverse, None)


# Embedded stores


class EngineState(BaseState, Protocol):
    """The state of one transaction of an embedded store's engine, LMDB or SQLite.

    Attributes:
        number: number of the commit that it makes, or of the newest one that it sees.
        failure: the first error of a read, after which the transaction is useless; None for none.
        undone: whether the last transaction function had the engine roll back everything.
    """

    number: int
    failure: Exception | None

    @property
    def undone(self) -> bool: ...

    def fail(self, error: Exception) -> StoreError:
        """Keep the error of a read as `failure`, and return it as one of the store."""

    def keys_in(self, begin: bytes, end: bytes) -> Iterator[bytes]:
        """Yield the keys from begin up to, not including, end."""

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Set each key to its value, and remove those with None."""

    def put_all(self, pairs: Sequence[KeyValue]) -> None:
        """Set many keys with one call."""

    def commit(self) -> None:
        """Commit; `end` follows all the same."""

    def end(self) -> None:
        """Roll back, unless it was committed, and let others begin. Idempotent."""


class EmbeddedTransaction(BufferedTransaction):
    """A buffered transaction that takes the writes of a unit of work, the majority of all writes, as two lists.

    LMDB and SQLite write them with one call, which saves a call and a log entry for each.

    Args:
        base, limits, read_only: as for every buffered transaction.
        claim: raises StoreFull if there is no room for so many bytes; None for readers.

    Attributes:
        values, keys: as given to `stamp_all`.
        is_urgent: whether it may use the store's reserve.
    """

    __slots__ = ("_claim", "_claimed", "_state", "is_urgent", "keys", "values")

    def __init__(
        self, base: EngineState, limits: Limits, *, read_only: bool = False, claim: Callable[[int], None] | None = None
    ) -> None:
        super().__init__(base, limits, read_only=read_only)
        self.values: Sequence[tuple[bytes, bytes, bytes]] = ()
        self.keys: Sequence[tuple[bytes, bytes, bytes]] = ()
        self.is_urgent = False
        self._state = base
        self._claim = claim
        self._claimed = 0

    def base_failure(self, error: Exception) -> StoreError:
        return self._state.fail(error)

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

    def roll_back(self) -> None:
        """Undo what it has written beside the buffer, after its function has failed."""

    def stamp_all(
        self, values: Sequence[tuple[bytes, bytes, bytes]], keys: Sequence[tuple[bytes, bytes, bytes]]
    ) -> None:
        key_limit, value_limit = self.limits.key, self.limits.value
        size = STAMP_BYTES * (len(values) + len(keys))
        # By column: a loop over the rows takes three times as long, and each job has several.
        if values:
            names, befores, afters = zip(*values, strict=True)
            longest_key, longest_value, written = _lengths(names, befores, afters)
            size += written
            if longest_key > key_limit or longest_value > value_limit - STAMP_BYTES:
                for key, before, after in values:
                    self._check(key, before + bytes(STAMP_BYTES) + after)
        if keys:
            befores, afters, contents = zip(*keys, strict=True)
            longest_value, longest_key, written = _lengths(contents, befores, afters)
            size += written
            if longest_key > key_limit - STAMP_BYTES or longest_value > value_limit:
                for before, after, value in keys:
                    self._check(before + bytes(STAMP_BYTES) + after, value)
        self._add_size(size)
        self.values = values
        self.keys = keys

    @property
    def writes(self) -> bool:
        """Whether there is anything to commit."""
        return bool(self.log or self.values or self.keys)


def _lengths(alone: Sequence[bytes], befores: Sequence[bytes], afters: Sequence[bytes]) -> tuple[int, int, int]:
    """Return the longest of `alone`, the longest of each before with its after, and the sum of all, in bytes."""
    sizes = [*map(len, alone)]
    around = [*map(operator.add, map(len, befores), map(len, afters))]
    return max(sizes), max(around), sum(sizes) + sum(around)


def grows(own: EmbeddedTransaction) -> bool:
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


def apply_log(state: EngineState, own: EmbeddedTransaction, stamp: bytes, written: dict[bytes, bytes | None]) -> None:
    """Write one transaction's log into the engine's; add each key's new value (None: removed) to `written`."""
    if own.log:
        changes = outcome(own.log, stamp, state.get, state.keys_in)
        state.write(changes)
        written.update(changes)
    if own.values or own.keys:
        pairs = [(key, before + stamp + after) for key, before, after in own.values]
        pairs += [(before + stamp + after, value) for before, after, value in own.keys]
        state.put_all(pairs)
        written.update(pairs)
    for watch in own.watches:
        if watch.key in written:
            watch.baseline = written[watch.key]
