"""What a running job has."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from jobs_service import InvalidJob, Job, JobError, JobsError, JobTransaction, RunningJob
from tests.hostile.world import Check, Result, Target, World, data_is_stored, nothing_stored


def assert_about(error: JobsError, job: Job) -> None:
    """Fail unless an error says which job it is about."""
    assert (error.type, error.id) == (job.type, job.id)


def _of_running(name: str, operation: Callable[[RunningJob, Any], Awaitable[Result]], check: Check) -> Target:
    async def call(world: World, value: Any) -> Result:
        job = await world.running()
        try:
            return await operation(job, value)
        except InvalidJob as error:
            assert_about(error, job)
            raise
        finally:
            if check is nothing_stored:
                await world.jobs.remove(job.type, job.id, force=True)

    return Target(f"running job: {name}", call, check)


def _of_transaction(name: str, operation: Callable[[JobTransaction, RunningJob, Any], Awaitable[Result]]) -> Target:
    async def call(world: World, value: Any) -> Result:
        job = await world.running()
        try:
            return await world.jobs.transact(lambda tx: operation(tx, job, value))
        finally:
            await world.jobs.remove(job.type, job.id, force=True)

    return Target(f"transaction, running job: {name}", call)


RUNNING = [
    _of_running("data of update", lambda job, v: job.update(v), data_is_stored),
    _of_running("data of finish", lambda job, v: job.finish(v), data_is_stored),
    _of_running("outcome of finish", lambda job, v: job.finish(outcome=v), nothing_stored),
    _of_running("result of finish", lambda job, v: job.finish(result=v), nothing_stored),
    _of_running("error of finish", lambda job, v: job.finish(error=v), nothing_stored),
    _of_running("type of an error of finish", lambda job, v: job.finish(error=JobError(v, "no")), nothing_stored),
    _of_running("message of an error of finish", lambda job, v: job.finish(error=JobError("E", v)), nothing_stored),
    _of_running("done of progress", lambda job, v: job.progress(v), nothing_stored),
    _of_running("total of progress", lambda job, v: job.progress(1, v), nothing_stored),
    _of_running("message of progress", lambda job, v: job.progress(1, 2, v), nothing_stored),
    _of_running("data of resubmit", lambda job, v: job.resubmit(data=v), data_is_stored),
    _of_running("priority of resubmit", lambda job, v: job.resubmit(priority=v), nothing_stored),
    _of_running("run_at of resubmit", lambda job, v: job.resubmit(run_at=v), nothing_stored),
    _of_transaction("data of update", lambda tx, job, v: tx.update(job, v)),
    _of_transaction("data of finish", lambda tx, job, v: tx.finish(job, v)),
    _of_transaction("outcome of finish", lambda tx, job, v: tx.finish(job, outcome=v)),
    _of_transaction("result of finish", lambda tx, job, v: tx.finish(job, result=v)),
    _of_transaction("error of finish", lambda tx, job, v: tx.finish(job, error=v)),
    _of_transaction("data of resubmit", lambda tx, job, v: tx.resubmit(job, data=v)),
    _of_transaction("priority of resubmit", lambda tx, job, v: tx.resubmit(job, priority=v)),
    _of_transaction("run_at of resubmit", lambda tx, job, v: tx.resubmit(job, run_at=v)),
    _of_transaction("id of resubmit", lambda tx, job, v: tx.resubmit(job, v)),  # type: ignore[call-overload]
    _of_transaction("job of update", lambda tx, job, v: tx.update(v)),
    _of_transaction("job of finish", lambda tx, job, v: tx.finish(v)),
    _of_transaction("job of release", lambda tx, job, v: tx.release(v)),
    _of_transaction("job of resubmit", lambda tx, job, v: tx.resubmit(v)),
]
