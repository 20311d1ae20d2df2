"""What people have done with jobs, one or all that match: each action has one meaning, through whichever door.

docs/semantics.md has the table of actions and states; here are its cells.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from jobs_service.errors import InvalidJob, JobChanged, job_name, shown
from jobs_service.layer.transaction import JobTransaction
from jobs_service.model import HistoryKind, Job, JobId, JobState, JobType, Removal
from jobs_service.status import ENDED, Status, status_of

if TYPE_CHECKING:
    from jobs_service.service.service import JobsService

ACTIONS: Final[Mapping[str, str]] = {
    "resubmit": "retry",
    "cancel": "cancel",
    "remove": "remove",
    "count": "count",
}
"""What can be done with all jobs that match, and what it is called; "count" changes nothing."""

_SEQ_BYTES: Final = 12


def concerns(action: str, status: Status) -> bool:
    """Return whether an action changes jobs that are in a state when they are found by a filter.

    Those that cannot be read are removed where somebody has asked for them by their state.
    """
    if action == "resubmit":
        return status in ENDED or status is Status.RETRYING
    if action == "cancel":
        return status not in ENDED and status is not Status.UNREADABLE
    return True


def changes(action: str, job: Job, now: float) -> bool:
    """Return whether an action changes a job that is found by a filter: whose end was asked for is not asked again."""
    return concerns(action, status_of(job, now)) and not (job.cancel and action in ("cancel", "remove"))


@dataclass(frozen=True, slots=True)
class Seen:
    """A job as somebody has seen it who wants something to be done with it.

    Attributes:
        seq: of the job.
        started: when its run had begun, if it was running: signs of life move the seq of a job that runs, and are no
            reason to refuse anything. None: nobody has seen that, and its seq must be the same.
    """

    seq: bytes
    started: float | None = None

    @classmethod
    def of(cls, seq: str, started: str = "") -> Self:
        """Return what a request says.

        Args:
            seq: hexadecimal, as JSON has it of a job.
            started: a number, or empty.

        Raises:
            InvalidJob: that is none.
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
        """Raise JobChanged when something has happened to the job since."""
        is_same_run = job.state is JobState.RUNNING and self.started is not None and started_at(job) == self.started
        if job.seq != self.seq and not is_same_run:
            name, state = job_name(job.type, job.id), job.state if job.outcome is None else job.outcome
            refused = f"job {name} has changed since it was looked at: it is {state.value} now; nothing was done"
            raise JobChanged(refused, type=job.type, id=job.id)


def started_at(job: Job) -> float | None:
    """Return when the present run of a job has begun, seconds since the epoch; None unless it is known to run."""
    if job.state is not JobState.RUNNING:
        return None
    return next((event.at for event in job.history if event.kind is HistoryKind.STARTED), None)


async def cancel(service: JobsService, type: JobType, id: JobId, seen: Seen | None = None) -> Removal | None:
    """Have a job not run, or not any longer: one that runs is asked to end, one that waits is removed.

    Args:
        service: of the job.
        type, id: the job.
        seen: as it has to be still; None for however it is.

    Returns:
        What `remove` did; None if the job has ended already, and was left alone with its result.

    Raises:
        JobNotFound: there is no such job.
        JobChanged: it is not as it was seen.
        RecordDamaged: its record cannot be read.
    """

    async def change(tx: JobTransaction) -> Removal | None:
        job = await _as_seen(tx, type, id, seen)
        return None if job.state is JobState.FINISHED else await tx.remove(type, id)

    return await service.transact(change)


async def remove(service: JobsService, type: JobType, id: JobId, seen: Seen | None, *, force: bool = False) -> Removal:
    """Remove a job as JobsService.remove does, if it is as it was seen; raises as that and `cancel`."""
    if seen is None:
        return await service.remove(type, id, force=force)

    async def change(tx: JobTransaction) -> Removal:
        await _as_seen(tx, type, id, seen)
        return await tx.remove(type, id, force=force)

    return await service.transact(change)


async def resubmit(service: JobsService, type: JobType, id: JobId, seen: Seen | None, **changes: Any) -> Job:
    """Have a job run again as JobsService.resubmit does, if it is as it was seen; raises as that and `cancel`."""
    if seen is None:
        return await service.resubmit(type, id, **changes)

    async def change(tx: JobTransaction) -> Job:
        await _as_seen(tx, type, id, seen)
        return await tx.resubmit(type, id, **changes)

    return await service.transact(change)


async def run_now(service: JobsService, type: JobType, id: JobId, seen: Seen | None) -> bool:
    """Have a job that waits for its time be due now; return whether it has waited. Raises as `cancel`."""

    now = service._context.sources.wall_time()

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
