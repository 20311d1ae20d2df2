"""Jobs, events and counts as JSON and back, without loss, for both ends of the HTTP interface.

The names and forms are the ones of `Job.to_dict`, with extra fields for programs. Types, ids and priorities are plain
text or numbers, bytes {"bytes": hexadecimal}, tuples lists; times are ISO 8601 in UTC, with enough digits to restore
the same number of seconds.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, Final

from jobs_service import json_data, json_forms, run_data, tracing
from jobs_service.errors import RecordDamaged
from jobs_service.http.values import dumps as dumps
from jobs_service.http.values import loads as loads
from jobs_service.http.values import name_of as name_of
from jobs_service.http.values import seconds_of as seconds_of
from jobs_service.http.values import time as time
from jobs_service.model import (
    Enqueued,
    HistoryEvent,
    HistoryKind,
    Job,
    JobError,
    JobEvent,
    JobState,
    Outcome,
    Progress,
    RunningJob,
    Worker,
    unpack_priority,
)
from jobs_service.model.counts import Histogram, Interval, JobsPage, Totals, TypeCounts
from jobs_service.model.type_state import QueueState, Retention

Form = dict[str, Any]
"""A JSON object."""


def _date_of(form: Any) -> datetime | None:
    seconds = seconds_of(form)
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


# Jobs


class _Record:
    """The record of a job that came over the wire; see model.JobRecord."""

    __slots__ = (
        "cancel",
        "data",
        "lock",
        "named_priority",
        "next_run",
        "outcome",
        "resubmit",
        "run_at",
        "run_data",
        "seq_bytes",
        "state",
    )

    def __init__(self, form: Mapping[str, Any]) -> None:
        outcome, seq, lock = form.get("outcome"), form.get("seq"), form.get("lock")
        self.state = JobState(form["state"])
        self.outcome = None if outcome is None else Outcome(outcome)
        self.data = form.get("data")
        self.named_priority = name_of(form.get("priority", 0))
        self.run_at = seconds_of(form.get("run_at"))
        self.resubmit = bool(form.get("resubmit"))
        self.next_run = form.get("next_run")
        self.cancel = bool(form.get("cancel"))
        self.seq_bytes = None if seq is None else bytes.fromhex(seq)
        self.lock = None if lock is None else bytes.fromhex(lock)
        self.run_data = _run_data(form)

    @property
    def priority(self) -> bytes:
        return _packed(self.named_priority)

    @property
    def next(self) -> tuple[bytes, float | None] | None:
        return None if self.next_run is None else next_run_of(self.next_run)

    @property
    def json(self) -> bytes:
        return json_data.encode(self.data)

    def size(self) -> int:
        """Return its approximate size in bytes."""
        return len(self.json) + len(self.run_data)


def _packed(priority: Any) -> bytes:
    from jobs_service.layer.key_parts import pack_priority  # only callers with the layer need it packed

    return pack_priority(priority)


def next_run(following: tuple[bytes, float | None] | None) -> Form | None:
    """Return the run after the present one, if one was requested."""
    if following is None:
        return None
    priority, run_at = following
    return {"priority": json_forms.name(unpack_priority(priority)), "run_at": time(run_at)}


def next_run_of(form: Mapping[str, Any]) -> tuple[bytes, float | None]:
    """Return the inverse of `next_run`."""
    return _packed(name_of(form["priority"])), seconds_of(form["run_at"])


def job(job: Job) -> Form:
    """Return a job, without its lock, which only its worker gets.

    Raises:
        RecordDamaged: a part of its record cannot be read.
    """
    packed = job._record.run_data
    progress = job._readable(run_data.progress_of, packed)
    form = {
        "type": json_forms.name(job.type),
        "id": json_forms.name(job.id),
        "state": job.state.value,
        "outcome": None if job.outcome is None else job.outcome.value,
        "data": job.data,
        "priority": json_forms.name(job.priority),
        "run_at": time(job._record.run_at),
        "retrying": job.retrying,
        "resubmit": job._record.resubmit,
        "cancel": job.cancel,
        "seq": None if job.seq is None else job.seq.hex(),
        "attempts": job.attempts,
        "crashes": run_data.crashes_of(packed),
        "result": job.result,
        "error": json_forms.error(job.error),
        "progress": json_forms.progress(progress),
        "history": [{"kind": event.kind.value, "at": time(event.at), "detail": event.detail} for event in job.history],
        "max_attempts": job.max_attempts,
        "time_limit": job.time_limit,
        "expires_at": time(job._readable(run_data.expires_at, packed)),
    }
    if job.enqueued is not None:
        form["enqueued"] = job.enqueued.value
    if carrier := job.trace_context:
        form["trace_context"] = carrier
    return form


def listed_job(job_: Job) -> Form:
    """Return a job of a list: a job with an unreadable part is "unreadable", and its error says why."""
    try:
        return job(job_)
    except RecordDamaged as error:
        form = {"type": json_forms.name(job_.type), "id": json_forms.name(job_.id), "state": JobState.UNREADABLE.value}
        why = json_forms.error(JobError(type(error).__name__, str(error)))
        return {**_form_of_nothing(), **form, "error": why}


def running_job(job_: RunningJob) -> Form:
    """Return a running job for its worker: with the lock, which is the right to end it."""
    return {**job(job_), "lock": job_.lock.hex(), "next_run": next_run(job_._record.next)}


def job_of(form: Mapping[str, Any]) -> Job:
    """Return the inverse of `job` and `listed_job`.

    Raises:
        ValueError, TypeError, KeyError: the JSON is malformed.
    """
    found = Job(name_of(form["type"]), name_of(form["id"]), _Record(form))
    found._data = form.get("data")
    found._enqueued = None if form.get("enqueued") is None else Enqueued(form["enqueued"])
    return found


def running_job_of(form: Mapping[str, Any], worker: Worker | None) -> RunningJob:
    """Return the inverse of `running_job`; the job's methods call this worker. Raises like `job_of`."""
    if form["lock"] is None:
        raise ValueError("a running job without its lock")
    found = RunningJob(name_of(form["type"]), name_of(form["id"]), _Record(form), worker)
    found._data = form.get("data")
    return found


