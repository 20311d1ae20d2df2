"""Which errors an operation may end with: by what it is, what its job and type were meanwhile, and the weather."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jobs_service import (
    JobCanceled,
    JobExists,
    JobNotFound,
    JobsError,
    JobState,
    JobTooLarge,
    JobType,
    NoTypeTimeout,
    RecordDamaged,
    ServiceClosed,
    StoreError,
    StoreFull,
    SupervisorFailed,
    WorkerConflict,
)
from jobs_service.errors import ProcessGone, StoreUnavailable, TransactionTooLarge
from tests.simulation.calls import Call
from tests.simulation.job_states import meanwhile
from tests.simulation.model_job import Key

if TYPE_CHECKING:
    from jobs_service.testing import Process
    from tests.simulation.run import Run

_WORKER: Final = (WorkerConflict, JobTooLarge)

TABLE: Final[dict[str, tuple[type[Exception], ...]]] = {
    "add": (JobExists, NoTypeTimeout, JobTooLarge),
    "enqueue": (JobExists, NoTypeTimeout, JobTooLarge),
    "resubmit": (JobNotFound, JobTooLarge),
    "remove": (JobNotFound,),
    "accept": (),
    "update": (*_WORKER, JobCanceled),
    "worker resubmit": (*_WORKER, JobCanceled),
    "finish": _WORKER,
    "release": _WORKER,
}
"""The errors of each operation, beside those of the store, which any may end with where something takes time."""


ADDS: Final = ("add", "enqueue")
"""What a full store refuses; all else goes on."""


_OF_JOBS: Final = (JobExists, JobNotFound, NoTypeTimeout, WorkerConflict, JobCanceled)
"""What says something of a job or a type, not of the service."""


def unfounded_end(run: Run, process: Process, step: str, error: JobsError, began: float, version: int) -> str | None:
    """Return what is wrong with an error that somebody's step has ended with; None when it may be so.

    This is for whatever is asked without being noted as a call, such as reading, counting and changing types: what
    refuses it must be true of jobs or types, or of the store just then.

    Args:
        process: in which the step was taken.
        step: whose it was.
        began: when it did, on the loop's clock, seconds.
        version: the cluster's version when it did.
    """
    machine = run.machine
    if isinstance(error, (*_OF_JOBS, ProcessGone)):
        may_be = _was_so(run, error, version)
    elif isinstance(error, JobTooLarge):
        may_be = run.sizes.large
    elif isinstance(error, StoreFull):
        may_be = machine is not None and machine.map_size is not None
    elif isinstance(error, RecordDamaged):
        may_be = run.is_damaged
    elif isinstance(error, TransactionTooLarge):
        may_be = True  # of the user's own keys: that of the service's is noticed where it is made
    elif isinstance(error, StoreError) and not error.retryable:
        may_be = machine is not None and "within()" in str(error)  # it is for clusters
    elif isinstance(error, StoreError):
        may_be = run.quiet.quick_since() > began or run.is_over or not process.running
        # Whether a commit has happened may be known to nobody any more, however little time that took.
        may_be |= isinstance(error, StoreUnavailable) and run.quiet.retried_at >= began
    elif isinstance(error, SupervisorFailed):
        may_be = run.crashes.has_crashed(process)
    else:
        # Who is told of changes needs the supervisor tree, which some services do without, or lose.
        jobs = run.services.get(process)
        may_be = type(error) is JobsError and (jobs is None or jobs._tree.root is None)
    return (
        None if may_be else f"error: the step of {step} in {process} ended with {error!r}, which began at {began:.3f}"
    )


def unfounded(run: Run, call: Call, error: Exception, began: float) -> str | None:
    """Return what is wrong with an error that a call has ended with; None when there is a reason for it.

    Args:
        began: when the call did, on the loop's clock, seconds.
    """
    if isinstance(error, TransactionTooLarge):
        return f"too large: {call} was refused: {error}"
    if isinstance(error, StoreFull) and run.machine is not None and run.machine.map_size is not None:
        return None if call.name in ADDS else f"full: {call} was refused: {error}"
    if isinstance(error, StoreError):
        # One that is left refuses what is begun.
        if run.quiet.quick_since() > began or run.is_over or not call_is_of_the_living(run, call):
            return None
        return f"error: {call} ended with {error!r}, and nothing takes time since {run.quiet.quick_since():.3f}"
    if isinstance(error, ServiceClosed):
        # Whoever calls does so in the body of its `async with`, and has ended when that does.
        return f"refused: {call} ended with {error!r}, and nobody has left"
    if call.name not in TABLE or type(error).__module__ != "jobs_service.errors":
        return None
    if not isinstance(error, TABLE[call.name]):
        # Who waits needs the supervisor tree, which some services do without.
        fails = isinstance(error, SupervisorFailed)
        may_be = _has_crashed(run, call) if fails else type(error) is JobsError
        return None if may_be else f"error: {call} ended with {error!r}, as it never may"
    reason = _has_reason(run, call, error)
    return None if reason else f"refused: {call} ended with {error!r} for no reason"


def call_is_of_the_living(run: Run, call: Call) -> bool:
    """Whether the process of a call is to go on."""
    return any(str(process) == call.process and process.running for process in run.processes)


def _has_crashed(run: Run, call: Call) -> bool:
    return any(str(process) == call.process and run.crashes.has_crashed(process) for process in run.processes)


def _has_reason(run: Run, call: Call, error: Exception) -> bool:
    """Whether the job or the type was so at some moment of the call that the error is true."""
    if isinstance(error, JobTooLarge):
        return run.sizes.large
    if isinstance(error, NoTypeTimeout):
        return _had_no_timeout(run, call.type, call.version)
    if call.id is None:
        return True
    was = _Meanwhile(run, (call.type, call.id), call.version)
    if isinstance(error, JobNotFound):
        return was.gone
    if isinstance(error, JobExists):
        return was.existing
    if isinstance(error, JobCanceled):
        return was.removed or any(state.canceled for state in was.there)
    return was.gone or any(state.lock != call.locks[0] for state in was.there)


def _was_so(run: Run, error: JobsError, version: int) -> bool:
    """Whether the job or type that an error names was so at some moment since a version."""
    if isinstance(error, NoTypeTimeout):
        return _had_no_timeout(run, error.type, version)
    if error.id is None or not isinstance(error, JobNotFound | JobExists):
        return True
    was = _Meanwhile(run, (error.type, error.id), version)
    return was.gone if isinstance(error, JobNotFound) else was.existing


def _had_no_timeout(run: Run, type: JobType, began: int) -> bool:
    """Whether a type had no timeout at some moment since a version."""
    changes = run.history.timeouts.get(type, [])
    before = [seconds for version, seconds in changes if version <= began]
    since = [seconds for version, seconds in changes if version > began]
    return None in [*(before[-1:] or [None]), *since]


class _Meanwhile:
    """What a job has been since a version.

    Args:
        run: in which it is.
        key: of the job.
        began: the version.

    Attributes:
        there: what it was while it was there.
        removed: whether it was removed, or asked to end.
        gone: whether it was not there at some moment.
        existing: whether it was there at some moment.
    """

    def __init__(self, run: Run, key: Key, began: int) -> None:
        was_so = list(meanwhile(run.history, key, began))
        self.there = [state for state in was_so if state is not None and state.state is not JobState.REMOVED]
        # Calls of one moment share a transaction: what one of them does another may undo before anybody else sees it.
        self.removed = any(version > began for version in run.calls.removed(*key))
        self.gone = self.removed or len(self.there) < len(was_so)
        self.existing = bool(self.there) or any(version > began for version in run.calls.added(*key))
