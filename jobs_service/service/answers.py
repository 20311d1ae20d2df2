"""Jobs in answers: the redaction of a changed one, and the stand-in for an unreadable one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs_service.errors import ServiceClosed, StoreError, SupervisorFailed
from jobs_service.layer.redactions import ALL_SECRET
from jobs_service.layer.unreadable_record import Unreadable
from jobs_service.model import Job

if TYPE_CHECKING:
    from jobs_service.errors import RecordDamaged
    from jobs_service.model import JobEvent, JobType
    from jobs_service.redaction import Redaction
    from jobs_service.service.service import JobsService


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
