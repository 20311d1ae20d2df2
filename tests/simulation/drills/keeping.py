"""Finished jobs that are kept for a while: each goes when its time is over, and all of them at once, however many."""

from __future__ import annotations

import asyncio
import contextlib
from itertools import pairwise
from typing import Final, NamedTuple

from jobs_service import JobId, JobNotFound, JobState, JobTransaction, Outcome, RunningJob
from jobs_service.testing import EPOCH
from tests.simulation.drills.drill import LONG, Drill

_KEPT: Final = (None, 0.0, 1.0, 4.0, 9.0, 30.0)
_LONGEST_PERIOD: Final = 10.0
_MANY: Final = 25


class _Gone(NamedTuple):
    """A job that has gone: when it ended, when it was to go, and when it went, on the loop's clock, seconds."""

    id: JobId
    ended: float
    due: float
    at: float


async def keep_for_a_while(drill: Drill) -> None:
    """Finish jobs in all ways, while it changes how long they are kept; wait, and see when each has gone."""
    random, period = drill.random, drill.jobs.settings.expiry_check_period
    if not drill.is_watched_over or period > _LONGEST_PERIOD:
        return
    await drill.make_type(random.choice([2.0, 10.0, LONG]))
    count, removed = 0, set[JobId]()
    for _ in range(random.randint(1, 2)):
        await _say_how_long(drill)
        ids: list[JobId] = [str(count + number) for number in range(random.choice([1, 4, 4, 4, _MANY]))]
        count += len(ids)
        await drill.client.add_many(drill.type, ids)
        while drill.pending():
            together = random.choice([1, 3, _MANY])
            for job in await drill.client.accept(drill.type, together, timeout=0):
                await _end(drill, job)
        await asyncio.sleep(random.choice([0.0, 0.0, 1.0, 7.0]))
        if random.random() < 0.3:
            removed |= await _change_some(drill)
    kept = [job.notes.expires for job in drill.all().values() if job.notes.expires is not None]
    ahead = drill.client.process.clock.ahead
    last = max(kept, default=0.0) - EPOCH - ahead
    await asyncio.sleep(max(0.0, last - drill.time()) + 2 * period + drill.moment)
    for id, left in drill.all().items():
        if left.notes.expires is not None:
            drill.complain(f"{id!r} was to go at {left.notes.expires}, and is there: {left}")
    _look_back(drill, [str(number) for number in range(count) if str(number) not in removed], ahead)


async def _say_how_long(drill: Drill) -> None:
    keep, keep_failed = drill.random.choice(_KEPT), drill.random.choice(_KEPT)
    if drill.random.random() < 0.5:
        await drill.jobs.set_retention(drill.type, keep=keep, keep_failed=keep_failed)
        return

    async def say(tx: JobTransaction) -> None:
        await tx.set_retention(drill.type, keep=keep, keep_failed=keep_failed)

    await drill.client.transact([], say)


async def _end(drill: Drill, job: RunningJob) -> None:
    """End a job in one of the ways."""
    random = drill.random
    if random.random() < 0.2:
        await drill.client.remove(drill.type, job.id)
        if random.random() < 0.5:
            await drill.client.release(job)
            return
    outcome = random.choice([Outcome.SUCCEEDED, Outcome.SUCCEEDED, Outcome.FAILED])
    await drill.client.finish(job, outcome=outcome)


async def _change_some(drill: Drill) -> set[JobId]:
    """Have some finished jobs run again, or go at once; return these."""
    removed = set[JobId]()
    finished = [id for id, job in drill.all().items() if job.state == "finished"]
    for id in drill.random.sample(finished, min(2, len(finished))):
        if drill.random.random() < 0.5:
            removed.add(id)
            with contextlib.suppress(JobNotFound):
                await drill.client.remove(drill.type, id)
        else:
            await drill.client.add(drill.type, id, if_exists="resubmit")
            for job in await drill.client.accept(drill.type, timeout=0):
                await drill.client.finish(job)
    return removed


def _look_back(drill: Drill, ids: list[JobId], ahead: float) -> None:
    """Compare when jobs have gone with when they were to go: those that were due together went together."""
    period = drill.jobs.settings.expiry_check_period
    gone: list[_Gone] = []
    for id in ids:
        states = drill.run.history.states(drill.type, id)
        for before, after in pairwise(states):
            if after.state is JobState.REMOVED and not after.left and before.told and before.told.expires is not None:
                due = before.told.expires - EPOCH - ahead
                gone.append(_Gone(id, before.time, due, after.time))
    for each in gone:
        if each.at > max(each.due, each.ended) + 2 * period + drill.moment:
            drill.complain(f"{each} has gone late")
        for other in gone:
            if other.due <= each.due and other.ended < each.at and other.at > each.at + drill.moment:
                drill.complain(f"{other} was due before {each}, and has gone later")
                return
