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


def test_seeds_differ_from_each_other() -> None:
    assert len({repr(draws(Sources(seed))) for seed in (0, 1, 2, "0", "1")}) == 5


def test_without_a_seed_tokens_do_not_repeat() -> None:
    sources, other = Sources(), Sources()
    tokens = [each.token(16) for each in (sources, other) for _ in range(1000)]
    assert len(set(tokens)) == 2000
    assert {len(token) for token in tokens} == {16}


def test_jitter_does_not_disturb_the_tokens() -> None:
    one, other = Sources(7), Sources(7)
    one.uniform(0, 1)
    one.below(10)
    assert one.token(8) == other.token(8)


def test_uniform_stays_between_its_bounds_and_is_not_constant() -> None:
    sources = Sources(1)
    drawn = [sources.uniform(2.0, 3.0) for _ in range(200)]
    assert all(2.0 <= each <= 3.0 for each in drawn)
    assert max(drawn) - min(drawn) > 0.5
    assert sources.uniform(0.0, 0.0) == 0.0


def test_below_gives_every_integer_under_its_limit_and_no_other() -> None:
    sources = Sources(1)
    assert {sources.below(5) for _ in range(500)} == {0, 1, 2, 3, 4}
    assert {sources.below(1) for _ in range(20)} == {0}


def test_wall_time_is_the_systems_unless_a_test_owns_it() -> None:
    before = time.time()
    assert before <= Sources().wall_time() <= time.time()
    assert Sources(wall_time=lambda: 12.5).wall_time() == 12.5
