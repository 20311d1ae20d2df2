"""The ticker of one periodic handler: an actor that adds one job per tick, however many processes run it.

The last tick is in the store. The transaction that adds a tick's job reads and writes it, so only one of several
processes succeeds. The schedules that are made at runtime (`stored_schedules`) tick in the same way.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, cast

import fdb.tuple

from jobs_service.actors.context import log
from jobs_service.errors import AccessDenied, JobTooLarge, NoTypeTimeout, RecordDamaged, StoreError, TransactionTooLarge
from jobs_service.layer import creation, running_jobs
from jobs_service.layer.batch_bounds import Batch, Pace, too_much_for
from jobs_service.layer.keyspace import PERIODIC, place_of
from jobs_service.layer.reads import tick_of
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model import UNSET, JobId, JobState, JobType
from jobs_service.model.enqueueing import Enqueueable
from jobs_service.runner.handler import Handler
from jobs_service.runner.run import ServiceAccess
from jobs_service.runner.schedule import MOST_MADE_UP, Missed, Schedule, due_ticks, in_words, last_tick, made_up_since
from jobs_service.sources import MOST_AHEAD
from jobs_service.store.base import Watch
from jobs_service.supervision import Actor

_CLOCK_CHECK: Final = 30.0
"""Most seconds between two reads of the wall clock, which may have jumped."""

_HOLDOFF: Final = 0.05
"""Least seconds to wait: with less, rounding could make the ticker read the store in vain, just before the tick."""


@dataclass(frozen=True, slots=True)
class Periodic:
    """A handler whose jobs are added by schedule.

    Attributes:
        handler: the handler of the jobs.
        schedule: the schedule of the jobs.
        missed: the treatment of ticks at which no process ran.
        overlap: whether a tick's job is added before the previous tick's job has finished.
        prefix: of the ids of its jobs, before the time of the tick.
    """

    handler: Handler[Any, Any]
    schedule: Schedule
    missed: Missed
    overlap: bool = False
    prefix: str = ""

    @property
    def in_words(self) -> str:
        """The schedule in words: `every 1h30m`, or a cron expression and its time zone."""
        return in_words(self.schedule)

    def last_tick(self, noted: float | None) -> float | None:
        """Return the last tick; see `schedule.last_tick`."""
        return last_tick(self.schedule, noted)

    def id_of(self, tick: float) -> str | None:
        """Return the id of a tick's job; None for a time outside the calendar."""
        try:
            return self.prefix + tick_id(tick)
        except (ValueError, OverflowError, OSError):
            return None

    async def add(self, unit: UnitOfWork, most: int, seen: float | None) -> AddedTicks:
        """Add the jobs of the due ticks; see `add_due`."""
        return await add_due(unit, self, most, seen)

    async def noted(self, unit: UnitOfWork) -> float | None:
        """Return the last tick in the store; None if there is none."""
        return tick_of(await unit.transaction.get(self._key(unit)))

    def note(self, unit: UnitOfWork, tick: float) -> None:
        """Store the last tick."""
        unit.transaction.set(self._key(unit), fdb.tuple.pack((tick,)))

    def _key(self, unit: UnitOfWork) -> bytes:
        return unit.keyspace.sections[PERIODIC] + unit.keyspace.of(self.handler.type).packed


def elsewhere(type: JobType, timeout: float | None, data: Any) -> Handler[Any, Any]:
    """Return a handler of other processes, as far as its ticks need it.

    Args:
        type, data: of its jobs.
        timeout: for making the type, in seconds; None for a type that must exist.
    """
    return cast("Handler[Any, Any]", _Elsewhere(type, timeout, data))


class _Elsewhere(Enqueueable[Any, Any]):
    def __init__(self, type: JobType, timeout: float | None, data: Any) -> None:
        self.type = type
        self._timeout = timeout
        self._data = data

    @property
    def timeout(self) -> float | None:
        return self._timeout

    def data(self, args: Any) -> Any:
        return self._data


