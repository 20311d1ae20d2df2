"""Exponential backoff with jitter: pauses grow, and clients do not retry all at once."""

from __future__ import annotations

from typing import Final

from jobs_service.sources import Sources

_FIRST: Final = 0.05
LONGEST_PAUSE: Final = 3.0
"""Seconds of the longest pause."""


class Backoff:
    """Pauses that double up to the longest, each drawn from its upper half."""

    __slots__ = ("_longest", "_next", "_sources")

    def __init__(self, sources: Sources, longest: float = LONGEST_PAUSE) -> None:
        self._sources = sources
        self._longest = longest
        self._next = min(_FIRST, longest)

    def pause(self) -> float:
        """Return the seconds of the next pause."""
        longest = self._next
        self._next = min(2 * longest, self._longest)
        return self._sources.uniform(longest / 2, longest)

    def reset(self) -> None:
        """Start over with the shortest pause, after a success."""
        self._next = min(_FIRST, self._longest)
