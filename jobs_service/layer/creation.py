"""Operations of creators: add, enqueue, remove and resubmit jobs; and the arguments of `enqueue`, checked and encoded.

Each operation is a row of the table of operations in docs/semantics.md; its columns are the function's branches.

A fault, or a process of a newer version, may leave a record that cannot be decoded, an index entry that cannot
be parsed, or one that belongs to no job. None of them may stop the work on other jobs. So code that reads an index and
finds a stray entry removes it, in the same transaction, and goes on. A job with an unreadable record is set aside: it
is in no index any more but has a row in SET_ASIDE, and its subscribers get an error. It stays so until it is removed.

The module has more than 600 lines because the operations share what they know of a job that exists already.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from operator import attrgetter
from sys import modules
from typing import Any, Final, NamedTuple

from jobs_service import job_context, json_data, run_data, tracing
from jobs_service.arguments import EnqueueRule, IfExists, check_duration, exact_int, to_seconds
from jobs_service.durations import Bounds
from jobs_service.errors import (
    InvalidJob,
    JobExists,
    JobNotFound,
    JobTooLarge,
    NoTypeTimeout,
    RecordDamaged,
    a_kind_of,
    job_name,
    kind_of,
    shown,
)
from jobs_service.layer import counters, type_settings
from jobs_service.layer.counters import EXPIRED, lane_of_damaged
from jobs_service.layer.keyspace import (
    AFTER,
    SEQ_BYTES,
    SET_ASIDE,
    TIME_BYTES,
    TIME_CODE,
    Keyspace,
    Place,
    TypeFinder,
    TypeKeys,
    end_of_priority,
    is_id,
    next_time,
    pack_priority,
    pack_seconds,
    pack_type,
    unpacked_type,
)
from jobs_service.layer.record import READY, Entry, JobSnapshot, Record, refuse_too_large
from jobs_service.layer.type_settings import make_type
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model import UNSET, Enqueued, JobId, JobState, JobType, NewJob, Removal
from jobs_service.model.enqueueing import UNIQUE, Enqueueable, How, delay_of, is_unique, one_value, rule_of, unique_key
from jobs_service.redaction import MARK, Redaction
from jobs_service.run_data import HistoryKind
from jobs_service.sources import MOST_AHEAD, Sources
from jobs_service.store.base import STAMP_BYTES, Snapshot
from jobs_service.tracing import MODULE

_RANDOM_ID_BYTES: Final = 16
_LOOKED_AT: Final = 1000
"""Entries of each index that are searched for a job with an unreadable record."""
_TIME_LIMITS: Final = Bounds(above=True, optional=True)
_MOST_ATTEMPTS: Final = 65_535


# Wanted jobs


class Spec:
    """The state that a creator wants for a job, checked and encoded before any transaction begins.

    Args:
        data, priority, run_at: as the application gave them; UNSET to leave the present value.

    Raises:
        InvalidJob: a value that no job can have.
    """

    __slots__ = ("context", "is_marked", "json", "limits", "priority", "redaction", "run_at", "trace", "unique_for")

    def __init__(self, data: Any, priority: Any, run_at: Any) -> None:
        # The job's own limits in place of its handler's options, in the form of run data; None keeps the present ones.
        self.limits: bytes | None = None
        # The secret fields of the type's jobs, as the job's handler declares them; None if it declares none.
        self.redaction: Redaction | None = None
        # Seconds after its end for which a job still counts as the requested one, like an unfinished job.
        self.unique_for = 0.0
        self.trace = tracing.current() if MODULE in modules else None
        self.context = job_context.current()
        self.json = json = None if data is UNSET else json_data.encode(data) if data is not None else b""
        # Whether the data may contain the replacement of a secret. (`find` takes a third of the time of `in`.)
        self.is_marked = json is not None and json.find(MARK) >= 0
        self.priority = None if priority is UNSET else pack_priority(priority)
        self.run_at = run_at if run_at is None or run_at is UNSET else to_seconds(run_at)

    def size(self) -> int:
        """Return the bytes of its data and its context, the latter at most."""
        return len(self.json or b"") + (0 if self.context is None else job_context.MOST_BYTES)

    def applied_to(self, record: Record) -> tuple[bytes, bytes, float | None]:
        """Return (json, priority, run_at) of the record with the spec's changes."""
        return (
            record.json if self.json is None else self.json,
            record.priority if self.priority is None else self.priority,
            record.run_at if self.run_at is UNSET else self.run_at,
        )

    def next_of(self, record: Record) -> tuple[bytes, float | None]:
        """Return (priority, run_at) of the run after the present one."""
        priority, run_at = record.next or (record.priority, record.run_at)
        return (priority if self.priority is None else self.priority, run_at if self.run_at is UNSET else self.run_at)


