"""The known damage in an embedded store's file, so that one damaged page does not fail everything else.

An LMDB transaction that has met a damaged page is useless from then on, also for the requests that share it. So it is
given up, its functions run again in other transactions, and keys that are known to be on damaged pages are refused
without asking LMDB. This does not help if the pages that lead to all others are damaged, or if a damaged page looks
sound: LMDB has no checksums.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_MOST_KEYS: Final = 100_000

MOST_RUNS: Final = 1000
"""How often a function is run, at most, if each run meets damage in a new place."""


class Damage:
    """The damaged places that one process has met; shared by both threads of a store.

    Attributes:
        count: of damaged places; grows with each new one.
    """

    def __init__(self) -> None:
        self.count = 0
        self._keys: set[bytes] = set()

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def note(self, key: bytes | None) -> None:
        """Remember that a key cannot be read; None if it is unknown which."""
        if key is not None and key not in self._keys and len(self._keys) < _MOST_KEYS:
            self._keys.add(key)
            self.count += 1
        elif not self.count:
            self.count = 1  # from now on keys are read one by one

    def forget_all(self, keys: Iterable[bytes]) -> None:
        """Forget the damage of keys that were written or removed since."""
        self._keys.difference_update(keys)
