"""The attempts of one call: the pause before the next run of its function, and the limit of retries."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from jobs_service.errors import StoreError, TransactionTooOld

FIRST_PAUSE: Final = 0.002
LONGEST_PAUSE: Final = 0.5

MOST_RETRIES: Final = 1000
"""So many that the time limit of a transaction ends before, unless its function fails at once, again and again."""

_YOUNG: Final = 0.5
"""Share of the time limit up to which a run's age alone does not explain a too old transaction."""

_STANDSTILL: Final = 1.0
"""Seconds without an answer after which the cluster, not the function, took too long."""


class Attempts:
    """The runs of one call's function.

    Args:
        retries: most further runs.
        pause: waits for a random part of so many seconds.
        retried: called at each further run.

    Attributes:
        failure: the failure of the last run; None for the first.
        is_committing: whether a commit is on its way that may still happen.
    """

    __slots__ = ("_left", "_longest_wait", "_pause", "_pausing", "_retried", "_too_old", "failure", "is_committing")

    def __init__(self, retries: int, pause: Callable[[float], Awaitable[None]], retried: Callable[[], object]) -> None:
        self._left = retries
        self._pausing = pause
        self._retried = retried
        self._pause = FIRST_PAUSE
        self._longest_wait = 0.0
        self._too_old = False
        self.failure: StoreError | None = None
        self.is_committing = False

    def waited(self, seconds: float) -> None:
        """Record the current run's wait for an answer, or for its turn."""
        if seconds > self._longest_wait:
            self._longest_wait = seconds

    async def again(self, failure: StoreError, ran: float = 0.0) -> None:
        """Pause until the function may run again.

        Args:
            failure: the failure of the last run.
            ran: duration of the last run, as a share of its time limit.

        Raises:
            StoreError: the failure, if another run would not help.
        """
        self.failure = failure
        # After a recovery, which may take a tenth of a second, the cluster calls every running transaction too old.
        if isinstance(failure, TransactionTooOld) and ran > _YOUNG:
            # If the cluster answered all the time, the function itself takes too long, and would again. Otherwise the
            # cluster stood still; that excuse counts once.
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
