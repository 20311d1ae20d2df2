"""Jobs in answers: their redaction, and the stand-in for an unreadable one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from jobs_service.errors import ServiceClosed, StoreError, SupervisorFailed
from jobs_service.layer.redactions import ALL_SECRET
from jobs_service.layer.unreadable_record import Unreadable
from jobs_service.model import Job
from jobs_service.model.terms import exact_type

if TYPE_CHECKING:
    from jobs_service.errors import RecordDamaged
    from jobs_service.model import JobEvent, JobType
    from jobs_service.redaction import Redaction
    from jobs_service.service.service import JobsService


async def redactor(jobs: Iterable[Job], rules_of: Callable[[JobType], Awaitable[Redaction]]) -> Callable[[Job], Job]:
    """Return a function that leaves the secret fields out of each of these jobs.

    Args:
        jobs: of any types. Rules are read after the jobs: they include the rules at the time when each job was added.
        rules_of: reads the rules of a type; called once per type.
    """
    rules = {type: await rules_of(type) for type in dict.fromkeys(exact_type(job.type) for job in jobs)}
    return lambda job: rules[exact_type(job.type)].job(job)


async def rules_of_changed(service: JobsService, type: JobType) -> Redaction:
    """Return the redaction rules for a job that was just changed; ALL_SECRET if they cannot be read now.

    The change is done, so the client must get a success, even if store or service have failed since.

    Args:
        service: that changed the job.
        type: of the job.
    """
    try:
        return await service.get_redaction(type)
    except (StoreError, ServiceClosed, SupervisorFailed):
        return ALL_SECRET


def unreadable(job: Job | JobEvent, error: RecordDamaged) -> Job:
    """Return a stand-in for a job with a damaged part: its state is "unreadable", and its error says why."""
    return Job(job.type, job.id, Unreadable(error))
