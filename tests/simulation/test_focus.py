"""That a few runs are about one part of the service only, and that plain functions run there as the seed says."""

from __future__ import annotations

import threading

from jobs_service.testing import Choices, Plan
from tests.simulation.focus import _SUBJECTS, _TROUBLES, draw_focus
from tests.simulation.run import Run, simulate

WARNING = 30


def test_a_few_runs_are_about_each_of_the_parts_with_each_of_the_troubles() -> None:
    drawn = [draw_focus(Choices(Plan(seed))) for seed in range(3000)]
    found = [focus for focus in drawn if focus is not None]
    assert 0.05 * len(drawn) < len(found) < 0.09 * len(drawn)
    assert {focus.workloads for focus in found} == {*_SUBJECTS}
    assert all(any(focus.rates == rates for focus in found) for rates in _TROUBLES)


def test_who_says_what_a_run_is_like_gets_that() -> None:
    seed = next(seed for seed in range(300) if draw_focus(Choices(Plan(seed))) is not None)
    for profile, workloads, is_focused in ((None, None, True), ("stormy", None, False), (None, ["handlers"], False)):
        run = Run(Plan(seed), profile, workloads, WARNING)
        run.world.loop.close()
        assert (run.focus is not None) is is_focused


def test_plain_functions_run_in_threads_that_are_gone_with_the_run_and_do_the_same_each_time() -> None:
    before = threading.active_count()
    first, again = (simulate(Plan(3), profile="calm", workloads=["thinkers"], log_level=10) for _ in range(2))
    assert first.violations == []
    assert (first.digest, first.events) == (again.digest, again.events)
    assert any("job_succeeded type=thought" in event for event in first.events)
    assert threading.active_count() == before
