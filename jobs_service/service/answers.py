"""What an answer to a change shows of the job that was changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs_service.errors import ServiceClosed, StoreError, SupervisorFailed
from jobs_service.layer.redactions import ALL_SECRET

if TYPE_CHECKING:
    from jobs_service.model import JobType
    from jobs_service.redaction import Redaction
    from jobs_service.service.service import JobsService


async def rules_of_changed(service: JobsService, type: JobType) -> Redaction:
    """Return which fields of a job that was just changed are secret; all of them if that cannot be read now.

    The change is done: whoever has asked for it must be told that, and not that store or service have failed since.

    Args:
        service: that has changed the job.
        type: of the job.
    """
    try:
        return await service.get_redaction(type)
    except (StoreError, ServiceClosed, SupervisorFailed):
        return ALL_SECRET
