"""Decides whether an often useless request is worth sending: a moving average, with a try now and then."""

from __future__ import annotations

import asyncio
from typing import Final

TRY_AGAIN: Final = 37.0
"""Seconds after which a skipped request is sent once more: a bit longer than a checkpoint interval."""


class AttemptRatio:
    """The share of useless attempts of one kind of request.

    Args:
        limit: the share above which the request is skipped.
        decay: the weight of the last request, 0 to 1.
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
        """Count the result of a request."""
        share = (attempts - successes) / attempts if attempts else 0.0
        self.ratio += self._decay * (share - self.ratio)
        self._last_try = asyncio.get_running_loop().time()
