"""Everything that the service and a transaction have alike."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from jobs_service import Job, JobsService, JobState, JobTransaction, NewJob, RunningJob
from tests.hostile.world import WORK, Check, Result, Target, World, data_is_stored, job_is_stored, nothing_stored, same
from tests.service.support import TIMEOUT

_MOST_JOBS = 100


async def _type_is_stored(world: World, value: Any, job: Job) -> None:
    assert same(job.type, value)
    await job_is_stored(world, value, job)


async def _id_is_stored(world: World, value: Any, job: Job) -> None:
    assert same(job.id, value)
    await job_is_stored(world, value, job)
    await world.jobs.remove(job.type, job.id, force=True)


async def _priority_is_stored(world: World, value: Any, job: Job) -> None:
    assert same((await world.jobs.get(job.type, job.id)).priority, value)


async def _new_type(world: World, value: Any, _result: None) -> None:
    assert any(same(each, value) for each in await world.jobs.types())
    assert await world.jobs.get_type_timeout(value) == TIMEOUT


async def _listed(api: Any, *arguments: Any, **keywords: Any) -> list[Job]:
    return [job async for job in api.list(*arguments, **keywords)]


Operation = Callable[[Any, World, Any], Awaitable[Result]]


def _anywhere(name: str, operation: Operation, check: Check = nothing_stored, passes_on: bool = False) -> list[Target]:
    """Return the target as an operation of the service, and of a transaction."""

    async def in_transaction(world: World, value: Any) -> Result:
        async def work(tx: JobTransaction) -> Result:
            await tx.add(WORK, "beside")
            result = await operation(tx, world, value)
            await tx.remove(WORK, "beside", force=True)
            return result

        return await world.jobs.transact(work)

    return [
        Target(f"service: {name}", lambda world, value: operation(world.jobs, world, value), check, passes_on),
        Target(f"transaction: {name}", in_transaction, check, passes_on),
    ]


async def _add_of_type(api: Any, world: World, value: Any) -> Job:
    await api.set_type_timeout(value, TIMEOUT)
    job: Job = await api.add(value, world.new_id())
    return job


async def accept_and_release(api: Any, world: World, **terms: Any) -> None:
    if isinstance(api, JobsService):
        terms.setdefault("timeout", 0)
        await world.jobs.add(WORK, world.new_id(), priority=-4)
    for job in await api.accept_many(WORK, terms.pop("limit", 1), **terms):
        assert job.state is JobState.RUNNING
        if isinstance(api, JobsService):
            await job.finish()
        else:
            await api.finish(job)


async def _accept_of_type(api: Any, world: World, value: Any) -> RunningJob | None:
    job: RunningJob | None = await (api.accept(value, timeout=0) if isinstance(api, JobsService) else api.accept(value))
    if job is not None:
        await (job.release() if isinstance(api, JobsService) else api.release(job))
    return job


async def _added_and_resubmitted(api: Any, world: World, **changes: Any) -> Job:
    id = world.new_id()
    await api.add(WORK, id, "as it was")
    job: Job = await api.resubmit(WORK, id, **changes)
    return job


async def _added_with_rule(api: Any, world: World, value: Any) -> Job:
    id = world.new_id()
    await api.add(WORK, id)
    job: Job = await api.add(WORK, id, if_exists=value)
    return job


async def _paused_and_resumed(api: Any, value: Any) -> None:
    await api.pause(value)
    assert await api.paused(value)
    await api.resume(value)
    assert not await api.paused(value)


async def _enqueue(api: Any, world: World, **how: Any) -> Job:
    how.setdefault("args", None)
    job: Job = await api.enqueue(world.handler, how.pop("args"), **how)
    return job


async def _enqueued_and_removed(api: Any, world: World, **how: Any) -> None:
    job = await _enqueue(api, world, **how)
    await api.remove(job.type, job.id)


async def _enqueued_many(api: Any, world: World, jobs: Any) -> None:
    if type(jobs) is range:
        jobs = jobs[:_MOST_JOBS]  # every number in it is a job's argument: a trillion jobs take their time
    await _removed(api, await api.enqueue_many(world.handler, jobs))


async def _added_many(api: Any, world: World, jobs: Any, **rule: Any) -> None:
    await _removed(api, await api.add_many(WORK, jobs, **rule))


async def _removed(api: Any, jobs: list[Job]) -> None:
    """Remove jobs, of which a long text makes thousands: together, where each is a transaction's round trips."""
    if isinstance(api, JobsService):
        await asyncio.gather(*(api.remove(job.type, job.id) for job in jobs))
        return
    for job in jobs:
        await api.remove(job.type, job.id)


