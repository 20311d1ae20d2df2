"""What an application embeds: JobsService, and what it is made of."""

from jobs_service.arguments import check_timeout
from jobs_service.service.service import DEFAULT_STORE, JobsService

__all__ = ["DEFAULT_STORE", "JobsService", "check_timeout"]
