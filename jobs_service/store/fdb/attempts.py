"""The runs of one transaction function on a cluster: how long to pause before the next, and when to give up.

Floor: store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from jobs_service.errors import StoreError, TransactionTooOld

FIRST_PAUSE: Final = 0.002
LONGEST_PAUSE: Final = 0.5

_YOUNG: Final = 0.5
"""The share of the time that a run may take up to which it is not too old by itself."""

_STANDSTILL: Final = 1.0
"""Seconds without an answer after which the cluster, and not the function, is to blame for what took too long."""


class Attempts:
    """The runs of one call's function.

    Args:
        retries: how often it is run again at most.
        pause: waits for a random part of so many seconds.
        retried: called when it is run again.

    Attributes:
        failure: what ended the last run; None for the first.
    """

    __slots__ = ("_left", "_longest_wait", "_pause", "_pausing", "_retried", "_too_old", "failure")

    def __init__(self, retries: int, pause: Callable[[float], Awaitable[None]], retried: Callable[[], object]) -> None:
        self._left = retries
        self._pausing = pause
        self._retried = retried
        self._pause = FIRST_PAUSE
        self._longest_wait = 0.0
        self._too_old = False
        self.failure: StoreError | None = None

    def waited(self, seconds: float) -> None:
        """Note that the present run has waited for an answer, or for its turn, for so long."""
        if seconds > self._longest_wait:
            self._longest_wait = seconds

    async def again(self, failure: StoreError, ran: float = 0.0) -> None:
        """Return when the function may be run again.

        Args:
            failure: what ended the last run.
            ran: how long the last run took, as a share of what it may take.

        Raises:
            StoreError: what ended the last run, if another one is of no use.
        """
        self.failure = failure
        # A cluster that recovers, which may take it a tenth of a second, calls all that it has begun too old.
        if isinstance(failure, TransactionTooOld) and ran > _YOUNG:
            # A function that was answered all the time takes too long by itself, and would again. Otherwise the cluster
            # stood still; but not twice.
            if self._too_old or self._longest_wait < _STANDSTILL:
                raise failure
            self._too_old = True
        if not failure.retryable or not self._left:
            raise failure
        self._left -= 1
        self._longest_wait = 0.0
        self._retried()
        await self._pausing(self._pause)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
