"""The operations of a job's worker: update, finish, resubmit and release the job whose lock it holds.

Also the ends of a run without its worker: lost, crashed, given back, or held by a process that is dead.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Container, Sequence
from typing import Any, NamedTuple

from jobs_service import run_data
from jobs_service.arguments import check_error, check_outcome, json_of
from jobs_service.errors import InvalidJob, JobCanceled, JobTooLarge, RecordDamaged, WorkerConflict, job_name
from jobs_service.layer import type_settings
from jobs_service.layer.counters import CANCELED, CRASHED, ENDED, EXPIRED, FAILED, LOST, RELEASED
from jobs_service.layer.creation import Spec, refuse_mark, take_out
from jobs_service.layer.keyspace import (
    ACTIVITY,
    AFTER,
    DATA,
    LAST_ORDER,
    SEQ_BYTES,
    STAMP_CODE,
    Keyspace,
    Place,
    TypeFinder,
    TypeKeys,
    is_id,
    unpack_id,
)
from jobs_service.layer.record import Entry, JobSnapshot, NextRun, Record, lock_in
from jobs_service.layer.type_settings import timeout_in
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model import UNSET, Ending, Job, JobError, JobId, Outcome, RunningJob
from jobs_service.model.type_state import Retention
from jobs_service.redaction import MARK
from jobs_service.run_data import ERROR, PROGRESS, RESULT, HistoryKind
from jobs_service.store.base import Snapshot

# Operations


class LockStatus(enum.Enum):
    """Whether a worker still holds a job's lock."""

    HELD = "held"
    CANCELED = "canceled"
    """A creator asked for its removal."""
    TAKEN = "taken"
    """The worker no longer holds it, or its record cannot be read: the worker can write nothing."""


class RunReport(NamedTuple):
    """A worker's report at the end of a run, beside the job's data.

    Attributes:
        result: JSON of the run's result; None keeps an earlier one.
        error: how it failed, as `run_data.error_json` packs it; None keeps an earlier one.
        reason: of a crash, in a few words, for the history.
        max_history: events that are kept; None for the present number, and 20 at least.
        crashes: in a row, including the reported one; None to count on.
        attempts: to be added to their number.
    """

    result: bytes | None = None
    error: bytes | None = None
    reason: str = ""
    max_history: int | None = None
    crashes: int | None = None
    attempts: int = 0


NOTHING = RunReport()


async def update(
    unit: UnitOfWork,
    place: Place,
    lock: bytes,
    json: bytes | None,
    progress: bytes | None = None,
    healthy: bool = False,
) -> Entry:
    """Show that the job is alive: a new seq, and new data or progress if given.

    Args:
        unit, place, lock: the unit of work, the job, and the worker's lock.
        json, progress: packed; None to leave the present value.
        healthy: whether the run has turned out to be healthy, so that attempts are counted anew, from this one.

    Raises:
        WorkerConflict: the lock is not the job's.
        JobCanceled: a creator asked for its removal.
        JobTooLarge: the record is over the store's limits.
    """
    if json is not None and MARK in json:
        await type_settings.refuse_mark(unit, place[0], place[1], json)
    entry = await unit.load(place)
    record = _held(entry, lock)
    _refuse_canceled(entry, record)
    if json is not None:
        record = record.with_json(json)
    if progress is not None:
        record = record.with_run_data(run_data.with_part(record.run_data, PROGRESS, progress))
    if healthy:
        record = record.with_run_data(run_data.healthy(record.run_data))
    unit.replace(entry, record.running(lock, unit.new_seq()))
    return entry