def _form_of_nothing() -> Form:
    return {
        "outcome": None,
        "data": None,
        "priority": 0,
        "run_at": None,
        "retrying": False,
        "resubmit": False,
        "cancel": False,
        "seq": None,
        "attempts": 0,
        "crashes": 0,
        "result": None,
        "progress": None,
        "history": [],
        "max_attempts": None,
        "time_limit": None,
        "expires_at": None,
    }


def _run_data(form: Mapping[str, Any]) -> bytes:
    """Return the run data of a job, packed as in its record."""
    error, progress = error_of(form.get("error")), progress_of(form.get("progress"))
    history = tuple(history_event_of(event) for event in form.get("history", ()))
    attempts, crashes = form.get("attempts", 0), form.get("crashes", 0)
    expires_at = seconds_of(form.get("expires_at"))
    parts = {
        run_data.RESULT: json_data.encode(form.get("result")) or None,
        run_data.ERROR: None if error is None else run_data.error_json(error),
        run_data.PROGRESS: None if progress is None else run_data.progress_json(progress),
        run_data.LIMITS: _limits(form),
    }
    packed = run_data.of_values(attempts, crashes, history, expires_at)
    for part, encoded in parts.items():
        packed = run_data.with_part(packed, part, encoded)
    return packed


def _limits(form: Mapping[str, Any]) -> bytes | None:
    limits, carrier = (form.get("max_attempts"), form.get("time_limit")), form.get("trace_context")
    packed = None if limits == (None, None) else run_data.limits_json(*limits)
    if not carrier:
        return packed
    return tracing.with_trace(packed, (carrier["traceparent"], carrier.get("tracestate", "")))


def history_event_of(form: Mapping[str, Any]) -> HistoryEvent:
    """Return an event of a job's history."""
    at = seconds_of(form["at"])
    return HistoryEvent(HistoryKind(form["kind"]), math.nan if at is None else at, form.get("detail", ""))


def error_of(form: Mapping[str, Any] | None) -> JobError | None:
    """Return the error of a run; the inverse of `json_forms.error`."""
    return None if form is None else JobError(form["type"], form["message"], form.get("traceback", ""))


