"""Runs on embedded stores: as repeatable as all others, and nothing of them is left."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

from jobs_service.store import embedded, lmdb
from jobs_service.testing import Plan
from tests.simulation.run import Run

SEED = 7
"""One whose run is on an embedded store, in which a process is killed."""


def run_of(seed: int) -> Run:
    run = Run(Plan(seed), None, None, 30)
    assert run.machine is not None, f"seed {seed} is not on an embedded store any more"
    return run


def test_a_run_is_the_same_again_and_leaves_no_thread_and_no_file_of_those_who_are_killed() -> None:
    threads = set(threading.enumerate())
    run = run_of(SEED)
    report = run.report()
    assert report.violations == []
    assert any("killed" in event for event in report.events)
    assert run.machine is not None
    assert not Path(run.machine.directory).exists()
    assert set(threading.enumerate()) <= threads
    assert run_of(SEED).report() == report


def test_nothing_is_left_of_a_run_that_ends_before_its_time() -> None:
    """As runs do that look for the first violation: stores are open, and writers wait for each other."""
    before = [vars(module).copy() for module in (embedded, lmdb)]
    for steps in (200, 500, 900):
        run = run_of(SEED)
        run.world.loop.trace = partial(stop_after, run, steps)
        run.report()
        assert run.machine is not None
        assert not Path(run.machine.directory).exists()
    assert before == [vars(module) for module in (embedded, lmdb)]


def stop_after(run: Run, steps: int, _: object) -> None:
    if run.world.loop.steps >= steps:
        run.world.loop.stop()
