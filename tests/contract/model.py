"""A plain model of a store: a dictionary, and transactions that are replayed on it operation by operation.

It is slow and obvious on purpose. Operations are plain tuples, so that hypothesis prints them readably.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from jobs_service.errors import StoreError
from jobs_service.store import KeySelector, Snapshot, Transaction
from jobs_service.store.base import Bound
from tests.contract.support import END

Operation = tuple[Any, ...]
"""A name and the operation's arguments."""

UNREADABLE = "accessed_unreadable"
"""What a read gives that met a key which is to get a versionstamp."""


class Unreadable(Exception):
    """The model's accessed_unreadable."""


class Model:
    """One transaction over a state, and what it would make of it.

    Args:
        state: the committed keys and values; not changed.
    """

    def __init__(self, state: dict[bytes, bytes]) -> None:
        self.view = dict(state)
        self.log: list[Operation] = []
        self._state = state

    def perform(self, operation: Operation) -> Any:
        """Do one operation and return what it gives."""
        name, *arguments = operation
        if name.startswith("snapshot_"):
            name = name.removeprefix("snapshot_")
        try:
            return getattr(self, name)(*arguments)
        except Unreadable:
            return UNREADABLE

    def committed(self, stamp: bytes) -> dict[bytes, bytes]:
        """Return the state that a commit with this versionstamp leaves."""
        after = Model(self._state)
        for name, *arguments in self.log:
            if name == "set_versionstamped_key":
                before, behind, value = arguments
                after.set(before + stamp + behind, value)
            elif name == "set_versionstamped_value":
                key, before, behind = arguments
                after.set(key, before + stamp + behind)
            else:
                getattr(after, name)(*arguments)
        return after.view

    # Writes

    def set(self, key: bytes, value: bytes) -> None:
        """See Transaction."""
        self.log.append(("set", key, value))
        self.view[key] = value

    def clear(self, key: bytes) -> None:
        """See Transaction."""
        self.log.append(("clear", key))
        self.view.pop(key, None)

    def clear_range(self, begin: bytes, end: bytes) -> None:
        """See Transaction."""
        if begin >= end:
            return
        self.log.append(("clear_range", begin, end))
        self.view = {key: value for key, value in self.view.items() if not begin <= key < end}

    def add(self, key: bytes, operand: bytes) -> None:
        """See Transaction."""
        self.log.append(("add", key, operand))
        size = len(operand)
        base = int.from_bytes(self.view.get(key, b"").ljust(size, b"\x00")[:size], "little")
        self.view[key] = ((base + int.from_bytes(operand, "little")) % 256**size).to_bytes(size, "little")

    def set_versionstamped_key(self, before: bytes, behind: bytes, value: bytes) -> None:
        """See Transaction; the operand is given by what stands before and behind the versionstamp."""
        self.log.append(("set_versionstamped_key", before, behind, value))

    def set_versionstamped_value(self, key: bytes, before: bytes, behind: bytes) -> None:
        """See Transaction; the operand is given by what stands before and behind the versionstamp."""
        self.log.append(("set_versionstamped_value", key, before, behind))

    # Reads

    def get(self, key: bytes) -> bytes | None:
        """See Transaction."""
        if self._unreadable(key):
            raise Unreadable
        return self.view.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See Transaction."""
        return [self.get(key) for key in keys]

    def get_range(self, begin: Bound, end: Bound, limit: int, reverse: bool) -> list[tuple[bytes, bytes]]:
        """See Transaction."""
        low = begin if isinstance(begin, bytes) else self.resolve(begin)
        high = end if isinstance(end, bytes) else self.resolve(end)
        pairs = [pair for pair in sorted(self.view.items(), reverse=reverse) if low <= pair[0] < high]
        if limit and len(pairs) >= limit:
            pairs = pairs[:limit]
            if reverse:
                low = pairs[-1][0]
            else:
                high = pairs[-1][0] + b"\x00"
        self._visit(low, high)
        return pairs

    def resolve(self, selector: KeySelector) -> bytes:
        """Return the key that a selector names."""
        keys = sorted(self.view)
        place = (bisect_right if selector.or_equal else bisect_left)(keys, selector.key) - 1 + selector.offset
        found = b"" if place < 0 else END if place >= len(keys) else keys[place]
        behind = selector.key + b"\x00" if selector.or_equal else selector.key
        if selector.offset > 0:
            self._visit(behind, END if found == END else found + b"\x00")
        else:
            self._visit(found, behind)
        return found

    def _visit(self, begin: bytes, end: bytes) -> None:
        """Fail if a key between the two is unreadable: it is enough to look where something begins or ends."""
        places = {begin}
        for name, *arguments in self.log:
            if name == "clear":
                places.add(arguments[0] + b"\x00")
            elif name == "clear_range":
                places.add(arguments[1])
            elif name == "set_versionstamped_value":
                places.add(arguments[0])
            elif name == "set_versionstamped_key":
                places.add(arguments[0] + b"\x00" * 10 + arguments[1])
        if any(self._unreadable(place) for place in places if begin <= place < end):
            raise Unreadable

    def _unreadable(self, key: bytes) -> bool:
        unreadable = False
        for name, *arguments in self.log:
            if name == "clear":
                unreadable &= key != arguments[0]
            elif name == "clear_range":
                unreadable &= not arguments[0] <= key < arguments[1]
            elif name == "set_versionstamped_value":
                unreadable |= key == arguments[0]
            elif name == "set_versionstamped_key":
                before, behind, _ = arguments
                unreadable |= before + b"\x00" * 10 + behind <= key <= before + b"\xff" * 10 + behind
        return unreadable


async def perform(tr: Transaction, operation: Operation) -> Any:
    """Do one operation in a store's transaction and return what it gives."""
    name, *arguments = operation
    try:
        if name == "set_versionstamped_key":
            before, behind, value = arguments
            tr.set_versionstamped_key(before + bytes(10) + behind + len(before).to_bytes(4, "little"), value)
        elif name == "set_versionstamped_value":
            key, before, behind = arguments
            tr.set_versionstamped_value(key, before + bytes(10) + behind + len(before).to_bytes(4, "little"))
        elif name in ("set", "clear", "clear_range", "add"):
            getattr(tr, name)(*arguments)
        else:
            return await _read(tr.snapshot if name.startswith("snapshot_") else tr, name, arguments)
    except StoreError as error:
        if "1036" not in str(error):
            raise
        return UNREADABLE
    return None


