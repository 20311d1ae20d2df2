"""What answers tell, as types: the documentation is made of them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from jobs_service.http.endpoint import Form
from jobs_service.http.fields import Json, Name

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
    """Where a queue stands."""

    id: Name | None
    ready_since: str | float | None
    next_scheduled: str | float | None
    paused: bool


class RetentionForm(BaseModel):
    """How long finished jobs are kept, in seconds; null for ever."""

    keep: float | None
    keep_failed: float | None


class RedactionForm(BaseModel):
    """Which fields of a type's jobs are secret."""

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
    """How often something happened."""

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
    """How many times of which length; `counts[k]` are those below `2 ** (k - 9)` seconds and above the one before."""

    counts: list[int]
    sum: float


class CountsForm(BaseModel):
    """What is counted of a type."""

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
    """What is counted of all types."""

    types: list[CountsForm]


class IntervalForm(BaseModel):
    """What happened in a minute or an hour."""

    begin: float
    seconds: float
    totals: TotalsForm
    waited: HistogramForm
    ran: HistogramForm


class ThroughputForm(BaseModel):
    """What happened, interval by interval."""

    intervals: list[IntervalForm]


class TicksForm(BaseModel):
    """When periodic types ticked last."""

    ticks: list[dict[str, Any]]


class StatsForm(BaseModel):
    """How many jobs of each type are in which state, and for how long."""

    types: list[dict[str, Any]]


# Jobs


class ErrorForm(Form):
    """How a run failed."""

    type: str
    message: str
    traceback: str = ""


class NextRunForm(BaseModel):
    """The run after the present one."""

    priority: Name
    run_at: str | float | None


class ProgressForm(BaseModel):
    """How far a job has come."""

    done: float
    total: float | None
    message: str
    attempt: int | None


class HistoryForm(BaseModel):
    """Something that happened to a job."""

    kind: str
    at: str | float | None
    detail: str


class TraceForm(BaseModel):
    """The span in which a job was added, as W3C's Trace Context has it and propagators take it."""

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
    """Whether the pending job waits for another attempt, because its last run has crashed."""
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
    """What an add did that was an `enqueue`; left out of other answers."""
    trace_context: TraceForm | None = None
    """Left out of a job that was added in no span; a worker continues the trace with it."""
    lock: str | None = None
    """Only for its worker."""
    next_run: NextRunForm | None = None
    """The run after this one, if one was asked for; only for its worker."""


class JobOrNone(BaseModel):
    """A job, or none."""

    job: JobForm | None


class JobsForm(BaseModel):
    """Jobs."""

    jobs: list[JobForm]


class JobsPageForm(BaseModel):
    """Some jobs; `next` goes into the `after` of the request for those that follow, null at the end."""

    jobs: list[JobForm]
    next: str | None


class RemovalForm(BaseModel):
    """What became of a job that was to be removed."""

    removal: Literal["removed", "canceled"]


class CancellationForm(BaseModel):
    """What became of a job that was to be canceled; "unchanged": it had ended, and is as it was."""

    removal: Literal["removed", "canceled", "unchanged"]


class FailuresOfType(BaseModel):
    """Jobs of one type in one state with the same error."""

    type: Name
    count: int
    newest: Name
    filter: dict[str, str]
    """For `POST .../bulk`: all jobs of the type with this error, also those that were not looked at."""


class FailureGroup(BaseModel):
    """Failed or retrying jobs with the same error; times are those of the first and the last failure, or crash."""

    state: Literal["failed", "retrying"]
    error: str | None
    message: str
    count: int
    attempts: int
    first: str | float | None
    last: str | float | None
    types: list[FailuresOfType]


class FailuresForm(BaseModel):
    """Failed and retrying jobs by their errors: `read` of all that have `failed` or are `retrying` were looked at."""

    groups: list[FailureGroup]
    failed: int
    retrying: int
    read: int


# Workers


class ProblemForm(BaseModel):
    """A problem (RFC 9457); with more members where it is about a job."""

    model_config = ConfigDict(extra="allow")
    type: str
    title: str
    status: int
    detail: str


class EndedAnswer(BaseModel):
    """What became of several runs: jobs, or problems, in their order."""

    jobs: list[dict[str, Any]]


class LocksAnswer(BaseModel):
    """Whether locks still hold, in their order: held, canceled, taken; null where damage hides it."""

    locks: list[str | None]


class RunEndsAnswer(BaseModel):
    """What became of several ends of runs, in their order: null, or why one was refused."""

    ends: list[ProblemForm | None]


class DeclaredAnswer(BaseModel):
    """What is in force of a type."""

    timeout: float
    keep: float | None
    keep_failed: float | None
    redact: list[str] | None


class WatchAnswer(BaseModel):
    """Where what was waited for stands now; of `timeout` and `redaction` with what they are."""

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
    """How many jobs matched and were changed; `next` goes into the `after` of the request for the rest.

    Those that are too large were left alone: changed they would be more than the store takes.
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
    """What a process was asked to do last."""

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
    """Who asks, and what may be done here."""

    name: str
    role: str
    read_only: bool
    commands: bool


class HealthForm(BaseModel):
    """Whether it is well."""

    status: str


class TreeForm(BaseModel):
    """The supervisor tree."""

    model_config = ConfigDict(extra="allow")
