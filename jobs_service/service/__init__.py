"""What an application embeds: JobsService, and what it is made of."""

from jobs_service.service.service import DEFAULT_STORE, JobsService
from jobs_service.service.timeouts import check_timeout

__all__ = ["DEFAULT_STORE", "JobsService", "check_timeout"]
