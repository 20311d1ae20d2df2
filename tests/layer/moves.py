"""Moves of running jobs and their histories, for the tests of workers' operations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from jobs_service import Outcome, run_data
from jobs_service.layer import queue, running_jobs
from jobs_service.layer.creation import Spec
from jobs_service.layer.queue import AcceptTerms
from jobs_service.layer.running_jobs import RunReport
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model import JobError
from jobs_service.run_data import HistoryKind
from tests.layer.support import Layer
from tests.virtual_time import EPOCH

A, S, X, C, L, F, K = (
    HistoryKind.ADDED,
    HistoryKind.STARTED,
    HistoryKind.STOPPED,
    HistoryKind.CRASHED,
    HistoryKind.LOST,
    HistoryKind.FINISHED,
    HistoryKind.CANCELED,
)
ERROR = JobError("E", "no")
CRASHED = RunReport(None, run_data.error_json(ERROR), "E: no")
AGAIN = Spec("new", 0, None)


async def accept(found: Layer, limit: int = 1, **terms: Any) -> bytes:
    """Accept the job at the front, and return its lock."""
    wanted = AcceptTerms(limit, None, None, 1, 100, "me", **terms)
    [entry], _ = await found.transact(lambda unit: queue.accept(unit, found.keys, wanted))
    assert entry.record is not None
    assert entry.record.lock is not None
    return entry.record.lock


async def running(found: Layer) -> bytes:
    """Add the job "a" and accept it."""
    await found.add("a")
    return await accept(found)


async def lose_all(found: Layer) -> list[Any]:
    """Take whatever runs for lost."""
    lost = await found.transact(lambda unit: running_jobs.re_enqueue(unit, found.keys, b"\xff" * 10, 10))
    return lost.ids


Move = Callable[[UnitOfWork, Any, bytes], Awaitable[Any]]
MOVES: dict[str, tuple[Move, list[HistoryKind], int]] = {
    "update": (lambda unit, place, lock: running_jobs.update(unit, place, lock, b"1"), [A, S], 1),
    "progress": (lambda unit, place, lock: running_jobs.update(unit, place, lock, None, b'[1,2,"",null]'), [A, S], 1),
    "beat": (lambda unit, place, lock: running_jobs.beat(unit, [(place, lock)]), [A, S], 1),
    "resubmit": (lambda unit, place, lock: running_jobs.resubmit(unit, place, lock, AGAIN), [A, S], 1),
    "release": (lambda unit, place, lock: running_jobs.release(unit, place, lock), [A, S, X], 0),
    "stop": (lambda unit, place, lock: running_jobs.stop(unit, place, lock, EPOCH + 9), [A, S, X], 0),
    "crash": (lambda unit, place, lock: running_jobs.crash(unit, place, lock, CRASHED, EPOCH + 9), [A, S, C], 1),
    "finish": (lambda unit, place, lock: running_jobs.finish(unit, place, lock, None, Outcome.SUCCEEDED), [A, S, F], 1),
    "fail": (
        lambda unit, place, lock: running_jobs.finish(unit, place, lock, None, Outcome.FAILED, CRASHED),
        [A, S, C, F],
        1,
    ),
    "cancel": (lambda unit, place, lock: running_jobs.finish(unit, place, lock, None, Outcome.CANCELED), [A, S, K], 1),
}


async def finish(found: Layer, id: str, outcome: Outcome = Outcome.SUCCEEDED) -> None:
    """Add a job, and have it run and end."""
    await found.add(id)
    lock = await accept(found)
    await found.transact(lambda unit: running_jobs.finish(unit, found.place(id), lock, None, outcome))
