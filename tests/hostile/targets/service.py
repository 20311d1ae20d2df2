"""What only the service has."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jobs_service import JobNotFound, JobsService, JobTransaction
from tests.hostile.targets.handlers import nothing
from tests.hostile.targets.operations import accept_and_release
from tests.hostile.world import WORK, Target, World
from tests.service.support import FAR_AWAY, TIMEOUT

_MOMENT = 0.02


async def _stop_and_remove_in_time(world: World, value: Any) -> None:
    id = world.new_id()
    await world.jobs.add(WORK, id)
    try:
        await world.jobs.stop_and_remove(WORK, id, timeout=value)
    except TimeoutError:
        raise AssertionError("no worker had it") from None


async def _first_events(subscription: Any) -> None:
    async with subscription as events:
        async for _ in events:
            return


async def _subscribe(world: World, type: Any, id: Any) -> None:
    await _first_events(world.jobs.subscribe(type, id))


async def _subscribe_many(world: World, value: Any) -> None:
    await _first_events(world.jobs.subscribe_many(value))


async def _wait_for(world: World, *arguments: Any, **keywords: Any) -> None:
    try:
        await world.jobs.wait(*arguments, **keywords)
    except TimeoutError:
        assert "timeout" in keywords


async def _result(world: World, *arguments: Any, **keywords: Any) -> None:
    try:
        assert await world.jobs.result(*arguments, **keywords) is None
    except TimeoutError:
        assert "timeout" in keywords


async def _run(world: World, **how: Any) -> None:
    """Run jobs: only values that are refused come back at once, the others run until the time is up."""
    jobs = JobsService(world.jobs.store)
    jobs.handler("idle")(nothing)
    task = asyncio.get_running_loop().create_task(jobs.run(**how))
    await asyncio.wait([task], timeout=_MOMENT)
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()


async def _schedule(world: World, name: Any = "daily", handler: Any = WORK, args: Any = None, **how: Any) -> None:
    await world.jobs.schedules.set(name, handler, args, **{"cron": "0 0 29 2 *", **how})
    await world.jobs.schedules.remove(name)


async def _transact(world: World, value: Any) -> None:
    try:
        await world.jobs.transact(value)
    except (TypeError, ValueError):  # the function's own: classes refuse what they are called with
        assert callable(value)


async def _transact_returning(world: World, value: Any) -> None:
    await world.jobs.transact(lambda tx: value)


async def _transact_awaiting(world: World, value: Any) -> None:
    async def work(tx: JobTransaction) -> None:
        await tx.add(WORK, "must not stay")
        await value

    try:
        await world.jobs.transact(work)
        await world.jobs.remove(WORK, "must not stay")
    except TypeError as error:  # Python's own, for what cannot be awaited
        return _not_awaitable(error)
    finally:
        with pytest.raises(JobNotFound):
            await world.jobs.get(WORK, "must not stay")


async def _within(world: World, value: Any) -> None:
    with world.jobs.within(value):
        pytest.fail("no such value is a transaction")


def _not_awaitable(error: TypeError) -> None:
    assert "await" in str(error)


SERVICE = [
    Target("type of stop_and_remove", lambda world, v: world.jobs.stop_and_remove(v, "x", timeout=TIMEOUT)),
    Target("id of stop_and_remove", lambda world, v: world.jobs.stop_and_remove(WORK, v, timeout=TIMEOUT)),
    Target("timeout of stop_and_remove", _stop_and_remove_in_time),
    Target("timeout of accept", lambda world, v: accept_and_release(world.jobs, world, timeout=v)),
    Target("type of subscribe", lambda world, v: _subscribe(world, v, "x")),
    Target("id of subscribe", lambda world, v: _subscribe(world, WORK, v)),
    Target("jobs of subscribe_many", _subscribe_many, passes_on=True),
    Target("a job of subscribe_many", lambda world, v: _subscribe_many(world, [(WORK, "finished"), v])),
    Target("type in subscribe_many", lambda world, v: _subscribe_many(world, [(v, "x")])),
    Target("id in subscribe_many", lambda world, v: _subscribe_many(world, [(WORK, v)])),
    Target("type of wait", lambda world, v: _wait_for(world, v, "x", timeout=0.5)),
    Target("id of wait", lambda world, v: _wait_for(world, WORK, v, timeout=0.5)),
    Target("state of wait", lambda world, v: _wait_for(world, WORK, "finished", v)),
    Target("second state of wait", lambda world, v: _wait_for(world, WORK, "finished", "finished", v)),
    Target("timeout of wait", lambda world, v: _wait_for(world, WORK, "finished", timeout=v)),
    Target("function of transact", _transact, passes_on=True),
    Target("result of a transaction function", _transact_returning, passes_on=True),
    Target("awaited in a transaction function", _transact_awaiting, passes_on=True),
    Target("transaction of within", _within),
    Target("type of result", lambda world, v: _result(world, v, "x", timeout=0.5)),
    Target("id of result", lambda world, v: _result(world, WORK, v, timeout=0.5)),
    Target("timeout of result", lambda world, v: _result(world, WORK, "finished", timeout=v)),
    Target("name of schedules", lambda world, v: _schedule(world, v)),
    Target("handler of schedules", lambda world, v: _schedule(world, handler=v)),
    Target("args of schedules", lambda world, v: _schedule(world, args=v)),
    Target("every of schedules", lambda world, v: _schedule(world, every=v, cron=None)),
    Target("cron of schedules", lambda world, v: _schedule(world, cron=v)),
    Target("timezone of schedules", lambda world, v: _schedule(world, timezone=v)),
    Target("missed of schedules", lambda world, v: _schedule(world, missed=v)),
    Target("overlap of schedules", lambda world, v: _schedule(world, overlap=v)),
    Target("type of counts", lambda world, v: world.jobs.counts(v)),
    Target("type of throughput", lambda world, v: world.jobs.throughput(v, since=FAR_AWAY)),
    Target("since of throughput", lambda world, v: world.jobs.throughput(WORK, since=v)),
    Target("until of throughput", lambda world, v: world.jobs.throughput(WORK, since=FAR_AWAY, until=v)),
    Target("resolution of throughput", lambda world, v: world.jobs.throughput(WORK, since=FAR_AWAY, resolution=v)),
    Target("type of page", lambda world, v: world.jobs.page(v)),
    Target("state of page", lambda world, v: world.jobs.page(WORK, state=v)),
    Target("limit of page", lambda world, v: world.jobs.page(WORK, limit=v)),
    Target("after of page", lambda world, v: world.jobs.page(WORK, after=v)),
    Target("prefix of page", lambda world, v: world.jobs.page(WORK, prefix=v)),
    Target("type of oldest_ready", lambda world, v: world.jobs.oldest_ready(v)),
    Target("max_jobs of run", lambda world, v: _run(world, max_jobs=v)),
    Target("types of run", lambda world, v: _run(world, types=v)),
    Target("id of quiet_process", lambda world, v: world.jobs.quiet_process(v)),
    Target("id of resume_process", lambda world, v: world.jobs.resume_process(v)),
    Target("id of stop_process", lambda world, v: world.jobs.stop_process(v)),
]
