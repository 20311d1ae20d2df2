"""Bodies and queries of requests as models; they check requests, and the documentation is generated from them."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
    model_validator,
)

from jobs_service import durations, names
from jobs_service.arguments import MOST_AT_ONCE
from jobs_service.errors import InvalidJob
from jobs_service.http.endpoint import Form, Query
from jobs_service.json_types import AS_NAME, seconds_of
from jobs_service.model import JobError
from jobs_service.model.job import MEANT
from jobs_service.service.bulk_actions import Seen
from jobs_service.service.selection import Filter

_TIME_SCHEMA: Final[dict[str, Any]] = {
    "description": "A date and time with its offset (ISO 8601), or seconds since the epoch",
    "anyOf": [{"type": "string", "format": "date-time"}, {"type": "number"}, {"type": "null"}],
}
_TEXT_SCHEMA: Final[dict[str, Any]] = {"type": "string", "description": "A name in its text form: email, json:7"}
_ANY_SCHEMA: Final[dict[str, Any]] = {"description": "Any JSON"}

Name = Annotated[Any, AS_NAME]
Time = Annotated[Any, AfterValidator(seconds_of), WithJsonSchema(_TIME_SCHEMA)]
Json = Annotated[Any, WithJsonSchema(_ANY_SCHEMA)]


def _lock(text: Any) -> bytes:
    try:
        return bytes.fromhex(text)
    except (TypeError, ValueError):
        raise ValueError("a lock is hexadecimal text") from None


_LOCK_SCHEMA: Final = {"type": "string", "pattern": "^[0-9a-f]{32}$", "description": "As accept has answered it"}

Lock = Annotated[bytes, BeforeValidator(_lock), WithJsonSchema(_LOCK_SCHEMA)]

_DURATION_SCHEMA: Final = {
    "description": "Seconds, or a text such as 90s, 10m, 1h30m, 2d",
    "anyOf": [{"type": "number", "minimum": 0}, {"type": "string"}],
}

Duration = Annotated[Any, BeforeValidator(durations.plain), WithJsonSchema(_DURATION_SCHEMA)]
"""As a number; the operation that takes it checks it."""

Seconds = Annotated[float, BeforeValidator(durations.plain), Field(ge=0, le=1e9), WithJsonSchema(_DURATION_SCHEMA)]


def _allowed(what: str) -> WrapValidator:
    """Name the allowed values in one line, where pydantic has a message for each kind."""

    def check(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError:
            raise ValueError(f"allowed are {what}") from None

    return WrapValidator(check)


Spread = Annotated[int | Literal["adaptive"], _allowed('integers from 1 up and "adaptive"')]
_FILTER_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "title": "Filter",
    "description": "Which jobs; all that is given must hold, and nothing may be empty",
    "additionalProperties": False,
    "properties": {
        "state": {"enum": [*MEANT]},
        **{name: {"type": "string", "pattern": r"\S"} for name in ("prefix", "error", "text", "signature", "worker")},
        **dict.fromkeys(("older", "younger"), _DURATION_SCHEMA),
        "attempts": {"type": "integer", "minimum": 0},
        **{name: {"type": ["string", "number"]} for name in ("added_before", "added_after")},
        "data": {
            "anyOf": [
                {"type": "object", "minProperties": 1},
                {"type": "array", "minItems": 1, "items": {"type": "string", "pattern": "^[^=~]+[=~]"}},
            ]
        },
    },
}

JobFilter = Annotated[Any, BeforeValidator(Filter.of), WithJsonSchema(_FILTER_SCHEMA)]
_SEQ_SCHEMA: Final = {"type": "string", "pattern": "^[0-9a-f]{24}$", "description": "Of the job as it was looked at"}


def _seen(seq: Any) -> Seen:
    if not isinstance(seq, str):
        raise ValueError("a seq is hexadecimal text")
    try:
        return Seen.of(seq)
    except InvalidJob as error:
        raise ValueError(str(error)) from None


Seq = Annotated[Any, BeforeValidator(_seen), WithJsonSchema(_SEQ_SCHEMA)]
Unique = Annotated[bool | str | None, _allowed("true, false and a text")]


def _query_time(text: str) -> Any:
    """Return the time in a query: a number is seconds."""
    try:
        return float(text)
    except ValueError:
        return seconds_of(text.replace(" ", "+"))  # an unencoded +


QueryName = Annotated[Any, BeforeValidator(names.parsed), WithJsonSchema(_TEXT_SCHEMA)]
QueryTime = Annotated[Any, BeforeValidator(_query_time), WithJsonSchema({"type": "string"})]


def _state(word: Any) -> Any:
    if word not in MEANT:
        raise ValueError(f"allowed are {', '.join(MEANT)}")
    return word


State = Annotated[str, BeforeValidator(_state), WithJsonSchema({"enum": [*MEANT]})]


class ErrorForm(Form):
    """The error of a run."""

    type: str
    message: str
    traceback: str = ""

    @property
    def error(self) -> JobError:
        """The same for the layer."""
        return JobError(self.type, self.message, self.traceback)


class NextRun(Form):
    """The run after the present one."""

    priority: Name
    run_at: Time


# Types


class TypeSettings(Form):
    """The body of `PUT /v1/types/{type}`."""

    timeout: Duration | None = None
    keep: Duration | None = None
    keep_failed: Duration | None = None


class SecretFields(Form):
    """The body of `PUT /v1/types/{type}/redaction`."""

    paths: list[str]


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


# Jobs


class Changes(Form):
    """The parts of a job that a caller gives; in a resubmission an absent one stays as it is."""

    data: Json = None
    priority: Name = 0
    run_at: Time | None = None

    def given(self) -> dict[str, Any]:
        """Return the given fields."""
        return {name: getattr(self, name) for name in ("data", "priority", "run_at") if name in self.model_fields_set}


class NewJobForm(Changes):
    """A new job."""

    id: Name | None = None
    delay: Seconds | None = None
    if_exists: Literal["error", "ignore", "resubmit"] | None = None
    unique: Unique = None
    unique_for: Seconds | None = None
    max_attempts: int | None = None
    time_limit: Duration | None = None
    redact: list[str] | None = None


class JobOfSeveral(Changes):
    """A job that is added together with others."""

    id: Name


class CreateForm(NewJobForm):
    """One job; or several, as `jobs`, with one `if_exists` for all of them."""

    jobs: list[JobOfSeveral] | None = Field(None, max_length=MOST_AT_ONCE)


class ListQuery(Query):
    """The query of a list."""

    state: State | None = None
    prefix: QueryName | None = None
    limit: int = Field(100, ge=1, le=MOST_AT_ONCE)
    after: str | None = Field(None, max_length=2000)
    newest_first: bool = False


class JobQuery(Query):
    """The query of a job; with the lock, a worker gets all fields of its running job."""

    lock: Lock | None = None


class AllJobsQuery(Query):
    """The query of the list of all jobs."""

    state: State | None = None


class RemoveQuery(Query):
    """The query of a removal."""

    force: bool = False
    seq: Seq | None = None


class CancelForm(Form):
    """A cancellation; with `seq`, the job must be unchanged since it was looked at."""

    seq: Seq | None = None


# Schedules


class ScheduleForm(Form):
    """A schedule: either `every`, or `cron` and its time zone."""

    type: Name
    data: Json = None
    every: Seconds | None = None
    cron: str | None = None
    timezone: str = "UTC"
    missed: Literal["skip", "once", "all"] = "once"
    overlap: bool = False


# Workers


AcceptKey = Annotated[str, Field(min_length=1, max_length=200)]
"""Chosen by the worker, a new one for each accept."""


class AcceptForm(Form):
    """The terms of an accept."""

    limit: int = Field(1, ge=1, le=MOST_AT_ONCE)
    max_priority: Name | None = None
    due_by: Time | None = None
    timeout: Seconds = 0.0
    spread: Spread = 1
    worker: str = Field("", max_length=100)
    max_history: int | None = Field(None, ge=1, le=100)
    key: AcceptKey | None = None


class AcceptKeyForm(Form):
    """The key of an accept."""

    key: AcceptKey


class LockForm(Form):
    """The lock of a running job: the right to change or end it."""

    lock: Lock


class UpdateForm(LockForm):
    """A heartbeat of a job, perhaps with new data; with `healthy`, instead of data, its attempts are counted anew."""

    data: Json = None
    healthy: bool = False


class SaidProgress(LockForm):
    """The progress of a job."""

    done: float
    total: float | None = None
    message: str = ""


class FinishForm(LockForm):
    """The end of a run."""

    data: Json = None
    outcome: Literal["succeeded", "failed", "canceled"] = "succeeded"
    result: Json = None
    error: ErrorForm | None = None


class HeldForm(LockForm):
    """A running job."""

    id: Name


class AliveForm(Form):
    """Heartbeats of several running jobs; with `renew` false, their locks are only looked at."""

    jobs: list[HeldForm] = Field(max_length=MOST_AT_ONCE)
    renew: bool = True


class RunEndForm(HeldForm):
    """The end of a handler's run.

    `finish` is an end as in `FinishForm`. `crash` makes the job run again from `run_at` on, and counts the attempt; a
    run that the handler itself has `asked` for does not shorten that pause. `stop` does not count the attempt, nor,
    with `anew`, the earlier ones; its `run_at` is optional.
    """

    end: Literal["finish", "crash", "stop"]
    outcome: Literal["succeeded", "failed", "canceled"] = "succeeded"
    result: Json = None
    error: ErrorForm | None = None
    reason: str = Field("", max_length=1000)
    run_at: Time | None = None
    max_history: int | None = Field(None, ge=1, le=100)
    crashes: int | None = Field(None, ge=0)
    attempts: int = Field(0, ge=-1, le=0)
    anew: bool = False
    asked: NextRun | None = None

    @model_validator(mode="after")
    def _can_be(self) -> Self:
        if self.end == "crash" and self.run_at is None:
            raise ValueError("a crash needs run_at: when the job runs again")
        return self


class RunEndForms(Form):
    """The ends of several runs of a handler."""

    jobs: list[RunEndForm] = Field(max_length=MOST_AT_ONCE)


class DeclaredForm(Form):
    """The settings that a handler declares for its type; `redact` is null if it declares none."""

    timeout: float
    keep: float | None = None
    keep_failed: float | None = None
    redact: list[str] | None = None


class WatchForm(Form):
    """A watched item, and the stamp of its last read; without a stamp, the answer comes at once."""

    of: Literal["queue", "canceled", "timeout", "redaction"]
    stamp: str | None = Field(None, max_length=100)
    timeout: Seconds = 0.0


class DueQuery(Query):
    """The query of `due`."""

    limit: int = Field(MOST_AT_ONCE, ge=0, le=10**9)
    max_priority: QueryName | None = None


class TickForm(Form):
    """A periodic handler: `every` so many seconds, or `cron`; its jobs have `data`."""

    every: float | None = None
    cron: str | None = Field(None, max_length=1000)
    timezone: str = Field("UTC", max_length=100)
    missed: Literal["skip", "once", "all"] = "once"
    overlap: bool = False
    data: Json = None
    timeout: float
    most: int = Field(100, ge=1, le=MOST_AT_ONCE)
    seen: float | None = None

    @model_validator(mode="after")
    def _can_be(self) -> Self:
        if (self.every is None) == (self.cron is None):
            raise ValueError("give one of every and cron")
        return self


class ResubmitForm(Changes):
    """Another run: for its worker with a lock; else, with `seq`, the job must be unchanged since it was looked at."""

    lock: Lock | None = None
    seq: Seq | None = None


# Events


class EventsQuery(Query):
    """The jobs to follow, as type/id, each percent-encoded once more."""

    job: list[str] = Field(max_length=MOST_AT_ONCE)


class EventsForm(Form):
    """The jobs to follow, as pairs of type and id."""

    jobs: list[Annotated[tuple[Name, Name], Field(strict=False)]] = Field(max_length=MOST_AT_ONCE)


# Bulk


class BulkForm(Form):
    """An action on all matching jobs."""

    action: Literal["resubmit", "cancel", "remove"]
    filter: JobFilter
    limit: int = Field(1000, ge=1, le=10_000)
    after: str | None = Field(None, max_length=2100)
    dry_run: bool = False
