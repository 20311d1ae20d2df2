"""Runs of a transaction function on a cluster: what is tried again, how often, and after which pauses."""

from __future__ import annotations

import pytest

from jobs_service.errors import TransactionConflict, TransactionTooOld
from jobs_service.store.fdb.client import LONGEST_PAUSE, Attempts


class Pauses:
    """Notes pauses instead of waiting."""

    def __init__(self) -> None:
        self.taken: list[float] = []
        self.retries = 0

    async def pause(self, seconds: float) -> None:
        """Note one."""
        self.taken.append(seconds)

    def retried(self) -> None:
        """Count one."""
        self.retries += 1

    def attempts(self, retries: int = 1000) -> Attempts:
        """Return the attempts of one call."""
        return Attempts(retries, self.pause, self.retried)


async def test_a_function_that_was_answered_all_the_time_and_took_too_long_is_not_run_again() -> None:
    pauses = Pauses()
    attempts = pauses.attempts()
    for _ in range(50):
        attempts.waited(0.1)
    with pytest.raises(TransactionTooOld):
        await attempts.again(TransactionTooOld("old"), 1.0)
    assert pauses.retries == 0


async def test_one_that_took_too_long_because_the_cluster_stood_still_is_run_again_once() -> None:
    pauses = Pauses()
    attempts = pauses.attempts()
    attempts.waited(4.0)
    await attempts.again(TransactionTooOld("old"), 1.0)
    assert pauses.retries == 1
    attempts.waited(4.0)
    with pytest.raises(TransactionTooOld):
        await attempts.again(TransactionTooOld("old again"), 1.0)


async def test_one_that_is_too_old_although_it_took_no_time_is_run_again_however_often() -> None:
    pauses = Pauses()
    attempts = pauses.attempts()
    for _ in range(20):
        await attempts.again(TransactionTooOld("the cluster has recovered"), 0.04)
    assert pauses.retries == 20


async def test_pauses_grow_up_to_a_longest_one_and_attempts_come_to_an_end() -> None:
    pauses = Pauses()
    attempts = pauses.attempts(retries=12)
    for number in range(12):
        failure = TransactionConflict(f"conflict {number}")
        await attempts.again(failure)
        assert attempts.failure is failure
    assert pauses.taken == sorted(pauses.taken)
    assert pauses.taken[0] < pauses.taken[-1] == LONGEST_PAUSE
    with pytest.raises(TransactionConflict):
        await attempts.again(TransactionConflict("the last"))
    assert pauses.retries == 12
