"""The spread of a service's workers over each queue, learnt from their conflicts.

On a store with optimistic concurrency, two workers that take the same jobs collide, and one of them begins again. If
each begins to take jobs at a random distance from the front, that happens less often, but the order is less exact. So
the spread follows a weighted up-and-down staircase (Kaernbach 1991): a collision doubles it, and eight accepts without
one halve it. It settles at one collision in nine accepts, whatever the number of workers, and at exact order without
collisions. In this module a "look" is one read of a queue's front by an accept.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from jobs_service.layer.keyspace import TypeKeys
from jobs_service.model import JobId

_CLEAN_LOOKS: Final = 8
"""Looks without a collision that undo the effect of one collision."""

_MEMORY: Final = 1000
"""Looks without a collision after which a service's workers stop taking turns."""

_MOST_DOUBLINGS: Final = 10
_WIDEST: Final = 1024
"""Widest spread: most jobs at the front among which a look chooses its start."""

_WIDEST_FACTOR: Final = 16
"""Widest spread as a multiple of the jobs that one look takes: a wider one would read too much of the queue."""


class Spreading:
    """The spread of each type's queue, as one service has learnt it."""

    def __init__(self) -> None:
        # How often the spread has been doubled, by type; types without collisions are left out.
        self._doublings: dict[TypeKeys, float] = {}
        # For how many more looks the service's own workers take turns, by type.
        self._turns: dict[TypeKeys, int] = {}

    def takes_turns(self, keys: TypeKeys) -> bool:
        """Whether the service's own workers read the type's queue one after the other, so that none of them collide.

        That costs next to nothing, so it goes on long after a collision.
        """
        return keys in self._turns

    def is_crowded(self, keys: TypeKeys) -> bool:
        """Whether workers have recently collided on the type's queue."""
        return keys in self._doublings

    def spread(self, keys: TypeKeys, limit: int, collisions: int = 0) -> int:
        """Return the number of jobs at the front among which a look chooses its start; 1 for exact order.

        Args:
            keys: of the type.
            limit: most jobs that the look takes.
            collisions: of this accept so far.
        """
        factor = round(2 ** min(self._doublings.get(keys, 0.0) + collisions, _MOST_DOUBLINGS))
        return min((factor - 1) * limit + 1, max(_WIDEST, _WIDEST_FACTOR * limit))

    def learn(self, keys: TypeKeys, collisions: int) -> None:
        """Widen the spread after an accept with collisions, and narrow it after one without."""
        doublings, turns = self._doublings.pop(keys, 0.0), self._turns.pop(keys, 0)
        if collisions:
            doublings, turns = min(doublings + collisions, _MOST_DOUBLINGS), _MEMORY
        else:
            doublings, turns = doublings - 1 / _CLEAN_LOOKS, turns - 1
        if doublings > 0:
            self._doublings[keys] = doublings
        if turns > 0:
            self._turns[keys] = turns


class _Look:
    """The looks of one transaction at one queue."""

    __slots__ = ("before", "collisions", "spread", "taken")

    def __init__(self) -> None:
        self.collisions = 0
        self.spread = 1
        self.before: list[JobId] | None = None
        self.taken: list[JobId] = []

    def again(self) -> None:
        """Note that the transaction function is run again."""
        self.compare()
        if self.spread > 1:
            self.collisions += 1
            self.before = None
        else:
            self.before = self.taken
        self.taken = []

    def compare(self) -> None:
        """Count a collision if the last run found other jobs than the run before it found in exact order."""
        # If the same jobs are there again, no worker took them: the conflict was with a heartbeat or a creator.
        if self.before is not None and self.before != self.taken:
            self.collisions += 1


class QueueReads:
    """The looks at queues of one transaction, over all runs of its function.

    Args:
        spreading: of the service.
    """

    __slots__ = ("_looks", "_spreading")

    def __init__(self, spreading: Spreading) -> None:
        self._spreading = spreading
        self._looks: dict[TypeKeys, _Look] = {}

    def begin(self) -> None:
        """Begin a run of the function."""
        for look in self._looks.values():
            look.again()

    def spread(self, keys: TypeKeys, limit: int) -> int:
        """Return the spread of a look that takes at most so many jobs; see `Spreading.spread`."""
        look = self._looks.setdefault(keys, _Look())
        return self._spreading.spread(keys, limit, look.collisions)

    def took(self, keys: TypeKeys, spread: int, ids: Iterable[JobId]) -> None:
        """Note the jobs that a look with this spread has taken."""
        look = self._looks.setdefault(keys, _Look())
        look.spread = spread
        look.taken += ids

    def end(self) -> None:
        """Learn from the collisions of this transaction."""
        for keys, look in self._looks.items():
            look.compare()
            self._spreading.learn(keys, look.collisions)
        self._looks.clear()
