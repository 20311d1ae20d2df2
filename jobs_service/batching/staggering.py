"""Staggered work: services that collide over the same work take turns.

The monitors of all services see the same jobs come due, and the same jobs lost, at the same moment. On the embedded
store they queue for the writer; on a cluster all but one of them meet a conflict, and would meet it again with the next
batch. A service that collides waits a random time before the next attempt, up to a bound that doubles with every
collision and shrinks slowly without; the first service does the work, the others find it done. A service that never
collides never waits: alone, it does everything at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_FIRST: Final = 0.01
_SHRINKS_BY: Final = 0.9


class Stagger:
    """The pause before each attempt at one kind of work.

    Args:
        uniform: draws a number between two others.
        longest: longest pause in seconds.
    """

    def __init__(self, uniform: Callable[[float, float], float], longest: float) -> None:
        self._uniform = uniform
        self._longest = longest
        self._window = 0.0

    def pause(self) -> float:
        """Return the seconds to wait before the next attempt."""
        return self._uniform(0.0, self._window) if self._window else 0.0

    def learn(self, *, collided: bool, useful: bool) -> None:
        """Adapt the pause to the outcome of an attempt.

        Args:
            collided: whether another service did the same work meanwhile.
            useful: whether any work was left. If none was, the pause has served its purpose.
        """
        if collided:
            self._window = min(self._longest, max(_FIRST, 2 * self._window))
        elif useful and self._window:
            window = self._window * _SHRINKS_BY
            self._window = window if window >= _FIRST else 0.0


class Attempt:
    """One call of `transact`, whose function may be run several times.

    Attributes:
        collided: whether the function was run again, because of another transaction on the same jobs.
    """

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs = 0

    def begin(self) -> bool:
        """Note one more run of the function; return whether it is the first one."""
        self._runs += 1
        return self._runs == 1

    @property
    def collided(self) -> bool:
        return self._runs > 1
