"""What an application sees of a job: frozen, comparable, and decoded only when somebody looks."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Any

import fdb.tuple
import pytest

from jobs_service import Job, JobEvent, JobState, NewJob, Outcome, Removal, RunningJob, StoreError, run_data
from jobs_service.layer.record import SCHEDULED, NewSeq
from jobs_service.model import UNSET, HistoryEvent, HistoryKind, JobError, Progress, Unset
from jobs_service.store.base import CommitStamp
from tests.jobs import SEQ, job, record, running, told

ATTRIBUTES = ["type", "id", "state", "outcome", "data", "priority", "run_at", "resubmit", "cancel", "seq"]
NOTED = ["attempts", "history", "result", "error", "progress"]


# a job


def test_a_job_shows_what_its_record_says() -> None:
    found = job(place=SCHEDULED, run_at=1.5)
    assert (found.type, found.id, found.state, found.outcome) == ("t", "i", JobState.PENDING, None)
    assert (found.data, found.priority, found.resubmit, found.cancel) == ({"a": [1]}, 3, False, False)
    assert found.run_at == datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)
    assert found.run_at.tzinfo is UTC
    assert found.seq == SEQ


@pytest.mark.parametrize("priority", [0, -5, "low", b"low", (1, "a"), ((None, 2.5), True)])
def test_a_priority_is_shown_as_it_was_given(priority: Any) -> None:
    assert job(priority=fdb.tuple.pack((priority,))).priority == priority


def test_a_seq_is_unknown_until_its_transaction_has_committed() -> None:
    stamp = CommitStamp()
    found = job(seq=NewSeq(stamp, b"\x00\x07"))
    before = found.seq
    stamp.value = b"s" * 10
    assert (before, found.seq) == (None, b"s" * 10 + b"\x00\x07")


@pytest.mark.parametrize("name", ATTRIBUTES + NOTED)
def test_a_jobs_attributes_cannot_be_set_or_deleted(name: str) -> None:
    for found in (job(), running()):
        before = getattr(found, name)
        with pytest.raises(AttributeError):
            setattr(found, name, "other")
        with pytest.raises(AttributeError):
            delattr(found, name)
        assert getattr(found, name) == before


def test_a_job_takes_no_attributes_of_others() -> None:
    for found in (job(), running()):
        with pytest.raises(AttributeError):
            found.note = "mine"  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        running().lock = b"other"  # type: ignore[misc]


def test_data_is_decoded_when_somebody_looks_and_once() -> None:
    broken = job(json=b"{")
    assert broken.state is JobState.PENDING
    with pytest.raises(StoreError, match="a job's data is damaged"):
        _ = broken.data
    found = job()
    assert found.data is found.data
    assert job(json=b"").data is None


def test_jobs_with_the_same_fields_are_equal_and_have_one_hash() -> None:
    assert job() == job()
    assert hash(job()) == hash(job())
    assert len({job(), job()}) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"type": "u"},
        {"id": b"i"},
        {"place": 0, "outcome": Outcome.FAILED},
        {"json": b"{}"},
        {"priority": fdb.tuple.pack((4,))},
        {"run_at": 1.0},
        {"next": (b"\x14", None)},
        {"cancel": True},
        {"seq": bytes(12)},
        {"run_data": run_data.started_anew(b"", 1.0)},
    ],
    ids=lambda other: next(iter(other)),
)
def test_jobs_that_differ_in_any_field_are_not_equal(other: dict[str, Any]) -> None:
    assert job() != job(**other)


def test_locks_tell_two_runs_of_a_job_apart() -> None:
    other = RunningJob("t", "i", record(lock=b"M" * 16, place=0), None)
    assert running() == running()
    assert running() != other


def test_a_job_is_equal_to_no_other_kind_of_thing() -> None:
    as_read = Job("t", "i", record(lock=b"L" * 16, place=0))
    assert as_read != running()
    assert running() != as_read
    assert job() != "t"
    assert (job() == None) is False  # noqa: E711 - the comparison itself is tested


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        (job(), "<Job 't'/'i' pending>"),
        (job(("a", 1), b"x"), "<Job ('a', 1)/b'x' pending>"),
        (job(place=0, outcome=Outcome.FAILED), "<Job 't'/'i' finished, outcome=failed>"),
        (running(), "<RunningJob 't'/'i' running>"),
    ],
)
def test_a_job_shows_which_it_is_and_never_its_data(found: Job, shown: str) -> None:
    assert repr(found) == shown
    assert str(found) == shown


# what is told of its runs


def test_a_job_tells_of_its_runs() -> None:
    found = job(run_data=told())
    assert (found.attempts, found.result) == (1, [1])
    assert found.history == (
        HistoryEvent(HistoryKind.CRASHED, 3.0, "no"),
        HistoryEvent(HistoryKind.STARTED, 2.0, "me"),
        HistoryEvent(HistoryKind.ADDED, 1.0),
    )
    assert found.error == JobError("E", "no", "at")
    assert found.progress == Progress(1, 2, "half")


def test_a_job_without_notes_tells_of_nothing() -> None:
    found = job()
    assert (found.attempts, found.history, found.result, found.error, found.progress) == (0, (), None, None, None)


def test_damaged_notes_are_told_when_somebody_looks() -> None:
    broken = job(run_data=told()[:-1])
    assert (broken.state, broken.attempts) == (JobState.PENDING, 1)
    for look in ("result", "error", "progress"):
        with pytest.raises(StoreError, match="a job's run data are damaged"):
            getattr(broken, look)


# what else there is


def test_a_new_job_has_the_documented_defaults_and_is_frozen() -> None:
    new = NewJob("i")
    assert (new.id, new.data, new.priority, new.run_at) == ("i", None, 0, None)
    assert new == NewJob("i", None, 0, None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        new.id = "other"  # type: ignore[misc]


def test_an_event_is_frozen_and_compares_by_its_fields() -> None:
    event = JobEvent("t", "i", JobState.FINISHED, {"a": 1}, Outcome.SUCCEEDED, SEQ)
    assert event == JobEvent(
        type="t", id="i", state=JobState.FINISHED, data={"a": 1}, outcome=Outcome.SUCCEEDED, seq=SEQ
    )
    assert event != dataclasses.replace(event, data=None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.state = JobState.REMOVED  # type: ignore[misc]


def test_an_event_tells_of_results_errors_and_progress_only_where_there_are_any() -> None:
    event = JobEvent("t", "i", JobState.RUNNING, None, None, SEQ)
    assert (event.result, event.error, event.progress) == (None, None, None)


def test_kinds_of_history_are_their_names() -> None:
    names = ["added", "started", "stopped", "crashed", "lost", "finished", "canceled"]
    assert [str(kind) for kind in HistoryKind] == names


@pytest.mark.parametrize("value", [HistoryEvent(HistoryKind.ADDED, 1.0), JobError("E", "no"), Progress(1)])
def test_what_is_told_of_runs_is_frozen(value: Any) -> None:
    for field in dataclasses.fields(value):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, field.name, None)


def test_states_outcomes_and_removals_are_their_names() -> None:
    assert [str(state) for state in JobState] == ["pending", "running", "finished", "removed", "unreadable"]
    assert [str(outcome) for outcome in Outcome] == ["succeeded", "failed", "canceled"]
    assert [str(removal) for removal in Removal] == ["removed", "canceled"]
    assert JobState("pending") is JobState.PENDING


def test_what_is_left_out_shows_as_dots() -> None:
    assert repr(UNSET) == "..."
    assert UNSET is Unset.UNSET
