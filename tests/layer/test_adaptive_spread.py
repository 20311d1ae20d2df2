"""How wide a service's workers spread: wider with every collision, narrower with looks that met none."""

from __future__ import annotations

import pytest

from jobs_service.layer.keyspace import Keyspace
from jobs_service.layer.queue import QueueReads, Spreading

SPACE = Keyspace(b"")
KEYS = SPACE.of("t")
OTHER = SPACE.of("other")


def look(spreading: Spreading, *runs: list[str], limit: int = 1) -> list[int]:
    """Look at the queue in one transaction whose function finds these jobs in its runs; return the spread of each."""
    looks = QueueReads(spreading)
    spreads = []
    for found in runs:
        looks.begin()
        spreads.append(looks.spread(KEYS, limit))
        looks.took(KEYS, spreads[-1], found)
    looks.end()
    return spreads


def test_a_collision_widens_the_next_look() -> None:
    spreading = Spreading()
    assert look(spreading, ["a"], ["b"]) == [1, 1]
    assert spreading.is_crowded(KEYS)
    assert spreading.spread(KEYS, 1) == 2
    assert spreading.spread(KEYS, 10) == 11
    assert not spreading.is_crowded(OTHER)
    assert spreading.spread(OTHER, 10) == 1


def test_a_look_that_collides_again_and_again_widens_at_once() -> None:
    spreading = Spreading()
    assert look(spreading, ["a"], ["b"], ["c"], ["d"], ["e"]) == [
        1,
        1,
        2,
        8,
        16,
    ]  # whether the second run was in vain, the third one tells
    assert spreading.spread(KEYS, 1) == 16


@pytest.mark.parametrize(("limit", "widest"), [(1, 1024), (10, 1024), (100, 1600), (1000, 16_000)])
def test_the_spread_has_a_bound_that_grows_with_what_is_taken(limit: int, widest: int) -> None:
    spreading = Spreading()
    spreading.learn(KEYS, 1000)
    assert spreading.spread(KEYS, limit, collisions=1000) == widest
    for _ in range(80):
        spreading.learn(KEYS, 0)
    assert spreading.spread(KEYS, limit) == 1


def test_turns_are_taken_for_long_after_a_collision() -> None:
    spreading = Spreading()
    assert not spreading.takes_turns(KEYS)
    spreading.learn(KEYS, 1)
    for _ in range(999):
        spreading.learn(KEYS, 0)
    assert spreading.takes_turns(KEYS)
    assert not spreading.takes_turns(OTHER)
    assert not spreading.is_crowded(KEYS)
    spreading.learn(KEYS, 0)
    assert not spreading.takes_turns(KEYS)