def spec_of(type: JobType, id: JobId, data: Any, priority: Any, run_at: Any) -> Spec:
    """Return the checked spec of one job; errors name the job."""
    try:
        return Spec(data, priority, run_at)
    except (InvalidJob, JobTooLarge) as error:
        raise error.about(type, id) from None


def new_job_spec(type: JobType, job: Any) -> Spec:
    """Return the checked spec of one of add_many's jobs."""
    if not isinstance(job, NewJob):
        raise InvalidJob(f"a job of type {kind_of(job)}; add_many takes NewJob objects").about(type)
    return spec_of(type, job.id, job.data, job.priority, job.run_at)


# Operations

_IS_MARKED: Final = attrgetter("is_marked")


async def add(unit: UnitOfWork, place: Place, spec: Spec, if_exists: IfExists) -> Entry:
    """Add a job.

    Raises:
        NoTypeTimeout: the job is missing and its type has no timeout.
        JobExists: the job is there, and if_exists is "error".
        JobTooLarge: the record or its key is over the store's limits.
    """
    keys, _, packed_id = place
    if spec.is_marked:
        await refuse_mark(unit, place, spec)
    entry = unit.entries.get(keys.data + packed_id) or await unit.load(place)
    if entry.record is None and keys.timeout in unit.existing_types:
        _create(unit, entry, spec)
    else:
        await _add(unit, entry, spec, if_exists)
    return entry


async def add_many(
    unit: UnitOfWork, keys: TypeKeys, jobs: Sequence[Place], specs: Sequence[Spec], if_exists: IfExists
) -> list[Entry]:
    """Add several jobs of one type; the reads go out together. Raises like `add`."""
    await unit.prefetch(jobs)
    if any(map(_IS_MARKED, specs)):
        for place, spec in zip(jobs, specs, strict=True):
            if spec.is_marked:
                await refuse_mark(unit, place, spec)
    data = keys.data
    try:
        entries = [unit.entries[data + packed_id] for _, _, packed_id in jobs]
    except KeyError:  # of a record that cannot be read
        for place in jobs:
            await unit.load(place)
        raise
    for entry, spec in zip(entries, specs, strict=True):
        if entry.record is None and keys.timeout in unit.existing_types:
            _create(unit, entry, spec)
        else:
            await _add(unit, entry, spec, if_exists)
    return entries


async def _add(unit: UnitOfWork, entry: Entry, spec: Spec, if_exists: IfExists) -> None:
    record = entry.record
    if record is None:
        await unit.require_type(entry.keys)
        _create(unit, entry, spec)
    else:
        if if_exists == "error":
            raise _exists(entry)
        if if_exists == "resubmit":
            _resubmit(unit, entry, record, spec)


async def resubmit(unit: UnitOfWork, place: Place, spec: Spec) -> Entry:
    """Have a job run again.

    Raises:
        JobNotFound: there is no such job.
        JobTooLarge: the record or its key is over the store's limits.
    """
    if spec.is_marked:
        await refuse_mark(unit, place, spec)
    entry = await unit.load(place)
    if entry.record is None:
        raise not_found(entry)
    _resubmit(unit, entry, entry.record, spec)
    return entry


