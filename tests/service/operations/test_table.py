"""The table of operations: what each does to a job in each state, whichever way and on whichever store it is called."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobs_service import Job, JobNotFound, JobsError, JobsService, RunningJob
from tests.client.served import served
from tests.service.support import FAR_AWAY, J1, TIMEOUT, accepted, contents
from tests.service.sync_transaction.support import APPLICATIONS, committed
from tests.stores import ADDRESSED, EVERY_KIND, EVERY_STORE, QUICKEST_AND_CLUSTER, StoreKind

MORE: Any = {"priority": 2, "run_at": FAR_AWAY}

OPERATIONS: dict[str, Callable[[Any, str, Any], Any]] = {
    "add": lambda tx, type, _: tx.add(type, J1, "new", **MORE),
    "add or resubmit": lambda tx, type, _: tx.add(type, J1, "new", **MORE, if_exists="resubmit"),
    "add what is there": lambda tx, type, _: tx.add(type, J1, "old", priority=1, if_exists="resubmit"),
    "add or ignore": lambda tx, type, _: tx.add(type, J1, "new", **MORE, if_exists="ignore"),
    "get": lambda tx, type, _: tx.get(type, J1),
    "accept": lambda tx, type, _: tx.accept(type),
    "resubmit": lambda tx, type, _: tx.resubmit(type, J1),
    "resubmit with more": lambda tx, type, _: tx.resubmit(type, J1, data="new", **MORE),
    "remove": lambda tx, type, _: tx.remove(type, J1),
    "remove by force": lambda tx, type, _: tx.remove(type, J1, force=True),
    "update": lambda tx, _, job: tx.update(job),
    "update with data": lambda tx, _, job: tx.update(job, "new"),
    "update with none": lambda tx, _, job: tx.update(job, None),
    "finish": lambda tx, _, job: tx.finish(job),
    "finish with data": lambda tx, _, job: tx.finish(job, "new"),
    "worker resubmits": lambda tx, _, job: tx.resubmit(job),
    "worker resubmits with more": lambda tx, _, job: tx.resubmit(job, data="new", **MORE),
    "release": lambda tx, _, job: tx.release(job),
}
EXPECTED: dict[str, dict[str, str]] = {
    "add": {
        "typeless": "NoTypeTimeout",
        "missing": "pending new 2 later",
        "pending running flagged canceled elsewhere finished": "JobExists",
    },
    "add or resubmit": {
        "typeless": "NoTypeTimeout",
        "missing pending finished": "pending new 2 later",
        "running elsewhere": "running old 1 flagged",
        "flagged": "running old 1 flagged, unchanged",
        "canceled": "running old 1 flagged asked to stop",
    },
    "add what is there": {
        "typeless": "NoTypeTimeout",
        "missing finished": "pending old 1",
        "pending": "pending old 1, unchanged",
        "running flagged elsewhere": "running old 1 flagged",
        "canceled": "running old 1 flagged asked to stop",
    },
    "add or ignore": {
        "typeless": "NoTypeTimeout",
        "missing": "pending new 2 later",
        "pending": "pending old 1, unchanged",
        "running elsewhere": "running old 1, unchanged",
        "flagged": "running old 1 flagged, unchanged",
        "canceled": "running old 1 asked to stop, unchanged",
        "finished": "finished old 1 succeeded, unchanged",
    },
    "get": {
        "typeless missing": "JobNotFound",
        "pending": "pending old 1, unchanged",
        "running elsewhere": "running old 1, unchanged",
        "flagged": "running old 1 flagged, unchanged",
        "canceled": "running old 1 asked to stop, unchanged",
        "finished": "finished old 1 succeeded, unchanged",
    },
    "accept": {
        "typeless missing": "gone",
        "pending": "running old 1",
        "running elsewhere": "running old 1, unchanged",
        "flagged": "running old 1 flagged, unchanged",
        "canceled": "running old 1 asked to stop, unchanged",
        "finished": "finished old 1 succeeded, unchanged",
    },
    "resubmit": {
        "typeless missing": "JobNotFound",
        "pending": "pending old 1, unchanged",
        "running elsewhere": "running old 1 flagged",
        "flagged": "running old 1 flagged, unchanged",
        "canceled": "running old 1 flagged asked to stop",
        "finished": "pending old 1",
    },
    "resubmit with more": {
        "typeless missing": "JobNotFound",
        "pending finished": "pending new 2 later",
        "running elsewhere": "running old 1 flagged",
        "flagged": "running old 1 flagged, unchanged",
        "canceled": "running old 1 flagged asked to stop",
    },
    "remove": {
        "typeless missing": "JobNotFound",
        "pending finished": "gone",
        "running elsewhere": "running old 1 asked to stop",
        "flagged": "running old 1 flagged asked to stop",
        "canceled": "running old 1 asked to stop, unchanged",
    },
    "remove by force": {
        "typeless missing": "JobNotFound",
        "pending running flagged canceled elsewhere finished": "gone",
    },
    "update": {
        "missing pending elsewhere finished": "WorkerConflict",
        "running": "running old 1",
        "flagged": "running old 1 flagged",
        "canceled": "JobCanceled",
    },
    "update with data": {
        "missing pending elsewhere finished": "WorkerConflict",
        "running": "running new 1",
        "flagged": "running new 1 flagged",
        "canceled": "JobCanceled",
    },
    "update with none": {
        "missing pending elsewhere finished": "WorkerConflict",
        "running": "running None 1",
        "flagged": "running None 1 flagged",
        "canceled": "JobCanceled",
    },
    "finish": {
        "missing pending elsewhere finished": "WorkerConflict",
        "running": "finished old 1 succeeded",
        "flagged": "pending old 2 later",
        "canceled": "finished old 1 canceled",
    },
    "finish with data": {
        "missing pending elsewhere finished": "WorkerConflict",
        "running": "finished new 1 succeeded",
        "flagged": "pending new 2 later",
        "canceled": "finished new 1 canceled",
    },
    "worker resubmits": {
        "missing pending elsewhere finished": "WorkerConflict",
        "running flagged": "running old 1 flagged",
        "canceled": "JobCanceled",
    },
    "worker resubmits with more": {
        "missing pending elsewhere finished": "WorkerConflict",
        "running flagged": "running new 1 flagged",
        "canceled": "JobCanceled",
    },
    "release": {
        "missing pending elsewhere finished": "WorkerConflict",
        "running": "pending old 1",
        "flagged": "pending old 1 flagged",
        "canceled": "finished old 1 canceled",
    },
}
"""What a job is after an operation, by the states before: `flagged` is to run again, `elsewhere` has another lock."""


class Called:
    """Calls what a service and its workers do in the way in which a transaction is called."""

    def __init__(self, jobs: JobsService) -> None:
        self._jobs = jobs

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(first: Any, *arguments: Any, **keywords: Any) -> Any:
            if isinstance(first, RunningJob):
                return getattr(first, name)(*arguments, **keywords)
            if name == "accept":
                keywords["timeout"] = 0
            return getattr(self._jobs, name)(first, *arguments, **keywords)

        return call


async def call(jobs: JobsService, way: str, operation: str, type: str, worker: Any) -> Any:
    """Call an operation in one of four ways."""
    attempt = OPERATIONS[operation]
    if way == "transaction":
        return await jobs.transact(lambda tx: attempt(tx, type, worker))
    if way == "within":
        with committed(jobs) as tx:
            return attempt(tx, type, worker)
    return await attempt(Called(jobs), type, worker)


async def with_job(jobs: JobsService, column: str) -> RunningJob | None:
    """Bring a job of a type of that name into a state; return the handle of the worker who had it."""
    if column == "typeless":
        return None
    await jobs.set_type_timeout(column, TIMEOUT)
    await jobs.add(column, J1, "old", priority=1)
    worker = await accepted(jobs, column)
    match column:
        case "missing":
            await jobs.remove(column, J1, force=True)
        case "pending" | "elsewhere":
            await worker.release()
        case "flagged":
            await jobs.resubmit(column, J1, **MORE)
        case "canceled":
            await jobs.remove(column, J1)
        case "finished":
            await worker.finish()
    if column == "elsewhere":
        await accepted(jobs, column)
    return worker


def described(job: Job) -> str:
    words = [job.state.value, str(job.data), str(job.priority), "later" if job.run_at else ""]
    words += ["flagged" if job.resubmit else "", "asked to stop" if job.cancel else "", job.outcome or ""]
    return " ".join(filter(None, words))


async def what_becomes(jobs: JobsService, way: str, operation: str, column: str) -> str:
    """Return what the job is after an operation, or the error and whether nothing was written."""
    worker = await with_job(jobs, column)
    before = await contents(jobs)
    try:
        result = await call(jobs, way, operation, column, worker)
    except JobsError as error:
        result = error
    if isinstance(result, JobsError):
        assert await contents(jobs) == before
        assert "\n" not in str(result)
        assert (result.type, result.id) in ((column, J1), (column, None))
        return type(result).__name__
    same = way != "client" and await contents(jobs) == before
    try:
        stored = described(await jobs.get(column, J1))
    except JobNotFound:
        return "gone"
    if isinstance(result, Job):
        assert described(result) == stored
    return f"{stored}, unchanged" if same else stored


WAYS: list[tuple[str, Any]] = [
    *(("service", kind) for kind in EVERY_KIND),
    *(("transaction", kind) for kind in EVERY_KIND),
    *(("within", EVERY_STORE[place]) for place, kind in enumerate(ADDRESSED) if kind.name in APPLICATIONS),
    *(("client", kind) for kind in QUICKEST_AND_CLUSTER),
]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(
    ("way", "kind"), [pytest.param(way, *each.values, id=f"{way} {each.id}", marks=each.marks) for way, each in WAYS]
)
async def test_an_operation_does_to_a_job_in_each_state_what_the_table_says(
    way: str, kind: StoreKind, operation: str, tmp_path: Path
) -> None:
    wanted = {column: said for columns, said in EXPECTED[operation].items() for column in columns.split()}
    if way == "client":
        wanted = {column: said.removesuffix(", unchanged") for column, said in wanted.items()}
    service: Any = served if way == "client" else JobsService
    async with service(kind.where(tmp_path), supervise=False) as jobs:
        assert {column: await what_becomes(jobs, way, operation, column) for column in wanted} == wanted
