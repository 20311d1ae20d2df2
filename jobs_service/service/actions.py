"""Actions of people on jobs, on a single one or on all that match: the same through every interface.

docs/semantics.md has the table of actions and states; this module implements its cells.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from jobs_service.errors import InvalidJob, JobChanged, job_name, shown
from jobs_service.layer.transaction import JobTransaction
from jobs_service.model import HistoryKind, Job, JobId, JobState, JobType, Removal
from jobs_service.model.job import ENDED, Status, status_of

if TYPE_CHECKING:
    from jobs_service.service.service import JobsService

ACTIONS: Final[Mapping[str, str]] = {
    "resubmit": "retry",
    "cancel": "cancel",
    "remove": "remove",
    "count": "count",
}
"""Bulk actions with their names for people; "count" changes nothing."""

_SEQ_BYTES: Final = 12


def concerns(action: str, status: Status) -> bool:
    """Return whether an action changes jobs that a filter finds in this state.

    Unreadable jobs are removed only if the filter names their state.
    """
    if action == "resubmit":
        return status in ENDED or status is Status.RETRYING
    if action == "cancel":
        return status not in ENDED and status is not Status.UNREADABLE
    return True


def changes(action: str, job: Job, now: float) -> bool:
    """Return whether an action changes a job that a filter finds; a canceled job is not canceled again."""
    return concerns(action, status_of(job, now)) and not (job.cancel and action in ("cancel", "remove"))


@dataclass(frozen=True, slots=True)
class Seen:
    """The version of a job that a client saw before it requested a change.

    Attributes:
        seq: of the job.
        started: start of its run, if it was running: heartbeats move the seq of a running job, and are no reason to
            refuse a change. None if unknown: then the seq must be the same.
    """

    seq: bytes
    started: float | None = None

    @classmethod
    def of(cls, seq: str, started: str = "") -> Self:
        """Parse the version in a request.

        Args:
            seq: hexadecimal, as in a job's JSON.
            started: a number, or empty.

        Raises:
            InvalidJob: an invalid value.
        """
        try:
            found = bytes.fromhex(seq)
            if len(found) != _SEQ_BYTES:
                raise ValueError
            return cls(found, float(started) if started else None)
        except ValueError:
            refused = f"seq {shown(seq)}: it is none; allowed is what a job has as its seq, 24 hexadecimal digits"
            raise InvalidJob(refused) from None

    def check(self, job: Job) -> None:
        """Raise JobChanged if the job has changed since."""
        is_same_run = job.state is JobState.RUNNING and self.started is not None and started_at(job) == self.started
        if job.seq != self.seq and not is_same_run:
            name, state = job_name(job.type, job.id), job.state if job.outcome is None else job.outcome
            refused = f"job {name} has changed since it was looked at: it is {state.value} now; nothing was done"
            raise JobChanged(refused, type=job.type, id=job.id)


def started_at(job: Job) -> float | None:
    """Return the start of a job's present run, seconds since the epoch; None if the job is not known to run."""
    if job.state is not JobState.RUNNING:
        return None
    return next((event.at for event in job.history if event.kind is HistoryKind.STARTED), None)


async def cancel(service: JobsService, type: JobType, id: JobId, seen: Seen | None = None) -> Removal | None:
    """Cancel a job: ask a running one to end, remove a waiting one.

    Args:
        service: of the job.
        type, id: the job.
        seen: the version that the job must still have; None for any version.

    Returns:
        The result of `remove`; None if the job has ended already, and stays with its result.

    Raises:
        JobNotFound: there is no such job.
        JobChanged: the job has another version.
        RecordDamaged: its record cannot be read.
    """

    async def change(tx: JobTransaction) -> Removal | None:
        job = await _as_seen(tx, type, id, seen)
        return None if job.state is JobState.FINISHED else await tx.remove(type, id)

    return await service.transact(change)


async def remove(service: JobsService, type: JobType, id: JobId, seen: Seen | None, *, force: bool = False) -> Removal:
    """Remove a job like JobsService.remove, if it has not changed; raises like that and `cancel`."""
    if seen is None:
        return await service.remove(type, id, force=force)

    async def change(tx: JobTransaction) -> Removal:
        await _as_seen(tx, type, id, seen)
        return await tx.remove(type, id, force=force)

    return await service.transact(change)


async def resubmit(service: JobsService, type: JobType, id: JobId, seen: Seen | None, **changes: Any) -> Job:
    """Have a job run again like JobsService.resubmit, if it has not changed; raises like that and `cancel`."""
    if seen is None:
        return await service.resubmit(type, id, **changes)

    async def change(tx: JobTransaction) -> Job:
        await _as_seen(tx, type, id, seen)
        return await tx.resubmit(type, id, **changes)

    return await service.transact(change)


async def retry(service: JobsService, type: JobType, id: JobId, seen: Seen | None = None) -> Job | None:
    """Do with one job what a bulk action does: an ended job runs again, one that waits for another attempt is due now.

    Returns:
        The job; None if it was in another state, and stays as it is. Raises like `cancel`.
    """
    now = service.wall_time()

    async def change(tx: JobTransaction) -> Job | None:
        job = await _as_seen(tx, type, id, seen)
        if not concerns("resubmit", status_of(job, now)):
            return None
        return await tx.resubmit(type, id, **({"run_at": now} if job.state is JobState.PENDING else {}))

    return await service.transact(change)


async def run_now(service: JobsService, type: JobType, id: JobId, seen: Seen | None) -> bool:
    """Make a pending job due now; return whether it was pending. Raises like `cancel`."""

    now = service.wall_time()

    async def change(tx: JobTransaction) -> bool:
        job = await _as_seen(tx, type, id, seen)
        if job.state is JobState.PENDING:
            await tx.resubmit(type, id, run_at=now)
        return job.state is JobState.PENDING

    return await service.transact(change)


async def _as_seen(tx: JobTransaction, type: JobType, id: JobId, seen: Seen | None) -> Job:
    job = await tx.get(type, id)
    if seen is not None:
        seen.check(job)
    return job
