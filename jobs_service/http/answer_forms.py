"""The JSON of answers as models; the documentation is generated from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from jobs_service.http.wire import JobForm as JobForm
from jobs_service.json_types import Time
from jobs_service.model import JobId, JobType, ProcessInfo
from jobs_service.model.counts import Interval, TypeCounts
from jobs_service.model.type_state import Retention

# Types


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


# Jobs


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


class ProcessesForm(BaseModel):
    """Processes."""

    processes: list[ProcessInfo]


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
