"""What requests say and what answers tell, as types: they check requests, and the documentation is made of them."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from jobs_service import names
from jobs_service.http.endpoint import Form, Query
from jobs_service.http.values import name_of, seconds_of

MOST_AT_ONCE: Final = 1000
"""Jobs that one request adds, ends or lists."""

_NAME_SCHEMA: Final[dict[str, Any]] = {
    "description": 'A string or an integer; bytes as {"bytes": hexadecimal}, a tuple as an array',
    "anyOf": [
        {"type": "string"},
        {"type": "integer"},
        {"type": "array"},
        {"type": "object", "properties": {"bytes": {"type": "string"}, "packed": {"type": "string"}}},
    ],
}
_TIME_SCHEMA: Final[dict[str, Any]] = {
    "description": "A date and time with its offset (ISO 8601), or seconds since the epoch",
    "anyOf": [{"type": "string", "format": "date-time"}, {"type": "number"}, {"type": "null"}],
}
_TEXT_SCHEMA: Final[dict[str, Any]] = {"type": "string", "description": "A name in its text form: email, json:7"}
_ANY_SCHEMA: Final[dict[str, Any]] = {"description": "Any JSON"}

Name = Annotated[Any, AfterValidator(name_of), WithJsonSchema(_NAME_SCHEMA)]
Time = Annotated[Any, AfterValidator(seconds_of), WithJsonSchema(_TIME_SCHEMA)]
Json = Annotated[Any, WithJsonSchema(_ANY_SCHEMA)]


def _lock(text: Any) -> bytes:
    try:
        return bytes.fromhex(text)
    except (TypeError, ValueError):
        raise ValueError("a lock is hexadecimal text") from None


_LOCK_SCHEMA: Final = {"type": "string", "pattern": "^[0-9a-f]{32}$", "description": "As accept has answered it"}

Lock = Annotated[bytes, BeforeValidator(_lock), WithJsonSchema(_LOCK_SCHEMA)]
Seconds = Annotated[float, Field(ge=0, le=1e9)]


def _query_name(text: str) -> Any:
    return names.parsed(text)


def _query_time(text: str) -> Any:
    """Return the time that a query names: a number is seconds."""
    try:
        return float(text)
    except ValueError:
        return seconds_of(text.replace(" ", "+"))  # a + that nobody has encoded


QueryName = Annotated[Any, BeforeValidator(_query_name), WithJsonSchema(_TEXT_SCHEMA)]
QueryTime = Annotated[Any, BeforeValidator(_query_time), WithJsonSchema({"type": "string"})]
State = Literal["pending", "ready", "scheduled", "running", "finished", "succeeded", "failed", "canceled", "unreadable"]


# Types


class TypeSettings(Form):
    """What `PUT /v1/types/{type}` takes."""

    timeout: float | None = None
    keep: float | None = None
    keep_failed: float | None = None


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
    running: int
    succeeded: int
    failed: int
    canceled: int
    totals: TotalsForm
    waited: HistogramForm
    ran: HistogramForm


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


class PendingQuery(Query):
    """The query of `pending`."""

    due_by: QueryTime | None = None
    limit: int | None = Field(None, ge=0, le=10**9)


class ThroughputQuery(Query):
    """The query of `throughput`."""

    since: QueryTime
    until: QueryTime | None = None
    resolution: Literal["minute", "hour"] = "minute"


class CountsQuery(Query):
    """The query of `counts`."""

    type: QueryName | None = None


class StatsQuery(Query):
    """The query of `stats`."""

    type: QueryName | None = None
    jobs: int = Field(0, ge=0, le=MOST_AT_ONCE)


# Jobs


class NewJobForm(Form):
    """A job to be added."""

    id: Name | None = None
    data: Json = None
    priority: Name = 0
    run_at: Time | None = None
    delay: Seconds | None = None
    if_exists: Literal["error", "ignore", "resubmit"] | None = None
    unique: bool | str | None = None
    max_attempts: int | None = None
    time_limit: float | None = None


class CreateForm(NewJobForm):
    """One job; or several, as `jobs`, with one `if_exists` for all of them."""

    jobs: list[NewJobForm] | None = Field(None, max_length=MOST_AT_ONCE)


class Changes(Form):
    """What a resubmission changes; what is left out stays."""

    data: Json = None
    priority: Name = 0
    run_at: Time | None = None

    def given(self) -> dict[str, Any]:
        """Return what is not left out."""
        return {name: getattr(self, name) for name in ("data", "priority", "run_at") if name in self.model_fields_set}


class ErrorForm(Form):
    """How a run failed."""

    type: str
    message: str
    traceback: str = ""


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


class JobForm(BaseModel):
    """A job."""

    type: Name
    id: Name
    state: Literal["pending", "running", "finished", "removed", "unreadable"]
    outcome: Literal["succeeded", "failed", "canceled"] | None = None
    data: Json = None
    priority: Name = 0
    run_at: str | float | None = None
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
    lock: str | None = None
    """Only for its worker."""


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


class ListQuery(Query):
    """The query of a list."""

    state: State | None = None
    prefix: str | None = None
    limit: int = Field(100, ge=1, le=MOST_AT_ONCE)
    after: str | None = Field(None, max_length=2000)
    newest_first: bool = False


class AllJobsQuery(Query):
    """The query of the list of all jobs."""

    state: State | None = None


class RemoveQuery(Query):
    """The query of a removal."""

    force: bool = False


# Workers


class AcceptForm(Form):
    """What a worker takes."""

    limit: int = Field(1, ge=1, le=MOST_AT_ONCE)
    max_priority: Name | None = None
    due_by: Time | None = None
    timeout: Seconds = 0.0
    spread: int | Literal["adaptive"] = 1
    worker: str = Field("", max_length=100)


class LockForm(Form):
    """The right to do something with a running job."""

    lock: Lock


class UpdateForm(LockForm):
    """That a job is alive, perhaps with other data."""

    data: Json = None


class SaidProgress(LockForm):
    """How far a job has come."""

    done: float
    total: float | None = None
    message: str = ""


class FinishForm(LockForm):
    """How a run ends."""

    data: Json = None
    outcome: Literal["succeeded", "failed", "canceled"] = "succeeded"
    result: Json = None
    error: ErrorForm | None = None


class FailForm(LockForm):
    """How a run fails."""

    error: ErrorForm
    data: Json = None


class ResubmitForm(Changes):
    """Another run; with a lock the running job's worker asks for it."""

    lock: Lock | None = None


