"""Redaction of a changed job in the answer to its change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs_service.errors import ServiceClosed, StoreError, SupervisorFailed
from jobs_service.layer.redactions import ALL_SECRET

if TYPE_CHECKING:
    from jobs_service.model import JobType
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