async def enqueue(
    unit: UnitOfWork,
    place: Place,
    spec: Spec,
    rule: EnqueueRule,
    timeout: float | None,
    unmade: dict[TypeKeys, None] | None = None,
) -> Entry:
    """Add a job for a handler; its type is made if it is missing, unless it was removed on purpose.

    Args:
        unit, place, spec: as for `add`.
        rule: for a job that exists: as `if_exists` of `add`; with "unique", an unfinished job, or one that has ended
            less than `unique_for` ago, is returned as it is, and any other runs again.
        timeout: the activity timeout for making the type, in seconds; None: a missing type is refused.
        unmade: collects missing types, for a caller that makes them itself; None: this function makes them.

    Raises:
        NoTypeTimeout: the type does not exist, and is not to be made.
        JobExists: the job is there, and the rule is "error".
        JobTooLarge: the record or its key is over the store's limits.
    """
    keys = place[0]
    if spec.is_marked:
        await refuse_mark(unit, place, spec)
    entry = await unit.load(place)
    record = entry.record
    if record is None:
        exists = keys.timeout in unit.existing_types or await unit.transaction.snapshot.get(keys.timeout) is not None
        if not exists and timeout is None:
            raise NoTypeTimeout.of(keys.type)
        if not exists and await type_settings.is_removed(unit, keys):
            raise NoTypeTimeout.after_removal(keys.type)
        # All reads come first: where one fails, no job must be left to the other operations of the transaction.
        is_first = spec.redaction is not None and await type_settings.is_undeclared(unit, keys)
        # Then the job, which may be refused: no type is made in vain.
        _create(unit, entry, spec)
        if is_first and spec.redaction is not None:
            type_settings.declare_first(unit, keys, spec.redaction)
        if not exists and timeout is not None:
            if unmade is None:
                make_type(unit, keys, timeout)
            else:
                unmade[keys] = None
        unit.existing_types.add(keys.timeout)
        entry.enqueued = Enqueued.NEW
        return entry
    if rule == "error":
        raise _exists(entry)
    entry.enqueued = Enqueued.THERE
    if record.state is JobState.FINISHED:
        if rule == "resubmit" or (rule == "unique" and not _ended_within(record, spec.unique_for, unit.now)):
            entry.enqueued = Enqueued.AGAIN
            _resubmit(unit, entry, record, spec, wholly=True)
    elif rule == "resubmit":
        if record.state is JobState.RUNNING:
            entry.enqueued = Enqueued.AGAIN
        _resubmit(unit, entry, record, spec)
    return entry


def _ended_within(record: Record, seconds: float, now: float) -> bool:
    """Whether a finished job has ended less than so many seconds ago, as far as its history tells."""
    newest = run_data.newest_event(record.run_data[run_data.NEWEST])
    return newest is not None and -MOST_AHEAD <= now - newest[1] < seconds


async def enqueue_many(
    unit: UnitOfWork, places: Sequence[Place], wanted: Sequence[tuple[Spec, EnqueueRule]], timeout: float | None
) -> list[JobSnapshot]:
    """Do `enqueue` with many jobs, specs and rules; their type is made if none was refused."""
    await unit.prefetch(places)
    unmade: dict[TypeKeys, None] = {}
    try:
        entries = [
            (await enqueue(unit, place, spec, rule, timeout, unmade)).seen()
            for place, (spec, rule) in zip(places, wanted, strict=True)
        ]
    except BaseException:
        unit.existing_types.difference_update(keys.timeout for keys in unmade)
        raise
    for keys in unmade:
        assert timeout is not None
        make_type(unit, keys, timeout)
    return entries


def _create(unit: UnitOfWork, entry: Entry, spec: Spec) -> None:
    if spec.json is None or spec.priority is None:
        raise InvalidJob("a new job has data and a priority; only resubmit may leave them as they are").about(
            entry.keys.type, entry.id
        )
    limits, trace, context = spec.limits, spec.trace or unit.trace, spec.context or unit.context
    if trace is not None or context is not None:
        limits = run_data.limits_json(*_limit_values(limits), trace, context)
    unit.create(entry, spec.json, spec.priority, None if spec.run_at is UNSET else spec.run_at, limits)


def require_room(unit: UnitOfWork, place: Place, spec: Spec) -> None:
    """Check that the store takes a new job, which is not added yet.

    Raises:
        JobTooLarge: it does not.
    """
    keys, id, packed_id = place
    assert spec.json is not None
    assert spec.priority is not None
    record = Record(None, READY, bytes(STAMP_BYTES + 2), spec.priority, None, None, False, None, spec.json, b"")
    refuse_too_large(unit.transaction.limits, keys, id, packed_id, record)


def _limit_values(limits: bytes | None) -> tuple[int | None, float | None]:
    """Return the limits of a spec as values."""
    most, seconds = (None, None) if limits is None else json_data.decode(limits)
    return most, seconds


