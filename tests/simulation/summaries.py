"""What is told of a type's unfinished jobs one by one, and of how long they are in their states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from jobs_service import JobId
from tests.simulation.model_job import SCHEDULED, ModelJob

STATES: Final = ("pending", "scheduled", "running", "crashed")
_ROUNDED: Final = 0.002


def state_of(job: ModelJob, now: float | None) -> str:
    """Return what the numbers of a type count a job as, by a clock, or by where it is in the queue."""
    if not job.pending:
        return job.state
    if job.notes.history and job.notes.history[0][0] == "crashed":
        return "crashed"
    is_scheduled = job.state == SCHEDULED if now is None else job.run_at is not None and job.run_at > now
    return "scheduled" if is_scheduled else "pending"


def wrong_summaries(
    told: Mapping[str, Any], jobs: Mapping[JobId, ModelJob], earliest: float, latest: float
) -> Iterator[str]:
    """Yield what is wrong with what somebody was told of all jobs of a type, while none of them has changed.

    Args:
        told: by `stats`, with summaries.
        jobs: of the type.
        earliest, latest: between which it was told, by the clock of who has asked, seconds since the epoch.
    """
    for summary in told["jobs"]:
        job = jobs.get(summary["id"])
        if job is None or job.state == "finished":
            yield f"summary: there is no unfinished job {summary['id']!r}"
            continue
        wanted = (state_of(job, latest), job.notes.attempts, [kind for kind, *_ in job.notes.history])
        found = (summary["state"], summary["attempts"], [event["kind"] for event in summary["history"]])
        if found != wanted:
            yield f"summary: of {summary['id']!r} is told {found}, not {wanted}"
        if job.notes.history and abs(summary["last_updated"] - job.notes.history[0][1]) > _ROUNDED:
            yield f"summary: {summary['id']!r} was changed at {job.notes.history[0][1]}, not {summary['last_updated']}"
    for state in STATES:
        there = [job for job in jobs.values() if state_of(job, latest) == state]
        since = [job.notes.history[0][1] for job in there if job.notes.history]  # it may have had no room for one
        if since:
            least, most = (sum(max(now - at, 0.0) for at in since) / len(since) for now in (earliest, latest))
            average = told[f"average_{state}_seconds"]
            if not least - _ROUNDED <= average <= most + _ROUNDED:
                yield f"summary: jobs are {state} for {average} s, not for {least} to {most}"
