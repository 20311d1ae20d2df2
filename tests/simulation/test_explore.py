"""Many plans run in worker processes: all of them, whatever some of them do to their process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from jobs_service.testing.loop import Plan
from tests.simulation.explore import Tally, explore, in_worker
from tests.simulation.report import Report

HANGING = 11
"""The seed with which a troubled run never ends."""


def well(plan: Plan) -> Report:
    """Run without violation; the digest tells the process."""
    return Report(
        plan=plan,
        violations=[],
        events=["began", "ended"],
        operations=[0, 1],
        faults=["conflict:3", "conflict:4", "crash:notifier:0"],
        deviations=[7],
        cells=Counter({("add", "missing"): 2, ("finish", "running"): plan.seed}),
        seconds=1800.0,
        digest=str(os.getpid()),
    )


def troubled(plan: Plan) -> Report:
    """Do all that a run should not."""
    if plan.seed == 3:
        raise LookupError("nothing there")
    if plan.seed == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    if plan.seed == 7:
        raise SystemExit(3)
    if plan.seed == HANGING:
        wait_for_ever()
    return well(plan)


def wait_for_ever() -> None:
    """Never return."""
    threading.Event().wait()


def plans(number: int) -> map[Plan]:
    return map(Plan, range(number))


def test_every_plan_is_run_once_and_the_tally_adds_them_up() -> None:
    seen: list[int] = []
    tally = explore(well, plans(20), jobs=2, seen=lambda tally: seen.append(tally.seeds))
    assert seen == list(range(1, 21))
    assert tally.simulated == 20 * 1800
    assert tally.faults == {"conflict": 40, "crash:notifier": 20}
    assert tally.cells == {("add", "missing"): 40, ("finish", "running"): sum(range(20))}
    assert tally.failures == []
    assert tally.elapsed > 0


def test_runs_that_raise_or_end_their_process_are_violations_and_the_others_go_on() -> None:
    tally = explore(troubled, plans(10), jobs=2)
    assert tally.seeds == 10
    assert {report.plan.seed: report.violations for report in tally.failures} == {
        3: ["raised LookupError: nothing there"],
        5: ["died: the worker process ended with exit code -9"],
        7: ["died: the worker process ended with exit code 3"],
    }
    assert any("in troubled" in event for event in tally.failures[0].events), "the events are the traceback"
    assert multiprocessing.active_children() == []


def test_a_run_that_hangs_is_a_violation_that_tells_where_it_was_and_its_worker_is_replaced() -> None:
    with in_worker(troubled, hang=3) as run_there:
        report = run_there(Plan(HANGING))
        assert (report.plan, report.violations) == (Plan(HANGING), ["hung: no answer for 3 s"])
        assert any("in wait_for_ever" in event for event in report.events)
        assert run_there(Plan(0)).violations == []


def test_when_it_is_told_to_stop_every_run_that_was_begun_is_counted_and_no_other() -> None:
    enough = False

    def look(tally: Tally) -> None:
        nonlocal enough
        enough = tally.seeds >= 10

    begun: list[int] = []

    def endless() -> Iterator[Plan]:
        for seed in count():
            begun.append(seed)
            yield Plan(seed)

    tally = explore(well, endless(), jobs=2, stopped=lambda: enough, seen=look)
    assert tally.seeds == len(begun)
    assert 10 <= tally.seeds <= 12


def test_an_exploration_that_is_interrupted_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(tally: Tally) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        explore(troubled, [Plan(0), *[Plan(HANGING)] * 2], jobs=2, seen=interrupt)
    assert (multiprocessing.active_children(), list(tmp_path.iterdir())) == ([], [])
