"""What an application sees of a job: frozen, comparable, and decoded only when somebody looks."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import fdb.tuple
import pytest

from jobs_service import Job, JobState, Outcome, StoreError, run_data
from jobs_service.layer.record import SCHEDULED
from tests.jobs import SEQ, job, running, told

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


@pytest.mark.parametrize("priority", [0, -5, "low", b"low", (1, "a"), ((b"", -2), "b")])
def test_a_priority_is_shown_as_it_was_given(priority: Any) -> None:
    assert job(priority=fdb.tuple.pack((priority,))).priority == priority


@pytest.mark.parametrize("name", ATTRIBUTES + NOTED)
def test_a_jobs_attributes_cannot_be_set_or_deleted(name: str) -> None:
    for found in (job(), running()):
        before = getattr(found, name)
        with pytest.raises(AttributeError):
            setattr(found, name, "other")
        with pytest.raises(AttributeError):
            delattr(found, name)
        assert getattr(found, name) == before


def test_data_is_decoded_when_somebody_looks_and_once() -> None:
    broken = job(json=b"{")
    assert broken.state is JobState.PENDING
    with pytest.raises(StoreError, match="a job's data is damaged"):
        _ = broken.data
    found = job()
    assert found.data is found.data
    assert job(json=b"").data is None


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


def test_damaged_notes_are_told_when_somebody_looks() -> None:
    broken = job(run_data=told()[:-1])
    assert (broken.state, broken.attempts) == (JobState.PENDING, 1)
    for look in ("result", "error", "progress"):
        with pytest.raises(StoreError, match="a job's run data are damaged"):
            getattr(broken, look)
