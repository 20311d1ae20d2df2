"""Jobs and events as JSON, and back: nothing is lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any

import fdb.tuple
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs_service import Job, JobError, JobEvent, JobState, Outcome, RecordDamaged, RunningJob, json_data, json_types
from jobs_service import run_data as runs
from jobs_service.arguments import EARLIEST, LATEST
from jobs_service.http import wire
from jobs_service.json_data import same
from jobs_service.layer.keyspace import pack_priority
from jobs_service.layer.record import READY, SCHEDULED, Record
from jobs_service.model import Enqueued, HistoryEvent, HistoryKind, Progress
from jobs_service.model.type_state import BUCKETS, Histogram, Interval, QueueState, Retention, Totals, TypeCounts

texts = st.text(st.characters(codec="utf-8"), max_size=20)
finite = st.floats(allow_nan=False, allow_infinity=False)
integers = st.integers() | st.integers(min_value=2**53, max_value=2**70) | st.sampled_from([2**53 + 1, -(2**63) - 1])
names = st.recursive(
    texts | st.binary(max_size=20) | integers,
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=5,
)
types = texts | st.binary(max_size=20) | integers | st.lists(names, max_size=3).map(tuple)
ids = texts | st.binary(max_size=20)
data = st.recursive(
    st.none() | st.booleans() | integers | finite | st.text(max_size=20).filter(lambda text: _is_storable(text)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
# No date says -0.0, which is the same time as 0.0.
# What the wire carries is microseconds.
times = st.integers(int(EARLIEST) * 10**6, int(LATEST) * 10**6).map(lambda microseconds: microseconds / 10**6)
errors = st.builds(JobError, texts, texts, texts)
progress = st.builds(Progress, finite | integers, st.none() | finite | integers, texts, st.none() | st.integers(1, 9))


def _is_storable(text: str) -> bool:
    """Whether data can hold it: no two surrogates that make one character side by side."""
    return bool(json.loads(json.dumps(text)) == text)


@st.composite
def run_data(draw: Callable[..., Any]) -> bytes:
    history = draw(st.lists(st.builds(HistoryEvent, st.sampled_from(HistoryKind), times, texts), max_size=5))
    error, said = draw(st.none() | errors), draw(st.none() | progress)
    limits = draw(st.none() | st.tuples(st.integers(1, 9), st.none() | st.floats(0.1, 9)))
    trace = draw(st.none() | st.tuples(st.just(f"00-{7:032x}-{8:016x}-01"), texts))
    context = draw(st.none() | st.dictionaries(st.sampled_from(["tenant", "locale"]), texts, min_size=1))
    most, seconds = (None, None) if limits is None else limits
    has_limits = limits is not None or trace is not None or context is not None
    packed_limits = runs.limits_json(most, seconds, trace, context) if has_limits else None
    parts = {
        runs.RESULT: json_data.encode(draw(data)) or None,
        runs.ERROR: None if error is None else runs.error_json(error),
        runs.PROGRESS: None if said is None else runs.progress_json(said),
        runs.LIMITS: packed_limits,
    }
    counts = draw(st.integers(0, 65_535)), draw(st.integers(0, 15))
    packed = runs.of_values(*counts, history, draw(st.none() | times))
    for part, encoded in parts.items():
        packed = runs.with_part(packed, part, encoded)
    return packed


@st.composite
def records(draw: Callable[..., Any]) -> Record:
    """Return a record of a job in any state."""
    state = draw(st.sampled_from(["pending", "running", "finished"]))
    run_at, priority = draw(st.none() | times), pack_priority(draw(types))
    return Record(
        draw(st.binary(min_size=16, max_size=16)) if state == "running" else None,
        (READY if run_at is None else draw(st.sampled_from([READY, SCHEDULED]))) if state == "pending" else 0,
        draw(st.binary(min_size=12, max_size=12)),
        priority,
        run_at,
        draw(st.sampled_from(Outcome)) if state == "finished" else None,
        state == "running" and draw(st.booleans()),
        (priority, None) if state == "running" and draw(st.booleans()) else None,
        json_data.encode(draw(data)),
        draw(run_data()),
    )


def over_the_wire(form: Any) -> Any:
    """Return what the other end reads, with this package's JSON and with any other."""
    encoded = json_types.dumps(form)
    assert same(json.loads(encoded), json_types.loads(encoded))
    return json_types.loads(encoded)


def assert_same(one: Job, other: Job) -> None:
    """Compare all that an application sees, and exactly: a 1 is no 1.0."""
    for name in ("type", "id", "priority"):
        assert fdb.tuple.pack((getattr(one, name),)) == fdb.tuple.pack((getattr(other, name),))
    for name in ("state", "outcome", "run_at", "cancel", "seq", "attempts", "history", "error", "progress"):
        assert getattr(one, name) == getattr(other, name), name
    for name in ("enqueued", "max_attempts", "time_limit", "trace_context"):
        assert getattr(one, name) == getattr(other, name), name
    assert same(one.data, other.data)
    assert same(one.result, other.result)
    assert bool(one.resubmit) == bool(other.resubmit)
    assert one._record.run_data == other._record.run_data