async def finish(
    unit: UnitOfWork, place: Place, lock: bytes, json: bytes | None, outcome: Outcome, report: RunReport = NOTHING
) -> Entry | JobSnapshot:
    """End the run: finished, or pending again if it was resubmitted and not canceled.

    Returns:
        The job; a job that leaves with its end, as it was then.

    Raises:
        WorkerConflict: the lock is not the job's.
        JobTooLarge: the record is over the store's limits.
    """
    # The most frequent of all operations: do not start a coroutine if the job was read already.
    if json is not None and MARK in json:
        await type_settings.refuse_mark(unit, place[0], place[1], json)
    entry = unit.loaded(place) or await unit.load(place)
    record = _held(entry, lock)
    if json is not None:
        record = record.with_json(json)
    ended: Entry | JobSnapshot = entry
    packed = _with_report(record.run_data, report)
    if report.reason:
        packed = run_data.with_event(
            packed, HistoryKind.CRASHED, unit.now, report.reason, attempts=report.attempts, most=report.max_history
        )
    if record.cancel:
        # A worker that has noticed the cancellation ends with a plain finish(): that is no success.
        outcome = Outcome.CANCELED if outcome is Outcome.SUCCEEDED else outcome
    if record.next is not None and not record.cancel:
        priority, run_at = record.next
        packed = run_data.with_event(packed, HistoryKind.FINISHED, unit.now, most=report.max_history)
        again = record.with_next(None).with_run_data(run_data.with_no_attempts(packed))
        unit.replace(entry, again.pending(unit.place_for(run_at), unit.new_seq(), priority, run_at))
    else:
        # `_end` is no coroutine, and a known retention is not read again: each would cost time.
        retention = unit.retentions.get(entry.keys.retention) or await unit.retention(entry.keys)
        ended = _end(unit, entry, record, packed, outcome, report.max_history, retention)
    unit.ran(entry.keys, record, ENDED[outcome])
    if report.reason:
        unit.happened(entry.keys, CRASHED)
    return ended


async def beat(unit: UnitOfWork, held: Sequence[tuple[Place, bytes]]) -> list[LockStatus]:
    """Show that many running jobs are alive, including canceled ones, since their workers are about to end them.

    Args:
        unit: of work.
        held: each job's place and lock.

    Returns:
        The status of each lock.
    """
    await unit.prefetch([place for place, _ in held])
    found: list[LockStatus] = []
    for place, lock in held:
        entry = unit.loaded(place)
        record = None if entry is None else entry.record
        found.append(_holding(record, lock))
        if entry is not None and record is not None and found[-1] is not LockStatus.TAKEN:
            unit.replace(entry, record.running(lock, unit.new_seq()))
    return found


def holding(raw: bytes | None, lock: bytes) -> LockStatus:
    """Return the status of a worker's lock, given the job's record as stored."""
    try:
        return _holding(None if raw is None else Record.decode(raw, True), lock)
    except RecordDamaged:
        return LockStatus.TAKEN


def _holding(record: Record | None, lock: bytes) -> LockStatus:
    if record is None or record.lock != lock:
        return LockStatus.TAKEN
    return LockStatus.CANCELED if record.cancel else LockStatus.HELD


async def crash(
    unit: UnitOfWork, place: Place, lock: bytes, report: RunReport, run_at: float, asked: NextRun | None = None
) -> Entry | JobSnapshot:
    """End a run that failed: the job is pending again from a time on; a canceled one is finished.

    Args:
        unit, place, lock: as for the others.
        report: the error, and the reason in a few words.
        run_at: seconds since the epoch.
        asked: the next run that the run itself has asked for, if any: it does not shorten the pause after the failure.
            Otherwise a handler that asks first and then fails would run without a pause.

    Raises:
        WorkerConflict: the lock is not the job's.
    """
    entry = await unit.load(place)
    record = _held(entry, lock)
    packed = _with_report(record.run_data, report)
    packed = run_data.with_event(
        packed, HistoryKind.CRASHED, unit.now, report.reason, most=report.max_history, crashes=report.crashes
    )
    if asked is not None and record.next == asked:
        record = record.with_next((asked[0], max(run_at, asked[1] or run_at)))
    return await give_back(unit, entry, record, packed, run_at, CRASHED)


async def stop(
    unit: UnitOfWork,
    place: Place,
    lock: bytes,
    run_at: float | None,
    max_history: int | None = None,
    reason: str = "",
    anew: bool = False,
) -> Entry | JobSnapshot:
    """Give the job back without counting its run: pending from a time on (None: as before).

    Args:
        unit, place, lock: as for the others.
        run_at: seconds since the epoch.
        max_history: as in RunReport.
        reason: in a few words, for the history.
        anew: whether attempts are counted anew, because the run has ended by itself without failing.

    Raises:
        WorkerConflict: the lock is not the job's.
    """
    entry = await unit.load(place)
    record = _held(entry, lock)
    packed = run_data.with_event(
        record.run_data,
        HistoryKind.STOPPED,
        unit.now,
        reason,
        attempts=run_data.ALL_ATTEMPTS if anew else -1,
        most=max_history,
    )
    return await give_back(unit, entry, record, packed, record.run_at if run_at is None else run_at, RELEASED)


