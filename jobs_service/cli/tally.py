"""Counts jobs by status, for all verbs that show counts."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from jobs_service.cli.tables import Column
from jobs_service.errors import RecordDamaged
from jobs_service.status import UNFINISHED, Status, status_of

if TYPE_CHECKING:
    from jobs_service import Job, TypeCounts

STATUS_COLUMNS: Final = (
    Column("ready", right=True),
    Column("scheduled", right=True, nothing="0"),
    Column("retrying", right=True, nothing="0"),
    Column("running", right=True),
    Column("succeeded", right=True),
    Column("failed", right=True, nothing="0"),
    Column("canceled", right=True, nothing="0"),
    Column("unreadable", right=True, nothing="0"),
)
"""A column for each Status, in the order of the enumeration."""


class Tally:
    """Counts the jobs of one type by status, with the time since the latest event of unfinished jobs.

    Args:
        wanted: most unfinished jobs to summarize as well.
    """

    def __init__(self, wanted: int = 0) -> None:
        from jobs_service.runner.stats import Gauges, SinceLatest

        self.jobs: Counter[Status] = Counter()
        self.summaries: list[dict[str, Any]] = []
        self._wanted = wanted
        self._since_latest = {status: SinceLatest() for status in UNFINISHED}
        self._gauges = Gauges()
        self._counts: TypeCounts | None = None

    def add(self, job: Job, now: float) -> None:
        """Count a job by its status at a time in seconds since the epoch."""
        self._gauges.add(job, now)
        status = status_of(job, now)
        if status in UNFINISHED:
            try:
                history = job.history
                if len(self.summaries) < self._wanted:
                    self.summaries.append(_summary(job, now, status))
                self._since_latest[status].add(history, now)
            except RecordDamaged:  # the run data cannot be decoded
                status = Status.UNREADABLE
        self.jobs[status] += 1

    def take(self, counts: TypeCounts) -> None:
        """Take the store's counts of the type, if only some of its jobs were added."""
        self._counts = counts
        self.jobs = Counter({status: getattr(counts, status.value) for status in Status})

    def counts(self) -> dict[str, int]:
        """Return the number of jobs by status; unreadable jobs are included only if there are any."""
        return {
            status.value: self.jobs[status] for status in Status if status is not Status.UNREADABLE or self.jobs[status]
        }

    def average_seconds(self) -> dict[str, float]:
        """Return the average seconds since the latest event of unfinished jobs, by status."""
        return {status.value: since.average for status, since in self._since_latest.items()}

    def gauges(self) -> dict[str, Any]:
        """Return the type's figures in the form of `JobsService.stats`."""
        return self._gauges.as_dict(self._counts)


def _summary(job: Job, now: float, status: Status) -> dict[str, Any]:
    from jobs_service.cli.output import history_json, timestamp
    from jobs_service.names import shown
    from jobs_service.runner.stats import summary

    added = next((event.time for event in job.history if event.kind == "added"), None)
    return {
        **summary(job, now),
        "id": shown(job.id),
        "status": status.value,
        "last_updated": timestamp(job.history[0].time) if job.history else None,
        "added": timestamp(added),
        "history": history_json(job),
    }
