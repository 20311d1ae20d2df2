"""A service's operations for overviews of types: counts, throughput, pages, the oldest ready job."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final, Literal, TypeAlias

from jobs_service.arguments import check_positive, to_seconds
from jobs_service.errors import InvalidJob, shown
from jobs_service.layer import activity, counters, inspection, paging, strays
from jobs_service.layer.key_parts import pack_type
from jobs_service.layer.keyspace import Keyspace, TypeKeys
from jobs_service.model import Job, JobId, JobState, JobType, RunAt
from jobs_service.model.counts import Interval, JobsPage, TypeCounts
from jobs_service.model.terms import exact_type
from jobs_service.service.reader_operations import ReaderOperations, read_job
from jobs_service.store.base import Transaction

Resolution: TypeAlias = Literal["minute", "hour"]
_Counted: TypeAlias = tuple[list[tuple[bytes, TypeCounts | None]], bytes | None]
_SECONDS: Final = {"minute": counters.MINUTE, "hour": counters.HOUR}
_Intervals: TypeAlias = list[Interval]
_Jobs: TypeAlias = list[Job]
_Found: TypeAlias = dict[bytes, tuple[JobType, TypeCounts]]
"""Types with their counts, by packed type."""
_MOST_LOOKS: Final = 8
"""Most transactions per page; each reads 2,000 rows at most."""
_TYPES_AT_ONCE: Final = 5000
"""Types per yield to the event loop while the result is built."""
_AHEAD: Final = 3600.0
"""Seconds by which the clocks of other processes may be ahead."""


class CountOperations(ReaderOperations):
    """The part of JobsService for overviews of jobs and types."""

    async def counts(self, type: JobType | None = None) -> dict[JobType, TypeCounts]:
        """Return the counts of types: jobs by state, totals and histograms.

        The cost is one read per type, independent of the number of jobs.

        Args:
            type: None for all types that exist or have jobs.

        Returns:
            The counts by type; none for a type that neither exists nor has jobs. If all types are requested, types with
            damaged counts are omitted, and logged.

        Raises:
            StoreDamaged: the counts of the single requested type cannot be read.
        """
        keyspace = self._access.keyspace
        if type is not None:
            keys = self._access.keys(type)
            counts = await self._access.read(lambda transaction: _of_type(transaction, keyspace, keys))
            return {} if counts is None else {exact_type(keys.type): counts}
        found = await self._types()
        damaged: set[bytes] = set()
        after: bytes | None = None
        while True:

            async def read(transaction: Transaction, after: bytes | None = after) -> _Counted:
                return await counters.page(transaction, keyspace, after)

            page, after = await self._access.read(read)
            for packed, counted in page:
                if counted is not None:
                    _note(found, keyspace, packed, counted)
                    continue
                damaged.add(packed)
            if after is None:
                break
        lost = await self._access.read(lambda transaction: strays.unreadable(transaction, keyspace, None))
        for packed, count in lost.items():
            before = found.get(packed)
            known = TypeCounts() if before is None else before[1]
            _note(found, keyspace, packed, replace(known, unreadable=count))
        for packed in damaged:
            found.pop(packed, None)
            if (unread := keyspace.found(packed)) is not None:
                self._context.note_damaged_counts(unread.type)
        ordered: dict[JobType, TypeCounts] = {}
        # Both were read in this order, so sorting has little to do.
        for number, packed in enumerate(sorted(found), 1):
            each, known = found[packed]
            ordered[exact_type(each)] = known
            if not number % _TYPES_AT_ONCE:
                await asyncio.sleep(0)
        return ordered

    async def _types(self) -> _Found:
        """Return the existing types, without counts yet."""
        keyspace = self._access.keyspace
        none = TypeCounts()
        found: _Found = {}
        after: bytes | None = None
        while True:

            async def read(transaction: Transaction, after: bytes | None = after) -> tuple[_Found, bytes | None]:
                page, end = await activity.types_page(transaction, keyspace, after)
                return {pack_type(type): (type, none) for type in page}, end

            page, after = await self._access.read(read)
            found |= page
            if after is None:
                return found

    async def throughput(
        self, type: JobType, *, since: RunAt, until: RunAt | None = None, resolution: Resolution = "minute"
    ) -> _Intervals:
        """Return counts of events of a type's jobs per minute or hour, the oldest first.

        Args:
            type: of the jobs.
            since: an aware datetime, or seconds since the epoch, within the first interval.
            until: a time within the last interval; None for now.
            resolution: "minute", kept for 25 hours, or "hour", kept for 35 days.

        Raises:
            InvalidJob: invalid times or an invalid resolution.
        """
        keys = self._access.keys(type)
        seconds = _SECONDS.get(resolution) if isinstance(resolution, str) else None
        if seconds is None:
            raise InvalidJob(f"resolution {shown(resolution)}: allowed are 'minute' and 'hour'")
        now = self._context.sources.wall_time()
        begin, end = to_seconds(since, "since"), to_seconds(until, "until")
        if begin is None:
            raise InvalidJob("since None: allowed are aware datetimes and seconds since the epoch")
        end = now if end is None else end
        first = max(int(max(begin, 0.0) // seconds), counters.first_kept(seconds, now))
        last = int(min(end, now + _AHEAD) // seconds)
        return await self._access.read(
            lambda transaction: counters.intervals(transaction, keys, seconds, first, max(last, first - 1))
        )

    async def page(
        self,
        type: JobType,
        *,
        state: JobState | str | None = None,
        limit: int = 100,
        after: str | None = None,
        newest_first: bool = False,
        prefix: JobId | None = None,
    ) -> JobsPage:
        """Return a page of a type's jobs, read by bounded transactions, however many jobs there are.

        Failed jobs are ordered by the time of their failure, ready jobs by the queue, scheduled jobs by their times,
        running jobs by their last heartbeat, retrying jobs by their ids: to find jobs of these states, at most retrying
        jobs are read in addition. Jobs of all other states are ordered by their ids, and jobs in other states are read
        and skipped.

        Args:
            type: of the jobs.
            state: only jobs in this state, as for `list`; None for all.
            limit: jobs per page; a page may have fewer, even none, although its `next` leads to more.
            after: `next` of the previous page with otherwise the same arguments; None to begin.
            newest_first: whether to read in reverse order: the latest failures, the highest ids.
            prefix: only jobs whose ids begin with it, a str or bytes.

        Raises:
            InvalidJob: an invalid state, number, prefix or `after`.
        """
        keys = self._access.keys(type)
        most = check_positive("limit", limit)
        terms = paging.terms(state, after, newest_first, prefix, self._context.sources.wall_time())
        jobs: list[Job] = []
        place = terms.after
        for _ in range(_MOST_LOOKS):

            async def read(
                transaction: Transaction, place: bytes | None = place, left: int = most - len(jobs)
            ) -> paging.Page:
                return await paging.page(transaction, keys, terms, place, left)

            found, place = await self._access.read(read)
            jobs += found
            if place is None or len(jobs) == most:
                break
        return JobsPage(jobs, None if place is None else paging.cursor(terms, place))

    async def oldest_ready(self, type: JobType) -> Job | None:
        """Return the job of a type that has been ready for longest; None if none is ready."""
        keys = self._access.keys(type)

        async def look(transaction: Transaction) -> Job | None:
            state = await inspection.queue_state(transaction, keys)
            return None if state.id is None else await read_job(transaction, self._access.place(type, state.id))

        return await self._access.read(look)


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
    lost = (await strays.unreadable(transaction, keyspace, keys))[keys.packed]
    timeout = await activity.timeout_if_any(transaction, keys)
    counts = replace(counts or TypeCounts(), unreadable=lost)
    return counts if timeout is not None or counts.jobs or lost else None