async def resubmit(unit: UnitOfWork, place: Place, lock: bytes, spec: Spec) -> Entry:
    """Ask for another run after this one, with a new seq.

    Raises:
        WorkerConflict: the lock is not the job's.
        JobCanceled: a creator asked for its removal.
        JobTooLarge: the record or its key is over the store's limits.
    """
    if spec.is_marked:
        await refuse_mark(unit, place, spec)
    entry = await unit.load(place)
    record = _held(entry, lock)
    _refuse_canceled(entry, record)
    if spec.json is not None:
        record = record.with_json(spec.json)
    unit.replace(entry, record.with_next(spec.next_of(record)).running(lock, unit.new_seq()))
    return entry


async def release(unit: UnitOfWork, place: Place, lock: bytes) -> Entry | JobSnapshot:
    """Give the job back: pending at once with the same priority; a canceled one is finished.

    Raises:
        WorkerConflict: the lock is not the job's.
    """
    return await stop(unit, place, lock, None, None, "released", True)


def gives_way(unit: UnitOfWork, record: Record, time: float) -> bool:
    """Whether a job only waits for another attempt, no next run was requested, and its last run ended before a time.

    Args:
        unit: the unit of work.
        record: of the job.
        time: seconds since the epoch.
    """
    waits = record.place and record.run_at is not None and record.run_at > unit.now and record.next is None
    newest = run_data.newest_event(record.run_data[run_data.NEWEST])
    return bool(waits) and run_data.crashed_last(record.run_data) and newest is not None and newest[1] < time


async def give_up(unit: UnitOfWork, place: Place, reason: str) -> Entry | JobSnapshot:
    """End a job that waits for another attempt: it has failed for good, with the error of its last run.

    Args:
        unit, place: the unit of work, and the job.
        reason: in a few words, for the history.
    """
    entry = await unit.load(place)
    assert entry.record is not None
    retention = await unit.retention(entry.keys)
    ended = _end(unit, entry, entry.record, entry.record.run_data, Outcome.FAILED, None, retention, reason)
    unit.happened(entry.keys, FAILED)
    return ended


async def give_back(
    unit: UnitOfWork, entry: Entry, record: Record, packed: bytes, run_at: float | None, event: int
) -> Entry | JobSnapshot:
    """Make the job pending again, or finished if it is canceled, and count the end of its run.

    The next run is the requested one, unless that is to come after `run_at`: then it follows the next run.

    Args:
        unit, entry: the unit of work, and the job.
        record: of the job.
        packed: its run data, with the end of the run.
        run_at: time of the next run, seconds since the epoch; None for at once.
        event: counted for the run, as in `counters`.
    """
    ended: Entry | JobSnapshot = entry
    if record.cancel:
        retention = await unit.retention(entry.keys)
        ended = _end(unit, entry, record, packed, Outcome.CANCELED, None, retention)
        unit.happened(entry.keys, CANCELED)
    else:
        again, priority = record.with_run_data(packed), record.priority
        if record.next is not None and max(record.next[1] or 0.0, unit.now) <= max(run_at or 0.0, unit.now):
            again = again.with_next(None)
            priority, run_at = record.next
        unit.replace(entry, again.pending(unit.place_for(run_at), unit.new_seq(), priority, run_at))
    unit.ran(entry.keys, record, event)
    return ended


def _end(
    unit: UnitOfWork,
    entry: Entry,
    record: Record,
    packed: bytes,
    outcome: Outcome,
    max_history: int | None,
    retention: Retention,
    reason: str = "",
) -> Entry | JobSnapshot:
    """Make the job finished, and let it expire if the type has a retention: at once if that is 0."""
    kind = HistoryKind.CANCELED if outcome is Outcome.CANCELED else HistoryKind.FINISHED
    packed = run_data.with_event(packed, kind, unit.now, reason, most=max_history)
    keep = retention.seconds(outcome)
    if keep is not None:
        packed = run_data.expiring(packed, unit.now + keep)
    finished = record.finished(unit.new_seq(), outcome, packed)
    if keep == 0:
        left = unit.leave(entry, finished)
        # Not before: if the store refuses the end, its count would stay.
        unit.happened(entry.keys, EXPIRED)
        return left
    unit.replace(entry, finished)
    return entry


def _with_report(packed: bytes, report: RunReport) -> bytes:
    """Return run data with the worker's report."""
    if report.result is not None:
        packed = run_data.with_part(packed, RESULT, report.result)
    if report.error is not None:
        packed = run_data.with_part(packed, ERROR, report.error)
    return packed


