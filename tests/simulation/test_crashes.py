"""That errors in the log count against the service unless a part of it was made to crash; and when a loss is late."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from jobs_service.testing import Plan, Process
from jobs_service.testing.world import Clock
from tests.simulation.replay import Silence
from tests.simulation.run import Run

NOW = [0.0]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    NOW[0] = 0.0
    run = Run(Plan(1), "calm", ["workers"], 30)
    monkeypatch.setattr(run.world.loop, "time", lambda: NOW[0])
    yield run
    run.world.loop.close()


def process_of(run: Run, name: str) -> Process:
    return Process(run.world, name, 1, clock=Clock(run.world.loop, 0.0), settings=run.world.settings)


def log(run: Run, process: Process, event: str, **fields: Any) -> int:
    """Have a process's service log an error; return how many complaints there are then."""
    process.context.run(run.world.on_log, event, fields)
    return len(run.violations)


def test_an_error_is_tolerated_only_in_the_process_that_has_had_a_part_crash_and_for_a_while(run: Run) -> None:
    one, other = process_of(run, "p0"), process_of(run, "p1")
    assert log(run, one, "child_crashed") == 1
    run.crashes.crashed(one)
    assert log(run, one, "child_crashed") == 1
    assert log(run, other, "child_crashed") == 2
    assert run.crashes.has_crashed(one)
    assert not run.crashes.has_crashed(other)
    NOW[0] = 60.0
    assert log(run, one, "supervisor_gave_up") == 3


def test_jobs_that_are_lost_one_by_one_have_a_commit_each_before_they_count_as_late(run: Run) -> None:
    run.world.cluster.latency = 0.05
    nobody: Any = SimpleNamespace(journal=())
    for number in range(12):
        silence = Silence(10.0 + 0.2 * number, "t", f"j{number}", 3.0 + 0.2 * number, 2.0)
        run.history.silences.append(silence)
        run.bounds.ended(nobody)
    assert not run.violations
    run.history.silences.append(Silence(60.0, "t", "another", 5.0, 2.0))
    run.bounds.ended(nobody)
    assert len(run.violations) == 1