def progress_of(form: Mapping[str, Any] | None) -> Progress | None:
    """Return the progress of a job; the inverse of `json_forms.progress`."""
    if form is None:
        return None
    return Progress(form["done"], form.get("total"), form.get("message", ""), form.get("attempt"))


# Events


def event(event: JobEvent) -> Form:
    """Return an event of a job."""
    run_at = event.run_at
    return {**event.to_dict(), "run_at": None if run_at is None else time(run_at.timestamp())}


def event_of(form: Mapping[str, Any]) -> JobEvent:
    """Return the inverse of `event`. Raises like `job_of`."""
    outcome, seq = form.get("outcome"), form.get("seq")
    return JobEvent(
        name_of(form["type"]),
        name_of(form["id"]),
        JobState(form["state"]),
        form.get("data"),
        None if outcome is None else Outcome(outcome),
        None if seq is None else bytes.fromhex(seq),
        form.get("result"),
        error_of(form.get("error")),
        progress_of(form.get("progress")),
        form.get("attempts", 0),
        _date_of(form.get("run_at")),
        form.get("retrying", False),
    )


# Types


def retention(kept: Retention) -> Form:
    """Return the retention of finished jobs."""
    return {"keep": kept.keep, "keep_failed": kept.keep_failed}


def retention_of(form: Mapping[str, Any]) -> Retention:
    """Return the inverse of `retention`."""
    return Retention(form.get("keep"), form.get("keep_failed"))


def queue_state(state: QueueState) -> Form:
    """Return the state of a queue."""
    return {
        "id": json_forms.name(state.id),
        "ready_since": time(state.ready_since),
        "next_scheduled": time(state.next_scheduled),
        "paused": state.paused,
    }


def queue_state_of(form: Mapping[str, Any]) -> QueueState:
    """Return the inverse of `queue_state`."""
    return QueueState(
        name_of(form["id"]), seconds_of(form["ready_since"]), seconds_of(form["next_scheduled"]), form["paused"]
    )


# Counts


def counts(counted: TypeCounts) -> Form:
    """Return the counts of a type."""
    return {**dict(zip(_COUNTED, _counted(counted), strict=True)), **_sums(counted)}


def counts_of(form: Mapping[str, Any]) -> TypeCounts:
    """Return the inverse of `counts`."""
    plain = {name: form[name] for name in _COUNTED}
    return TypeCounts(**plain, **_sums_of(form))


def interval(passed: Interval) -> Form:
    """Return the events of a minute or an hour; its begin is in seconds since the epoch."""
    return {"begin": passed.begin, "seconds": passed.seconds, **_sums(passed)}


def interval_of(form: Mapping[str, Any]) -> Interval:
    """Return the inverse of `interval`."""
    return Interval(form["begin"], form["seconds"], **_sums_of(form))


def jobs_page_of(form: Mapping[str, Any]) -> JobsPage:
    """Return a page of jobs, each the inverse of `listed_job`. Raises like `job_of`."""
    return JobsPage([*map(job_of, form["jobs"])], form["next"])


# There may be very many counts: needless copies, as by `dataclasses.asdict`, are avoided.
_SUMS: Final = ("totals", "waited", "ran")
_COUNTED: Final = tuple(each.name for each in dataclasses.fields(TypeCounts) if each.name not in _SUMS)
_TOTALS: Final = tuple(each.name for each in dataclasses.fields(Totals))
_counted: Final = attrgetter(*_COUNTED)
_totals: Final = attrgetter(*_TOTALS)


def _sums(counted: TypeCounts | Interval) -> Form:
    return {
        "totals": dict(zip(_TOTALS, _totals(counted.totals), strict=True)),
        "waited": {"counts": counted.waited.counts, "sum": counted.waited.sum},
        "ran": {"counts": counted.ran.counts, "sum": counted.ran.sum},
    }


def _sums_of(form: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "totals": Totals(**form["totals"]),
        "waited": _histogram_of(form["waited"]),
        "ran": _histogram_of(form["ran"]),
    }


def _histogram_of(form: Mapping[str, Any]) -> Histogram:
    return Histogram(tuple(form["counts"]), form["sum"])
