"""What many ask for at the same moment shares a transaction: each is told what became of what it has asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from jobs_service import JobId, JobsError, JobTransaction, RunningJob
from jobs_service.errors import StoreError
from tests.simulation.calls import STOP_AND_REMOVE
from tests.simulation.drills.drill import Drill, all_ended

_IDS: Final[tuple[JobId, ...]] = ("a", "b", "c", "d")


async def ask_together(drill: Drill) -> None:
    """Ask for many things at once, and leave some: the others are answered, and nothing runs that nobody was given."""
    random, client = drill.random, drill.client
    await drill.make_type()
    await client.add_many(drill.type, [*_IDS])
    held: list[RunningJob] = await client.accept(drill.type, random.randint(1, 2), timeout=0)
    released: set[bytes] = set()
    for round in range(random.randint(1, 3)):
        before = drill.all()
        asked = [_one(drill, held, released, f"new {round}") for _ in range(random.choice([2, 6, 12, 30]))]
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(each(), name=f"{drill.type} asks") for each in asked]
        leaves = random.random() < 0.6
        gone: list[asyncio.Task[Any]] = []
        try:
            if leaves:
                for _ in range(random.randint(0, 6)):
                    await asyncio.sleep(0)
                await asyncio.sleep(random.choice([0.0, 0.0, 0.0, random.uniform(0.0, 2 * drill.latency)]))
                gone = random.sample(tasks, random.randint(1, len(tasks)))
                # Nothing was begun so far: whoever leaves now has asked for nothing.
                is_early = not drill.jobs._operations._running and drill.all() == before
                is_early = is_early and len(gone) == len(tasks) and not any(task.done() for task in tasks)
                for task in gone:
                    task.cancel()
                await asyncio.wait(tasks, timeout=drill.moment)
                if is_early and before != drill.all():
                    drill.complain(f"all who have asked left at once, and {before} has become {drill.all()}")
            late = await all_ended(tasks, drill.moment)
        finally:
            await all_ended(tasks, 0)
        for task in tasks:
            error = None if task.cancelled() else task.exception()
            if task in late and task not in gone:
                drill.complain(f"who has asked for something is not answered: {task}")
            elif isinstance(error, StoreError) or (error is not None and not isinstance(error, JobsError)):
                drill.complain(f"who has asked for something was told {error!r}")
        await drill.settle()
        held = [*held, *(job for task in tasks for job in _given(task))]
        told = {job.lock for job in held}
        for id in drill.running():
            job = drill.job(id)
            if job is not None and job.lock not in told:
                drill.complain(f"{id!r} was given to somebody who has left, and runs on: {job}")


def _given(task: asyncio.Task[Any]) -> list[RunningJob]:
    """Return the jobs that somebody was given."""
    if task.cancelled() or task.exception() is not None:
        return []
    given = task.result() if isinstance(task.result(), list) else [task.result()]
    return [job for job in given if isinstance(job, RunningJob)]


def _one(
    drill: Drill, held: list[RunningJob], released: set[bytes], new: JobId
) -> Callable[[], Coroutine[Any, Any, Any]]:
    """Return something to ask for."""
    random, client, type = drill.random, drill.client, drill.type
    id = random.choice([*_IDS, new])
    rule, priority = random.choice(["error", "resubmit"]), random.choice([0, 1])
    limit, force = random.choice([1, 1, 2]), random.random() < 0.2
    job = random.choice(held) if held else None
    by_worker: list[Callable[[], Coroutine[Any, Any, Any]]] = []
    if job is not None:
        by_worker = [
            lambda: client.update(job),
            lambda: client.finish(job, result={"of": new}),
            lambda: client.again(job, priority=priority),
        ]
        if job.lock not in released:
            by_worker.append(lambda: client.release(job))
    chosen = random.choice(
        [
            *by_worker,
            lambda: client.add(type, id, if_exists=rule, priority=priority),
            lambda: client.add(type, id, if_exists=rule),
            lambda: client.resubmit(type, id, priority=priority),
            lambda: client.remove(type, id, force=force),
            lambda: client.accept(type, limit, timeout=0),
            lambda: client.accept(type, limit, timeout=0),
            lambda: client.accept(type, 1, timeout=0, max_priority=0),
            lambda: client.jobs.pending_count(type),
        ]
    )
    if job is not None and chosen is by_worker[-1]:
        released.add(job.lock)  # it cannot be told which of several who give the same job back has done so
    return chosen


async def leave_a_transaction(drill: Drill) -> None:
    """Leave a transaction that takes jobs, at any moment: nobody holds them, whether it has taken effect or not."""
    random, client, type = drill.random, drill.client, drill.type
    await drill.make_type()
    await client.add_many(type, [*_IDS])
    for number in range(random.randint(2, 5)):
        mark = f"mark of {type} {number}".encode()
        call = client.begin(STOP_AND_REMOVE, type, f"made {number}")
        ends, limit = random.random() < 0.3, random.randint(1, 3)

        async def take(tx: JobTransaction) -> list[RunningJob]:
            found = await tx.accept_many(type, limit)  # noqa: B023 - it is waited for in this turn
            tx.kv.set(mark, b"\x01")  # noqa: B023
            await tx.add(type, call.id or "", if_exists="ignore")  # noqa: B023
            if ends and found:  # noqa: B023
                await tx.release(found.pop())
            return found

        task = asyncio.create_task(client.jobs.transact(take), name=f"{type} takes")
        for _ in range(random.randint(0, 8)):
            await asyncio.sleep(0)
        await asyncio.sleep(random.choice([0.0, random.uniform(0.0, 3 * drill.latency)]))
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            for job in task.result():
                await client.release(job)
        await drill.settle()
        if drill.running():
            drill.complain(f"a transaction was left that has taken {drill.running()}, and they run on")
        is_marked = await client.jobs.transact(lambda tx: tx.kv.get(mark)) is not None  # noqa: B023
        if is_marked != (drill.job(f"made {number}") is not None):
            drill.complain(f"a transaction was left and is {is_marked} there, its job is {drill.job(f'made {number}')}")
