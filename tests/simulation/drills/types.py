"""Types that are changed or wake up, by whatever writes it: their jobs are watched over from then on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from jobs_service import JobTransaction
from jobs_service.store.base import Transaction
from tests.simulation.client import MIXED
from tests.simulation.drills.drill import LONG, Drill
from tests.simulation.model_job import READY


async def change_a_timeout(drill: Drill) -> None:
    """Shorten the timeout of a type whose job nobody works on: it is lost by the new one."""
    if not drill.is_watched_over:
        return
    random, short = drill.random, drill.random.choice([1.5, 3.0])
    if random.random() < 0.7:
        await drill.make_type(random.choice([60.0, LONG]))
    else:
        await drill.make_type(1.0)
        await drill.jobs.clear_type_timeout(drill.type)
        await drill.make_type(LONG)
    await drill.add("a", "b")
    await drill.client.accept(drill.type, timeout=0)
    await asyncio.sleep(random.choice([0.0, drill.moment, 6.0]))
    if random.random() < 0.3:
        await drill.jobs.set_type_timeout(drill.type, short)
    else:
        cleared = random.random() < 0.3

        async def change(tx: JobTransaction) -> None:
            if cleared:
                await tx.clear_type_timeout(drill.type)
            await tx.set_type_timeout(drill.type, short)

        await drill.client.transact([], change)
    await _is_lost(drill, short)


async def wake_a_type(drill: Drill) -> None:
    """Have a job of a type that sleeps run, come due or expire: it is watched over, whoever has written that."""
    if not drill.is_watched_over:
        return
    random, seconds = drill.random, drill.random.choice([1.5, 3.0])
    await drill.make_type(seconds)
    if random.random() < 0.5:
        await drill.add("a")
        for job in await drill.client.accept(drill.type, timeout=0):
            await drill.client.finish(job)
    await asyncio.sleep(random.choice([0.0, 15.0]))
    act = random.choice([_take, _schedule, _finish])
    await act(drill, seconds)


async def _take(drill: Drill, seconds: float) -> None:
    """Take a job, and forget it."""
    call = drill.client.begin("add", drill.type, "a")
    accept = drill.client.begin("accept", drill.type, None)
    together = drill.random.random() < 0.5
    if not together:
        await drill.client.add(drill.type, "a", if_exists="resubmit")
        call.name = "nothing"

    async def take(tx: Any) -> None:
        if together:
            await _of(tx.add(drill.type, "a", {"call": call.number}, if_exists="resubmit"))
        taken = await _of(tx.accept(drill.type))
        accept.locks = (taken.lock,)

    await _write(drill, take, [call, accept])
    await _is_lost(drill, seconds)


async def _schedule(drill: Drill, seconds: float) -> None:
    """Add a job for later."""
    ahead = drill.random.choice([2.0, 6.0, 20.0])
    due = drill.client.process.clock.wall_time() + ahead
    call = drill.client.begin("add", drill.type, "a", {"run_at": due})

    async def schedule(tx: Any) -> None:
        await _of(tx.add(drill.type, "a", {"call": call.number}, if_exists="resubmit", run_at=due))

    await _write(drill, schedule, [call])
    await asyncio.sleep(ahead)
    await drill.settle()
    job = drill.job("a")
    if job is None or job.state is not READY:
        drill.complain(f"'a' was due {drill.moment:.3f} s ago, and is {job}")


async def _finish(drill: Drill, seconds: float) -> None:
    """Finish a job that is kept for a while only."""
    await drill.jobs.set_retention(drill.type, keep=seconds, keep_failed=seconds)
    await drill.client.add(drill.type, "a", if_exists="resubmit")
    [job] = await drill.client.accept(drill.type, timeout=0)
    call = drill.client.begin("finish", drill.type, "a")
    call.locks = (job.lock,)

    async def finish(tx: Any) -> None:
        await _of(tx.finish(job, {"call": call.number}))

    await _write(drill, finish, [call])
    settings = drill.jobs.settings
    await asyncio.sleep(seconds + settings.expiry_check_period)
    await drill.settle()
    if drill.job("a") is not None:
        drill.complain(f"'a' was kept for more than {seconds} s: {drill.job('a')}")


async def _is_lost(drill: Drill, seconds: float) -> None:
    """A job that nobody works on from now on is lost in time, and is pending again."""
    await asyncio.sleep(1.5 * seconds + 1.0 + 6 * drill.latency)
    if drill.running():
        drill.complain(f"{drill.running()} run, and nobody was heard of them for longer than {seconds} s")


async def _write(drill: Drill, function: Callable[[Any], Awaitable[None]], calls: list[Any]) -> None:
    """Do something in a transaction of the service, or in a block of one of the application's own."""
    if drill.run.machine is not None or drill.random.random() < 0.4:
        await drill.client.transact(calls, function)
        return

    async def block(transaction: Transaction) -> None:
        with drill.jobs.within(transaction) as tx:
            await function(tx)

    mixed = MIXED.set(True)
    try:
        await drill.client.many(calls, drill.jobs.store.transact(block))
    finally:
        MIXED.reset(mixed)


async def _of(answer: Any) -> Any:
    """Return what an operation gives: a block's at once, a transaction's when it is awaited."""
    return await answer if hasattr(answer, "__await__") else answer
