"""One run of one job, from its accept until its end is stored."""

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
    """Another job gets its slot: the job is released."""
    ENDING = "ending"
    """The runner ends: the job is released."""
    CANCELED = "canceled"
    """A client has canceled the job."""
    TAKEN = "taken"
    """This worker no longer owns the job: the handler's result does not count."""
    OVERTIME = "overtime"
    """The run took longer than its time limit."""
    CUT = "cut"
    """Other code canceled the task, as a program that cancels all tasks to end: the job is released."""


class Run:
    """One job that a worker pool has accepted.

    Attributes:
        job: the accepted job.
        lock: the lock of its accept.
        size: bytes of the job's record at this process's last read or write.
        at: time of the accept, in seconds of the loop's clock.
        continuous: whether rotation may take its slot for other jobs.
        asked: the next run that the handler itself requested; None for none.
        max_attempts, time_limit: the job's own limits; None if its handler's apply.
        task: the handler's task; None if the run never began.
        begun: whether the task has made its first step.
        left: whether its slot is free again.
        stop_reason: the reason for asking the handler to end; None if it was not asked.
        written: whether the job's end is stored, or never will be.
        end_awaited: whether the handler awaits the answer of its `finish` or `release`.
        ending: whether the handler is ending the job in its own transaction, whose effect is open.
        abandoned: whether the handler still runs after its grace: its result does not count.
        stored: whether the end was already in the store when it was written again.
        announce: tells a handler in a thread, which cannot be canceled, to end soon; None for others.
        deadline: end of its time limit, in seconds of the loop's clock; None without one.
        timers: timers to cancel when the handler has ended.
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
        """Return the job's place under its type's current keys: they change when the directory is moved."""
        return keys, self.job.id, self._packed_id

    @property
    def history(self) -> tuple[HistoryEvent, ...]:
        """The job's events, newest first; see `history_of`."""
        return history_of(self.job)

    @property
    def has_ended(self) -> bool:
        """Whether its handler has ended, or never began."""
        return self.task is None or self.task.done()

    @property
    def can_be_asked(self) -> bool:
        """Whether a handler still runs that can be asked to end the job."""
        return not self.written and not self.has_ended


def history_of(job: RunningJob) -> tuple[HistoryEvent, ...]:
    """Return a job's history; an empty one if it is damaged, because the job can still run."""
    try:
        return job.history
    except RecordDamaged:
        return ()


def error_of(job: RunningJob) -> JobError | None:
    """Return the error of a job's last failed run; None also if it is damaged."""
    try:
        return job.error
    except RecordDamaged:
        return None
