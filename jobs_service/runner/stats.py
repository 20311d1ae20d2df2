"""Gauges of each type's jobs by state, how long they have been in it, and summaries of jobs, as plain data.

These are the gauges, `job_summary` and `jobs` of CouchDB's scheduler, but read from the store, so that they cover the
jobs of all processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from jobs_service.errors import RecordDamaged
from jobs_service.model import HistoryEvent, HistoryKind, Job, JobState, TypeCounts
from jobs_service.model.terms import exact_type as exact_type
from jobs_service.runner.options import HEALTH_THRESHOLD
from jobs_service.runner.retry_policy import consecutive_crashes

GAUGES: Final = ("pending", "scheduled", "running", "crashed")


class SinceLatest:
    """Averages the seconds since the latest event of each job."""

    def __init__(self) -> None:
        self._jobs = 0
        self._seconds = 0.0

    def add(self, history: Sequence[HistoryEvent], now: float) -> None:
        """Add a job's history at a time, seconds since the epoch; a large record may have no room for a history."""
        if history:
            self._jobs += 1
            # The machine that wrote the event may have had a clock that was ahead.
            self._seconds += max(now - history[0].at, 0.0)

    @property
    def average(self) -> float:
        """The average in seconds, to the millisecond; 0 if no job had a history."""
        return round(self._seconds / self._jobs, 3) if self._jobs else 0.0


class Gauges:
    """Counts the unfinished jobs of one type, and averages the time in their state.

    Args:
        jobs: most jobs for which a summary is made.
    """

    def __init__(self, jobs: int = 0) -> None:
        self._wanted = jobs
        self._summaries: list[dict[str, Any]] = []
        self._count = dict.fromkeys(GAUGES, 0)
        self._since_latest = {state: SinceLatest() for state in GAUGES}
        self.finished = 0
        self.unreadable = 0

    def add(self, job: Job, now: float) -> None:
        """Count a job in its state at a time, seconds since the epoch."""
        if job.state is JobState.FINISHED:
            self.finished += 1
            return
        if job.state is JobState.UNREADABLE:
            self.unreadable += 1
            return
        try:
            history = job.history  # unpacked at every read
            state = state_of(job, history, now)
            if len(self._summaries) < self._wanted:
                self._summaries.append(summary(job, now))
        except RecordDamaged:  # its run data
            self.unreadable += 1
            return
        self._count[state] += 1
        self._since_latest[state].add(history, now)

    def as_dict(self, counts: TypeCounts | None = None) -> dict[str, Any]:
        """Return counts and average seconds by state.

        Args:
            counts: counts of the type, if only some of its jobs were added; None if all were.
        """
        average = {f"average_{state}_seconds": since.average for state, since in self._since_latest.items()}
        summaries = {"jobs": self._summaries} if self._wanted else {}
        jobs, finished, unreadable = self._count, self.finished, self.unreadable
        if counts is not None:
            states = (counts.ready, counts.scheduled, counts.running, counts.retrying)
            jobs = dict(zip(GAUGES, states, strict=True))
            finished = counts.succeeded + counts.failed + counts.canceled
            unreadable = counts.unreadable
        told = {"unreadable": unreadable} if unreadable else {}
        return {**jobs, "finished": finished, **told, **average, **summaries}


def state_of(job: Job, history: Sequence[HistoryEvent], now: float) -> str:
    """Return the state of an unfinished job: pending, scheduled, running, or crashed and waiting for its next run."""
    if job.state is JobState.RUNNING:
        return "running"
    if history and history[0].kind is HistoryKind.CRASHED:
        return "crashed"
    run_at = job.run_at
    return "scheduled" if run_at is not None and run_at.timestamp() > now else "pending"


def summary(job: Job, now: float, health_threshold: float = HEALTH_THRESHOLD) -> dict[str, Any]:
    """Return the state and the history of an unfinished job as plain data; times are seconds since the epoch."""
    history = job.history
    added = next((event.at for event in history if event.kind is HistoryKind.ADDED), None)
    return {
        "id": job.id,
        "state": state_of(job, history, now),
        "attempts": job.attempts,
        "error": None if job.error is None else f"{job.error.type}: {job.error.message}",
        "error_count": consecutive_crashes(history, health_threshold),
        "last_updated": history[0].at if history else None,
        "added": added,
        "history": [{"kind": event.kind.value, "at": event.at, "detail": event.detail} for event in history],
    }
