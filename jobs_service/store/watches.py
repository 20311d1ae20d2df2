"""The watches of an embedded store, whose commits come from several threads and processes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from jobs_service.sources import go_on
from jobs_service.store.base import Watch
from jobs_service.store.overlay import BaseState

_CHUNK: Final = 500
"""Keys that are looked up in one go; the process's other threads run in between."""


class _Several:
    """Stands for the value of a key whose watches expect different values; equal to no value."""


_SEVERAL: Final = _Several()


class Watches:
    """The living watches by key; shared by both threads and the loop.

    Args:
        at: called with names of points where a test may stop the caller's thread.
    """

    def __init__(self, at: Callable[[str], object] = go_on) -> None:
        self._at = at
        self._lock = threading.Lock()
        # key -> watch -> the number of the state that its baseline is from
        self._by_key: dict[bytes, dict[Watch, int]] = {}
        # The value that the watches of each key expect, and the sorted keys, None after they have changed.
        self._expected: dict[bytes, bytes | _Several | None] = {}
        self._order: list[bytes] | None = []

    def __bool__(self) -> bool:
        return bool(self._by_key)

    @property
    def number(self) -> int:
        """Number of living watches."""
        with self._lock:
            return sum(map(len, self._by_key.values()))

    def register(self, watches: list[Watch], number: int) -> None:
        """Keep the watches, with baselines from the state of this number, until they fire."""
        with self._lock:
            for watch in watches:
                key = watch.key
                group = self._by_key.get(key)
                if group is None:
                    group = self._by_key[key] = {}
                    self._expected[key] = watch.baseline
                    self._order = None
                elif self._expected[key] != watch.baseline:
                    self._expected[key] = _SEVERAL
                group[watch] = number

    def forget(self, watch: Watch) -> None:
        """Drop a watch; an unknown one is no error."""
        with self._lock:
            self._drop(watch)

    def changed(self, written: dict[bytes, bytes | None], number: int) -> list[Watch]:
        """Remove and return the watches whose keys have another value after this commit."""
        if not self._by_key:
            return []
        with self._lock:
            return self._take({key: written[key] for key in self._by_key.keys() & written.keys()}, number)

    def changed_in(self, state: BaseState, number: int, keys: list[bytes] | None = None) -> list[Watch]:
        """Remove and return the watches (on these keys, or all) whose keys have another value in this state.

        Args:
            state, number: the state that is looked at, and its number.
            keys: keys of the watches; None for all.
        """
        values = self._unexpected(state) if keys is None else {key: state.get(key) for key in keys}
        self._at("reader: has looked up watched keys")
        with self._lock:
            return self._take({key: value for key, value in values.items() if key in self._by_key}, number)

    def take_all(self) -> list[Watch]:
        """Remove and return all watches."""
        with self._lock:
            watches = [watch for group in self._by_key.values() for watch in group]
            self._by_key.clear()
            self._expected.clear()
            self._order = []
            return watches

    def _unexpected(self, state: BaseState) -> dict[bytes, bytes | None]:
        """Return the watched keys with an unexpected value, and that value.

        Looking up thousands of keys takes milliseconds, so it happens without the lock, which the writer needs.
        """
        with self._lock:
            expected = self._expected.copy()
            order = self._order
        if order is None:
            order = sorted(expected)  # neighbouring keys share pages, so they are found faster
            with self._lock:
                if self._expected.keys() == expected.keys():
                    self._order = order
        found: dict[bytes, bytes | None] = {}
        for start in range(0, len(order), _CHUNK):
            keys = order[start : start + _CHUNK]
            values = list(map(state.get, keys))
            wanted = list(map(expected.__getitem__, keys))
            if values != wanted:
                found.update(
                    (key, value) for key, value, want in zip(keys, values, wanted, strict=True) if value != want
                )
        return found

    def _take(self, values: dict[bytes, bytes | None], number: int) -> list[Watch]:
        # A watch that is younger than the state must not fire: the state lacks its own transaction's writes.
        fired = [
            watch
            for key, value in values.items()
            for watch, made in self._by_key[key].items()
            if watch.baseline != value and made <= number
        ]
        for watch in fired:
            self._drop(watch)
        return fired

    def _drop(self, watch: Watch) -> None:
        group = self._by_key.get(watch.key)
        if group is not None:
            group.pop(watch, None)
            if not group:
                del self._by_key[watch.key]
                del self._expected[watch.key]
                self._order = None
