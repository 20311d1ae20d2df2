"""Jobs that leave with their end while others wait for them: these are told how it was."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from jobs_service import JobEvent, JobId, JobNotFound, JobState, JobTransaction, Outcome, RunningJob
from tests.simulation.drills.drill import Drill, all_ended

_LONG: Final = 12.0
"""Seconds after which the doubt whether anybody follows a type is over, where it is drawn so."""

_IDS: Final = tuple("abcdefghijkl")


async def follow_jobs_that_leave(drill: Drill) -> None:
    """Have a type's jobs leave from some moment on, and end them: who waits is told of each end, with its result."""
    if not drill.is_watched_over:
        return
    random = drill.random
    await drill.make_type()
    if random.random() < 0.3:
        await drill.jobs.set_retention(drill.type, keep=random.choice([None, 0.0, 100.0]))
    ids: list[JobId] = [*_IDS[: random.choice([1, 2, 4, 12])]]
    await drill.client.add_many(drill.type, ids)
    followers: dict[JobId, list[asyncio.Task[JobEvent]]] = {id: [] for id in ids}
    tasks: list[asyncio.Task[Any]] = []

    async def follow(some: list[JobId]) -> None:
        for id in some:
            task = asyncio.create_task(_last_event(drill, id), name=f"{drill.type} follows {id!r}")
            followers[id].append(task)
            tasks.append(task)

    taken: list[RunningJob] = []
    try:
        if random.random() < 0.7:  # while one runs, somebody watches over the type
            taken = await drill.client.accept(drill.type, random.choice([1, 3]), timeout=0)
        await follow(random.sample(ids, random.randint(1, len(ids))))
        await drill.settle()
        if random.random() < 0.8:
            await _have_leave(drill)
            await drill.pass_turns()
        if random.random() < 0.4:
            await follow(random.sample(ids, random.randint(1, len(ids))))
            await drill.settle()  # who begins to wait when a job has left is too late
        await asyncio.sleep(random.choice([0.0, 0.0, _LONG]))
        await _end_all(drill, taken, len(ids))
        late = await all_ended(tasks, drill.moment)
    finally:
        await all_ended(tasks, 0)
    for id, each in followers.items():
        for task in each:
            if task in late:
                drill.complain(f"who waits for {id!r} was not told that it has ended")
            elif task.exception() is not None:
                drill.complain(f"who waits for {id!r} was told {task.exception()!r}")
            elif not _is_end(task.result(), id):
                drill.complain(f"who waits for {id!r} was told {task.result()}")


async def _have_leave(drill: Drill) -> None:
    """Say that jobs are not kept, in one of the ways."""
    kept = drill.random.choice([None, 0.0])
    if drill.random.random() < 0.5:
        await drill.jobs.set_retention(drill.type, keep=0.0, keep_failed=kept)
        return

    async def leave(tx: JobTransaction) -> None:
        await tx.set_retention(drill.type, keep=0.0, keep_failed=kept)

    await drill.client.transact([], leave)


async def _end_all(drill: Drill, taken: list[RunningJob], left: int) -> None:
    """End the jobs, some at a time: those that run already, and the others."""
    while left > 0:
        for job in taken:
            await drill.client.finish(job, result={"of": job.id})
        left -= len(taken)
        await asyncio.sleep(drill.random.choice([0.0, 0.3]))
        taken = await drill.client.accept(drill.type, drill.random.choice([1, 3, 20]), timeout=0) if left else []
        if left and not taken:
            drill.complain(f"{left} jobs were to be taken, and are {drill.all()}")
            return


async def _last_event(drill: Drill, id: JobId) -> JobEvent:
    """Return the last thing that is told of a job."""
    last: JobEvent | None = None
    async with drill.jobs.subscribe(drill.type, id) as events:
        async for event in events:
            last = event
    if last is None:
        raise JobNotFound("no event")
    return last


def _is_end(event: JobEvent, id: JobId) -> bool:
    return (event.state, event.outcome, event.result) == (JobState.FINISHED, Outcome.SUCCEEDED, {"of": id})
