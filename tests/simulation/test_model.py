"""The model does what the service does: the same random operations on both, and what can be seen of them compared."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import count
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobs_service import JobsError, JobsService, JobState, Outcome, json_data
from jobs_service.errors import JobNotFound
from jobs_service.layer.keyspace import pack_priority
from jobs_service.model import UNSET, unpack_priority
from tests.service.sequences import OPERATIONS, Operation, play
from tests.service.support import FAR_AWAY, LONG_AGO, T1, TIMEOUT
from tests.simulation.model import Model
from tests.simulation.model_job import FINISHED, READY, RUNNING, SCHEDULED, Change, Key, ModelJob

NOW = (LONG_AGO + FAR_AWAY) / 2
EARLY, LATE = LONG_AGO, FAR_AWAY
A, B, C = (T1, "a"), (T1, "b"), (T1, "c")

STATES = {
    READY: JobState.PENDING,
    SCHEDULED: JobState.PENDING,
    RUNNING: JobState.RUNNING,
    FINISHED: JobState.FINISHED,
}


class ModelPlayer:
    """Plays operations on the model, and writes down what `tests.service.sequences.Player` writes down of a service."""

    def __init__(self) -> None:
        self.model = Model()
        self.model.timeouts[T1] = TIMEOUT
        self.seen: list[Any] = []
        self._handles: list[tuple[Key, bytes]] = []
        self._locks = count(1)

    def play(self, operations: list[Operation]) -> None:
        for name, arguments in operations:
            result = self._do(name, dict(arguments))
            if isinstance(result, type):
                result = (result.__name__, T1, self._id)
            self.seen.append((name, result))

    def drained(self) -> list[Any]:
        """Accept all that can be accepted, and return the ids."""
        ids = []
        while found := self.model.first(T1, 1, None, FAR_AWAY, NOW):
            ids.append(found[0][1][1])
            self._accept(found[0][1])
        return ids

    def _do(self, name: str, arguments: dict[str, Any]) -> Any:
        if name == "look":
            return self._look()
        if name in ("accept", "accept_many"):
            max_priority = arguments.get("max_priority")
            most = None if max_priority is None else pack_priority(max_priority)
            found = self.model.first(T1, arguments.get("limit", 1), most, NOW, NOW)
            return [seen("RunningJob", key, self._accept(key)) for _, key in found]
        if "handle" in arguments:
            place = arguments.pop("handle")
            if not self._handles:
                return "no handle yet"
            key, lock = self._handles[place % len(self._handles)]
            return self._work(name, key, lock, arguments)
        self._id = arguments.pop("id")
        return self._create(name, (T1, self._id), arguments)

    def _accept(self, key: Key) -> ModelJob:
        lock = next(self._locks).to_bytes(16, "big")
        self._handles.append((key, lock))
        return self.model.accept(key, lock, 0.0)

    def _work(self, name: str, key: Key, lock: bytes, arguments: dict[str, Any]) -> Any:
        self._id = key[1]
        data = packed(arguments.get("data", UNSET))
        if name == "update":
            return seen("RunningJob", key, self.model.update(key, lock, data, 0.0))
        if name == "finish":
            outcome = arguments.get("outcome", Outcome.SUCCEEDED)
            return seen("Job", key, self.model.finish(key, lock, data, outcome, NOW))
        if name == "release":
            return seen("Job", key, self.model.stop(key, lock, NOW))
        return seen("RunningJob", key, self.model.worker_resubmit(key, lock, change(arguments), 0.0))

    def _create(self, name: str, key: Key, arguments: dict[str, Any]) -> Any:
        if name == "add":
            rule = arguments.pop("if_exists")
            whole = {"data": None, "priority": 0, "run_at": None, **arguments}
            return seen("Job", key, self.model.add(key, change(whole), rule, NOW))
        if name == "resubmit":
            return seen("Job", key, self.model.resubmit(key, change(arguments), NOW))
        if name == "remove":
            return self.model.remove(key, arguments["force"])
        job = self.model.jobs.get(key)
        return JobNotFound if job is None else seen("Job", key, job)

    def _look(self) -> Any:
        jobs = self.model.jobs
        waiting = [job for job in jobs.values() if job.pending]
        return (
            sorted((seen("Job", key, job) for key, job in jobs.items()), key=repr),
            len(waiting),
            sum(job.run_at is None or job.run_at <= LONG_AGO for job in waiting),
            sorted(str(key[1]) for key, job in jobs.items() if job.state is RUNNING),
        )


def packed(data: Any) -> Any:
    return UNSET if data is UNSET else json_data.encode(data)


def change(arguments: dict[str, Any]) -> Change:
    priority = arguments.get("priority", UNSET)
    return Change(
        packed(arguments.get("data", UNSET)),
        UNSET if priority is UNSET else pack_priority(priority),
        arguments.get("run_at", UNSET),
    )


def seen(kind: str, key: Key, job: ModelJob | type[JobsError]) -> Any:
    """Return what `tests.service.sequences.observable` returns of the same job."""
    if isinstance(job, type):
        return job
    return (
        kind,
        *key,
        STATES[job.state],
        job.outcome,
        json_data.decode(job.data),
        unpack_priority(job.priority),
        None if job.run_at is None else datetime.fromtimestamp(job.run_at, UTC),
        job.next is not None,
        job.cancel,
    )


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(groups=st.lists(OPERATIONS, min_size=1, max_size=4))
async def test_the_model_gives_what_the_service_gives_and_has_its_order(groups: list[list[Operation]]) -> None:
    async with JobsService("memory:", supervise=False) as jobs:
        given_by_service = await play(jobs, groups)
    player = ModelPlayer()
    look: Operation = ("look", {})
    for group in [*groups, [look]]:
        player.play(group)
    assert [*player.seen, player.drained()] == given_by_service


# What random sequences rarely meet


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