def _resubmit(unit: UnitOfWork, entry: Entry, record: Record, spec: Spec, *, wholly: bool = False) -> None:
    """Have a job run (again) with the spec's changes; write nothing if nothing changes.

    Args:
        unit, entry, record, spec: the unit of work, the job, its record, and the wanted state.
        wholly: whether to drop all settings of an earlier call: its limits, its trace and its context.
    """
    if record.state is JobState.RUNNING:
        following = spec.next_of(record)
        if record.next != following:
            unit.replace(entry, record.with_next(following))
        return
    json, priority, run_at = spec.applied_to(record)
    if record.place and (priority, run_at) == (record.priority, record.run_at):
        if json != record.json:
            # Its place in the queue is when it became ready: other data does not change that.
            unit.replace(entry, record.with_json(json))
        return
    moved = record.with_json(json)
    if record.place:
        # Its attempts and the data about its runs stay.
        moved.run_data = run_data.with_event(record.run_data, HistoryKind.ADDED, unit.now)
    else:
        moved.run_data = run_data.started_anew(record.run_data, unit.now)
    limits, trace, context = spec.limits, spec.trace or unit.trace, spec.context or unit.context
    if trace is not None or context is not None:
        of_before = b"" if wholly else moved.run_data
        before = run_data.origin_of(of_before)
        two = run_data.limits_of(of_before) if limits is None else _limit_values(limits)
        limits = run_data.limits_json(*two, trace or before[0], context or before[1])
    if limits is not None or wholly:
        moved.run_data = run_data.with_part(moved.run_data, run_data.LIMITS, limits)
    unit.replace(entry, moved.pending(unit.place_for(run_at), unit.new_seq(), priority, run_at))
    unit.happened(entry.keys, counters.ADDED)


async def refuse_mark(unit: UnitOfWork, place: Place, spec: Spec) -> None:
    """Refuse a spec with the mark in place of a secret in its data; see `type_settings.refuse_mark`."""
    assert spec.json is not None
    await type_settings.refuse_mark(unit, place[0], place[1], spec.json, spec.redaction)


def not_found(entry: Entry) -> JobNotFound:
    """Return the error for a job that does not exist."""
    return JobNotFound(f"there is no job {job_name(entry.keys.type, entry.id)}", type=entry.keys.type, id=entry.id)


def _exists(entry: Entry) -> JobExists:
    return JobExists(
        f"job {job_name(entry.keys.type, entry.id)} exists already; add it with if_exists='resubmit' or 'ignore', "
        "or under another id",
        type=entry.keys.type,
        id=entry.id,
    )


# Arguments of enqueue


class NamedHandler(Enqueueable[Any, Any]):
    """A handler that is named by its type; if this program does not have it, only the type is known.

    Args:
        type: as a program gave it.
        handlers: the known handlers, by packed type.
        redaction: declared by a handler elsewhere; None for the known handler's.
    """

    takes_keywords = True

    def __init__(
        self, type: Any, handlers: Mapping[bytes, Enqueueable[Any, Any]], redaction: Redaction | None = None
    ) -> None:
        packed = pack_type(type)
        self.type = unpacked_type(packed)
        self.name = f"type {shown(self.type)}"
        self._handler = handlers.get(packed)
        self.like_options = () if self._handler is None else self._handler.like_options
        self._redaction = redaction

    @property
    def timeout(self) -> float | None:
        """The handler's timeout, None if the handler is unknown."""
        return None if self._handler is None else self._handler.timeout

    @property
    def redaction(self) -> Redaction | None:
        """The handler's secret fields, None if the handler is unknown."""
        if self._redaction is not None:
            return self._redaction
        return None if self._handler is None else self._handler.redaction

    def data(self, args: Any) -> Any:
        """Return the data of a job, checked by the handler if it is known."""
        if args is UNSET:
            return None if self._handler is None else self._handler.data(UNSET)
        return args if self._handler is None else self._handler.checked(args)

    def whole(self, data: Any) -> Any:
        """Return a job's data, completed with defaults if the handler is known."""
        return data if self._handler is None else self._handler.whole(data)


def handler_of(handler: Any, known: Mapping[bytes, Enqueueable[Any, Any]]) -> Enqueueable[Any, Any]:
    """Return the handler to enqueue a job for.

    Args:
        handler: a handler, or the type of one.
        known: the handlers of this program, by packed type.

    Raises:
        InvalidJob: neither a handler nor a type.
    """
    if isinstance(handler, Enqueueable):
        return handler
    if isinstance(handler, str | bytes | int | tuple) and not isinstance(handler, bool):
        return NamedHandler(handler, known)
    raise InvalidJob(
        f"{shown(handler)}: {a_kind_of(handler)}; enqueue takes what @jobs.handler(type) made of a function, or a type"
    )


