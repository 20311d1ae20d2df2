"""One run of one job, from its accept until its end is in the store."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable

from jobs_service import run_data
from jobs_service.errors import RecordDamaged
from jobs_service.layer.key_parts import pack_id
from jobs_service.layer.keyspace import TypeKeys
from jobs_service.layer.record import NextRun
from jobs_service.layer.unit_of_work import Place
from jobs_service.model import HistoryEvent, JobError, RunningJob


class StopReason(enum.Enum):
    """Why a running handler was asked to end."""

    STOPPED = "stopped"
    """Another job gets its slot: the job is given back."""
    ENDING = "ending"
    """The runner ends: the job is given back."""
    CANCELED = "canceled"
    """Somebody has canceled the job."""
    TAKEN = "taken"
    """The job is no longer this worker's: the handler's result does not count."""
    OVERTIME = "overtime"
    """The run took longer than its time limit."""
    CUT = "cut"
    """Somebody else has canceled its task, as a program does that cancels all tasks to end: the job is given back."""


class Run:
    """One job that a worker pool has accepted.

    Attributes:
        job: as it was accepted.
        lock: with which it was accepted.
        size: bytes of the job's record when this process wrote or read it last.
        at: when it was accepted, seconds of the loop's clock.
        continuous: whether it may be asked to give up its slot to others.
        asked: the next run that the handler itself has asked for; None as long as it did not.
        max_attempts, time_limit: the job's own; None where its handler's apply.
        task: in which its handler runs; None when it never began.
        begun: whether the task has made its first step.
        left: whether its slot is free again.
        stop_reason: why the handler was asked to end; None as long as it was not.
        written: whether the job's end is in the store, or will never be.
        end_awaited: whether the handler awaits the answer whether it has ended the job by `finish` or `release`.
        ending: whether the handler is ending the job in a transaction of its own, which may take effect or not.
        abandoned: whether the handler goes on after its grace: its result does not count.
        stored: whether the end was already in the store when it was written again.
        announce: says to a handler in a thread, which cannot be canceled, that it is to end soon; None for others.
        deadline: at which its time limit is over, seconds of the loop's clock; None without one.
        timers: to be canceled when the handler has ended.
    """

    __slots__ = (
        "_packed_id",
        "abandoned",
        "announce",
        "asked",
        "at",
        "begun",
        "continuous",
        "deadline",
        "end_awaited",
        "ending",
        "job",
        "left",
        "lock",
        "max_attempts",
        "size",
        "stop_reason",
        "stored",
        "task",
        "time_limit",
        "timers",
        "written",
    )

    def __init__(self, job: RunningJob, at: float, continuous: bool) -> None:
        self.job = job
        self.lock = job.lock
        record = job._record
        self.size = record.size()
        self.max_attempts, self.time_limit = run_data.limits_of(record.run_data)
        self.at = at
        self.asked: NextRun | None = None
        self.continuous = continuous
        self.task: asyncio.Task[None] | None = None
        self.begun = False
        self.left = False
        self.stop_reason: StopReason | None = None
        self.written = False
        self.end_awaited = False
        self.ending = False
        self.abandoned = False
        self.stored = False
        self.announce: Callable[[], None] | None = None
        self.deadline: float | None = None
        self.timers: list[asyncio.TimerHandle] = []
        self._packed_id = pack_id(job.id)

    def place(self, keys: TypeKeys) -> Place:
        """Return the job's place. The type's keys are an argument because they change when the directory is moved."""
        return keys, self.job.id, self._packed_id

    @property
    def history(self) -> tuple[HistoryEvent, ...]:
        """What happened to the job, newest first; see `history_of`."""
        return history_of(self.job)

    @property
    def has_ended(self) -> bool:
        """Whether its handler has ended, or never began."""
        return self.task is None or self.task.done()

    @property
    def can_be_asked(self) -> bool:
        """Whether there is a handler that can be asked to end its job."""
        return not self.written and not self.has_ended


def history_of(job: RunningJob) -> tuple[HistoryEvent, ...]:
    """Return a job's history; an empty one where it cannot be read, because the job can be run all the same."""
    try:
        return job.history
    except RecordDamaged:
        return ()


def error_of(job: RunningJob) -> JobError | None:
    """Return the error of a job's last failed run; None also where it cannot be read."""
    try:
        return job.error
    except RecordDamaged:
        return None
