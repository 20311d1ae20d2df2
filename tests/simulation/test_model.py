"""What the model does that runs of the simulation, which compare it with the service, rarely meet."""

from __future__ import annotations

from typing import Any

from jobs_service.layer.keyspace import pack_priority
from jobs_service.model import UNSET
from tests.service.support import FAR_AWAY, LONG_AGO, T1
from tests.simulation.model import Model
from tests.simulation.model_job import READY, SCHEDULED, Change, Key, ModelJob

NOW = (LONG_AGO + FAR_AWAY) / 2
EARLY, LATE = LONG_AGO, FAR_AWAY
A, B, C = (T1, "a"), (T1, "b"), (T1, "c")


def waiting(model: Model, *jobs: tuple[Key, Any, float | None]) -> None:
    """Add jobs of these priorities and times."""
    for key, priority, run_at in jobs:
        added = model.add(key, Change(b"", pack_priority(priority), run_at), "error", NOW, type_exists=True)
        assert isinstance(added, ModelJob)


def first(model: Model, *, due_by: float = NOW, limit: int = 10, max_priority: Any = None) -> list[Any]:
    most = None if max_priority is None else pack_priority(max_priority)
    return [key[1] for _, key in model.first(T1, limit, most, due_by, NOW)]


def test_a_job_that_is_lost_runs_as_it_was_asked_to() -> None:
    model = Model()
    waiting(model, (A, 0, LATE), (B, 0, None))
    for key in (A, B):
        model.accept(key, b"lock", 0.0)
        model.resubmit(key, Change(UNSET, pack_priority(5), UNSET), NOW)
    lost = model.lose(A, NOW)
    assert (lost.state, lost.next, lost.run_at, lost.lock) == (SCHEDULED, None, LATE, None)
    released = model.stop(B, b"lock", NOW)
    assert isinstance(released, ModelJob)
    assert (released.state, released.next, released.priority) == (READY, None, pack_priority(5))


def test_what_was_changed_can_be_taken_back_and_done_again() -> None:
    model = Model()
    waiting(model, (A, 0, None), (B, 0, LATE))
    position = len(model.log)
    before = dict(model.jobs)
    model.accept(A, b"lock", 0.0)
    model.make_ready(B)
    waiting(model, (C, 0, None))
    after, order = dict(model.jobs), first(model)
    undone = model.undo(position)
    assert model.jobs == before
    assert (first(model), [*model.scheduled(T1)]) == (["a"], [B])
    waiting(model, (C, 1, LATE))
    model.undo(position)
    for key, job in reversed(undone):
        model.restore(key, job)
    assert model.jobs == after
    assert (first(model), [*model.scheduled(T1)]) == (order, [])
