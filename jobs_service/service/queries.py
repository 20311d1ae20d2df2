"""Queries: what a service reads of jobs and types, each part in a transaction of its own."""

from __future__ import annotations

import asyncio
import operator
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, TypeVar

from jobs_service.actors.context import Context, StoreAccess, parts_of
from jobs_service.arguments import check_limit, check_positive, check_state, to_seconds
from jobs_service.errors import (
    InvalidJob,
    JobNotFound,
    RecordDamaged,
    ServiceClosed,
    StoreError,
    SupervisorFailed,
    job_name,
    shown,
)
from jobs_service.layer import counters, creation, reads, running_jobs, type_settings
from jobs_service.layer.keyspace import Keyspace, Place, TypeKeys, pack_id, pack_type
from jobs_service.layer.reads import LARGEST_CHUNK, Unreadable, list_page
from jobs_service.layer.record import Record
from jobs_service.layer.transaction import COUNT_PAGE
from jobs_service.layer.type_settings import ALL_SECRET
from jobs_service.model import Job, JobEvent, JobId, JobState, JobType, RunAt
from jobs_service.model.type_state import Interval, JobsPage, QueueState, Totals, TypeCounts, TypeSettings
from jobs_service.redaction import Redaction
from jobs_service.store.base import Transaction, Watch

if TYPE_CHECKING:
    from jobs_service.service.service import JobsService

T = TypeVar("T")

Resolution: TypeAlias = Literal["minute", "hour"]
_SECONDS: Final = {"minute": counters.MINUTE, "hour": counters.HOUR}
_Found: TypeAlias = dict[bytes, tuple[JobType, TypeCounts]]
"""Types with their counts, by packed type."""
_MOST_LOOKS: Final = 8
"""Most transactions per page; each reads 2,000 rows at most."""
_QUEUES_AT_ONCE: Final = 100
"""Types whose queues are read at the same time."""
_SETTINGS_AT_ONCE: Final = 200
"""Types whose settings one transaction reads."""
_ROWS_AT_ONCE: Final = 3000
"""Rows of minutes or hours that one transaction reads: some milliseconds."""
_TYPES_AT_ONCE: Final = 5000
"""Types per yield to the event loop while the result is built."""
_AHEAD: Final = 3600.0
"""Seconds by which the clocks of other processes may be ahead."""
_TYPES_PER_LOOK: Final = 50
"""Types per transaction of a search for ids."""
_WATCH_HOLDOFF: Final = 0.02
"""Least seconds between two reads of a job while waiting for its end."""


# Types


async def types(access: StoreAccess) -> list[JobType]:
    """Return the types that exist; see JobsService.types."""
    keyspace = access.keyspace
    parts = parts_of(access.read, lambda transaction, after: type_settings.types_page(transaction, keyspace, after))
    return [type async for part in parts for type in part]


async def settings_of_types(access: StoreAccess, types: Iterable[JobType]) -> list[TypeSettings]:
    """Return the settings of types; see JobsService.type_settings."""
    keys = [access.keys(type) for type in types]
    found: list[TypeSettings] = []
    for first in range(0, len(keys), _SETTINGS_AT_ONCE):
        found += await access.read(partial(type_settings.settings_of, types=keys[first : first + _SETTINGS_AT_ONCE]))
    return found


async def queue_states(access: StoreAccess, types: Iterable[JobType]) -> list[QueueState]:
    """Return the states of types' queues; see JobsService.queue_states."""
    keys = [access.keys(type) for type in types]
    found: list[QueueState] = []
    for first in range(0, len(keys), _QUEUES_AT_ONCE):
        part = keys[first : first + _QUEUES_AT_ONCE]
        found += await asyncio.gather(*(access.read(partial(reads.queue_state, keys=each)) for each in part))
    return found


async def rules(access: StoreAccess) -> dict[JobType, Redaction]:
    """Return the types with secret fields; see JobsService.redactions."""
    keyspace = access.keyspace
    parts = parts_of(
        access.read, lambda transaction, after: type_settings.redactions_page(transaction, keyspace, after)
    )
    return {type: found async for part in parts for type, found in part}


async def last_ticks(access: StoreAccess) -> dict[JobType, float]:
    """Return the time of each periodic type's last tick; see JobsService.last_ticks."""
    keyspace = access.keyspace
    return dict(await access.read(lambda transaction: reads.last_ticks(transaction, keyspace)))


# Counts


