"""What requests say, as types: they check requests, and the documentation is made of them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from jobs_service.http.answer_forms import ErrorForm
from jobs_service.http.endpoint import Form, Query
from jobs_service.http.fields import (
    MOST_AT_ONCE,
    Duration,
    JobFilter,
    Json,
    Lock,
    Name,
    QueryName,
    QueryTime,
    Seconds,
    Seq,
    Spread,
    State,
    Time,
    Unique,
)

# Types


class TypeSettings(Form):
    """What `PUT /v1/types/{type}` takes."""

    timeout: Duration | None = None
    keep: Duration | None = None
    keep_failed: Duration | None = None


class SecretFields(Form):
    """What `PUT /v1/types/{type}/redaction` takes."""

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
    unique: Unique = None
    unique_for: Seconds | None = None
    max_attempts: int | None = None
    time_limit: Duration | None = None
    redact: list[str] | None = None


class JobOfSeveral(Form):
    """A job that is added together with others."""

    id: Name
    data: Json = None
    priority: Name = 0
    run_at: Time | None = None


class CreateForm(NewJobForm):
    """One job; or several, as `jobs`, with one `if_exists` for all of them."""

    jobs: list[JobOfSeveral] | None = Field(None, max_length=MOST_AT_ONCE)


class Changes(Form):
    """What a resubmission changes; what is left out stays."""

    data: Json = None
    priority: Name = 0
    run_at: Time | None = None

    def given(self) -> dict[str, Any]:
        """Return what is not left out."""
        return {name: getattr(self, name) for name in ("data", "priority", "run_at") if name in self.model_fields_set}


class ListQuery(Query):
    """The query of a list."""

    state: State | None = None
    prefix: QueryName | None = None
    limit: int = Field(100, ge=1, le=MOST_AT_ONCE)
    after: str | None = Field(None, max_length=2000)
    newest_first: bool = False


class JobQuery(Query):
    """The query of a job; with its lock, a worker gets everything of the job that it runs."""

    lock: Lock | None = None


class AllJobsQuery(Query):
    """The query of the list of all jobs."""

    state: State | None = None


class RemoveQuery(Query):
    """The query of a removal."""

    force: bool = False
    seq: Seq | None = None


class CancelForm(Form):
    """The job that is to end, as it was looked at; left out: however it is."""

    seq: Seq | None = None


# Workers


AcceptKey = Annotated[str, Field(min_length=1, max_length=200)]
"""Chosen by the worker, a new one for each accept."""


class AcceptForm(Form):
    """What a worker takes."""

    limit: int = Field(1, ge=1, le=MOST_AT_ONCE)
    max_priority: Name | None = None
    due_by: Time | None = None
    timeout: Seconds = 0.0
    spread: Spread = 1
    worker: str = Field("", max_length=100)
    max_history: int | None = Field(None, ge=1, le=100)
    key: AcceptKey | None = None


class AcceptKeyForm(Form):
    """Which accept."""

    key: AcceptKey


class LockForm(Form):
    """The right to do something with a running job."""

    lock: Lock


class UpdateForm(LockForm):
    """That a job is alive, perhaps with other data; if `healthy`, instead of data, its attempts are counted anew."""

    data: Json = None
    healthy: bool = False


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


class HeldForm(LockForm):
    """A running job."""

    id: Name


class AliveForm(Form):
    """Several running jobs; `renew` is false to look only whether they are still their worker's."""

    jobs: list[HeldForm] = Field(max_length=MOST_AT_ONCE)
    renew: bool = True


class AskedForm(Form):
    """The next run that a handler itself has asked for: a `next_run` of its job."""

    priority: Name
    run_at: Time | None


class RunEndForm(HeldForm):
    """How a run of a handler ends.

    `finish` is an end as in `FinishForm`; `crash` has the job run again from `run_at` on, and counts the attempt: a run
    that the handler itself has `asked` for does not shorten that pause; `stop` does not count it, with `anew` none of
    those before either, and `run_at` may be left out; `set_aside` is for a record of which a part cannot be read.
    """

    end: Literal["finish", "crash", "stop", "set_aside"]
    outcome: Literal["succeeded", "failed", "canceled"] = "succeeded"
    result: Json = None
    error: ErrorForm | None = None
    reason: str = Field("", max_length=1000)
    run_at: Time | None = None
    max_history: int | None = Field(None, ge=1, le=100)
    crashes: int | None = Field(None, ge=0)
    attempts: int = Field(0, ge=-1, le=0)
    anew: bool = False
    asked: AskedForm | None = None

    @model_validator(mode="after")
    def _can_be(self) -> Self:
        if self.end == "crash" and self.run_at is None:
            raise ValueError("a crash needs run_at: when the job runs again")
        return self


class RunEndForms(Form):
    """How several runs end."""

    jobs: list[RunEndForm] = Field(max_length=MOST_AT_ONCE)


class DeclaredForm(Form):
    """What a handler declares of its type; `redact` is null where it says nothing."""

    timeout: float
    keep: float | None = None
    keep_failed: float | None = None
    redact: list[str] | None = None


class WatchForm(Form):
    """What is waited for, and the stamp with which it was read; without one it is answered at once."""

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
    """Another run; with a lock its worker asks for it, otherwise `seq` may be that of the job as it was looked at."""

    lock: Lock | None = None
    seq: Seq | None = None


class EndedForm(FinishForm):
    """How a run of several ends."""

    id: Name


class EndedForms(Form):
    """How several runs end."""

    jobs: list[EndedForm] = Field(max_length=MOST_AT_ONCE)


# Events


class EventsQuery(Query):
    """The jobs to tell of, as type/id, each percent-encoded once more."""

    job: list[str] = Field(max_length=MOST_AT_ONCE)


class EventsForm(Form):
    """The jobs to tell of, as pairs of type and id."""

    jobs: list[Annotated[tuple[Name, Name], Field(strict=False)]] = Field(max_length=MOST_AT_ONCE)


# Bulk


class BulkForm(Form):
    """What is to be done with all jobs that match."""

    action: Literal["resubmit", "cancel", "remove"]
    filter: JobFilter
    limit: int = Field(1000, ge=1, le=10_000)
    after: str | None = Field(None, max_length=2100)
    dry_run: bool = False


# The daemon
