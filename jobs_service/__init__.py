"""Durable background jobs for asyncio programs; this module is the public interface, nothing else."""

from jobs_service.actors.subscriptions import Subscription
from jobs_service.errors import (
    Discard,
    InvalidAddress,
    InvalidJob,
    InvalidSettings,
    JobCanceled,
    JobExists,
    JobFailed,
    JobNotFound,
    JobsError,
    JobTooLarge,
    NoTypeTimeout,
    RecordDamaged,
    Retry,
    ServiceClosed,
    Snooze,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreUnavailable,
    SupervisorFailed,
    WorkerConflict,
)
from jobs_service.layer.inspection import QueueState
from jobs_service.layer.transaction import JobTransaction
from jobs_service.layer.unit import Retention
from jobs_service.model import (
    EndedJob,
    HistoryEvent,
    HistoryKind,
    Job,
    JobError,
    JobEvent,
    JobId,
    JobState,
    JobType,
    NewJob,
    Outcome,
    Progress,
    Removal,
    RunningJob,
)
from jobs_service.runner.blocking import BlockingJob
from jobs_service.runner.command import CommandFailed
from jobs_service.runner.handler import Handler
from jobs_service.runner.options import HandlerOptions
from jobs_service.service import JobsService
from jobs_service.settings import Settings

__version__ = "0.1.0"

__all__ = [
    "BlockingJob",
    "CommandFailed",
    "Discard",
    "EndedJob",
    "Handler",
    "HandlerOptions",
    "HistoryEvent",
    "HistoryKind",
    "InvalidAddress",
    "InvalidJob",
    "InvalidSettings",
    "Job",
    "JobCanceled",
    "JobError",
    "JobEvent",
    "JobExists",
    "JobFailed",
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
    "Progress",
    "QueueState",
    "RecordDamaged",
    "Removal",
    "Retention",
    "Retry",
    "RunningJob",
    "ServiceClosed",
    "Settings",
    "Snooze",
    "StoreDamaged",
    "StoreError",
    "StoreFull",
    "StoreUnavailable",
    "Subscription",
    "SupervisorFailed",
    "WorkerConflict",
]
