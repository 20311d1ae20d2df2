"""Whether a request that often brings nothing is worth being sent: a moving average, with a try now and then."""

from __future__ import annotations

import asyncio
from typing import Final

TRY_AGAIN: Final = 37.0
"""Seconds after which a request that is left out is sent once more: a bit longer than between checkpoints."""


class AttemptRatio:
    """The share of what a kind of request has not brought.

    Args:
        limit: the share above which the request is left out.
        decay: how much the last request counts, 0 to 1.
    """

    def __init__(self, limit: float, decay: float) -> None:
        self._limit = limit
        self._decay = decay
        self._last_try: float | None = None
        self.ratio = 0.0

    def is_worth_it(self) -> bool:
        """Return whether to send the request."""
        if self.ratio <= self._limit or self._last_try is None:
            return True
        return asyncio.get_running_loop().time() - self._last_try > TRY_AGAIN

    def update(self, successes: int, attempts: int) -> None:
        """Learn what a request has brought, of what was asked for."""
        share = (attempts - successes) / attempts if attempts else 0.0
        self.ratio += self._decay * (share - self.ratio)
        self._last_try = asyncio.get_running_loop().time()