@given(types, ids, records(), st.sampled_from([None, *Enqueued]))
def test_a_job_comes_back_as_it_was(type: Any, id: Any, record: Record, enqueued: Enqueued | None) -> None:
    job = Job(type, id, record)
    job._enqueued = enqueued
    form = over_the_wire(job.to_dict())
    assert_same(wire.job_of(form), job)
    assert "lock" not in form


@given(types, ids, records().filter(lambda record: record.lock is not None))
def test_a_running_job_comes_back_with_its_lock(type: Any, id: Any, record: Record) -> None:
    job = RunningJob(type, id, record, None)
    again = wire.running_job_of(over_the_wire(wire.running_job(job)), None)
    assert_same(again, job)
    assert again.lock == job.lock
    assert again.resubmit == job.resubmit


@given(
    st.builds(
        JobEvent,
        types,
        ids,
        st.sampled_from([*JobState][:4]),
        data,
        st.none() | st.sampled_from(Outcome),
        st.none() | st.binary(min_size=12, max_size=12),
        data,
        st.none() | errors,
        st.none() | progress,
        st.integers(0, 9),
        st.none() | times.map(lambda at: Job("t", "i", _scheduled(at)).run_at),
        st.booleans(),
    )
)
def test_an_event_comes_back_as_it_was(event: JobEvent) -> None:
    again = wire.event_of(over_the_wire(event.to_dict()))
    assert fdb.tuple.pack((again.type, again.id)) == fdb.tuple.pack((event.type, event.id))
    for name in ("state", "outcome", "seq", "error", "progress", "attempts", "run_at", "retrying"):
        assert getattr(again, name) == getattr(event, name), name
    assert same(again.data, event.data)
    assert same(again.result, event.result)


def _scheduled(at: float) -> Record:
    return Record(None, SCHEDULED, bytes(12), pack_priority(0), at, None, False, None, b"")


@given(finite)
def test_a_time_comes_back_to_the_microsecond(seconds: float) -> None:
    assert json_types.seconds_of(over_the_wire(json_types.time(seconds))) == pytest.approx(seconds, rel=0, abs=5.1e-7)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2025-11-22T22:11:12Z", 1763849472.0),
        ("2025-11-22T23:11:12.5+01:00", 1763849472.5),
        ("2025-11-22T22:11:12.0000000000Z", 1763849472.0),
        (7, 7),
    ],
)
def test_times_are_read_as_others_write_them(text: Any, seconds: float) -> None:
    assert json_types.seconds_of(text) == seconds


@given(st.none() | st.floats(0, 1e9), st.none() | st.floats(0, 1e9))
def test_retention_comes_back_as_it_was(keep: float | None, keep_failed: float | None) -> None:
    kept = Retention(keep, keep_failed)
    assert wire.retention_of(over_the_wire(json_types.plain(kept))) == kept


@given(st.none() | ids, st.none() | times, st.none() | times, st.booleans())
def test_the_state_of_a_queue_comes_back_as_it_was(
    id: Any, ready: float | None, following: float | None, paused: bool
) -> None:
    state = QueueState(id, ready, following, paused)
    assert wire.queue_state_of(over_the_wire(json_types.plain(state))) == state


def test_a_job_of_which_a_part_is_damaged_is_listed_as_unreadable() -> None:
    record = Record(None, READY, bytes(12), pack_priority(0), None, None, False, None, b"{", b"")
    job = Job("t", "i", record)
    with pytest.raises(RecordDamaged):
        job.to_dict()
    again = wire.job_of(over_the_wire(wire.listed_job(job)))
    assert (again.id, again.state) == ("i", JobState.UNREADABLE)
    assert again.error is not None
    assert "damaged" in again.error.message


histograms = st.builds(
    Histogram, st.lists(st.integers(0, 2**62), min_size=BUCKETS, max_size=BUCKETS).map(tuple), st.floats(0, 1e12)
)
totals = st.builds(Totals, *(st.integers(0, 2**62) for _ in fields(Totals)))
numbers = st.integers(0, 2**62)


@given(st.builds(TypeCounts, *[numbers] * 7, totals, histograms, histograms, numbers))
def test_counts_come_back_as_they_were(counts: TypeCounts) -> None:
    form = over_the_wire(json_types.plain(counts))
    assert form == json.loads(json.dumps(asdict(counts)))
    assert wire.counts_of(form) == counts


@given(st.builds(Interval, st.floats(0, 1e10), st.sampled_from([60.0, 3600.0]), totals, histograms, histograms))
def test_an_interval_comes_back_as_it_was(passed: Interval) -> None:
    form = over_the_wire(json_types.plain(passed))
    assert form["begin"] == passed.begin
    assert wire.interval_of(form) == passed
