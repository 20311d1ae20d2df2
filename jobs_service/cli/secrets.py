"""What the command line shows of jobs: not the fields that their types call secret."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from jobs_service import Job, JobEvent, JobsService

    Shown = TypeVar("Shown", Job, JobEvent)


async def without(jobs: JobsService, job: Job) -> Job:
    """Return what may be shown of a job."""
    return (await jobs.get_redaction(job.type)).job(job)


async def without_in_changed(jobs: JobsService, job: Shown) -> Shown:
    """Return what may be shown of a job that was changed, or of its end, also when the store has failed since."""
    from jobs_service import JobEvent
    from jobs_service.service.answers import rules_of_changed

    rules = await rules_of_changed(jobs, job.type)
    return rules.event(job) if isinstance(job, JobEvent) else rules.job(job)


async def without_in_event(jobs: JobsService, event: Job | JobEvent) -> Job | JobEvent:
    """Return what may be shown of an event, or of a job in its place."""
    from jobs_service import JobEvent

    rules = await jobs.get_redaction(event.type)
    return rules.event(event) if isinstance(event, JobEvent) else rules.job(event)


async def without_in_all(jobs: JobsService, page: Iterable[Job]) -> list[Job]:
    """Return what may be shown of some jobs, by one read per type."""
    from jobs_service.runner.stats import exact_type

    found = [*page]
    # Read after the jobs: what was secret of each when it was added is known by then.
    rules = {type: await jobs.get_redaction(type) for type in dict.fromkeys(exact_type(job.type) for job in found)}
    return [rules[exact_type(job.type)].job(job) for job in found]
