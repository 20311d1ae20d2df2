"""Marks: they tell a store whether a commit happened whose outcome its client does not know.

Every commit leaves a mark: a key of its own whose value is the commit's versionstamp. If the client cannot tell the
outcome of the commit, the store looks for the mark. If it is there, the commit happened. If not, the store writes a
tombstone under the same key. The commit has a read conflict on that key, so a commit still on its way can no longer
happen (`_commit` and `_find_out` in `store/fdb/store.py`).

A mark's key is drawn at random for every commit. So no two commits ever share one, not even if two processes have the
same memory, as on a cloned machine or one restored from a snapshot. Only its tombstone is ever written in a mark's
place.

A store removes the marks of commits with a known outcome together with later commits. A killed process leaves marks
behind; any store that is open for long removes them, once they are a day old by their versionstamps.
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
"""Follows the versionstamp in the mark of a commit; nothing follows it in a tombstone."""

_VERSION_BYTES: Final = 8
_RANDOM_BYTES: Final = 16
_MOST_REMOVED: Final = 4
"""Old marks that one commit removes: more than the single mark that it makes, but few, so that they take hardly any
room.
"""


class Mark:
    """The mark of one commit.

    Attributes:
        key: the mark's key.
        removed: keys of earlier marks, of known outcome, that the same commit removes.
    """

    __slots__ = ("key", "removed")

    def __init__(self, key: bytes, removed: list[bytes]) -> None:
        self.key = key
        self.removed = removed


class Marks:
    """The marks of one store.

    Args:
        prefix: prefix of the keys; it must not end with b"\\xff".
        draw: returns so many random bytes, never the same in two processes.
        lifetime: versions after which any store may remove a mark.

    Attributes:
        prefix: prefix of the keys.
        made: number of marks made so far.
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
        """Return the marks of a process whose memory is a clone of this one's.

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

    # The outcome of a commit

    def committed(self, mark: Mark) -> None:
        """Note that a commit happened: its mark is no longer needed."""
        self._remove_later([mark.key])

    def prevented(self, mark: Mark) -> None:
        """Note a tombstone under the mark's key: the commit will never happen."""
        self._remove_later([mark.key, *mark.removed])

    def not_committed(self, mark: Mark) -> None:
        """Note that a commit did not happen, or that its outcome stays unknown: its mark, if any, grows old."""
        self._remove_later(mark.removed)

    def take_settled(self) -> list[bytes]:
        """Return the keys of all marks to remove, and forget them."""
        settled, self._settled = self._settled, []
        return settled

    def _remove_later(self, keys: Iterable[bytes]) -> None:
        # The directory may have moved since: its old prefix is not this store's any more.
        self._settled += [key for key in keys if key.startswith(self.prefix)]

    # The meaning of a mark

    def stamp_of(self, value: bytes | None, began: int, version: int) -> bytes | None:
        """Return the versionstamp of a commit by the value under its mark's key; None if it did not happen.

        Args:
            value: the value under the mark's key; None for none.
            began: the read version of the commit's transaction.
            version: the version of the state that has the value.

        Raises:
            StoreUnavailable: there is no value, but the mark may have been removed as a stale one by now.
        """
        if value is None and version - began > self._lifetime // 2:
            raise StoreUnavailable(
                "a commit was lost sight of for so long that nobody can tell any more whether it happened; "
                "the write may have taken effect"
            )
        if value is not None and value[STAMP_BYTES:] == HAPPENED:
            return value[:STAMP_BYTES]
        return None

    def stale(self, pairs: Iterable[KeyValue], version: int) -> list[bytes]:
        """Return the keys of removable marks.

        Args:
            pairs: keys and values of marks.
            version: the current one.
        """
        return [key for key, value in pairs if version - version_of(value) > self._lifetime]


def version_of(value: bytes) -> int:
    """Return the version of the commit that wrote a mark."""
    return int.from_bytes(value[:_VERSION_BYTES], "big")