class WantedJob(NamedTuple):
    """One job to enqueue.

    Attributes:
        id: its name within the type.
        spec: its data and options.
        rule: for an existing job with this id.
    """

    id: JobId
    spec: Spec
    rule: EnqueueRule


def wanted(
    handler: Enqueueable[Any, Any], args: Any, arguments: Mapping[str, Any], how: How, sources: Sources
) -> WantedJob:
    """Return the job to enqueue.

    Args:
        handler: the handler that will run it.
        args: its arguments as one value; UNSET for none.
        arguments: its arguments by keyword.
        how: the options.
        sources: wall-clock time and randomness.

    Raises:
        InvalidJob: arguments that are not the handler's, or options that exclude each other.
        JobTooLarge: more than any store takes.
    """
    data = handler.data(one_value(handler, args, arguments))
    run_at = due(how.run_at, how.delay, sources)
    id = _id_of_new(handler, data, how, sources)
    spec = spec_of(handler.type, id, data, how.priority, run_at)
    spec.limits = limits_of(how.max_attempts, how.time_limit)
    spec.redaction = handler.redaction
    if how.unique_for is not None:
        spec.unique_for = check_duration("unique_for", how.unique_for) or 0.0
    return WantedJob(id, spec, rule_of(handler, how))


def _id_of_new(handler: Enqueueable[Any, Any], data: Any, how: How, sources: Sources) -> JobId:
    """Return the id of a job that is enqueued.

    Raises:
        InvalidJob: id and unique are both given.
    """
    if not is_unique(how.unique):
        named: JobId = sources.token(_RANDOM_ID_BYTES).hex() if how.id is None else how.id
        return named
    if how.id is not None:
        refused = f"id={shown(how.id)} and unique={shown(how.unique)}: give one of them"
        raise InvalidJob(refused).about(handler.type, how.id)
    return UNIQUE + unique_key(handler, data, how.unique)


def due(run_at: Any, delay: Any, sources: Sources) -> Any:
    """Return when a job is to run, given a time or a delay. Raises like `delay_of`."""
    seconds = delay_of(run_at, delay)
    return run_at if seconds is None else sources.wall_time() + seconds


def limits_of(max_attempts: Any, time_limit: Any) -> bytes | None:
    """Return a job's own limits, which replace its handler's, in the form of run data; None if it has none.

    Raises:
        InvalidJob: a number out of range.
    """
    if max_attempts is None and time_limit is None:
        return None
    most = None if max_attempts is None else exact_int(max_attempts)
    if max_attempts is not None and (most is None or not 1 <= most <= _MOST_ATTEMPTS):
        raise InvalidJob(
            f"max_attempts={shown(max_attempts)}: allowed are None and integers from 1 to {_MOST_ATTEMPTS}"
        )
    return run_data.limits_json(most, check_duration("time_limit", time_limit, _TIME_LIMITS))


# Removal: by creators, and when jobs expire


async def remove(unit: UnitOfWork, place: Place, force: bool) -> Removal:
    """Remove a job; a running one is asked to stop, unless force is set.

    Raises:
        JobNotFound: there is no such job.
        RecordDamaged: its record cannot be read, and force is not set.
    """
    try:
        entry = await unit.load(place)
    except RecordDamaged:
        if not force:
            raise
        await remove_damaged(unit, place)
        unit.take_away(place[0])
        return Removal.REMOVED
    record = entry.record
    if record is None:
        raise not_found(entry)
    if record.state is JobState.RUNNING:
        if not record.cancel or force:
            unit.take_away(entry.keys)
        if not force:
            if not record.cancel:
                unit.replace(entry, record.canceled())
            return Removal.CANCELED
    unit.remove(entry)
    return Removal.REMOVED


async def next_expiry(transaction: Snapshot, keys: TypeKeys) -> float | None:
    """Return when the next finished job expires, seconds since the epoch; None if none expires."""
    begin, end = keys.expiring + TIME_CODE, keys.expiring + TIME_CODE + AFTER
    return next_time(await transaction.get_range(begin, end, limit=1), len(keys.expiring))


