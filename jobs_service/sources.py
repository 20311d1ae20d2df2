"""System inputs (wall-clock time, randomness, ids) from one place, so that a test can control them all.

Timers are not here: they use the running loop's clock, which a virtual-time loop owns.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import socket
import time
from collections.abc import Callable
from typing import Final

MOST_AHEAD: Final = 300.0
"""Most seconds by which the time of a past event may lie ahead: clocks of machines differ. A time further ahead comes
from a wrong clock and is ignored; otherwise nothing would happen until that time has come."""

_MOST_OF_A_HOST = 100


def raised_file_limit() -> int:
    """Raise this process's limit of open files to its maximum, as each connection is one; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # macOS names more than it allows
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return soft


def wall_time() -> float:
    """Return seconds since the epoch, to the microsecond: HTTP tells no more, so a job is the same at both ends."""
    return time.time_ns() // 1_000 / 1_000_000


def go_on(point: str) -> None:
    """Do nothing at a named point of a store's thread; tests give Sources another function for that."""


class Sources:
    """Wall-clock time, randomness and unique tokens.

    Args:
        seed: None for the operating system's randomness; anything else makes every draw repeatable.
        wall_time: returns seconds since the epoch.
        monotonic: returns seconds on a clock that never goes back; threads measure by it.
        worker: the name of this process in the history of its jobs; None for host name and process id.
        at: called by a store's threads with the name of each point at which another thread or process may interleave; a
            test stops them there, or kills the process.
    """

    def __init__(
        self,
        seed: int | str | None = None,
        *,
        wall_time: Callable[[], float] = wall_time,
        monotonic: Callable[[], float] = time.monotonic,
        worker: str | None = None,
        at: Callable[[str], object] = go_on,
    ) -> None:
        self._worker = worker
        self._process = 0
        self._random: random.Random = random.SystemRandom() if seed is None else random.Random(seed)
        self._jitter = random.Random(seed)
        self.wall_time = wall_time
        self.monotonic = monotonic
        self.at = at

    @property
    def has_threads(self) -> bool:
        """Whether a service may use threads beside the loop: not under a test's clock, which controls no threads."""
        return self.wall_time is wall_time

    @property
    def worker(self) -> str:
        """The name of this process."""
        if self._worker is None or self._process not in (0, os.getpid()):
            self._process = os.getpid()
            self._worker = f"{socket.gethostname()[:_MOST_OF_A_HOST]}:{self._process}"
        return self._worker

    @property
    def place(self) -> tuple[str, int]:
        """Host and process id; (name, 0) if the process was given a name."""
        if self._worker is not None and not self._process:
            return self._worker, 0
        return socket.gethostname()[:_MOST_OF_A_HOST], os.getpid()

    def token(self, size: int) -> bytes:
        """Return `size` random bytes: locks, unique among all processes."""
        return self._random.randbytes(size)

    def uniform(self, low: float, high: float) -> float:
        """Return a random float between low and high, for jitter: its quality does not matter."""
        return self._jitter.uniform(low, high)

    def below(self, limit: int) -> int:
        """Return a random integer from 0 up to, not including, `limit` (> 0)."""
        return int(self._jitter.random() * limit)
