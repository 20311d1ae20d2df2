"""Some jobs of a drill that are changed one way or another, and what whoever follows one is told of it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from jobs_service import JobError, JobEvent, JobId, JobState, JobTransaction, JobType, Outcome, RunningJob
from tests.reader import value_of
from tests.simulation.drills.drill import Drill
from tests.simulation.job_states import State, state_of
from tests.simulation.model_job import Key

_LATER: Final = 900.0

News = tuple[Any, ...]
"""All that is told of a job."""


class Changing:
    """Jobs that nobody else changes.

    Args:
        drill: that they are part of.
        keys: types and ids.
    """

    def __init__(self, drill: Drill, keys: Sequence[Key]) -> None:
        self.keys = [*keys]
        self._drill = drill
        self._taken: dict[Key, RunningJob] = {}
        self._number = 0

    async def add_all(self) -> None:
        """Add them, one after the other."""
        for type, id in self.keys:
            await self._drill.client.add(type, id)

    async def change(self, key: Key, *, may_end: bool = True) -> None:
        """Change a job in a way that whoever follows it is told of, or sometimes is not.

        Args:
            key: the job.
            may_end: whether it may end or be removed.
        """
        random, client, (type, id) = self._drill.random, self._drill.client, key
        job = self._drill.job(id, type)
        self._number += 1
        if job is None:
            await client.add(type, id)
        elif (running := self._taken.get(key)) is not None and job.lock is not None:
            ways = [self._progress, self._progress, self._say_alive, self._update, self._give_back]
            await random.choice([*ways, self._end, self._end] if may_end else ways)(key, running)
        elif job.state == "finished":
            await client.resubmit(type, id)
        elif may_end and random.random() < 0.15:
            await client.remove(type, id)
        elif random.random() < 0.5 and job.state == "ready":
            await self.take(key)
        else:
            now = client.process.clock.wall_time()
            ways_to: list[dict[str, Any]] = [{}, {"run_at": now + _LATER}, {"run_at": None}, {"priority": self._number}]
            await client.resubmit(type, id, **random.choice(ways_to))

    async def take(self, key: Key) -> None:
        """Have a job run that is ready: the first one, before all others of its type."""
        drill, (type, id), priority = self._drill, key, -self._number
        call = drill.client.begin("accept", type, None)

        async def take(tx: JobTransaction) -> RunningJob | None:
            await tx.resubmit(type, id, priority=priority)
            return await tx.accept(type, max_priority=priority)

        job = await drill.client.transact([call], take)
        call.locks = () if job is None else (job.lock,)
        if job is None or job.id != id:
            drill.complain(f"{id!r} was made the first one, and {job} was taken")
            return
        self._taken[key] = job

    async def _update(self, key: Key, running: RunningJob) -> None:
        self._taken[key] = await self._drill.client.update(running)

    async def _progress(self, key: Key, running: RunningJob) -> None:
        total = self._drill.random.choice([None, 9])
        self._taken[key] = await running.progress(self._number % 7, total, self._drill.random.choice(["", "some"]))

    async def _say_alive(self, key: Key, running: RunningJob) -> None:
        self._taken[key] = await running.update()

    async def _give_back(self, key: Key, running: RunningJob) -> None:
        del self._taken[key]
        await self._drill.client.release(running)

    async def _end(self, key: Key, running: RunningJob) -> None:
        await self.end(key, running)

    async def end(self, key: Key, running: RunningJob | None = None, outcome: Outcome | None = None) -> None:
        """End a job, or remove it if it does not run."""
        running = running or self._taken.get(key)
        job = self._drill.job(key[1], key[0])
        if job is None or job.state == "finished":
            return
        if running is None or job.lock is None:
            await self._drill.client.remove(*key)
            return
        del self._taken[key]
        random = self._drill.random
        outcome = outcome or random.choice([Outcome.SUCCEEDED, Outcome.SUCCEEDED, Outcome.FAILED, Outcome.CANCELED])
        options: dict[str, Any] = {"outcome": outcome}
        if random.random() < 0.7:
            options["result"] = random.choice([{"of": key[1]}, 0, None, "", [self._number]])
        if outcome is not Outcome.SUCCEEDED and random.random() < 0.8:
            options["error"] = JobError(
                random.choice(["Boom", "KeyError"]), f"it was {self._number}\nand more", random.choice(["", "line 1"])
            )
        await self._drill.client.finish(running, **options)

    def news(self, key: Key) -> News:
        """Return what whoever follows a job must know of it now."""
        return news_of(self._drill, *key)


def news_of(drill: Drill, type: JobType, id: JobId) -> News:
    """Return what whoever follows a job must know of it now."""
    record = drill.run.history.newest(type, id)
    return news_in(state_of(0, 0.0, record, False))


def news_in(state: State) -> News:
    """Return what is told of a job that is so."""
    notes = state.told
    if state.state is JobState.REMOVED or notes is None:
        return (JobState.REMOVED, None, None, None, None, None, 0, None)
    error = None if not notes.error else value_of(notes.error)
    return (
        state.state,
        state.data,
        state.outcome,
        value_of(notes.result or b""),
        None if error is None else tuple(error),
        None if not notes.progress else tuple(value_of(notes.progress)),
        notes.attempts,
        None if state.run_at is None else datetime.fromtimestamp(state.run_at, UTC),
    )


def told(event: JobEvent) -> News:
    """Return what an event tells."""
    error, progress = event.error, event.progress
    return (
        event.state,
        event.data,
        event.outcome,
        event.result,
        None if error is None else (error.type, error.message, error.traceback),
        None if progress is None else (progress.done, progress.total, progress.message, progress.attempt),
        event.attempts,
        event.run_at,
    )
