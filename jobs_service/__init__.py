"""Durable background jobs for asyncio programs. This module is the public interface and holds nothing else.

Modules are imported on first use of one of their names, so that the command line starts before any slow import and
handles Ctrl-C and `--help` at once.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobs_service.actors.subscriptions import Subscription
    from jobs_service.client import JobsClient
    from jobs_service.errors import (
        AccessDenied,
        Discard,
        InvalidAddress,
        InvalidJob,
        InvalidSettings,
        JobCanceled,
        JobChanged,
        JobExists,
        JobFailed,
        JobNotFound,
        JobsError,
        JobTooLarge,
        NoTypeTimeout,
        ProcessGone,
        RecordDamaged,
        Retry,
        ScheduleNotFound,
        ServiceClosed,
        Snooze,
        StoreDamaged,
        StoreError,
        StoreFull,
        StoreLost,
        StoreUnavailable,
        SupervisorFailed,
        WorkerConflict,
    )
    from jobs_service.job_context import context
    from jobs_service.layer.transaction import JobTransaction
    from jobs_service.model import (
        EndedJob,
        Enqueued,
        HandlerSlots,
        Histogram,
        HistoryEvent,
        HistoryKind,
        Interval,
        Job,
        JobError,
        JobEvent,
        JobId,
        JobsPage,
        JobState,
        JobType,
        NewJob,
        Outcome,
        ProcessInfo,
        ProcessRequest,
        ProcessState,
        Progress,
        Removal,
        RunningJob,
        Totals,
        TypeCounts,
    )
    from jobs_service.model.process import CommandFailed
    from jobs_service.model.type_state import QueueState, Retention, StoredSchedule
    from jobs_service.redaction import Redaction
    from jobs_service.runner.functions import BlockingJob
    from jobs_service.runner.handler import PROVIDED, Handler
    from jobs_service.runner.options import HandlerOptions
    from jobs_service.service import JobsService
    from jobs_service.service.handler_registry import Handlers
    from jobs_service.settings import Settings

__version__ = "0.1.0"

__all__ = [
    "PROVIDED",
    "AccessDenied",
    "BlockingJob",
    "CommandFailed",
    "Discard",
    "EndedJob",
    "Enqueued",
    "Handler",
    "HandlerOptions",
    "HandlerSlots",
    "Handlers",
    "Histogram",
    "HistoryEvent",
    "HistoryKind",
    "Interval",
    "InvalidAddress",
    "InvalidJob",
    "InvalidSettings",
    "Job",
    "JobCanceled",
    "JobChanged",
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
    "JobsClient",
    "JobsError",
    "JobsPage",
    "JobsService",
    "NewJob",
    "NoTypeTimeout",
    "Outcome",
    "ProcessGone",
    "ProcessInfo",
    "ProcessRequest",
    "ProcessState",
    "Progress",
    "QueueState",
    "RecordDamaged",
    "Redaction",
    "Removal",
    "Retention",
    "Retry",
    "RunningJob",
    "ScheduleNotFound",
    "ServiceClosed",
    "Settings",
    "Snooze",
    "StoreDamaged",
    "StoreError",
    "StoreFull",
    "StoreLost",
    "StoreUnavailable",
    "StoredSchedule",
    "Subscription",
    "SupervisorFailed",
    "Totals",
    "TypeCounts",
    "WorkerConflict",
    "context",
]

_HOMES = (
    "errors",
    "model",
    "model.process",
    "model.type_state",
    "model.type_state",
    "redaction",
    "settings",
    "job_context",
    "actors.subscriptions",
    "runner.options",
    "runner.handler",
    "runner.functions",
    "layer.transaction",
    "service.service",
)
"""Modules that define the public names, small ones first: a program that uses only HTTP needs no store."""

_APART = {"JobsClient": "client"}
"""Names of rarely used modules, each imported only on request."""

if not TYPE_CHECKING:  # A type checker would take every name for a known one.

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            return _submodule(name)
        if name in _APART:
            return getattr(import_module(f"{__name__}.{_APART[name]}"), name)
        for home in _HOMES:
            found = vars(import_module(f"{__name__}.{home}"))
            globals().update({public: found[public] for public in __all__ if public in found})
            if name in found:
                break
        return globals()[name]

    def _submodule(name: str) -> Any:
        """Return a submodule such as `jobs_service.errors`, which `import jobs_service` alone makes available."""
        if not name.startswith("_") and find_spec(f"{__name__}.{name}") is not None:
            return import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
