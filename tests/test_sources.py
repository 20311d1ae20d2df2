"""Wall-clock time, randomness and tokens come from one place that a test can own."""

from __future__ import annotations

import time

import pytest

from jobs_service.sources import Sources


def draws(sources: Sources) -> list[object]:
    """Return a few draws of every kind."""
    return [
        [sources.token(16) for _ in range(3)],
        [sources.uniform(0.0, 5.0) for _ in range(3)],
        [sources.below(1000) for _ in range(3)],
    ]


@pytest.mark.parametrize("seed", [0, 1, "name"])
def test_a_seed_makes_every_draw_repeatable(seed: int | str) -> None:
    assert draws(Sources(seed)) == draws(Sources(seed))


def test_jitter_does_not_disturb_the_tokens() -> None:
    one, other = Sources(7), Sources(7)
    one.uniform(0, 1)
    one.below(10)
    assert one.token(8) == other.token(8)


def test_wall_time_is_the_systems_unless_a_test_owns_it() -> None:
    before = time.time()
    assert before <= Sources().wall_time() <= time.time()
    assert Sources(wall_time=lambda: 12.5).wall_time() == 12.5
