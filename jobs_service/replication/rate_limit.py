"""Slowing down together: a pause between requests of one kind to one database, shared by all jobs of a process.

The pause grows by a factor with each refusal and shrinks by steps with each success, the reverse of TCP's window, so
that jobs that share a server come to share its rate.
"""

import asyncio
import time
from collections.abc import Callable, Hashable
from typing import Final

BASE: Final = 0.020
"""The first pause, in seconds, and the smallest."""
FACTOR: Final = 1.2
LONGEST: Final = 25.0
"""At this pause requests are given up."""
WINDOW: Final = 0.080
"""Seconds after a change of a pause in which other answers count as the same event: many jobs are refused at once."""
IDLE: Final = 1.0
"""Seconds without an answer after which a pause shrinks by twice the time that has passed."""
_DECAY: Final = 2.0
_SWEEP_ABOVE: Final = 1000


class RateLimiter:
    """The pauses by a key such as (database, method). `clock` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pauses: dict[Hashable, tuple[float, float]] = {}

    def pause(self, key: Hashable) -> float:
        """Return the seconds to wait before the next request; `LONGEST` means: give up."""
        return self._pauses.get(key, (0.0, 0.0))[0]

    def refused(self, key: Hashable) -> float:
        """Record that the server asked to slow down; return the pause."""
        now = self._clock()
        pause, at = self._pauses.get(key, (0.0, None))
        if at is not None and now - at <= WINDOW:
            return pause
        return self._keep(key, min(max(pause, BASE) * FACTOR, LONGEST), now)

    def succeeded(self, key: Hashable) -> float:
        """Record an answered request; return the pause."""
        found = self._pauses.get(key)
        if found is None:
            return 0.0
        now = self._clock()
        pause, at = found
        if now - at <= WINDOW:
            return pause
        if now - at > IDLE:
            pause = max(pause - _DECAY * (now - at), 0.0)
        pause -= _step(pause)
        if pause <= 0:
            del self._pauses[key]
            return 0.0
        return self._keep(key, max(pause, BASE), now)

    async def wait(self, key: Hashable) -> bool:
        """Wait for the length of the pause. False: the longest pause was reached, so give up."""
        pause, at = self._pauses.get(key, (0.0, 0.0))
        if pause and self._clock() - at >= LONGEST:
            del self._pauses[key]
            return True
        if pause >= LONGEST:
            return False
        if pause > 0:
            await asyncio.sleep(pause)
        return True

    def _keep(self, key: Hashable, pause: float, now: float) -> float:
        if len(self._pauses) > _SWEEP_ABOVE:
            self._pauses = {key: found for key, found in self._pauses.items() if now - found[1] < LONGEST}
        self._pauses[key] = (pause, now)
        return pause


def _step(pause: float) -> float:
    if pause > 10:
        return BASE * 50
    if pause > 1:
        return BASE * 5
    return BASE * 2 if pause > 0.1 else BASE


SHARED: Final = RateLimiter()
"""The limiter of this process."""