async def counts(access: StoreAccess, type: JobType | None) -> dict[JobType, TypeCounts]:
    """Return the counts of types, of all of them if `type` is None; see JobsService.counts."""
    keyspace = access.keyspace
    if type is not None:
        keys = access.keys(type)
        found = await access.read(lambda transaction: _of_type(transaction, keyspace, keys))
        return {} if found is None else {keys.type: found}
    none = TypeCounts()
    counted: _Found = {pack_type(type): (type, none) for type in await types(access)}
    async for part in parts_of(access.read, lambda transaction, after: counters.page(transaction, keyspace, after)):
        for packed, each in part:
            _note(counted, keyspace, packed, each)
    lost = await access.read(lambda transaction: creation.unreadable(transaction, keyspace, None))
    for packed, count in lost.items():
        known = counted[packed][1] if packed in counted else none
        _note(counted, keyspace, packed, replace(known, unreadable=count))
    ordered: dict[JobType, TypeCounts] = {}
    # Both were read in this order, so sorting has little to do.
    for number, packed in enumerate(sorted(counted), 1):
        each_type, ordered_counts = counted[packed]
        ordered[each_type] = ordered_counts
        if not number % _TYPES_AT_ONCE:
            await asyncio.sleep(0)
    return ordered


def _note(found: _Found, keyspace: Keyspace, packed: bytes, counts: TypeCounts) -> None:
    """Store the counts of a type that exists, or has jobs."""
    there = found.get(packed)
    if there is not None:
        found[packed] = there[0], counts
    elif (counts.jobs or counts.unreadable) and (keys := keyspace.found(packed)) is not None:
        found[packed] = keys.type, counts


async def _of_type(transaction: Transaction, keyspace: Keyspace, keys: TypeKeys) -> TypeCounts | None:
    """Return the counts of a type; None if it neither exists nor has jobs."""
    [counts] = await counters.of_types(transaction, [keys])
    lost = (await creation.unreadable(transaction, keyspace, keys))[keys.packed]
    timeout = await type_settings.timeout_if_any(transaction, keys)
    counts = replace(counts or TypeCounts(), unreadable=lost)
    return counts if timeout is not None or counts.jobs or lost else None


