"""The known damage in an embedded store's file, so that one damaged page does not fail everything else.

After meeting a damaged page, an LMDB transaction is useless, also for the other requests in it. So it is given up, its
functions run again in other transactions, and keys on known damaged pages are refused without asking LMDB. This does
not help if the pages that lead to all others are damaged, or if a damaged page looks sound: LMDB has no checksums.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_MOST_KEYS: Final = 100_000

MOST_RUNS: Final = 1000
"""Most runs of a function if each run meets damage in a new place."""


class Damage:
    """The damaged places met by one process; shared by both threads of a store.

    Attributes:
        count: number of damaged places; grows with each new one.
    """

    def __init__(self) -> None:
        self.count = 0
        self._keys: set[bytes] = set()

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def note(self, key: bytes | None) -> None:
        """Remember an unreadable key; None for an unknown one."""
        if key is not None and key not in self._keys and len(self._keys) < _MOST_KEYS:
            self._keys.add(key)
            self.count += 1
        elif not self.count:
            self.count = 1  # from now on keys are read one by one

    def forget_all(self, keys: Iterable[bytes]) -> None:
        """Forget the damage of keys that have since been written or removed."""
        self._keys.difference_update(keys)
