"""How long those wait who collide over the same work."""

from __future__ import annotations

import pytest

from jobs_service.actors.activity_monitor import Stagger


def longest(low: float, high: float) -> float:
    """Return the longest pause that may be drawn."""
    assert low == 0
    return high


def test_the_bound_of_a_pause_doubles_with_every_collision_up_to_the_longest() -> None:
    stagger = Stagger(longest, 0.25)
    bounds = [stagger.pause()]
    for _ in range(8):
        stagger.learn(collided=True, useful=False)
        bounds.append(stagger.pause())
    assert bounds == pytest.approx([0, 0.01, 0.02, 0.04, 0.08, 0.16, 0.25, 0.25, 0.25])


def test_the_bound_of_a_pause_shrinks_to_nothing_with_work_that_is_done_without_a_collision() -> None:
    stagger = Stagger(longest, 0.25)
    for _ in range(8):
        stagger.learn(collided=True, useful=True)
    stagger.learn(collided=False, useful=False)
    assert stagger.pause() == 0.25  # there was nothing left to do: the pause has served its purpose
    stagger.learn(collided=False, useful=True)
    assert 0.2 < stagger.pause() < 0.25
    for _ in range(50):
        stagger.learn(collided=False, useful=True)
    assert stagger.pause() == 0
