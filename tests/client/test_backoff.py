"""Pauses between tries."""

from __future__ import annotations

from jobs_service.client.connection import Backoff
from jobs_service.sources import Sources


def test_pauses_grow_up_to_a_bound_and_begin_again() -> None:
    backoff = Backoff(Sources(0))
    pauses = [backoff.pause() for _ in range(20)]
    longest = [min(0.05 * 2**number, 3.0) for number in range(20)]
    assert all(most / 2 <= pause <= most for pause, most in zip(pauses, longest, strict=True))
    backoff.reset()
    assert backoff.pause() <= 0.05


def test_two_clients_do_not_come_at_the_same_time() -> None:
    one, other = Backoff(Sources(1)), Backoff(Sources(2))
    assert [one.pause() for _ in range(5)] != [other.pause() for _ in range(5)]