def _held(entry: Entry, lock: bytes) -> Record:
    """Return the job's record if the lock is its present one."""
    record = entry.record
    if record is None or record.lock != lock:
        raise WorkerConflict(
            f"job {job_name(entry.keys.type, entry.id)} is no longer this worker's: it was lost, finished, released or "
            "removed; drop its work",
            type=entry.keys.type,
            id=entry.id,
        )
    return record


def _refuse_canceled(entry: Entry, record: Record) -> None:
    if record.cancel:
        raise JobCanceled(
            f"job {job_name(entry.keys.type, entry.id)} was canceled: finish it now", type=entry.keys.type, id=entry.id
        )


# Ends of runs, encoded


def encoded_ending(job: Job, ending: Ending) -> tuple[bytes | None, Outcome, RunReport]:
    """Return the checked end of a run as `finish` takes it: the job's data, the outcome, and the report."""
    data, outcome, result, error = ending
    json = json_of(job.type, job.id, data)
    # Nearly all runs end as a success: the checks, two calls, are left out for these.
    if outcome is not Outcome.SUCCEEDED:
        outcome = check_outcome(outcome, job)
    report = NOTHING if result is UNSET and error is None else _report(job, result, error)
    return json, outcome, report


def _report(job: Job, result: Any, error: Any) -> RunReport:
    """Return a worker's report at the end of a run, checked."""
    if error is not None:
        check_error(error, job)
    return RunReport(
        # An explicit result of None removes that of an earlier run.
        None if result is UNSET else _result_json(job, result),
        None if error is None else _error_json(job, error),
    )


def _result_json(job: Job, result: Any) -> bytes | None:
    worker = job._worker if isinstance(job, RunningJob) else None
    try:
        data = result if worker is None else worker._result_data(result)
    except (InvalidJob, JobTooLarge) as refusal:
        raise refusal.about(job.type, job.id) from None
    return json_of(job.type, job.id, data)


def _error_json(job: Job, error: JobError) -> bytes:
    try:
        return run_data.error_json(error)
    except InvalidJob as refusal:
        raise refusal.about(job.type, job.id) from None


# Silent workers: their jobs are found in the index of running jobs by their last sign of life


async def samples(transaction: Snapshot, keys: Sequence[TypeKeys]) -> list[tuple[float | None, bytes | None]]:
    """Return (timeout in seconds, activity stamp) of several types; the reads go out together."""
    wanted = [key for each in keys for key in (each.timeout, each.watch_activity)]
    values = await transaction.get_many(wanted)
    return [
        (None if timeout is None else timeout_in(timeout), stamp)
        for timeout, stamp in zip(values[::2], values[1::2], strict=True)
    ]


async def active_ids(
    transaction: Snapshot, keys: TypeKeys, after: bytes | None, limit: int
) -> list[tuple[bytes, JobId]]:
    """Return (seq, id) of running jobs behind a seq or a 10-byte stamp, by last activity; a limit of 0 is none."""
    head = keys.activity_head
    begin = head if after is None else head + after.ljust(SEQ_BYTES, b"\xff") + b"\x00"
    found = await transaction.get_range(begin, keys.activity + AFTER, limit=limit)
    return [(key[len(head) :], unpack_id(value)) for key, value in found if is_id(value)]


class TaskPart(NamedTuple):
    """One transaction's part of a long task.

    Attributes:
        ids: of the jobs.
        more: whether there may be more to do.
    """

    ids: list[JobId]
    more: bool


