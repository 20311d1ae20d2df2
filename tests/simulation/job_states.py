"""What jobs truly were, from one commit to the next: what those who have read or waited must have been told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from jobs_service.model import JobState, Outcome
from tests import reader
from tests.reader import Record
from tests.simulation.complaints import observed
from tests.simulation.model_job import Key, Notes

if TYPE_CHECKING:
    from tests.simulation.history import History


class State(NamedTuple):
    """What a job was from one commit on.

    Attributes:
        version: of the commit.
        time: of the commit, on the loop's clock, seconds.
        state: REMOVED when it is gone.
        data: its JSON value, None when it is gone.
        outcome: None unless finished.
        seq: the record's 12 bytes, None when it is gone.
        told: what is told of its runs, None when it is gone.
        lock: of its worker, None unless running.
        canceled: whether its removal was asked for while it ran.
        run_at: seconds since the epoch from which on it may run, None for at once, and unless it is pending.
        left: whether it is gone with its end: then whoever waits for it is told of the state before this one.
    """

    version: int
    time: float
    state: JobState
    data: Any
    outcome: Outcome | None
    seq: bytes | None
    told: Notes | None = None
    lock: bytes | None = None
    canceled: bool = False
    run_at: float | None = None
    left: bool = False


def meanwhile(history: History, key: Key, began: int) -> Iterator[State | None]:
    """Yield what a job has been since a version, the first as of that version; None for what was not there yet."""
    states = history.states(*key)
    before = [state for state in states if state.version <= began]
    yield before[-1] if before else None
    yield from (state for state in states if state.version > began)


def state_of(version: int, time: float, record: Record | None, left: bool) -> State:
    """Return what a record says that a job is; see State for the rest."""
    if record is None:
        return State(version, time, JobState.REMOVED, None, None, None, left=left)
    data, job = reader.value_of(record.data), observed(record)
    state = JobState.PENDING if job.pending else JobState(record.state)
    return State(
        version,
        time,
        state,
        data,
        job.outcome,
        record.seq,
        job.notes,
        job.lock,
        job.cancel,
        job.run_at if job.pending else None,
    )
