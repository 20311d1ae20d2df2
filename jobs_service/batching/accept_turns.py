"""Accepts of one process at one queue take turns while workers collide, so that they do not collide with each other.

Workers that ask for jobs while an accept is under way share the next one: fewer transactions, more jobs in each.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final, Generic, TypeAlias, TypeVar

from jobs_service.layer.adaptive_spread import Spreading
from jobs_service.layer.candidates import AcceptTerms
from jobs_service.layer.keyspace import TypeKeys

L = TypeVar("L")

SharedTerms: TypeAlias = tuple[TypeKeys, AcceptTerms, bool]
"""The common key of workers that share an accept: the type, the terms, and whether they want a watch."""

_LONGEST_WAIT: Final = 0.1
"""Seconds after which an accept no longer waits for the end of the previous one, which the store may delay."""


class AcceptTurns(Generic[L]):
    """The accepts of one process that wait for their turn.

    Args:
        spreading: tells the queues at which accepts take turns.
        begin: called with an accept at its turn.
    """

    def __init__(self, spreading: Spreading, begin: Callable[[L], None]) -> None:
        self._spreading = spreading
        self._begin = begin
        self._under_way: Counter[TypeKeys] = Counter()
        self._waiting: dict[SharedTerms, L] = {}
        self._timers: dict[TypeKeys, asyncio.TimerHandle] = {}

    def must_wait(self, keys: TypeKeys) -> bool:
        """Whether an accept of the type must wait for another one."""
        return keys in self._under_way and self._spreading.takes_turns(keys)

    def waiting(self, key: SharedTerms) -> L | None:
        """Return the waiting accept, None if none waits."""
        return self._waiting.get(key)

    def wait(self, key: SharedTerms, accept: L) -> None:
        """Have an accept wait for its turn."""
        self._waiting[key] = accept
        if key[0] not in self._timers:
            loop = asyncio.get_running_loop()
            self._timers[key[0]] = loop.call_later(_LONGEST_WAIT, self._have_turn, key[0])

    def begin(self, key: SharedTerms) -> None:
        """Begin a waiting accept."""
        self._begin(self._waiting.pop(key))

    def begin_all(self) -> None:
        """Begin all waiting accepts."""
        for keys in [*self._timers]:
            self._have_turn(keys)

    def begun(self, keys: TypeKeys) -> None:
        """Note the begin of an accept of the type."""
        self._under_way[keys] += 1

    def ended(self, keys: TypeKeys) -> None:
        """Note the end of an accept of the type; after the last one begin the waiting accepts."""
        self._under_way[keys] -= 1
        if not self._under_way[keys]:
            del self._under_way[keys]
            self._have_turn(keys)

    def _have_turn(self, keys: TypeKeys) -> None:
        timer = self._timers.pop(keys, None)
        if timer is not None:
            timer.cancel()
            for key in [key for key in self._waiting if key[0] == keys]:
                self.begin(key)