class Ticker(Actor):
    """Adds the jobs of one periodic handler, independently of other tickers.

    Args:
        service: the service in which the runner runs.
        periodic: the handler.
    """

    def __init__(self, service: ServiceAccess, periodic: Periodic) -> None:
        super().__init__(f"ticker {service.keys(periodic.handler.type).name}")
        self._service = service
        self._periodic = periodic
        self._seen: float | None = None
        self._ahead: float | None = None
        self._pace = Pace(Batch(MOST_MADE_UP, service.batch.bytes))

    async def run(self) -> None:
        while True:
            next_tick, watch = await self.tick()
            wait = next_tick - self._service.sources.wall_time()
            await _fired(watch, min(max(wait, _HOLDOFF), _CLOCK_CHECK))

    async def tick(self) -> tuple[float, Watch | None]:
        """Add the due jobs.

        Returns:
            The time of the next tick, seconds since the epoch; and, if ticks have an obstacle, a watch on it.
        """
        periodic, type = self._periodic, self._periodic.handler.type
        try:
            done = await self._pace.fitting(self._add_due)
        except (AccessDenied, NoTypeTimeout, RecordDamaged, JobTooLarge, TransactionTooLarge) as error:
            # The type was removed since its handler started, or the tick's job exists and cannot be read, or it is
            # larger than the store takes; or a token does not allow to add jobs. The ticker goes on with the next tick.
            log.warning("tick_refused", type=type, error=str(error))
            return periodic.schedule.next_after(self._service.sources.wall_time()), None
        self._tell(done)
        if done.in_the_way is not None:
            watch = await self._watch(done.in_the_way)
            # A job that waits for another attempt gives way to the next tick, so that is not to be slept through.
            return (periodic.schedule.next_after(done.now) if watch is not None else done.now), watch
        # With Missed.ALL there may be more ticks between the last one and now; otherwise those are dropped.
        return periodic.schedule.next_after(
            done.last if periodic.missed is Missed.ALL else max(done.last, done.now)
        ), None

    def _tell(self, done: AddedTicks) -> None:
        """Log the added jobs, and remember the last tick."""
        type = self._periodic.handler.type
        if done.ahead is not None and done.ahead != self._ahead:
            log.warning("tick_ahead", type=type, last=self._periodic.id_of(done.ahead) or done.ahead, most=MOST_AHEAD)
        if done.given_up is not None:
            log.warning("retry_given_up", type=type, id=done.given_up, ids=done.ids)
        if done.ids:
            log.debug("ticked", type=type, ids=done.ids)
        if done.dropped:
            log.warning("ticks_dropped", type=type, until=self._periodic.id_of(done.dropped), kept=MOST_MADE_UP)
        self._seen, self._ahead = done.last, done.ahead

    async def _add_due(self, most: int) -> AddedTicks:
        return await self._service.retried(
            lambda: self._service.tick(self._periodic, most, self._seen),
            unless=too_much_for(most),
            type=self._periodic.handler.type,
        )

    async def _watch(self, key: bytes) -> Watch | None:
        """Return a watch on the obstacle to ticks; None if it is gone."""
        periodic = self._periodic
        return await self._service.retried(lambda: self._service.watch_tick(periodic, key), type=periodic.handler.type)


async def _fired(watch: Watch | None, seconds: float) -> None:
    """Wait until a watch, if there is one, has fired or was lost, at most so many seconds."""
    if watch is None:
        await asyncio.sleep(seconds)
        return
    try:
        with contextlib.suppress(TimeoutError, StoreError):  # after the loss of a watch, read again
            async with asyncio.timeout(seconds):
                await watch.wait()
        # The watch also fires for the job's heartbeats, which are no reason to read again at once.
        await asyncio.sleep(_HOLDOFF)
    finally:
        watch.cancel()


class AddedTicks(NamedTuple):
    """The result of `add_due`; times are seconds since the epoch.

    Attributes:
        ids: ids of the added jobs.
        last: the last tick; the time of the first call if there was none yet.
        now: the present time.
        in_the_way: the key of the obstacle to ticks: a job that has not finished, or a pause.
        dropped: the newest of the missed ticks that were given up because there were too many.
        given_up: the job that waited for another attempt, and was replaced by a tick.
        ahead: the last tick in the store, if it lies so far ahead that it does not count.
    """

    ids: list[JobId]
    last: float
    now: float
    in_the_way: bytes | None = None
    dropped: float | None = None
    given_up: JobId | None = None
    ahead: float | None = None


