"""That a part of a service that is restarted for no reason is noticed, also when something took time long before."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from jobs_service.testing import Plan
from tests.simulation.run import Run
from tests.simulation.workloads.overseers import Inspectors

NOW = [0.0]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    run = Run(Plan(1), "calm", [Inspectors.name], 30)
    monkeypatch.setattr(run.world.loop, "time", lambda: NOW[0])
    yield run
    run.world.loop.close()


def look(run: Run, process: Any, at: float, restarts: int) -> int:
    """Look at a tree one of whose parts has been restarted so often; return how many complaints there are."""
    NOW[0] = at
    part = {"name": "notifiers", "restarts": restarts, "state": "running", "seconds": 1.0}
    tree = {"name": "JobsService", "restarts": 0, "children": [part]}
    client: Any = SimpleNamespace(process=process, jobs=SimpleNamespace(supervision=lambda: tree))
    [inspectors] = run.workloads
    asyncio.run(inspectors.step(client))
    return len(run.violations)


def test_a_restart_for_no_reason_is_noticed_also_when_a_fault_was_long_ago(run: Run) -> None:
    process: Any = object()
    run.opened[process] = 0.0
    assert look(run, process, 0.0, 0) == 0
    run.quiet.disturb("crash")
    assert look(run, process, 5.0, 1) == 0
    assert look(run, process, 30.0, 1) == 0
    assert look(run, process, 40.0, 2) == 1
    assert look(run, process, 50.0, 2) == 1
    assert "notifiers was restarted for no reason since 30.000" in run.violations[0]