class EndedForm(FinishForm):
    """How a run of several ends."""

    id: Name


class EndedForms(Form):
    """How several runs end."""

    jobs: list[EndedForm] = Field(max_length=MOST_AT_ONCE)


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


# Events


class EventsQuery(Query):
    """The jobs to tell of, as type/id, each percent-encoded once more."""

    job: list[str] = Field(max_length=MOST_AT_ONCE)


class EventsForm(Form):
    """The jobs to tell of, as pairs of type and id."""

    jobs: list[Annotated[tuple[Name, Name], Field(strict=False)]] = Field(max_length=MOST_AT_ONCE)


# Bulk


class Filter(Form):
    """Which jobs; all that is given must hold."""

    state: State | None = None
    prefix: str | None = None
    error: str | None = None
    text: str | None = None
    added_before: Time | None = None
    added_after: Time | None = None
    attempts: int | None = Field(default=None, ge=0)
    data: dict[str, Json] | None = None


class BulkForm(Form):
    """What is to be done with all jobs that match."""

    action: Literal["resubmit", "cancel", "remove"]
    filter: Filter = Filter()
    limit: int = Field(1000, ge=1, le=10_000)
    after: str | None = Field(None, max_length=2000)
    dry_run: bool = False


class BulkAnswer(BaseModel):
    """How many jobs matched and were changed; `next` goes into the `after` of the request for the rest."""

    matched: int
    changed: int
    more: bool
    next: str | None


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
