"""What requests say, as types: they check requests, and the documentation is made of them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from jobs_service.http.answer_forms import ErrorForm
from jobs_service.http.endpoint import Form, Query
from jobs_service.http.fields import (
    MOST_AT_ONCE,
    DataTests,
    Json,
    Lock,
    Name,
    QueryName,
    QueryTime,
    Seconds,
    Spread,
    State,
    Time,
    Unique,
)
from jobs_service.service import filters

# Types


class TypeSettings(Form):
    """What `PUT /v1/types/{type}` takes."""

    timeout: float | None = None
    keep: float | None = None
    keep_failed: float | None = None


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
    time_limit: float | None = None


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
    spread: Spread = 1
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
    error: str | None = Field(None, min_length=1)
    text: str | None = Field(None, min_length=1)
    worker: str | None = Field(None, min_length=1)
    older: Seconds | None = None
    younger: Seconds | None = None
    added_before: Time | None = None
    added_after: Time | None = None
    attempts: int | None = Field(default=None, ge=0)
    data: DataTests = None

    @model_validator(mode="after")
    def _can_be(self) -> Self:
        self.common().check()
        return self

    def common(self) -> filters.Filter:
        """Return what of it every filter has: not the state, the times of adding and an object as data."""
        return filters.Filter(
            prefix=self.prefix or "",
            error=self.error or "",
            text=self.text or "",
            worker=self.worker or "",
            older="" if self.older is None else f"{self.older:f}",
            younger="" if self.younger is None else f"{self.younger:f}",
            attempts="" if self.attempts is None else str(min(self.attempts, filters.MOST_ATTEMPTS)),
            data=tuple(self.data) if isinstance(self.data, list) else (),
        )


class BulkForm(Form):
    """What is to be done with all jobs that match."""

    action: Literal["resubmit", "cancel", "remove"]
    filter: Filter
    limit: int = Field(1000, ge=1, le=10_000)
    after: str | None = Field(None, max_length=2000)
    dry_run: bool = False


# The daemon