async def re_enqueue(
    unit: UnitOfWork, keys: TypeKeys, until: bytes, limit: int, own: Container[bytes] = ()
) -> TaskPart:
    """Treat running jobs last active at or before a stamp as lost: pending again, or finished if canceled.

    Args:
        unit, keys: of the type.
        until: 10-byte versionstamp.
        limit: most jobs; fewer if a transaction cannot hold them, and no more are read then.
        own: locks of jobs that the caller runs itself. They are silent because its loop stood still, or the store was
            away; they get a heartbeat instead.
    """
    # A job that is updated meanwhile changes its record, which is read: that is a conflict, and it stays its worker's.
    found = await unit.transaction.snapshot.get_range(*_until(keys, until), limit=limit)
    entries = await unit.load_fitting(keys, [packed_id for _, packed_id in found])
    held: list[tuple[Place, bytes]] = []
    silent: list[tuple[bytes, Entry, Record | None]] = []
    for (key, _), entry in zip(found, entries, strict=False):
        record = entry.record
        if record is None or record.lock is None or record.seq != key[len(keys.activity_head) :]:
            silent.append((key, entry, None))
        elif record.lock in own:
            held.append(((keys, entry.id, entry.packed_id), record.lock))
        else:
            silent.append((key, entry, record))
    if held:
        await beat(unit, held)
    lost: list[JobId] = []
    for key, entry, record in silent:
        if record is not None:
            try:
                await lose(unit, entry, record)
                lost.append(entry.id)
                continue
            except RecordDamaged as error:
                unit.condemn(entry, error)
        # A stray entry, left by damage: remove it, or every later call would find it first.
        take_out(unit, keys, key, entry.packed_id)
    return TaskPart(lost, len(found) == limit or len(entries) < len(found))


async def lose(unit: UnitOfWork, entry: Entry, record: Record) -> None:
    """Take a running job from a worker that fell silent: pending, or finished if it is canceled.

    Raises:
        RecordDamaged: its run data are damaged, so that no end of a run can be written: it would run, and be lost, for
            ever.
    """
    run_data.check_sizes(record.run_data)
    unit.take_away(entry.keys)
    packed = run_data.with_event(record.run_data, HistoryKind.LOST, unit.now)
    await give_back(unit, entry, record, packed, record.run_at, LOST)


def _until(keys: TypeKeys, stamp: bytes) -> tuple[bytes, bytes]:
    return keys.activity, keys.activity_head + stamp + LAST_ORDER + b"\x00"


# Dead processes: a lock begins with the id of the store's instance that accepted the job, if it has one


_PACKED_SEQ_BYTES = len(STAMP_CODE) + SEQ_BYTES


async def held_jobs(
    transaction: Snapshot, keyspace: Keyspace, instances: Collection[bytes], after: bytes | None, limit: int
) -> tuple[list[Place], bytes | None]:
    """Find running jobs that instances hold, in one page of all running jobs.

    Args:
        transaction: reads.
        keyspace: of the keys.
        instances: the ids.
        after: the last key of the page before; None to begin.
        limit: running jobs to read.

    Returns:
        The jobs, and the last key of this page; None at the end.
    """
    section = keyspace.sections[ACTIVITY]
    begin = section if after is None else after + b"\x00"
    found = await transaction.get_range(begin, section + AFTER, limit=limit)
    data = keyspace.sections[DATA]
    # The rest of the key without its section and its seq is the packed type.
    raws = await transaction.get_many([data + key[len(section) : -_PACKED_SEQ_BYTES] + id for key, id in found])
    size = len(next(iter(instances)))
    finder = TypeFinder(keyspace)
    held = [
        (finder.keys_of(key[len(section) :]), unpack_id(id), id)
        for (key, id), raw in zip(found, raws, strict=True)
        if (lock := lock_in(raw)) is not None and lock[:size] in instances
    ]
    return held, found[-1][0] if len(found) == limit else None


async def take_from(unit: UnitOfWork, jobs: Sequence[Place], instances: Collection[bytes]) -> tuple[list[Entry], int]:
    """Take jobs from dead instances that still hold them: pending again, or finished if canceled.

    Jobs with unreadable run data are set aside.

    Args:
        unit: of work.
        jobs: the jobs that the instances held when they were read.
        instances: the ids.

    Returns:
        The taken jobs, and the number of `jobs` that were done: as many as fit into a transaction.
    """
    size = len(next(iter(instances)))
    lost: list[Entry] = []
    for position, place in enumerate(jobs):
        # One by one is no slower: the embedded store, the only one with instances, answers a read at once.
        try:
            entry = await unit.load(place)
        except RecordDamaged:
            continue
        record = entry.record
        if record is not None and record.lock is not None and record.lock[:size] in instances:
            assert isinstance(record.seq, bytes)
            try:
                await lose(unit, entry, record)
                lost.append(entry)
            except RecordDamaged as error:
                # Set it aside. If it stayed, each attempt would fail at it, and the instances' other jobs stay locked.
                unit.condemn(entry, error)
                take_out(unit, entry.keys, entry.keys.activity_head + record.seq, entry.packed_id)
        if unit.is_full:
            return lost, position + 1
    return lost, len(jobs)