async def _read(reads: Snapshot, name: str, arguments: list[Any]) -> Any:
    name = name.removeprefix("snapshot_")
    if name == "get_range":
        begin, end, limit, reverse = arguments
        return await reads.get_range(begin, end, limit=limit, reverse=reverse)
    return await getattr(reads, name)(*arguments)


# Few and short keys, of bytes at which things begin and end, so that operations meet.
KEYS = st.lists(st.sampled_from([0x00, 0x61, 0x62, 0xFE]), min_size=1, max_size=2).map(bytes)
BORDERS = KEYS | st.sampled_from([b"", END])
VALUES = st.binary(max_size=3)
SELECTORS = st.builds(KeySelector, BORDERS, st.booleans(), st.integers(-3, 3))
LIMITS = st.integers(0, 3)
PARTS = st.lists(st.sampled_from([0x00, 0x61, 0xFF]), max_size=1).map(bytes)

BLIND_WRITES = (
    st.tuples(st.just("set"), KEYS, VALUES)
    | st.tuples(st.just("clear"), KEYS)
    | st.tuples(st.just("clear_range"), BORDERS, BORDERS)
    | st.tuples(st.just("add"), KEYS, VALUES)
)
STAMPED_WRITES = st.tuples(st.just("set_versionstamped_key"), KEYS, PARTS, VALUES) | st.tuples(
    st.just("set_versionstamped_value"), KEYS, PARTS, PARTS
)
BOUNDS = BORDERS | SELECTORS


def reads(prefix: str) -> st.SearchStrategy[Operation]:
    """Return the reads, by names that begin with a prefix."""
    return (
        st.tuples(st.just(prefix + "get"), BORDERS.filter(lambda key: key != END))
        | st.tuples(st.just(prefix + "get_many"), st.lists(KEYS, max_size=3))
        | st.tuples(st.just(prefix + "get_range"), BOUNDS, BOUNDS, LIMITS, st.booleans())
    )


OPERATIONS = BLIND_WRITES | STAMPED_WRITES | reads("") | reads("snapshot_")
