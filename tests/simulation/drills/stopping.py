"""Who stops and removes a job is answered when it is gone: not before, and not much later."""

from __future__ import annotations

import asyncio
import contextlib

from jobs_service import JobNotFound, JobTransaction, RunningJob
from tests.simulation.calls import STOP_AND_REMOVE
from tests.simulation.drills.drill import LONG, Drill, all_ended


async def stop_and_remove(drill: Drill) -> None:
    """Have a job removed that runs, end it at any moment, and often have it run again before it could be removed."""
    await drill.make_type()
    for number in range(drill.random.randint(2, 4)):
        await drill.add(str(number))
        [job] = await drill.client.accept(drill.type, timeout=0)
        await _remove(drill, job)


async def _remove(drill: Drill, job: RunningJob) -> None:
    random = drill.random
    drill.client.begin(STOP_AND_REMOVE, job.type, job.id)
    removing = asyncio.create_task(
        drill.jobs.stop_and_remove(job.type, job.id, timeout=LONG), name=f"{drill.type} remove"
    )
    try:
        await asyncio.sleep(random.choice([random.uniform(0.0, 4 * drill.latency), drill.some_time(), drill.moment]))
        await drill.pass_turns()
        if await _is_over(drill, removing, job):
            return
        for _ in range(random.choice([0, 1, 1, 2])):
            again = await _run_again(drill, job)
            if again is None:
                break
            job = again
            if await _is_over(drill, removing, job):
                return
        else:
            await _end(drill, job)
    finally:
        late = await all_ended([removing], drill.moment)
    if late:
        drill.complain(f"stop_and_remove of {job.id!r} waits, though it does not run any more")
    elif removing.exception() is not None:
        drill.complain(f"stop_and_remove of {job.id!r} was told {removing.exception()!r}")
    if drill.job(job.id) is not None:
        drill.complain(f"stop_and_remove of {job.id!r} was answered, and it is there: {drill.job(job.id)}")


async def _is_over(drill: Drill, removing: asyncio.Task[None], job: RunningJob) -> bool:
    """Whether whoever removes the job was answered while it runs: that must not be."""
    if not removing.done():
        return False
    drill.complain(f"stop_and_remove of {job.id!r} was answered while it runs: {removing!r}")
    await _end(drill, job)
    return True


async def _end(drill: Drill, job: RunningJob) -> None:
    if drill.random.random() < 0.7:
        await drill.client.finish(job)
    else:
        await drill.client.release(job)


async def _run_again(drill: Drill, job: RunningJob) -> RunningJob | None:
    """End a job, and have it run again soon, unless it is removed before that."""
    await drill.client.finish(job)
    pause = drill.random.choice([0.0, drill.random.uniform(0.0, 0.05 + 4 * drill.latency)])
    await asyncio.sleep(pause)

    async def begin(tx: JobTransaction) -> RunningJob | None:
        await tx.resubmit(job.type, job.id)
        return await tx.accept(job.type)

    call = drill.client.begin("accept", job.type, None)
    again = None
    with contextlib.suppress(JobNotFound):
        again = await drill.client.transact([call], begin)
        call.locks = () if again is None else (again.lock,)
    if again is not None:
        await asyncio.sleep(drill.random.choice([0.0, drill.moment]))
    return again
