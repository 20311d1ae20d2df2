"""Threads of an embedded store that stop at its named points and go on one at a time, as the test says."""

from __future__ import annotations

import threading
from queue import Empty, SimpleQueue
from typing import Final

from jobs_service.store.lmdb import LmdbStore

LONGEST_STEP: Final = 20.0
"""Seconds after which a thread that comes to no further point is taken for stuck."""

_THREADS: Final = {"lmdb-writer": "writer", "lmdb-reader": "reader"}
_HOLDING: Final = {
    "writer: has begun",
    "writer: function",
    "writer: has run all",
    "writer: has registered watches",
    "writer: commits",
}
"""Where the writer stands when it has LMDB's write lock."""


class Stuck(AssertionError):
    """Nobody can go on, or a thread does not come to its next point."""


class Stepper:
    """Stops the two threads of one store at each point; whoever drives it does so on the loop's thread.

    Attributes:
        now: what the store's clock says, seconds.
        where: at which point each thread stands.
        ended: the threads that have ended.
        lock_is_taken: whether another process has LMDB's write lock.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.where: dict[str, str] = {}
        self.ended: set[str] = set()
        self.lock_is_taken = False
        self._gates: dict[str, SimpleQueue[None]] = {name: SimpleQueue() for name in _THREADS.values()}
        self._arrived: SimpleQueue[None] = SimpleQueue()
        self._free = True
        self._threads: dict[str, threading.Thread] = {}

    def clock(self) -> float:
        """Return the time."""
        return self.now

    def at(self, point: str) -> None:
        """Stop until it is this thread's turn. For `Sources`."""
        thread = threading.current_thread()
        name = _THREADS.get(thread.name)
        if name is None or point.startswith("opening"):
            return
        if self._free:
            return
        self._threads[name] = thread
        self.where[name] = f"{name}: {point}" if ":" not in point else point
        self._arrived.put(None)
        self._gates[name].get()

    async def open(self, store: LmdbStore) -> None:
        """Open the store, and have each of its threads come to its first point."""
        self._free = False
        await store.open()
        for _ in _THREADS:
            self._await_one()

    @property
    def writer_has_lock(self) -> bool:
        """Whether no other process can write."""
        return self.where["writer"] in _HOLDING

    def can_go_on(self, name: str, store: LmdbStore) -> bool:
        """Whether a thread would not stand still for want of something from others."""
        match self.where[name] if name not in self.ended else None:
            case None:
                return False
            case "writer: waits":
                return not store._writes.empty()
            case "writer: begins":
                return not self.lock_is_taken
            case "writer: ends":
                return "reader" in self.ended
            case "reader: waits":
                return not store._reads.empty()
            case _:
                return True

    def is_idle(self, name: str, store: LmdbStore) -> bool:
        """Whether a thread has nothing to do but to look now and then."""
        at_rest = self.where.get(name) == "reader: rests" and store._reads.empty()
        return at_rest or not self.can_go_on(name, store)

    def step(self, name: str) -> None:
        """Let a thread go on to its next point, or to its end."""
        last = self.where[name].endswith(": ends")
        self._gates[name].put(None)
        if not last:
            self._await_one()
            return
        self._threads[name].join(LONGEST_STEP)
        if self._threads[name].is_alive():
            raise Stuck(f"the {name} does not end")
        self.ended.add(name)

    def let_all_go(self) -> None:
        """Stop nobody any more."""
        self._free = True
        for gate in self._gates.values():
            gate.put(None)

    def _await_one(self) -> None:
        try:
            self._arrived.get(timeout=LONGEST_STEP)
        except Empty:
            raise Stuck(f"a thread comes to no further point: {self.where}") from None
