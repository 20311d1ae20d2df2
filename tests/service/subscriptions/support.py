"""Subscribers, for tests of what they are promised."""

from __future__ import annotations

from typing import Any

from jobs_service import JobEvent, JobsService, JobState, RunningJob
from tests.service.support import J1, T1

PENDING, RUNNING, FINISHED, REMOVED = JobState.PENDING, JobState.RUNNING, JobState.FINISHED, JobState.REMOVED


def seen(event: JobEvent) -> tuple[JobState, Any]:
    """Return an event's state and data."""
    return event.state, event.data


async def heard(jobs: JobsService, id: Any = J1, type: Any = T1) -> list[tuple[JobState, Any]]:
    """Return all events of a new subscription."""
    return [seen(event) async for event in jobs.subscribe(type, id)]


class Witness:
    """A running job beside the one under test: its events tell that the notifier has looked at the type's jobs."""

    def __init__(self, jobs: JobsService, worker: RunningJob) -> None:
        self._worker = worker
        self._events = jobs.subscribe(worker.type, worker.id)
        self._count = 0

    async def notifier_has_looked(self) -> None:
        """Return when all that happened before has been passed on to subscribers."""
        for _ in range(2):  # the second look comes only after the first has passed on everything
            self._count += 1
            await self._worker.update(self._count)
            while (await anext(self._events)).data != self._count:
                pass
