"""Looks at a queue take turns: a service collides with others then, not with itself.

Those who ask for jobs while a look is under way share the next one: fewer transactions, more jobs in each.
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

LookKey: TypeAlias = tuple[TypeKeys, AcceptTerms, bool]
"""What those have in common who share a look: the type, the terms, and whether they want a watch."""

_LONGEST_WAIT: Final = 0.1
"""Seconds after which a look waits no longer for one that the store keeps waiting itself."""


class Turns(Generic[L]):
    """The looks that wait for their turn.

    Args:
        spreading: tells at which queues turns are taken.
        begin: called with a look whose turn has come.
    """

    def __init__(self, spreading: Spreading, begin: Callable[[L], None]) -> None:
        self._spreading = spreading
        self._begin = begin
        self._under_way: Counter[TypeKeys] = Counter()
        self._waiting: dict[LookKey, L] = {}
        self._timers: dict[TypeKeys, asyncio.TimerHandle] = {}

    def must_wait(self, keys: TypeKeys) -> bool:
        """Whether a look at the type's queue has to wait for another one."""
        return keys in self._under_way and self._spreading.takes_turns(keys)

    def waiting(self, key: LookKey) -> L | None:
        """Return the look that waits, None when none does."""
        return self._waiting.get(key)

    def wait(self, key: LookKey, look: L) -> None:
        """Have a look wait for its turn."""
        self._waiting[key] = look
        if key[0] not in self._timers:
            loop = asyncio.get_running_loop()
            self._timers[key[0]] = loop.call_later(_LONGEST_WAIT, self._have_turn, key[0])

    def begin(self, key: LookKey) -> None:
        """Have a look wait no longer."""
        self._begin(self._waiting.pop(key))

    def begin_all(self) -> None:
        """Have all of them wait no longer."""
        for keys in [*self._timers]:
            self._have_turn(keys)

    def begun(self, keys: TypeKeys) -> None:
        """A look at the type's queue is under way."""
        self._under_way[keys] += 1

    def ended(self, keys: TypeKeys) -> None:
        """It is not any more."""
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
