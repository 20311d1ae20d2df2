"""Jobs, events and counts as JSON and back, for both ends of the HTTP interface, and the forms of all answers.

`json_types` tells of the form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from jobs_service import json_data, names, run_data
from jobs_service.errors import RecordDamaged
from jobs_service.json_types import Hexadecimal, Time, Unchanged, read, time
from jobs_service.model import (
    Enqueued,
    HistoryEvent,
    Job,
    JobError,
    JobEvent,
    JobId,
    JobState,
    JobType,
    Outcome,
    Priority,
    ProcessInfo,
    Progress,
    RunningJob,
    Worker,
    unpack_priority,
)
from jobs_service.model.type_state import Interval, JobsPage, QueueState, Retention, StoredSchedule, TypeCounts

Form = dict[str, Any]
"""A JSON object."""

event_of = partial(read, JobEvent)
process_of = partial(read, ProcessInfo)
schedule_of = partial(read, StoredSchedule)
retention_of = partial(read, Retention)
queue_state_of = partial(read, QueueState)
counts_of = partial(read, TypeCounts)
interval_of = partial(read, Interval)


# Jobs as they are sent and read


class NextRunForm(BaseModel):
    """The run after the present one."""

    priority: Priority
    run_at: Time | None


class TraceForm(BaseModel):
    """The span of a job's creation: a W3C Trace Context, as propagators take it."""

    traceparent: str
    tracestate: str = ""


class JobForm(BaseModel):
    """A job."""

    type: JobType
    id: JobId
    state: JobState
    outcome: Outcome | None = None
    data: Unchanged = None
    priority: Priority = 0
    run_at: Time | None = None
    retrying: bool = False
    """Whether the pending job waits for another attempt after a crash of its last run."""
    resubmit: bool = False
    cancel: bool = False
    seq: Hexadecimal | None = None
    attempts: int = 0
    crashes: int = 0
    """How many runs have failed in a row."""
    result: Unchanged = None
    error: JobError | None = None
    progress: Progress | None = None
    history: list[HistoryEvent] = []
    max_attempts: int | None = None
    time_limit: float | None = None
    expires_at: Time | None = None
    enqueued: Enqueued | None = None
    """The effect of an add that was an `enqueue`; absent from other answers."""
    trace_context: TraceForm | None = None
    """Absent if the job was added outside a span; a worker continues the trace with it."""
    context: dict[str, str] | None = None
    """Absent if the job was added without one."""
    lock: Hexadecimal | None = None
    """Only for its worker."""
    next_run: NextRunForm | None = None
    """The run after this one, if one was requested; only for its worker."""


class _Record:
    """The record of a job that came over the wire; see model.JobRecord."""

    __slots__ = (
        "_form",
        "cancel",
        "lock",
        "named_priority",
        "outcome",
        "resubmit",
        "run_at",
        "run_data",
        "seq_bytes",
        "state",
    )

    def __init__(self, form: JobForm) -> None:
        self._form = form
        self.state = form.state
        self.outcome = form.outcome
        self.named_priority = form.priority
        self.run_at = form.run_at
        self.resubmit = form.resubmit
        self.cancel = form.cancel
        self.seq_bytes = form.seq
        self.lock = form.lock
        self.run_data = _run_data(form)

    @property
    def priority(self) -> bytes:
        return _packed(self.named_priority)

    @property
    def next(self) -> tuple[bytes, float | None] | None:
        following = self._form.next_run
        return None if following is None else (_packed(following.priority), following.run_at)

    @property
    def json(self) -> bytes:
        return json_data.encode(self._form.data)

    def size(self) -> int:
        """Return its approximate size in bytes."""
        return len(self.json) + len(self.run_data)


def _packed(priority: Any) -> bytes:
    from jobs_service.layer.keyspace import pack_priority  # only callers with the layer need it packed

    return pack_priority(priority)


def _run_data(form: JobForm) -> bytes:
    """Return the run data of a job, packed as in its record."""
    limits, trace = (form.max_attempts, form.time_limit), form.trace_context
    packed_limits = None
    if limits != (None, None) or trace is not None or form.context:
        parent = None if trace is None else (trace.traceparent, trace.tracestate)
        packed_limits = run_data.limits_json(*limits, parent, form.context)
    parts = {
        run_data.RESULT: json_data.encode(form.result) or None,
        run_data.ERROR: None if form.error is None else run_data.error_json(form.error),
        run_data.PROGRESS: None if form.progress is None else run_data.progress_json(form.progress),
        run_data.LIMITS: packed_limits,
    }
    packed = run_data.of_values(form.attempts, form.crashes, form.history, form.expires_at)
    for part, encoded in parts.items():
        packed = run_data.with_part(packed, part, encoded)
    return packed


def next_run(following: tuple[bytes, float | None] | None) -> Form | None:
    """Return the run after the present one, if one was requested."""
    if following is None:
        return None
    priority, run_at = following
    return {"priority": names.name(unpack_priority(priority)), "run_at": time(run_at)}


def listed_job(job: Job) -> Form:
    """Return a job of a list: a job with an unreadable part is "unreadable", and its error says why."""
    try:
        return job.to_dict()
    except RecordDamaged as error:
        from jobs_service.layer.reads import Unreadable  # a client needs no layer

        return Job(job.type, job.id, Unreadable(error)).to_dict()


def running_job(job: RunningJob) -> Form:
    """Return a running job for its worker: with the lock, which is the right to end it."""
    return {**job.to_dict(), "lock": job.lock.hex(), "next_run": next_run(job._record.next)}


