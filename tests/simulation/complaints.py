"""How the history's complaints name jobs, records, operations and what differs between them."""

from __future__ import annotations

import functools
from typing import Any, Final

import fdb.tuple

from jobs_service.layer.queue import AcceptTerms
from jobs_service.layer.record import LOCK_BYTES, Record
from jobs_service.layer.record import READY as IS_READY
from jobs_service.layer.record import SCHEDULED as IS_SCHEDULED
from jobs_service.model import UNSET, JobId, JobType, Outcome
from tests import reader
from tests.reader import Undocumented
from tests.simulation.entry import Entry
from tests.simulation.model_job import FINISHED, OBSERVED, READY, RUNNING, SCHEDULED, Change, ModelJob, Notes

_STATES: Final = {IS_READY: READY, IS_SCHEDULED: SCHEDULED, 0: FINISHED}
_OUTCOMES: Final[dict[str | None, Outcome | None]] = {None: None, **{outcome.value: outcome for outcome in Outcome}}
_OF_INTEREST: Final = ("data", "priority", "run_at", "outcome", "next", "cancel", "lock")


def observed(record: Record | reader.Record) -> ModelJob:
    """Return a record, of the package or as it was read, as the model's job; place and last activity are unknown."""
    if isinstance(record, reader.Record):
        return _read(record)
    try:
        told = noted(record.run_data)
    except Undocumented as error:
        told = Notes(history=((f"{error}", 0.0, ""),))
    return ModelJob(
        RUNNING if record.lock is not None else _STATES.get(record.place, "damaged"),
        record.json,
        record.priority,
        record.run_at,
        record.outcome,
        record.next,
        record.cancel,
        record.lock,
        told,
        0,
        None,
    )


def _read(record: reader.Record) -> ModelJob:
    return ModelJob(
        record.state,
        record.data,
        record.priority,
        record.run_at,
        _OUTCOMES[record.outcome],
        record.next,
        record.cancel,
        record.lock,
        told_of(record.notes),
        0,
        None,
    )


@functools.lru_cache(1024)
def noted(packed: bytes) -> Notes:
    """Return packed notes as the model's.

    Raises:
        Undocumented: they are none.
    """
    return told_of(reader.notes(packed))


def told_of(notes: reader.Notes) -> Notes:
    """Return notes as the model's."""
    return Notes(
        notes.attempts,
        notes.history,
        notes.result,
        notes.error,
        notes.progress,
        notes.expires,
        notes.crashes,
        notes.limits,
    )


def named(type: JobType, id: JobId) -> str:
    """Return a job's type and id."""
    return f"{type!r}/{id!r}"


def called(entry: Entry) -> str:
    """Return an operation with its arguments."""
    arguments = ", ".join(_readable(argument) for argument in entry.arguments)
    return f"{entry.name}({arguments})"


def _readable(value: Any) -> str:
    if isinstance(value, Change):
        fields = zip(("data", "priority", "run_at", "limits"), value, strict=True)
        return " ".join(f"{name}={_shown_field(name, part)}" for name, part in fields if part not in (UNSET, None))
    return value.hex() if isinstance(value, bytes) and len(value) == LOCK_BYTES else repr(value)


def _shown_field(name: str, value: Any) -> str:
    if isinstance(value, bytes):
        if name == "data":
            return repr(reader.value_of(value))
        if name == "priority":
            return repr(_priority(value))
        return value.hex()
    if name == "next" and value is not None:
        return f"({_priority(value[0])!r}, {value[1]!r})"
    return repr(value)


def shown(value: Any) -> str:
    """Return a job, a record or a result as complaints name it."""
    if value is None:
        return "missing"
    if isinstance(value, type) and issubclass(value, BaseException):
        return value.__name__
    if isinstance(value, Record | reader.Record):
        value = observed(value)
    if not isinstance(value, ModelJob):
        return repr(value)
    shown = [f"{name}={_shown_field(name, getattr(value, name))}" for name in _OF_INTEREST if getattr(value, name)]
    return " ".join([value.state, *shown])


def differences(job: ModelJob, record: Record | reader.Record) -> str:
    """Return which fields of a record are not as they must be; empty when all are."""
    found = zip(ModelJob._fields, job[:OBSERVED], observed(record), strict=False)
    return ", ".join(
        f"{name} is {_shown_field(name, stored)}, not {_shown_field(name, wanted)}"
        for name, wanted, stored in found
        if wanted != stored
    )


def _priority(packed: bytes) -> Any:
    return fdb.tuple.unpack(packed)[0]


def shown_terms(terms: AcceptTerms, due_by: float) -> str:
    """Return which jobs an accept may take."""
    most = "" if terms.max_priority is None else f", max_priority={_priority(terms.max_priority)!r}"
    return f"limit={terms.limit}, spread={terms.spread}, due_by={due_by!r}{most}"
