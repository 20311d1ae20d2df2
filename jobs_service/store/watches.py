"""The watches of a store whose commits come from several threads and processes. Floor: store."""

from __future__ import annotations

import threading

from jobs_service.store.base import Watch
from jobs_service.store.buffer import BaseState


class Watches:
    """The watches that are alive, by key; shared by both threads and the loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # key -> watch -> the LMDB transaction whose state its baseline is from
        self._by_key: dict[bytes, dict[Watch, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_key)

    def register(self, watches: list[Watch], number: int) -> None:
        """Keep the watches, whose baselines are from the state of this LMDB transaction, until they fire."""
        with self._lock:
            for watch in watches:
                self._by_key.setdefault(watch.key, {})[watch] = number

    def forget(self, watch: Watch) -> None:
        """Drop a watch; it need not be there."""
        with self._lock:
            self._drop(watch)

    def changed(self, written: dict[bytes, bytes | None], number: int) -> list[Watch]:
        """Take out and return the watches whose keys this commit has given another value."""
        if not self._by_key:
            return []
        with self._lock:
            return self._take({key: written[key] for key in self._by_key.keys() & written.keys()}, number)

    def changed_in(self, state: BaseState, number: int, keys: list[bytes] | None = None) -> list[Watch]:
        """Take out and return the watches (on these keys, or all) whose keys have another value in this state."""
        with self._lock:
            return self._take({key: state.get(key) for key in (keys or self._by_key) if key in self._by_key}, number)

    def take_all(self) -> list[Watch]:
        """Take out and return all watches."""
        with self._lock:
            watches = [watch for group in self._by_key.values() for watch in group]
            self._by_key.clear()
            return watches

    def _take(self, values: dict[bytes, bytes | None], number: int) -> list[Watch]:
        # A watch that is younger than the state knows better: it is not to fire for its own transaction's writes.
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
