"""Jobs and their records, for the tests of the model."""

from __future__ import annotations

from typing import Any

import fdb.tuple

from jobs_service import Job, RunningJob, run_data
from jobs_service.layer.record import READY, Record
from jobs_service.model import HistoryKind

SEQ = bytes(range(12))


def record(**other: Any) -> Record:
    """Return the record of a pending job."""
    values: dict[str, Any] = {
        "lock": None,
        "place": READY,
        "seq": SEQ,
        "priority": fdb.tuple.pack((3,)),
        "run_at": None,
        "outcome": None,
        "cancel": False,
        "next": None,
        "json": b'{"a":[1]}',
    }
    return Record(**{**values, **other})


def job(type: Any = "t", id: Any = "i", **other: Any) -> Job:
    """Return a pending job."""
    return Job(type, id, record(**other))


def running(worker: Any = None, **other: Any) -> RunningJob:
    """Return a running job."""
    return RunningJob("t", "i", record(lock=b"L" * 16, place=0, **other), worker)


def told() -> bytes:
    """Return notes of a job that was added, and has crashed once."""
    packed = run_data.started_anew(b"", 1.0)
    packed = run_data.with_event(packed, HistoryKind.STARTED, 2.0, "me", attempts=1)
    packed = run_data.with_event(packed, HistoryKind.CRASHED, 3.0, "no")
    for part, json in (
        (run_data.RESULT, b"[1]"),
        (run_data.ERROR, b'["E","no","at"]'),
        (run_data.PROGRESS, b'[1,2,"half",null]'),
    ):
        packed = run_data.with_part(packed, part, json)
    return packed