async def remove_expired(unit: UnitOfWork, keys: TypeKeys, until: float, limit: int) -> int:
    """Remove finished jobs that expire by `until`, the earliest first; return their number.

    One call removes at most `limit` jobs, and no more than a transaction can hold: call again until it returns 0.
    """
    found = await unit.transaction.snapshot.get_range(
        keys.expiring, keys.expiring + pack_seconds(until) + AFTER, limit=limit
    )
    offset = len(keys.expiring) + TIME_BYTES
    entries = await unit.load_fitting(keys, [key[offset:] for key, _ in found])
    removed = 0
    for (key, _), entry in zip(found, entries, strict=False):
        record = entry.record
        # One that was resubmitted does not expire any more.
        expires = (
            None if record is None or record.state is not JobState.FINISHED else run_data.expires_at(record.run_data)
        )
        if expires is not None and expires <= until:
            unit.remove(entry)
            unit.happened(keys, EXPIRED)
            removed += 1
        else:
            # A stray entry must not stay in the way for ever.
            take_out(unit, keys, key, entry.packed_id)
    return removed


# Damage


def take_out(unit: UnitOfWork, keys: TypeKeys, index_key: bytes, packed_id: bytes | None) -> None:
    """Remove a stray index entry; set its job aside if the job's record cannot be read.

    Args:
        unit: has read the job's record, so that a concurrent change of it is a conflict.
        keys: of the type.
        index_key: of the entry.
        packed_id: of the job; None if the entry names none.
    """
    unit.transaction.clear(index_key)
    if packed_id is not None and keys.data + packed_id in unit.damaged:
        unit.set_aside(keys, packed_id, index_key)


async def unreadable(transaction: Snapshot, keyspace: Keyspace, keys: TypeKeys | None) -> Counter[bytes]:
    """Return how many jobs of each packed type are uncounted because their records cannot be read, 1,000 at most.

    Args:
        transaction, keyspace: of the jobs.
        keys: of the only type to read; None for all.
    """
    section = keyspace.sections[SET_ASIDE]
    begin = section if keys is None else keys.set_aside
    found = await transaction.get_range(begin, begin + AFTER, limit=_LOOKED_AT)
    if keys is not None:
        return Counter(keys.packed for _, lane in found if lane)
    finder = TypeFinder(keyspace)
    counted: Counter[bytes] = Counter()
    for key, lane in found:
        # A row that is damaged itself names no job.
        with contextlib.suppress(Exception):
            counted[finder.keys_of(key[len(section) :]).packed] += bool(lane)
    return +counted


async def remove_damaged(unit: UnitOfWork, place: Place) -> None:
    """Remove a job whose record cannot be read, with its entries among the first of each index.

    A remaining entry is a stray, and is removed when it is read.
    """
    keys, _, packed_id = place
    transaction = unit.transaction
    row, retrying = keys.set_aside + packed_id, keys.retrying + packed_id
    is_set_aside, is_retrying = [value is not None for value in await transaction.get_many((row, retrying))]
    found = await _entries_of(transaction.snapshot, keys, packed_id)
    for key in (row, retrying, *found):
        transaction.clear(key)
    unit.forget(place, None if is_set_aside else lane_of_damaged(keys, found[0] if found else b"", is_retrying))


async def _entries_of(reads: Snapshot, keys: TypeKeys, packed_id: bytes) -> list[bytes]:
    """Return the index entries of a job among the first of each index."""
    found: list[bytes] = []
    for section in (keys.ready, keys.scheduled, keys.activity, keys.expiring, keys.failed_head):
        for key, value in await reads.get_range(section, section + AFTER, limit=_LOOKED_AT):
            if section in (keys.activity, keys.failed_head):
                named: bytes | None = value
            elif section is keys.ready:
                named = id_of_ready(keys, key)
            else:
                named = key[len(section) + TIME_BYTES :]
            if named == packed_id:
                found.append(key)
    return found


def id_of_ready(keys: TypeKeys, key: bytes) -> bytes | None:
    """Return the packed id in a READY key; None if it cannot be parsed."""
    try:
        packed_id = key[end_of_priority(keys, key) + 1 + SEQ_BYTES :]
    except Exception:  # fdb.tuple raises many kinds of errors for bytes that are no tuple
        return None
    return packed_id if is_id(packed_id) else None