async def throughput(
    access: StoreAccess, type: JobType, since: RunAt, until: RunAt | None, resolution: Resolution, now: float
) -> list[Interval]:
    """Return counts of events of a type's jobs per minute or hour; see JobsService.throughput."""
    keys = access.keys(type)
    seconds = _SECONDS.get(resolution) if isinstance(resolution, str) else None
    if seconds is None:
        raise InvalidJob(f"resolution {shown(resolution)}: allowed are 'minute' and 'hour'")
    begin, end = to_seconds(since, "since"), to_seconds(until, "until")
    if begin is None:
        raise InvalidJob("since None: allowed are aware datetimes and seconds since the epoch")
    end = now if end is None else end
    first = max(int(max(begin, 0.0) // seconds), counters.first_kept(seconds, now))
    last = int(min(end, now + _AHEAD) // seconds)
    return await access.read(
        lambda transaction: counters.intervals(transaction, keys, seconds, first, max(last, first - 1))
    )


async def columns(
    access: StoreAccess,
    types: Sequence[JobType],
    resolution: Resolution,
    first: int,
    last: int,
    size: int = 1,
    *,
    times: bool = True,
) -> list[tuple[list[Interval], Interval]]:
    """Return the counts of events of each of these types, `size` minutes or hours together, and all of them.

    Args:
        access: of the service.
        types: of the jobs.
        resolution: the interval of the counters.
        first, last: numbers of minutes or hours since the epoch.
        size: of them that are summed.
        times: whether the parts need their histograms.
    """
    seconds, found = _SECONDS[resolution], list[tuple[list[Interval], Interval]]()
    read = partial(counters.sums, seconds=seconds, first=first, last=last, size=size)
    numbers = range(first, last + 1, size)
    for part in _of_rows(access, types, last - first + 1):
        for sums in await access.read(partial(read, types=part)):
            parts = [
                counters.summed(at, seconds, total, size, times=times) for at, total in zip(numbers, sums, strict=True)
            ]
            found.append((parts, counters.summed(first, seconds, sum(sums), last - first + 1)))
    return found


async def together(
    access: StoreAccess, types: Sequence[JobType], resolution: Resolution, first: int, last: int
) -> list[Interval]:
    """Return the counts of events of all of these types together, with as much time for others as it takes itself.

    Arguments as for `columns`.
    """
    seconds, found = _SECONDS[resolution], [0] * (last - first + 1)
    read = partial(counters.sums, seconds=seconds, first=first, last=last)
    for part in _of_rows(access, types, last - first + 1):
        began = time.monotonic()
        for sums in await access.read(partial(read, types=part)):
            found = [*map(operator.add, found, sums)]
        await asyncio.sleep(time.monotonic() - began)
    return [counters.summed(first + place, seconds, each) for place, each in enumerate(found)]


async def totals(
    access: StoreAccess, types: Sequence[JobType], resolution: Resolution, first: int, last: int
) -> list[list[Totals]]:
    """Return each type's numbers of events by minute or hour, without times; arguments as for `columns`."""
    read, found = partial(counters.totals, seconds=_SECONDS[resolution], first=first, last=last), list[list[Totals]]()
    for part in _of_rows(access, types, last - first + 1):
        found += await access.read(partial(read, types=part))
    return found


def _of_rows(access: StoreAccess, types: Sequence[JobType], rows: int) -> Iterator[list[TypeKeys]]:
    """Yield some types at a time, so that one transaction reads a bounded number of rows."""
    size = max(_ROWS_AT_ONCE // rows, 1)
    for at in range(0, len(types), size):
        yield [access.keys(type) for type in types[at : at + size]]


async def pending_count(access: StoreAccess, type: JobType, due_by: RunAt | None, limit: int | None) -> int:
    """Return how many jobs of a type are pending; see JobsService.pending_count."""
    keys = access.keys(type)
    seconds = to_seconds(due_by, "due_by")
    most = check_limit(limit)
    if most is None and seconds is None:
        [found] = await access.read(lambda transaction: counters.of_types(transaction, [keys]))
        return 0 if found is None else found.pending
    if most == 0:
        return 0
    page = COUNT_PAGE if most is None else min(COUNT_PAGE, most)
    counted = 0
    read = partial(reads.count, keys=keys, due_by=seconds, limit=page)
    async with aclosing(parts_of(access.read, lambda transaction, after: read(transaction, after=after))) as parts:
        async for count in parts:
            counted += count
            if most is not None and counted >= most:
                break
    return counted if most is None else min(counted, most)


# Jobs


async def read_job(transaction: Transaction, place: Place) -> Job:
    """Return a job.

    Raises:
        JobNotFound: there is no job at this place.
        RecordDamaged: its record cannot be read.
    """
    keys, id, packed_id = place
    raw = await transaction.get(keys.data + packed_id)
    if raw is None:
        raise JobNotFound(f"there is no job {job_name(keys.type, id)}", type=keys.type, id=id)
    return _job_of(place, raw)


async def jobs(access: StoreAccess, type: JobType, ids: Sequence[JobId]) -> list[Job | None]:
    """Return jobs as they are now, None for a missing one.

    Each transaction reads LARGEST_CHUNK jobs at most, because records may be large.

    Raises:
        RecordDamaged: a record cannot be read.
    """
    places = [access.place(type, id) for id in ids]

    async def read(transaction: Transaction, some: Sequence[Place]) -> list[Job | None]:
        raws = await transaction.get_many([keys.data + packed_id for keys, _, packed_id in some])
        return [None if raw is None else _job_of(place, raw) for place, raw in zip(some, raws, strict=True)]

    found: list[Job | None] = []
    for first in range(0, len(places), LARGEST_CHUNK):
        found += await access.read(partial(read, some=places[first : first + LARGEST_CHUNK]))
    return found


def _job_of(place: Place, raw: bytes) -> Job:
    keys, id, _ = place
    try:
        return Job(keys.type, id, Record.decode(raw, True))
    except RecordDamaged as error:
        raise error.of(keys.type, id) from None


def size_of(job: Job) -> int:
    """Return the bytes of a job's record."""
    return job._record.size()


def begins_with(prefix: JobId) -> Callable[[JobId], bool]:
    """Return a test of ids: whether one begins with a prefix. Raises InvalidJob if the prefix can begin no id."""
    begin = pack_id(prefix)[:-1]
    return lambda id: pack_id(id).startswith(begin)


async def until_not_running(access: StoreAccess, context: Context, type: JobType, id: JobId) -> None:
    """Wait until a job does not run, or is gone.

    Reads it again at each change of its type's activity stamp, which works without a supervisor tree.
    """
    place = access.place(type, id)

    async def read(transaction: Transaction) -> tuple[bool, Watch]:
        watch = transaction.watch(place[0].watch_activity)
        try:
            job = await read_job(transaction, place)
        except JobNotFound:
            return False, watch
        return job.state is JobState.RUNNING, watch

    reading = partial(access.read, read)
    while True:
        running, watch = await context.retried(reading, type=type, id=id)
        try:
            if not running:
                return
            with suppress(StoreError):  # a watch that was lost: read again
                await access.until_fired(watch)
            access.check_open()
        finally:
            watch.cancel()
        await asyncio.sleep(_WATCH_HOLDOFF)


async def listed(
    access: StoreAccess, context: Context, type: JobType | None, state: JobState | str | None, page_size: int
) -> AsyncGenerator[Job, None]:
    """Yield any number of jobs in key order; see JobsService.list."""
    keys = None if type is None else access.keys(type)
    wanted = check_state(state, context.sources.wall_time())
    size = check_positive("page_size", page_size)
    keyspace = access.keyspace

    async def read(transaction: Transaction, after: bytes | None) -> tuple[Sequence[tuple[bytes, Job]], bytes | None]:
        return await list_page(transaction, keyspace, keys, after, size)

    async with aclosing(parts_of(access.read, read)) as parts:
        async for part in parts:
            for _, job in part:
                if wanted is None or wanted(job):
                    yield job


async def active_ids(access: StoreAccess, type: JobType) -> list[JobId]:
    """Return the ids of the type's running jobs, the longest silent first."""
    keys = access.keys(type)

    async def read(transaction: Transaction, after: bytes | None) -> tuple[list[JobId], bytes | None]:
        page = await running_jobs.active_ids(transaction, keys, after, COUNT_PAGE)
        return [id for _, id in page], page[-1][0] if len(page) == COUNT_PAGE else None

    ids = [id async for part in parts_of(access.read, read) for id in part]
    # A heartbeat moves an entry towards the end. If one came between two pages, the job was read twice: the later
    # position counts.
    return [*dict.fromkeys(reversed(ids))][::-1]


async def page(
    access: StoreAccess,
    type: JobType,
    state: JobState | str | None,
    limit: int,
    after: str | None,
    newest_first: bool,
    prefix: JobId | None,
    by_time: bool,
    now: float,
) -> JobsPage:
    """Return a page of a type's jobs; see JobsService.page."""
    keys = access.keys(type)
    most = check_positive("limit", limit)
    terms = reads.terms(state, after, newest_first, prefix, now, by_time)
    jobs: list[Job] = []
    place = terms.after
    for _ in range(_MOST_LOOKS):
        found, place = await access.read(
            partial(reads.page, keys=keys, terms=terms, after=place, most=most - len(jobs))
        )
        jobs += found
        if place is None or len(jobs) == most:
            break
    return JobsPage(jobs, None if place is None else reads.cursor(terms, place))


async def oldest_ready(access: StoreAccess, type: JobType) -> Job | None:
    """Return the job of a type that has been ready for longest; None if none is ready."""
    keys = access.keys(type)

    async def read(transaction: Transaction) -> Job | None:
        state = await reads.queue_state(transaction, keys)
        return None if state.id is None else await read_job(transaction, access.place(type, state.id))

    return await access.read(read)


# Jobs as they may be shown


async def redactor(jobs: Iterable[Job], rules_of: Callable[[JobType], Awaitable[Redaction]]) -> Callable[[Job], Job]:
    """Return a function that leaves the secret fields out of each of these jobs.

    Args:
        jobs: of any types. Rules are read after the jobs: they include the rules at the time when each job was added.
        rules_of: reads the rules of a type; called once per type.
    """
    rules = {type: await rules_of(type) for type in dict.fromkeys(job.type for job in jobs)}
    return lambda job: rules[job.type].job(job)


async def rules_of_changed(service: JobsService, type: JobType) -> Redaction:
    """Return the redaction rules for a job that was just changed; ALL_SECRET if they cannot be read now.

    The change is done, so the client must get a success, even if store or service have failed since.

    Args:
        service: that changed the job.
        type: of the job.
    """
    try:
        return await service.get_redaction(type)
    except (StoreError, ServiceClosed, SupervisorFailed):
        return ALL_SECRET


def unreadable(job: Job | JobEvent, error: RecordDamaged) -> Job:
    """Return a stand-in for a job with a damaged part: its state is "unreadable", and its error says why."""
    return Job(job.type, job.id, Unreadable(error))


async def beginning_with(
    access: StoreAccess, types: Sequence[JobType], prefix: JobId, most: int, seconds: float
) -> tuple[list[tuple[JobType, JobId]], int]:
    """Return jobs whose ids begin with a prefix, by type.

    Args:
        access: of the service.
        types: to look at, in this order.
        prefix: of the ids.
        most: jobs in all, and per type a quarter of them.
        seconds: after which no further types are looked at.

    Returns:
        The jobs, and the number of types that were looked at.

    Raises:
        InvalidJob: the prefix can begin no id.
    """
    begins, until = pack_id(prefix)[:-1], time.monotonic() + seconds
    found: list[tuple[JobType, JobId]] = []
    looked_at = 0
    for first in range(0, len(types), _TYPES_PER_LOOK):
        part = [access.keys(type) for type in types[first : first + _TYPES_PER_LOOK]]
        found += await access.read(partial(reads.beginning_with, types=part, prefix=begins, most=max(most // 4, 1)))
        looked_at += len(part)
        if len(found) >= most or time.monotonic() > until:
            break
    return found[:most], looked_at
