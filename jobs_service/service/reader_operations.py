"""A service's operations for readers of jobs: get, list, count, statistics."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import TypeAlias

from jobs_service.actors.context import Context
from jobs_service.arguments import check_limit, check_page_size, check_state, to_seconds
from jobs_service.errors import JobNotFound, RecordDamaged, job_name
from jobs_service.layer import activity, counters, queue_counts
from jobs_service.layer.listing import JobPage, list_page
from jobs_service.layer.record import Record
from jobs_service.layer.transaction import COUNT_PAGE
from jobs_service.layer.unit_of_work import Place
from jobs_service.model import Job, JobId, JobState, JobType, RunAt
from jobs_service.service.store_access import StoreAccess
from jobs_service.store.base import Transaction

# Inside a class that has a method `list`, the builtin goes by these names.
_Ids: TypeAlias = list[JobId]
_IdPage: TypeAlias = list[tuple[bytes, JobId]]


class ReaderOperations:
    """The part of JobsService for readers of jobs."""

    _access: StoreAccess
    _context: Context

    async def get(self, type: JobType, id: JobId) -> Job:
        """Return a job.

        Raises:
            JobNotFound: there is no such job.
            RecordDamaged: its record cannot be read.
        """
        place = self._access.place(type, id)

        async def load(transaction: Transaction) -> Job:
            return await read_job(transaction, place)

        return await self._access.read(load)

    async def list(
        self, type: JobType | None = None, *, state: JobState | str | None = None, page_size: int = 1000
    ) -> AsyncGenerator[Job, None]:
        """Yield any number of jobs in key order; each page is read in a transaction of its own.

        A job whose record cannot be read is in the state "unreadable"; its error says why.

        Args:
            type: of the jobs; None for all types.
            state: only jobs in this state: a JobState, or a state for people: "ready", "scheduled", "retrying",
                "running", "succeeded", "failed" or "canceled". Jobs in other states are read and skipped.
            page_size: jobs read per transaction at most; fewer where they are large.
        """
        keys = None if type is None else self._access.keys(type)
        wanted = check_state(state, self._context.sources.wall_time())
        size = check_page_size(page_size)
        keyspace = self._access.keyspace
        limits = self._context.store.limits
        after: bytes | None = None
        while True:

            async def read(transaction: Transaction, after: bytes | None = after) -> JobPage:
                return await list_page(transaction, keyspace, keys, after, size, limits)

            page, after = await self._access.read(read)
            for _, job in page:
                if wanted is None or wanted(job):
                    yield job
            if after is None:
                return

    async def active_ids(self, type: JobType) -> _Ids:
        """Return the ids of the type's running jobs, the longest silent first."""
        keys = self._access.keys(type)
        ids: _Ids = []
        after: bytes | None = None
        while True:

            async def read(transaction: Transaction, after: bytes | None = after) -> _IdPage:
                return await activity.active_ids(transaction, keys, after, COUNT_PAGE)

            page = await self._access.read(read)
            ids += [id for _, id in page]
            if len(page) < COUNT_PAGE:
                # A heartbeat moves an entry towards the end. If one came between two pages, the job was read twice:
                # the later position counts.
                return [*dict.fromkeys(reversed(ids))][::-1]
            after = page[-1][0]

    async def pending_count(self, type: JobType, *, due_by: RunAt | None = None, limit: int | None = None) -> int:
        """Return how many jobs of the type are pending.

        Without a bound this reads the type's counters; otherwise it counts jobs in the queue, 10,000 per transaction.
        Jobs that move between two transactions may be counted twice, or not at all.

        Args:
            type: of the jobs.
            due_by: only jobs due by then (an aware datetime or seconds since the epoch); None for all.
            limit: the number at which counting stops; None to count all.
        """
        keys = self._access.keys(type)
        seconds = to_seconds(due_by, "due_by")
        most = check_limit(limit)
        if most is None and seconds is None:
            [counts] = await self._access.read(lambda transaction: counters.of_types(transaction, [keys]))
            return 0 if counts is None else counts.pending
        counted = 0
        after: bytes | None = None
        while most is None or counted < most:
            page = COUNT_PAGE if most is None else min(COUNT_PAGE, most)

            async def read(
                transaction: Transaction, page: int = page, after: bytes | None = after
            ) -> tuple[int, bytes | None]:
                return await queue_counts.count(transaction, keys, seconds, page, after)

            found, after = await self._access.read(read)
            counted += found
            if after is None:
                break
        return counted if most is None else min(counted, most)


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


async def read_jobs(transaction: Transaction, places: Sequence[Place]) -> list[Job | None]:
    """Return jobs, None for a missing one; at most LARGEST_CHUNK, because records may be large.

    Raises:
        RecordDamaged: a record cannot be read.
    """
    raws = await transaction.get_many([keys.data + packed_id for keys, _, packed_id in places])
    return [None if raw is None else _job_of(place, raw) for place, raw in zip(places, raws, strict=True)]


def _job_of(place: Place, raw: bytes) -> Job:
    keys, id, _ = place
    try:
        return Job(keys.type, id, Record.decode(raw, True))
    except RecordDamaged as error:
        raise error.of(keys.type, id) from None
