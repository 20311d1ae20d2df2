"""Schedules of the store in the simulated world: no weather brings a tick twice, and a defect that would is seen."""

from __future__ import annotations

import pytest

from jobs_service.runner.stored_schedules import StoredPeriodic
from jobs_service.testing import Plan
from tests.shares import share
from tests.simulation.run import simulate

SEEDS = range(200)
FEW = SEEDS[:30]


def ticks_of(seed: int) -> tuple[list[str], int]:
    """Run a seed with schedulers alone; return what was wrong, and how many events tell of ticks."""
    report = simulate(Plan(seed), workloads=["schedulers"], log_level=10)
    return report.violations, sum("ticked" in event for event in report.events)


def test_each_tick_comes_once_whatever_the_weather() -> None:
    found = {seed: ticks_of(seed) for seed in share(SEEDS, 8)}
    assert {seed: violations for seed, (violations, _) in found.items() if violations} == {}
    assert sum(ticked for _, ticked in found.values()) > len(found)


def test_a_tick_that_is_not_noted_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoredPeriodic, "note", lambda self, unit, tick: None)
    assert any("came" in violation for seed in FEW for violation in ticks_of(seed)[0])