async def add_due(unit: UnitOfWork, periodic: Periodic, most: int, seen: float | None) -> AddedTicks:
    """Add the jobs of the due ticks, as many as a transaction can hold, and store the last of them.

    Nothing is added while the type is paused; nor, unless jobs may overlap, before the last job has finished. Ticks of
    that time count as missed. A last tick that lies too far ahead, because of a wrong clock, is forgotten.

    Args:
        unit: the unit of the transaction.
        periodic: the handler and its schedule.
        most: limit of added jobs.
        seen: the caller's last known tick, which does not come again: another process may have forgotten it, because by
            its clock that tick lies too far ahead.
    """
    handler, schedule = periodic.handler, periodic.schedule
    keys = unit.keyspace.of(handler.type)
    noted, latest = await periodic.noted(unit), unit.now + MOST_AHEAD
    ahead = noted if noted is not None and noted > latest else None
    last = max((tick for tick in (noted, seen) if tick is not None and tick <= latest), default=None)
    newest = unit.now if last is None else last
    since, dropped = last, None
    if last is not None and periodic.missed is Missed.ALL:
        since = made_up_since(schedule, last, unit.now)
        dropped = since if since > last else None
    ticks = due_ticks(schedule, since, unit.now, periodic.missed)
    given_up = None
    if ahead is not None or (last is not None and schedule.next_after(last) <= unit.now):
        in_the_way, given_up = await _in_the_way(unit, periodic, ticks, last, ahead)
        if in_the_way is not None:
            return AddedTicks([], newest, unit.now, in_the_way, ahead=ahead)
    elif ticks and await unit.is_paused(keys):
        ticks = []
    del ticks[most if periodic.overlap else 1 :]  # those that may not overlap come one after the other
    spec = creation.spec_of(handler.type, "", handler.data(UNSET), 0, None)
    spec.context = None  # the context in which handlers are run is not the job's
    ids: list[JobId] = []
    for tick in ticks:
        id, newest = periodic.prefix + tick_id(tick), tick
        await creation.enqueue(unit, place_of(keys, id), spec, "unique", handler.timeout)
        ids.append(id)
        if unit.is_full:
            break
    if ids or noted is None or ahead is not None:
        periodic.note(unit, newest)
    return AddedTicks(ids, newest, unit.now, None, dropped, given_up, ahead)


async def _in_the_way(
    unit: UnitOfWork, periodic: Periodic, ticks: list[float], last: float | None, ahead: float | None
) -> tuple[bytes | None, JobId | None]:
    """Find the obstacle to a tick.

    Returns:
        The key of the type's pause, or of the last tick's job, if that has not finished; and the id of such a job that
        was given up, because it only waited for another attempt.
    """
    keys = unit.keyspace.of(periodic.handler.type)
    if await unit.is_paused(keys):
        return keys.paused, None
    before = last if ahead is None else ahead
    if periodic.overlap or before is None or (id := periodic.id_of(before)) is None:
        return None, None
    place = place_of(keys, id)
    try:
        record = (await unit.load(place)).record
    except RecordDamaged:  # it would be in the way for ever
        return None, None
    if record is None or record.state is JobState.FINISHED:
        return None, None
    if ahead is not None:
        if record.place:  # a pending one waits for a time that is as far ahead
            await creation.resubmit(unit, place, creation.spec_of(keys.type, id, UNSET, UNSET, None))
    elif ticks and periodic.missed is not Missed.ALL and running_jobs.gives_way(unit, record, ticks[-1]):
        # A tick that comes after the run that has failed. With Missed.ALL each tick's job is to have all its attempts.
        await running_jobs.give_up(unit, place, f"the tick of {tick_id(ticks[-1])} has taken its place")
        return None, id
    return keys.data + place[2], None


def tick_id(tick: float) -> str:
    """Return the id of a tick's job: its time in ISO 8601, UTC."""
    return datetime.fromtimestamp(tick, UTC).isoformat().replace("+00:00", "Z")
