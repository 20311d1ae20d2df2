"""Durable background jobs for asyncio programs; this module is the public interface, nothing else."""

from jobs_service.actors.subscriptions import Subscription
from jobs_service.errors import (
    InvalidJob,
    InvalidSettings,
    JobCanceled,
    JobExists,
    JobNotFound,
    JobsError,
    JobTooLarge,
    NoTypeTimeout,
    StoreError,
    StoreFull,
    StoreUnavailable,
    SupervisorFailed,
    WorkerConflict,
)
from jobs_service.layer.transaction import JobTransaction
from jobs_service.model import Job, JobEvent, JobId, JobState, JobType, NewJob, Outcome, Removal, RunningJob
from jobs_service.service import JobsService
from jobs_service.settings import Settings

__version__ = "0.1.0"

__all__ = [
    "InvalidJob",
    "InvalidSettings",
    "Job",
    "JobCanceled",
    "JobEvent",
    "JobExists",
    "JobId",
    "JobNotFound",
    "JobState",
    "JobTooLarge",
    "JobTransaction",
    "JobType",
    "JobsError",
    "JobsService",
    "NewJob",
    "NoTypeTimeout",
    "Outcome",
    "Removal",
    "RunningJob",
    "Settings",
    "StoreError",
    "StoreFull",
    "StoreUnavailable",
    "Subscription",
    "SupervisorFailed",
    "WorkerConflict",
]
