"""That jobs of a paused type may wait for their turn, also when handlers of another type go on meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from jobs_service import JobType
from jobs_service.testing import Plan
from tests.simulation.run import Run
from tests.simulation.workloads.runner_entries import RunnerEntries
from tests.simulation.workloads.runner_state import CONTINUOUS, ONE_SHOT
from tests.simulation.workloads.runners import Handlers


def test_jobs_of_a_paused_type_wait_also_when_another_type_is_resumed() -> None:
    run = Run(Plan(1), "calm", [Handlers.name], 30)
    try:
        [known] = [each.known for each in run.workloads if isinstance(each, Handlers)]
        [entries] = [each for each in run.world.cluster.observers if isinstance(each, RunnerEntries)]

        def happens(name: str, type: JobType) -> None:
            entry = SimpleNamespace(name=name, type=type, result=None)
            transaction: Any = SimpleNamespace(commit_version=1, process=None, journal=[entry])
            run.history.pauses.setdefault(type, []).append((1, name == "pause"))
            entries.ended(transaction)

        happens("pause", CONTINUOUS)
        happens("resume", ONE_SHOT)
        assert known.turns_resumed_at == known.resumed_at == float("inf")
        happens("resume", CONTINUOUS)
        assert known.turns_resumed_at == known.resumed_at == run.world.loop.time()
    finally:
        run.world.loop.close()
