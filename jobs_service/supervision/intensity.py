"""Restart intensity: the limit of restarts per period."""

from __future__ import annotations

from collections import deque


class RestartIntensity:
    """Limits the restarts within a sliding period.

    Args:
        max_restarts: most restarts within any period; 0 allows none.
        period: seconds, > 0.
    """

    def __init__(self, max_restarts: int, period: float) -> None:
        if max_restarts < 0 or period <= 0:
            raise ValueError(f"max_restarts must be at least 0 and the period above 0, not {max_restarts} and {period}")
        self.max_restarts = max_restarts
        self.period = period
        self._times: deque[float] = deque()

    def admit(self, now: float) -> bool:
        """Count a restart at `now` (seconds, never going back), and return whether it is still allowed."""
        while self._times and self._times[0] < now - self.period:
            self._times.popleft()
        self._times.append(now)
        return len(self._times) <= self.max_restarts
