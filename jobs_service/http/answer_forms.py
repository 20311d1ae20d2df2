"""The JSON of answers as models; the documentation is generated from them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from jobs_service.http.endpoint import Form
from jobs_service.http.fields import Json, Name, Time

# Types


class TypeForm(BaseModel):
    """A type."""

    type: Name
    timeout: float | None
    paused: bool
    keep: float | None
    keep_failed: float | None


class TypesForm(BaseModel):
    """Types."""

    types: list[TypeForm]


class QueueForm(BaseModel):
    """The state of a queue."""

    id: Name | None
    ready_since: str | float | None
    next_scheduled: str | float | None
    paused: bool


class RetentionForm(BaseModel):
    """Seconds for which finished jobs are kept; null for ever."""

    keep: float | None
    keep_failed: float | None


class RedactionForm(BaseModel):
    """The secret fields of a type's jobs."""

    paths: list[str]


class RedactionOfType(RedactionForm):
    """A type whose jobs have secret fields."""

    type: Name


class RedactionsForm(BaseModel):
    """The types whose jobs have secret fields."""

    types: list[RedactionOfType]


class CountForm(BaseModel):
    """A number of jobs."""

    count: int


class IdsForm(BaseModel):
    """Ids of jobs."""

    ids: list[Name]


class TotalsForm(BaseModel):
    """The number of events of each kind."""

    added: int
    started: int
    succeeded: int
    failed: int
    canceled: int
    crashed: int
    lost: int
    released: int
    expired: int


class HistogramForm(BaseModel):
    """A histogram of durations; `counts[k]` are those below `2 ** (k - 9)` seconds and in no earlier bucket."""

    counts: list[int]
    sum: float


class CountsForm(BaseModel):
    """The counts of a type."""

    type: Name
    ready: int
    scheduled: int
    retrying: int
    running: int
    succeeded: int
    failed: int
    canceled: int
    totals: TotalsForm
    waited: HistogramForm
    ran: HistogramForm
    unreadable: int


class AllCountsForm(BaseModel):
    """The counts of all types."""

    types: list[CountsForm]


class IntervalForm(BaseModel):
    """The events of a minute or an hour."""

    begin: float
    seconds: float
    totals: TotalsForm
    waited: HistogramForm
    ran: HistogramForm


class ThroughputForm(BaseModel):
    """The events, interval by interval."""

    intervals: list[IntervalForm]


class TicksForm(BaseModel):
    """The last ticks of periodic types."""

    ticks: list[dict[str, Any]]


class StatsForm(BaseModel):
    """How many jobs of each type are in each state, and for how long."""

    types: list[dict[str, Any]]


# Jobs


class ErrorForm(Form):
    """The error of a run."""

    type: str
    message: str
    traceback: str = ""


class NextRunForm(Form):
    """The run after the present one."""

    priority: Name
    run_at: Time


class ProgressForm(BaseModel):
    """The progress of a job."""

    done: float
    total: float | None
    message: str
    attempt: int | None


class HistoryForm(BaseModel):
    """An event of a job's history."""

    kind: str
    at: str | float | None
    detail: str


class TraceForm(BaseModel):
    """The span of a job's creation: a W3C Trace Context, as propagators take it."""

    traceparent: str
    tracestate: str | None = None


class JobForm(BaseModel):
    """A job."""

    type: Name
    id: Name
    state: Literal["pending", "running", "finished", "removed", "unreadable"]
    outcome: Literal["succeeded", "failed", "canceled"] | None = None
    data: Json = None
    priority: Name = 0
    run_at: str | float | None = None
    retrying: bool = False
    """Whether the pending job waits for another attempt after a crash of its last run."""
    resubmit: bool = False
    cancel: bool = False
    seq: str | None = None
    attempts: int = 0
    result: Json = None
    error: ErrorForm | None = None
    progress: ProgressForm | None = None
    history: list[HistoryForm] = []
    max_attempts: int | None = None
    time_limit: float | None = None
    enqueued: Literal["new", "again", "there"] | None = None
    """The effect of an add that was an `enqueue`; absent from other answers."""
    trace_context: TraceForm | None = None
    """Absent if the job was added outside a span; a worker continues the trace with it."""
    lock: str | None = None
    """Only for its worker."""
    next_run: NextRunForm | None = None
    """The run after this one, if one was requested; only for its worker."""


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

    type: Name
    count: int
    newest: Name
    filter: dict[str, str]
    """For `POST .../bulk`: all jobs of the type with this error, including jobs that were not read."""


class FailureGroup(BaseModel):
    """Failed or retrying jobs with the same error, with the times of the first and the last failure or crash."""

    state: Literal["failed", "retrying"]
    error: str | None
    message: str
    count: int
    attempts: int
    first: str | float | None
    last: str | float | None
    types: list[FailuresOfType]


class FailuresForm(BaseModel):
    """Failed and retrying jobs by error; `read` is how many of the `failed` and `retrying` jobs were read."""

    groups: list[FailureGroup]
    failed: int
    retrying: int
    read: int


# Workers


class ProblemForm(BaseModel):
    """A problem (RFC 9457); a problem of a job has more members."""

    model_config = ConfigDict(extra="allow")
    type: str
    title: str
    status: int
    detail: str


class EndedAnswer(BaseModel):
    """The results of ending several runs, in their order: jobs, or problems."""

    jobs: list[dict[str, Any]]


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


# Events


# Bulk


class BulkAnswer(BaseModel):
    """How many jobs matched and were changed; `next` is the `after` of the request for the rest.

    Jobs that the change would make too large for the store were left alone.
    """

    matched: int
    changed: int
    too_large: int
    more: bool
    next: str | None


# Processes


class HandlerForm(BaseModel):
    """One handler of a process."""

    type: Name
    slots: int
    taken: int


class ProcessRequestForm(BaseModel):
    """The last request to a process."""

    action: Literal["quiet", "resume", "stop"]
    who: str
    at: str | float | None


class ProcessForm(BaseModel):
    """A process that runs handlers, or is a daemon; times are by its own clock."""

    id: str
    host: str
    pid: int
    worker: str
    version: str
    role: str
    state: Literal["running", "quiet", "stopping", "silent", "dead"]
    started: str | float | None
    heard: str | float | None
    slots: int
    taken: int
    handlers: list[HandlerForm]
    unnamed: int
    request: ProcessRequestForm | None


class ProcessesForm(BaseModel):
    """Processes."""

    processes: list[ProcessForm]


# The daemon


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