def job_of(form: Mapping[str, Any]) -> Job:
    """Return the inverse of `Job.to_dict` and `listed_job`.

    Raises:
        ValueError: the JSON is malformed.
    """
    found = JobForm.model_validate(form)
    job = Job(found.type, found.id, _Record(found))
    job._data = found.data
    job._enqueued = found.enqueued
    return job


def running_job_of(form: Mapping[str, Any], worker: Worker | None) -> RunningJob:
    """Return the inverse of `running_job`; the job's methods call this worker. Raises like `job_of`."""
    found = JobForm.model_validate(form)
    if found.lock is None:
        raise ValueError("a running job without its lock")
    job = RunningJob(found.type, found.id, _Record(found), worker)
    job._data = found.data
    return job


def jobs_page_of(form: Mapping[str, Any]) -> JobsPage:
    """Return a page of jobs, each the inverse of `listed_job`. Raises like `job_of`."""
    return JobsPage([*map(job_of, form["jobs"])], form["next"])


def error_of(form: Form | None) -> JobError | None:
    """Return the error of a run; None for none."""
    return None if form is None else read(JobError, form)


# Answers about types


@dataclass(frozen=True, kw_only=True)
class TypeForm(Retention):
    """A type, with the seconds for which its finished jobs are kept; null for ever."""

    type: JobType
    timeout: float | None
    paused: bool


class TypesForm(BaseModel):
    """Types."""

    types: list[TypeForm]


class RedactionForm(BaseModel):
    """The secret fields of a type's jobs."""

    paths: list[str]


class RedactionOfType(RedactionForm):
    """A type whose jobs have secret fields."""

    type: JobType


class RedactionsForm(BaseModel):
    """The types whose jobs have secret fields."""

    types: list[RedactionOfType]


class CountForm(BaseModel):
    """A number of jobs."""

    count: int


class IdsForm(BaseModel):
    """Ids of jobs."""

    ids: list[JobId]


@dataclass(frozen=True, kw_only=True)
class CountsForm(TypeCounts):
    """The counts of a type."""

    type: JobType


class AllCountsForm(BaseModel):
    """The counts of all types."""

    types: list[CountsForm]


class ThroughputForm(BaseModel):
    """The events, interval by interval."""

    intervals: list[Interval]


class TickForm(BaseModel):
    """The last tick of a periodic type."""

    type: JobType
    last: Time


class TicksForm(BaseModel):
    """The last ticks of periodic types."""

    ticks: list[TickForm]


class SchedulesForm(BaseModel):
    """The schedules in the store."""

    schedules: list[StoredSchedule]


# Answers about jobs


class JobOrNone(BaseModel):
    """A job, or none."""

    job: JobForm | None


class JobsForm(BaseModel):
    """Jobs."""

    jobs: list[JobForm]


class JobsPageForm(BaseModel):
    """A page of jobs; `next` is the `after` of the request for the following page, null at the end."""

    jobs: list[JobForm]
    next: str | None


class RemovalForm(BaseModel):
    """The effect of a removal."""

    removal: Literal["removed", "canceled"]


class CancellationForm(BaseModel):
    """The effect of a cancellation; "unchanged": the job had ended, and is as it was."""

    removal: Literal["removed", "canceled", "unchanged"]


class FailuresOfType(BaseModel):
    """Jobs of one type in one state with the same error."""

    type: JobType
    count: int
    newest: JobId
    filter: dict[str, str]
    """For `POST .../bulk`: all jobs of the type with this error, including jobs that were not read."""


class FailureGroup(BaseModel):
    """Failed or retrying jobs with the same error, with the times of the first and the last failure or crash."""

    state: Literal["failed", "retrying"]
    error: str | None
    message: str
    count: int
    attempts: int
    first: Time
    last: Time
    types: list[FailuresOfType]


class FailuresForm(BaseModel):
    """Failed and retrying jobs by error; `read` is how many of the `failed` and `retrying` jobs were read."""

    groups: list[FailureGroup]
    failed: int
    retrying: int
    read: int


# Answers to workers


class ProblemForm(BaseModel):
    """A problem (RFC 9457); a problem of a job has more members."""

    model_config = ConfigDict(extra="allow")
    type: str
    title: str
    status: int
    detail: str


class LocksAnswer(BaseModel):
    """The states of locks, in their order: held, canceled or taken."""

    locks: list[str]


class RunEndsAnswer(BaseModel):
    """The results of ending several runs, in their order: null, or the problem of a refused end."""

    ends: list[ProblemForm | None]


class DeclaredAnswer(BaseModel):
    """The settings of a type that are in force."""

    timeout: float
    keep: float | None
    keep_failed: float | None
    redact: list[str] | None


class WatchAnswer(BaseModel):
    """The present stamp of the watched item, with its value for `timeout` and `redaction`."""

    stamp: str
    timeout: float | None = None
    redact: list[str] | None = None


class TickAnswer(BaseModel):
    """The ticks whose jobs were added; times in seconds since the epoch."""

    ids: list[str]
    last: float
    now: float
    in_the_way: bool
    dropped: float | None
    given_up: str | None
    ahead: float | None


# Answers to bulk actions


class BulkAnswer(BaseModel):
    """How many jobs matched and were changed; `next` is the `after` of the request for the rest.

    Jobs that the change would make too large for the store were left alone.
    """

    matched: int
    changed: int
    too_large: int
    more: bool
    next: str | None


# Answers about processes and the server


class ProcessesForm(BaseModel):
    """Processes."""

    processes: list[ProcessInfo]


class MeForm(BaseModel):
    """The caller, and its rights here."""

    name: str
    role: str
    read_only: bool
    commands: bool


class HealthForm(BaseModel):
    """The health of the server."""

    status: str


class TreeForm(BaseModel):
    """The supervisor tree."""

    model_config = ConfigDict(extra="allow")
