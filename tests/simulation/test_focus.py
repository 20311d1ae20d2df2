"""Small runs that look at one thing: each is drawn, and shows what only it is known to show."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from jobs_service.testing import Choices, Plan
from tests.simulation import focus
from tests.simulation.focus import Focus, draw_focus
from tests.simulation.mutants import EVERY
from tests.simulation.run import simulate
from tests.simulation.score import UntilFailure

MOST_SEEDS = 60
SHOWN = {
    focus._tight: "added jobs have no bound in bytes",
    focus._tight_handlers: "jobs that run are kept alive in one transaction",
    focus._woven: "a transactions count has its own jobs of any time",
}
"""By what a run looks at, a defect that hardly any other run shows."""


@pytest.fixture
def drawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All runs draw what the test is given."""
    monkeypatch.setattr(focus, "_FOCUSED", 1.0)
    monkeypatch.setattr(focus, "_KINDS", {request.param: 1})


def named(kind: Callable[[Random], Focus]) -> str:
    return kind.__name__.strip("_")


def test_everything_there_is_to_look_at_is_drawn_and_most_runs_look_at_all() -> None:
    seeds = [draw_focus(Choices(Plan(seed)), None, None) for seed in range(2000)]
    focused = [each for each in seeds if each.workloads is not None]
    of_handlers = [each for each in focused if each.of_handlers]
    assert 0.05 * len(seeds) < len(of_handlers) < 0.09 * len(seeds)
    assert 0.02 * len(seeds) < len(focused) - len(of_handlers) < 0.15 * len(seeds)
    assert len({each.workloads for each in focused if not each.of_handlers}) == len(focus._KINDS)
    assert SHOWN.keys() == focus._KINDS.keys()
    assert {each.workloads for each in of_handlers} == {*focus._SUBJECTS}
    assert all(any(each.rates == rates for each in of_handlers) for rates in focus._TROUBLES)


def test_runs_whose_workloads_or_weather_are_chosen_look_at_these() -> None:
    for seed in range(100):
        assert draw_focus(Choices(Plan(seed)), ("workers",), None) == Focus(("workers",))
        assert draw_focus(Choices(Plan(seed)), None, "calm") == Focus(None, "calm")


@pytest.mark.parametrize(("drawn", "defect"), SHOWN.items(), indirect=["drawn"], ids=[*map(named, SHOWN)])
@pytest.mark.usefixtures("drawn")
def test_a_small_run_shows_what_it_looks_at(defect: str) -> None:
    """Without the defect the same seed violates nothing."""
    mutant = next(each for each in EVERY if each.name == defect)
    for seed in range(MOST_SEEDS):
        with mutant.defect():
            report = simulate(Plan(seed), kind=UntilFailure)
        if report.violations:
            assert simulate(Plan(seed)).violations == []
            return
    raise AssertionError(f"{MOST_SEEDS} seeds do not show that {defect}")