ANYWHERE = [
    *_anywhere("type of set_type_timeout", lambda api, world, v: api.set_type_timeout(v, TIMEOUT), _new_type),
    *_anywhere("seconds of a type", lambda api, world, v: api.set_type_timeout("timed", v)),
    *_anywhere("type of get_type_timeout", lambda api, world, v: api.get_type_timeout(v)),
    *_anywhere("type of clear_type_timeout", lambda api, world, v: api.clear_type_timeout(v)),
    *_anywhere("type of add", _add_of_type, _type_is_stored),
    *_anywhere("id of add", lambda api, world, v: api.add(WORK, v), _id_is_stored),
    *_anywhere("data of add", lambda api, world, v: api.add(WORK, world.new_id(), v), data_is_stored),
    *_anywhere("priority of add", lambda api, world, v: api.add(WORK, world.new_id(), priority=v), _priority_is_stored),
    *_anywhere("run_at of add", lambda api, world, v: api.add(WORK, world.new_id(), run_at=v), job_is_stored),
    *_anywhere("if_exists of add", _added_with_rule, job_is_stored),
    *_anywhere("type of add_many", lambda api, world, v: api.add_many(v, [NewJob(world.new_id())])),
    *_anywhere("jobs of add_many", _added_many, passes_on=True),
    *_anywhere("a job of add_many", lambda api, world, v: _added_many(api, world, [NewJob("m"), v])),
    *_anywhere("id in add_many", lambda api, world, v: _added_many(api, world, [NewJob("m"), NewJob(v)])),
    *_anywhere("data in add_many", lambda api, world, v: _added_many(api, world, [NewJob("m", v)])),
    *_anywhere("priority in add_many", lambda api, world, v: _added_many(api, world, [NewJob("m", priority=v)])),
    *_anywhere("run_at in add_many", lambda api, world, v: _added_many(api, world, [NewJob("m", run_at=v)])),
    *_anywhere("if_exists of add_many", lambda api, world, v: _added_many(api, world, [NewJob("m")], if_exists=v)),
    *_anywhere("type of remove", lambda api, world, v: api.remove(v, "x")),
    *_anywhere("id of remove", lambda api, world, v: api.remove(WORK, v)),
    *_anywhere("force of remove", lambda api, world, v: api.remove(WORK, "nobody", force=v)),
    *_anywhere("type of resubmit", lambda api, world, v: api.resubmit(v, "x")),
    *_anywhere("id of resubmit", lambda api, world, v: api.resubmit(WORK, v)),
    *_anywhere("data of resubmit", lambda api, world, v: _added_and_resubmitted(api, world, data=v), data_is_stored),
    *_anywhere("priority of resubmit", lambda api, world, v: _added_and_resubmitted(api, world, priority=v)),
    *_anywhere("run_at of resubmit", lambda api, world, v: _added_and_resubmitted(api, world, run_at=v)),
    *_anywhere("type of get", lambda api, world, v: api.get(v, "x")),
    *_anywhere("id of get", lambda api, world, v: api.get(WORK, v)),
    *_anywhere("type of list", lambda api, world, v: _listed(api, v) if v is not None else _listed(api, WORK)),
    *_anywhere("state of list", lambda api, world, v: _listed(api, "empty", state=v)),
    *_anywhere("page_size of list", lambda api, world, v: _listed(api, "empty", page_size=v)),
    *_anywhere("type of active_ids", lambda api, world, v: api.active_ids(v)),
    *_anywhere("type of pending_count", lambda api, world, v: api.pending_count(v)),
    *_anywhere("due_by of pending_count", lambda api, world, v: api.pending_count("empty", due_by=v)),
    *_anywhere("limit of pending_count", lambda api, world, v: api.pending_count("empty", limit=v)),
    *_anywhere("type of accept", _accept_of_type),
    *_anywhere("type of accept_many", lambda api, world, v: _accept_of_type(api, world, v)),
    *_anywhere("limit of accept_many", lambda api, world, v: accept_and_release(api, world, limit=v)),
    *_anywhere("max_priority of accept", lambda api, world, v: accept_and_release(api, world, max_priority=v)),
    *_anywhere("due_by of accept", lambda api, world, v: accept_and_release(api, world, due_by=v)),
    *_anywhere("spread of accept", lambda api, world, v: accept_and_release(api, world, spread=v)),
    *_anywhere("type of pause and of resume", lambda api, world, v: _paused_and_resumed(api, v)),
    *_anywhere("type of paused", lambda api, world, v: api.paused(v)),
    *_anywhere("type of set_retention", lambda api, world, v: api.set_retention(v, keep=None)),
    Target("type of set_redaction", lambda world, v: world.jobs.set_redaction(v, ["card"])),
    Target("paths of set_redaction", lambda world, v: world.jobs.set_redaction("kept", v)),
    Target("type of get_redaction", lambda world, v: world.jobs.get_redaction(v)),
    Target("type of get_retention", lambda world, v: world.jobs.get_retention(v)),
    Target("type of queue_state", lambda world, v: world.jobs.queue_state(v)),
    *_anywhere("keep of set_retention", lambda api, world, v: api.set_retention("kept", keep=v)),
    *_anywhere("keep_failed of set_retention", lambda api, world, v: api.set_retention("kept", keep_failed=v)),
    *_anywhere("handler of enqueue", lambda api, world, v: api.enqueue(v, None)),
    *_anywhere("arguments of enqueue", lambda api, world, v: _enqueued_and_removed(api, world, args=v)),
    *_anywhere("typed arguments of enqueue", lambda api, world, v: api.enqueue(world.typed, v)),
    *_anywhere("id of enqueue", lambda api, world, v: _enqueued_and_removed(api, world, id=v)),
    *_anywhere("priority of enqueue", lambda api, world, v: _enqueued_and_removed(api, world, priority=v)),
    *_anywhere("run_at of enqueue", lambda api, world, v: _enqueued_and_removed(api, world, run_at=v)),
    *_anywhere("delay of enqueue", lambda api, world, v: _enqueued_and_removed(api, world, delay=v)),
    *_anywhere("max_attempts of enqueue", lambda api, world, v: _enqueued_and_removed(api, world, max_attempts=v)),
    *_anywhere("time_limit of enqueue", lambda api, world, v: _enqueued_and_removed(api, world, time_limit=v)),
    *_anywhere("jobs of enqueue_many", lambda api, world, v: _enqueued_many(api, world, v)),
    *_anywhere("unique of enqueue", lambda api, world, v: _enqueued_and_removed(api, world, unique=v)),
    *_anywhere(
        "unique_for of enqueue", lambda api, world, v: _enqueued_and_removed(api, world, unique="u", unique_for=v)
    ),
    *_anywhere("if_exists of enqueue", lambda api, world, v: _enqueued_and_removed(api, world, id="i", if_exists=v)),
]
