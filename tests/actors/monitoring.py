"""Activity monitors with a clock of their own, for their tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from jobs_service.actors.activity_monitor import ActivityMonitor, Sampler
from jobs_service.actors.context import Context
from jobs_service.layer import creation, queue, running_jobs
from jobs_service.layer.creation import Spec
from jobs_service.layer.keyspace import pack_id
from jobs_service.layer.queue import AcceptTerms
from jobs_service.layer.unit_of_work import UnitOfWork
from tests.actors.support import counted, set_timeout

TIMEOUT = 4.0
BOUND = 1.5 * TIMEOUT + 1
Events = list[MutableMapping[str, Any]]


@asynccontextmanager
async def monitored(context: Context) -> AsyncIterator[ActivityMonitor]:
    """Run a sampler and the monitor of type "t"."""
    sampler = Sampler(context)
    task = asyncio.create_task(sampler.run())
    monitor = ActivityMonitor(context, context.keyspace.of("t"), sampler, lambda keys: None)
    await monitor.start()
    try:
        yield monitor
    finally:
        await monitor.stop()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def run_jobs(context: Context, count: int) -> None:
    """Add jobs and accept them all."""
    keys = context.keyspace.of("t")
    await set_timeout(context, "t", TIMEOUT)

    async def work(unit: UnitOfWork) -> None:
        for number in range(count):
            id = f"{number:05}"
            await creation.add(unit, (keys, id, pack_id(id)), Spec(None, 0, None), "error")
        await queue.accept(unit, keys, AcceptTerms(count, None, None, 1, 100))

    await context.transact(work)


async def active(context: Context) -> int:
    """Return how many jobs run."""
    keys = context.keyspace.of("t")
    faults, counted(context).faults = counted(context).faults, None
    try:
        return len(await context.read(lambda transaction: running_jobs.active_ids(transaction, keys, None, 0)))
    finally:
        counted(context).faults = faults


def named(events: Events, name: str) -> Events:
    """Return the events of a name."""
    return [event for event in events if event["event"] == name]
