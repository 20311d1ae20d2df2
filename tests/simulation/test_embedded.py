"""Runs on embedded stores: as repeatable as all others, and nothing of them is left."""

from __future__ import annotations

import threading
from pathlib import Path

from jobs_service.testing import Plan
from tests.simulation.run import Run

SEED = 7
"""One whose run is on an embedded store, in which a process is killed."""


def run_of(seed: int) -> Run:
    run = Run(Plan(seed), None, None, 30)
    assert run.machine is not None, f"seed {seed} is not on an embedded store any more"
    return run


def test_a_run_is_the_same_again() -> None:
    first, second = run_of(SEED).report(), run_of(SEED).report()
    assert first == second
    assert first.violations == []


def test_no_thread_and_no_file_is_left_by_those_who_are_killed() -> None:
    threads = threading.active_count()
    run = run_of(SEED)
    report = run.report()
    assert any("killed" in event for event in report.events)
    assert run.machine is not None
    assert not Path(run.machine.directory).exists()
    assert threading.active_count() == threads
