"""Those who wait for jobs by subscriptions, quickly or slowly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import ClassVar, Final

from jobs_service import JobEvent, JobId, JobNotFound, JobState, JobType
from jobs_service.actors import activity_monitor
from tests.simulation.client import Client
from tests.simulation.job_states import State
from tests.simulation.model_job import Notes
from tests.simulation.workloads.base import Workload

_MOMENT: Final = 1.5
_LONGEST_FAULT: Final = 30.0
"""Seconds for which nothing holds a process up."""


@dataclass(slots=True)
class Heard:
    """What one subscription was told.

    Attributes:
        type, id: the job.
        version: the cluster's version when it began.
        events: what came.
        over: whether the iterator has ended by itself.
        gone: whether its subscriber left, or died, or the service was closed.
        since: since when it waits for the next event, on the loop's clock, seconds; None while it does not.
    """

    type: JobType
    id: JobId
    process: str
    version: int
    events: list[JobEvent] = field(default_factory=list)
    over: bool = False
    gone: bool = False
    since: float | None = None

    def __str__(self) -> str:
        return f"subscription of {self.process} to {self.type!r}/{self.id!r} from version {self.version}"


class Subscribers(Workload):
    """Iterate over a job's events to the end, or leave in the middle."""

    name = "subscribers"
    weight: ClassVar[int] = 2

    def __init__(self, run: object) -> None:
        super().__init__(run)  # type: ignore[arg-type]
        self.heard: list[Heard] = []

    async def step(self, client: Client) -> None:
        self.look()
        await self.follow(client, self.some_type(), self.some_id())

    async def follow(self, client: Client, type: JobType, id: JobId) -> None:
        """Iterate over a job's events, at any pace, to any of them."""
        slow, patience = self.random.choice([0, 0, 0.2, 3.0]), self.random.choice([1, 3, 1000, 1000])
        heard = Heard(type, id, str(client.process), client.version)
        self.heard.append(heard)
        time = self.run.world.loop.time
        try:
            async with client.jobs.subscribe(type, id) as events:
                heard.since = time()
                async for event in events:
                    heard.since = None
                    client.run.world.note(f"told {type!r}/{id!r} {event.state} {event.data}", client.process)
                    heard.events.append(event)
                    self._look_at_removal(heard)
                    if len(heard.events) >= patience:
                        heard.gone = True
                        return
                    if slow:
                        await asyncio.sleep(slow)
                    heard.since = time()
            heard.over = True
        except JobNotFound:
            heard.gone = True
            states = self.run.history.states(type, id)
            gone = not states or states[0].version > heard.version
            for position, state in enumerate(states):
                later = position + 1 == len(states) or states[position + 1].version > heard.version
                gone = gone or (state.state is JobState.REMOVED and later)
            if heard.events or not gone:
                self.run.complain(f"subscription: {heard} was told JobNotFound after {len(heard.events)} events")
        except BaseException:
            heard.gone = True
            raise

    def _look_at_removal(self, heard: Heard) -> None:
        """Who was there when a job has left with its end is told of its end, not that it is gone."""
        if heard.events[-1].state is not JobState.REMOVED:
            return
        states = [state for state in self.run.history.states(heard.type, heard.id) if state.version > heard.version]
        removals = [state for state in states if state.state is JobState.REMOVED]
        bound = activity_monitor._UNREAD_FOR
        if not all(state.left for state in removals):
            return
        # Who was held up for as long as that may have missed it.
        late = self.run.world.loop.time() - removals[-1].time
        if late < bound and (bound > _LONGEST_FAULT or self.run.quiet.quick_since() < removals[-1].time - bound):
            self.run.complain(f"subscription: {heard} was told that its job is gone, {late:.3f} s after its end")

    def look(self) -> None:
        """Whoever waits for the next event knows what the job is, while nothing takes time: also of the first."""
        now = self.run.world.loop.time()
        quick = self.run.quiet.quick_since()
        for heard in self.heard:
            if heard.over or heard.gone or heard.since is None or max(heard.since, quick) > now - _MOMENT:
                continue
            if not any(
                process.running and process.alive for process in self.run.processes if str(process) == heard.process
            ):
                continue
            last = self.run.history.states(heard.type, heard.id)[-1:]
            if last and last[0].time > now - _MOMENT:
                continue
            told = heard.events[-1] if heard.events else None
            known = None if told is None else all_of(told)
            wanted = None if not last else all_that_is_told(last[0])
            if known != wanted and not (wanted is None and known is None):
                self.run.complain(f"behind: {heard} was told {known}, and it is {wanted}")
                heard.gone = True

    def waiting(self, process: str) -> list[Heard]:
        """Return the subscriptions of a process that have not ended."""
        return [heard for heard in self.heard if heard.process == process and not (heard.over or heard.gone)]

    def check(self) -> Iterator[str]:
        """What was told is a subsequence of what was so, and the last event is the last."""
        for heard in self.heard:
            yield from self._check(heard)

    def _check(self, heard: Heard) -> Iterator[str]:
        states = [
            (state.version, (state.state, state.data, state.outcome, state.seq, *_parts(state.told)))
            for state in self.run.history.states(heard.type, heard.id)
        ]
        begin = sum(version <= heard.version for version, _ in states) - 1
        position = max(begin, 0)
        first = True
        for number, event in enumerate(heard.events):
            told = (event.state, event.data, event.outcome, event.seq, *_told(event))
            for at in range(position, len(states)):
                if states[at][1] == told:
                    break
            else:
                yield f"subscription: {heard} was told {told} as number {number}, which is no later state: {states}"
                return
            position = at + (not first)
            first = False
            before = heard.events[number - 1] if number else None
            if before is not None and _shown(before) == _shown(event):
                yield f"subscription: {heard} was told the same twice: {told}"
            if event.state in (JobState.FINISHED, JobState.REMOVED) and event is not heard.events[-1]:
                yield f"subscription: {heard} went on after {told}"
        if heard.over and (not heard.events or heard.events[-1].state not in (JobState.FINISHED, JobState.REMOVED)):
            yield f"subscription: {heard} ended after {heard.events[-1:]}"


def all_of(event: JobEvent) -> tuple[object, ...]:
    """Return all that an event says of its job."""
    run_at = None if event.run_at is None else event.run_at.timestamp()
    return event.state, event.data, event.outcome, run_at, *_told(event)


def all_that_is_told(state: State) -> tuple[object, ...]:
    """Return all that the newest event of a job must say while it is so."""
    run_at = None if state.run_at is None else datetime.fromtimestamp(state.run_at, UTC).timestamp()
    return state.state, state.data, state.outcome, run_at, *_parts(state.told)


def _parts(told: Notes | None) -> tuple[object, ...]:
    """Return a job's result, error, progress and attempts as they are stored."""
    if told is None:
        return None, None, None, 0
    result, error, progress = (
        None if not part else json.loads(part) for part in (told.result, told.error, told.progress)
    )
    return result, error and error[0], progress and progress[0], told.attempts


def _told(event: JobEvent) -> tuple[object, ...]:
    error, progress = event.error, event.progress
    return event.result, error and error.type, progress and progress.done, event.attempts


def _shown(event: JobEvent) -> tuple[object, ...]:
    ended = event.outcome, event.result, event.error
    return event.state, event.data, event.progress, event.attempts, event.run_at, ended
