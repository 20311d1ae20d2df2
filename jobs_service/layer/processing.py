"""What a job's worker does: update, finish, resubmit and release the job whose lock it holds. Floor: layer."""

from __future__ import annotations

from jobs_service.errors import JobCanceled, WorkerConflict, job_name
from jobs_service.layer.creation import Spec
from jobs_service.layer.record import Record
from jobs_service.layer.unit import Entry, Place, Unit
from jobs_service.model import Outcome


async def update(unit: Unit, place: Place, lock: bytes, json: bytes | None) -> Entry:
    """Show that the job is alive: a new seq, and new data if given.

    Raises:
        WorkerConflict: the lock is not the job's.
        JobCanceled: a creator asked for its removal.
        JobTooLarge: the record is over the store's limits.
    """
    entry, record = await _held(unit, place, lock)
    _refuse_canceled(entry, record)
    if json is not None:
        record = record.with_json(json)
    unit.replace(entry, record.running(lock, unit.new_seq()))
    return entry


async def finish(unit: Unit, place: Place, lock: bytes, json: bytes | None, outcome: Outcome) -> Entry:
    """End the run: finished, or pending again if somebody resubmitted it and nobody canceled it.

    Raises:
        WorkerConflict: the lock is not the job's.
        JobTooLarge: the record is over the store's limits.
    """
    entry, record = await _held(unit, place, lock)
    if json is not None:
        record = record.with_json(json)
    if record.cancel:
        # A worker that saw the flag ends with a plain finish(): that is no success.
        ended = Outcome.CANCELED if outcome is Outcome.SUCCEEDED else outcome
        unit.replace(entry, record.finished(unit.new_seq(), ended))
    elif record.next is not None:
        priority, run_at = record.next
        unit.replace(
            entry,
            record.with_next(None).pending(unit.place_for(run_at), unit.new_seq(), priority, run_at),
        )
    else:
        unit.replace(entry, record.finished(unit.new_seq(), outcome))
    return entry


async def resubmit(unit: Unit, place: Place, lock: bytes, spec: Spec) -> Entry:
    """Ask for another run after this one, with a new seq.

    Raises:
        WorkerConflict: the lock is not the job's.
        JobCanceled: a creator asked for its removal.
        JobTooLarge: the record or its key is over the store's limits.
    """
    entry, record = await _held(unit, place, lock)
    _refuse_canceled(entry, record)
    if spec.json is not None:
        record = record.with_json(spec.json)
    unit.replace(entry, record.with_next(spec.next_of(record)).running(lock, unit.new_seq()))
    return entry


async def release(unit: Unit, place: Place, lock: bytes) -> Entry:
    """Give the job back: pending at once with the same priority; a canceled one is finished.

    Raises:
        WorkerConflict: the lock is not the job's.
    """
    entry, record = await _held(unit, place, lock)
    give_back(unit, entry, record)
    return entry


def give_back(unit: Unit, entry: Entry, record: Record) -> None:
    """Make a running job pending, or finished if it is canceled: released or lost."""
    if record.cancel:
        unit.replace(entry, record.finished(unit.new_seq(), Outcome.CANCELED))
    else:
        run_at = record.run_at
        place = unit.place_for(run_at)
        unit.replace(entry, record.pending(place, unit.new_seq(), record.priority, run_at))


async def _held(unit: Unit, place: Place, lock: bytes) -> tuple[Entry, Record]:
    """Return the job if the lock is its present one."""
    keys, _, packed_id = place
    entry = unit.entries.get(keys.data + packed_id) or await unit.load(place)
    record = entry.record
    if record is None or record.lock != lock:
        raise WorkerConflict(
            f"job {job_name(entry.keys.type, entry.id)} is no longer this worker's: it was lost, finished, released or "
            "removed; drop its work",
            type=entry.keys.type,
            id=entry.id,
        )
    return entry, record


def _refuse_canceled(entry: Entry, record: Record) -> None:
    if record.cancel:
        raise JobCanceled(
            f"job {entry.keys.type!r}/{entry.id!r} was canceled: finish it now", type=entry.keys.type, id=entry.id
        )
