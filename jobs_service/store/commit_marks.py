"""Marks: how a store finds out whether a commit happened when its client does not know.

Every commit leaves a mark: a key of its own whose value is the commit's versionstamp. When the client cannot say what
became of the commit, the store looks for the mark. If it is there, the commit happened. If it is not, the store writes
a tombstone under the same key. The commit has a read conflict on that key, so if it is still on its way, it can no
longer happen.

A mark's key is drawn at random for every commit. So no two commits ever share one: not even those of two processes with
the same memory, such as a cloned machine, or one that was restored from a snapshot. Nothing but its tombstone is ever
written in a mark's place.

A store removes the marks of commits whose outcome it knows together with later commits. What killed processes leave is
removed by any store that is open for long, once it is a day old by its versionstamp.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Final

from jobs_service.errors import StoreUnavailable
from jobs_service.store.base import STAMP_BYTES, KeyValue

LIFETIME: Final = 86_400 * 1_000_000
"""Versions after which any store may remove a mark. FoundationDB counts a million versions a second."""

HAPPENED: Final = b"\x01"
"""Follows the versionstamp in the mark of a commit; in a tombstone nothing does."""

_VERSION_BYTES: Final = 8
_RANDOM_BYTES: Final = 16
_MOST_REMOVED: Final = 4
"""Old marks that one commit removes: more than the one that it makes, but so few that they take hardly any room."""


class Mark:
    """The mark of one commit.

    Attributes:
        key: of the mark.
        removed: keys of earlier marks, of known commits, that the same commit removes.
    """

    __slots__ = ("key", "removed")

    def __init__(self, key: bytes, removed: list[bytes]) -> None:
        self.key = key
        self.removed = removed


class Marks:
    """The marks of one store.

    Args:
        prefix: of the keys; it must not end with b"\xff".
        draw: returns so many random bytes, never the same in two processes.
        lifetime: versions after which anybody may remove a mark.

    Attributes:
        prefix: of the keys.
        made: how many were made so far.
    """

    def __init__(self, prefix: bytes, draw: Callable[[int], bytes], *, lifetime: int = LIFETIME) -> None:
        self.prefix = prefix
        self.made = 0
        self._draw = draw
        self._lifetime = lifetime
        self._settled: list[bytes] = []

    def new(self) -> Mark:
        """Return the mark for a commit that is about to be sent."""
        self.made += 1
        removed = self._settled[-_MOST_REMOVED:]
        del self._settled[-_MOST_REMOVED:]
        return Mark(self.prefix + self._draw(_RANDOM_BYTES), removed)

    def cloned(self, draw: Callable[[int], bytes]) -> Marks:
        """Return the marks of a process that was cloned from the memory of this one.

        Args:
            draw: returns the random bytes of the clone.
        """
        clone = copy.copy(self)
        clone._draw = draw
        clone._settled = list(self._settled)
        return clone

    @property
    def end(self) -> bytes:
        """The end of the keys."""
        return self.prefix[:-1] + bytes([self.prefix[-1] + 1])

    # What became of a commit

    def committed(self, mark: Mark) -> None:
        """The commit is known to have happened: its mark is not needed any more."""
        self._remove_later([mark.key])

    def prevented(self, mark: Mark) -> None:
        """There is a tombstone under the mark's key: the commit will never happen."""
        self._remove_later([mark.key, *mark.removed])

    def not_committed(self, mark: Mark) -> None:
        """The commit did not happen, or its outcome stays unknown: its mark, if there is one, is left to grow old."""
        self._remove_later(mark.removed)

    def take_settled(self) -> list[bytes]:
        """Return the keys of all marks that are to be removed, and forget them."""
        settled, self._settled = self._settled, []
        return settled

    def _remove_later(self, keys: Iterable[bytes]) -> None:
        # The directory may have moved since: its old prefix is not this store's any more.
        self._settled += [key for key in keys if key.startswith(self.prefix)]

    # What a mark says

    def stamp_of(self, value: bytes | None, began: int, version: int) -> bytes | None:
        """Return the versionstamp of a commit by the value under its mark's key; None if it did not happen.

        Args:
            value: under the key of the mark; None if there is none.
            began: the version that the commit's transaction has read.
            version: the version in which the value was seen.

        Raises:
            StoreUnavailable: there is none, but so late that the mark may have been removed as a stale one.
        """
        if value is None and version - began > self._lifetime // 2:
            raise StoreUnavailable(
                "a commit was lost sight of for so long that nobody can tell any more whether it happened; "
                "the write may have taken effect"
            )
        if value is not None and value[STAMP_BYTES:] == HAPPENED:
            return value[:STAMP_BYTES]
        return None

    def stale(self, pairs: Iterable[KeyValue], version: int) -> tuple[list[bytes], list[bytes]]:
        """Return the keys of the marks that may be removed, and of those without a versionstamp, whose age is unknown.

        Args:
            pairs: marks.
            version: the current one.
        """
        removable, ageless = [], []
        for key, value in pairs:
            if len(value) < STAMP_BYTES:
                ageless.append(key)
            elif version - version_of(value) > self._lifetime:
                removable.append(key)
        return removable, ageless


def version_of(value: bytes) -> int:
    """Return the version in which a mark was written."""
    return int.from_bytes(value[:_VERSION_BYTES], "big")
