"""What a service offers to those who look at types: counts, throughput, pages of jobs, the oldest ready job."""

from __future__ import annotations

import base64
from typing import Any, Final, Literal, TypeAlias

from jobs_service.actors.context import Context
from jobs_service.arguments import check_positive, check_state, member, to_seconds
from jobs_service.errors import InvalidJob, RecordDamaged, a_kind_of, shown
from jobs_service.layer import activity, inspection
from jobs_service.layer.key_parts import pack_id
from jobs_service.model import Job, JobId, JobState, JobType, Outcome, RunAt
from jobs_service.model.counts import Histogram, Interval, JobsPage, Totals, TypeCounts, bucket_of
from jobs_service.run_values import HistoryEvent, HistoryKind
from jobs_service.service.reader_operations import read_job
from jobs_service.service.store_access import StoreAccess
from jobs_service.status import Status, status_of
from jobs_service.store.base import Transaction

Resolution: TypeAlias = Literal["minute", "hour"]
SECONDS: Final = {"minute": 60, "hour": 3600}
KEPT: Final = {"minute": 25 * 3600, "hour": 35 * 86_400}
"""Seconds for which intervals are kept."""
_MOST_INTERVALS: Final = 10_000


class CountOperations:
    """The part of JobsService for those who look at types."""

    _access: StoreAccess
    _context: Context

    async def counts(self, type: JobType | None = None) -> dict[JobType, TypeCounts]:
        """Return what is counted of types: how many jobs are in which state, totals and histograms.

        It costs a read per type, however many jobs there are.

        Args:
            type: None for all types that exist or have jobs.

        Returns:
            The counts by type; nothing for a type that neither exists nor has, or had, jobs.
        """
        wanted = [] if type is not None else await self._access.read(self._types)
        if type is not None:
            keys = self._access.keys(type)
            if await self._access.read(lambda transaction: activity.timeout_if_any(transaction, keys)) is not None:
                wanted = [type]
        found: dict[JobType, list[Job]] = {each: [] for each in wanted}
        async for job in self.list(type):  # type: ignore[attr-defined]
            found.setdefault(job.type, []).append(job)
        now = self._context.sources.wall_time()
        return {each: _counted(jobs, now) for each, jobs in found.items()}

    async def _types(self, transaction: Transaction) -> list[JobType]:
        return await activity.types(transaction, self._access.keyspace)

    async def throughput(
        self, type: JobType, *, since: RunAt, until: RunAt | None = None, resolution: Resolution = "minute"
    ) -> list[Interval]:
        """Return what happened to jobs of a type, minute by minute or hour by hour, the oldest first.

        Args:
            type: of the jobs.
            since: an aware datetime, or seconds since the epoch; the interval in which it lies is the first one.
            until: that in which it lies is the last one; None for now.
            resolution: "minute", of which 25 hours are kept, or "hour", of which 35 days are.

        Raises:
            InvalidJob: times or a resolution that cannot be.
        """
        keys = self._access.keys(type)
        seconds = SECONDS.get(resolution) if isinstance(resolution, str) else None
        if seconds is None:
            raise InvalidJob(f"resolution {shown(resolution)}: allowed are 'minute' and 'hour'")
        now = self._context.sources.wall_time()
        begin, end = to_seconds(since, "since"), to_seconds(until, "until")
        if begin is None:
            raise InvalidJob("since None: allowed are aware datetimes and seconds since the epoch")
        end = now if end is None else end
        first = int(max(begin, now - KEPT[resolution]) // seconds)
        numbers = range(first, int(min(end, now + KEPT[resolution]) // seconds) + 1)
        events: dict[int, list[_Event]] = {number: [] for number in numbers}
        async for job in self.list(keys.type):  # type: ignore[attr-defined]
            for event in _events(job):
                if (number := int(event[1] // seconds)) in events:
                    events[number].append(event)
        return [Interval(float(number * seconds), float(seconds), *_summed(events[number])) for number in numbers]

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
        """Return some jobs of a type: a page, which bounded transactions read, however many jobs there are.

        Failed jobs are in the order in which they failed, ready ones in that of the queue, scheduled ones in that of
        their times, running ones in that of their last signs of life: these are found without reading any others. All
        others are in the order of their ids, and those in other states are read and left out.

        Args:
            type: of the jobs.
            state: only jobs in this state, as for `list`; None for all.
            limit: jobs of a page, 1,000 at most.
            after: `next` of the page before, with the same arguments otherwise; None to begin.
            newest_first: from the other end: the latest failures, the highest ids.
            prefix: only jobs whose ids begin so, a str or bytes.

        Raises:
            InvalidJob: a state, a number, a prefix or an `after` that cannot be.
        """
        keys = self._access.keys(type)
        wanted = check_state(state, self._context.sources.wall_time())
        most = check_positive("limit", limit)
        begins = None if prefix is None else pack_id(prefix)[:-1]
        jobs: list[tuple[bytes, Job]] = []
        async for job in self.list(keys.type):  # type: ignore[attr-defined]
            packed = pack_id(job.id)
            if (wanted is None or wanted(job)) and (begins is None or packed.startswith(begins)):
                jobs.append((job.seq or b"" if member(Status, state) is Status.FAILED else packed, job))
        jobs.sort(key=lambda item: item[0], reverse=bool(newest_first))
        if after is not None:
            place = _decoded(after)
            jobs = [item for item in jobs if (item[0] < place if newest_first else item[0] > place)]
        return JobsPage([job for _, job in jobs[:most]], _encoded(jobs[most - 1][0]) if len(jobs) > most else None)

    async def oldest_ready(self, type: JobType) -> Job | None:
        """Return the job of a type that has been ready for longest; None when none is ready."""
        keys = self._access.keys(type)

        async def look(transaction: Transaction) -> Job | None:
            state = await inspection.queue_state(transaction, keys)
            return None if state.id is None else await read_job(transaction, self._access.place(type, state.id))

        return await self._access.read(look)


_Event: TypeAlias = tuple[str, float, float | None]
"""A field of Totals, when, and how long the job has waited for it or has run; None where nobody knows."""


def _events(job: Job) -> list[_Event]:
    try:
        history = job.history[::-1]
    except RecordDamaged:
        return []
    found: list[_Event] = []
    before: HistoryEvent | None = None
    for event in history:
        lasted = None if before is None else max(event.at - before.at, 0.0)
        kind = event.kind
        if kind is HistoryKind.STARTED:
            found.append(("started", event.at, lasted))
        elif kind is HistoryKind.FINISHED:
            outcome = "failed" if job.outcome is Outcome.FAILED else "succeeded"
            found.append((outcome, event.at, lasted if before and before.kind is HistoryKind.STARTED else None))
        elif kind is HistoryKind.CANCELED:
            found.append(("canceled", event.at, lasted if before and before.kind is HistoryKind.STARTED else None))
        else:
            name = "released" if kind is HistoryKind.STOPPED else str(kind)
            found.append((name, event.at, lasted if kind is not HistoryKind.ADDED else None))
        before = event
    return found


def _summed(events: list[_Event]) -> tuple[Totals, Histogram, Histogram]:
    names = [name for name, _, _ in events]
    totals = Totals(**{name: names.count(name) for name in set(names)})
    waited = [lasted for name, _, lasted in events if name == "started" and lasted is not None]
    ran = [lasted for name, _, lasted in events if name not in ("started", "added") and lasted is not None]
    return totals, _histogram(waited), _histogram(ran)


def _histogram(times: list[float]) -> Histogram:
    buckets = [bucket_of(time) for time in times]
    return Histogram(tuple(buckets.count(k) for k in range(len(Histogram().counts))), sum(times))


def _counted(jobs: list[Job], now: float) -> TypeCounts:
    states = [str(status_of(job, now)) for job in jobs]
    fields: dict[str, Any] = {str(each): states.count(each) for each in Status if each is not Status.UNREADABLE}
    totals, waited, ran = _summed([event for job in jobs for event in _events(job)])
    return TypeCounts(**fields, totals=totals, waited=waited, ran=ran)


def _encoded(place: bytes) -> str:
    return base64.urlsafe_b64encode(place).decode().rstrip("=")


def _decoded(after: Any) -> bytes:
    try:
        return base64.b64decode(after + "=" * (-len(after) % 4), b"-_", validate=True)
    except (TypeError, ValueError):
        raise InvalidJob(f"after {shown(after)}: {a_kind_of(after)}; allowed is what `next` of a page has") from None
