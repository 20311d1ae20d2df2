"""What is known of damage in an embedded store's file: so that nobody stumbles over the same place twice. Floor: store.

An LMDB transaction that has met a damaged page is of no use any more, neither to who met it nor to those with whom it
was shared. So it is given up, what was run in it is run again in others, and keys that are known to be in such a place
are refused without asking LMDB. What cannot be helped: damage of the pages that lead to all others, and pages that look
sound but are not; LMDB has no checksums.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_MOST_KEYS: Final = 100_000

MOST_RUNS: Final = 1000
"""How often a function is run that meets damage in other places again and again."""


class Damage:
    """The damaged places that one process has met; shared by both threads of a store.

    Attributes:
        count: grows whenever something new is known.
    """

    def __init__(self) -> None:
        self.count = 0
        self._keys: set[bytes] = set()

    def __contains__(self, key: bytes) -> bool:
        return key in self._keys

    def note(self, key: bytes | None) -> None:
        """Remember that a key cannot be read; None when it is not known which."""
        if key is not None and key not in self._keys and len(self._keys) < _MOST_KEYS:
            self._keys.add(key)
            self.count += 1
        elif not self.count:
            self.count = 1  # from now on keys are read one by one

    def forget_all(self, keys: Iterable[bytes]) -> None:
        """Take note that keys were written or removed."""
        self._keys.difference_update(keys)
