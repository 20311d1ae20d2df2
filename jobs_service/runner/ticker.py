"""The ticker of one periodic handler: an actor that adds one job per tick, however many processes run it.

The last tick is in the store. The transaction that adds a tick's job reads and writes it, so of all processes that try
only one succeeds.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import fdb.tuple

from jobs_service.actors.context import log
from jobs_service.errors import AccessDenied, JobTooLarge, NoTypeTimeout, RecordDamaged, StoreError, TransactionTooLarge
from jobs_service.layer import creation
from jobs_service.layer.batch_bounds import Batch, Pace, too_much_for
from jobs_service.layer.inspection import tick_of
from jobs_service.layer.keyspace import PERIODIC, TypeKeys, place_of
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model import UNSET, JobId, JobState
from jobs_service.runner.handler import Handler
from jobs_service.runner.schedule import MOST_MADE_UP, Missed, Schedule, due_ticks, made_up_since
from jobs_service.runner.service_access import ServiceAccess
from jobs_service.store.base import Watch
from jobs_service.supervision import Actor

_CLOCK_CHECK: Final = 30.0
"""Most seconds between two reads of the wall clock, which may have jumped."""

_HOLDOFF: Final = 0.05
"""Least seconds to wait: with less, rounding could make it read the store in vain, just before the tick."""


@dataclass(frozen=True, slots=True)
class Periodic:
    """A handler whose jobs are added by schedule.

    Attributes:
        handler: runs them.
        schedule: when they are added.
        missed: what happens with ticks at which no process ran.
        overlap: whether a tick's job is added while that of the tick before has not finished.
    """

    handler: Handler[Any, Any]
    schedule: Schedule
    missed: Missed
    overlap: bool = False


class Ticker(Actor):
    """Adds the jobs of one periodic handler, independent of the tickers of others.

    Args:
        service: the service in which the runner runs.
        periodic: the handler.
    """

    def __init__(self, service: ServiceAccess, periodic: Periodic) -> None:
        super().__init__(f"ticker {service.keys(periodic.handler.type).name}")
        self._service = service
        self._periodic = periodic
        self._pace = Pace(Batch(MOST_MADE_UP, service.batch.bytes))

    async def run(self) -> None:
        while True:
            next_tick, watch = await self._tick()
            wait = next_tick - self._service.sources.wall_time()
            await _fired(watch, min(max(wait, _HOLDOFF), _CLOCK_CHECK))

    async def _tick(self) -> tuple[float, Watch | None]:
        """Add the jobs that are due.

        Returns:
            When the next tick is, seconds since the epoch; and, if something is in the way of ticks, a watch on that.
        """
        periodic, type = self._periodic, self._periodic.handler.type
        try:
            done = await self._pace.fitting(self._add_due)
        except (AccessDenied, NoTypeTimeout, RecordDamaged, JobTooLarge, TransactionTooLarge) as error:
            # The type was removed since its handler started, or the tick's job exists and cannot be read, or it is
            # larger than the store takes; or a token does not allow to add jobs. The ticker goes on with the next tick.
            log.warning("tick_refused", type=type, error=str(error))
            return periodic.schedule.next_after(self._service.sources.wall_time()), None
        if done.ids:
            log.debug("ticked", type=type, ids=done.ids)
        if done.dropped:
            log.warning("ticks_dropped", type=type, until=tick_id(done.dropped), kept=MOST_MADE_UP)
        if done.in_the_way is not None:
            watch = await self._watch(done.in_the_way)
            return (math.inf if watch is not None else done.now), watch
        # With Missed.ALL there may be more ticks between the last one and now; otherwise those are dropped.
        return periodic.schedule.next_after(
            done.last if periodic.missed is Missed.ALL else max(done.last, done.now)
        ), None

    async def _add_due(self, most: int) -> Done:
        return await self._service.retried(
            lambda: self._service.tick(self._periodic, most),
            unless=too_much_for(most),
            type=self._periodic.handler.type,
        )

    async def _watch(self, key: bytes) -> Watch | None:
        """Return a watch on what is in the way of ticks; None when it is gone."""
        periodic = self._periodic
        return await self._service.retried(lambda: self._service.watch_tick(periodic, key), type=periodic.handler.type)


async def _fired(watch: Watch | None, seconds: float) -> None:
    """Wait until a watch has fired or was lost, if there is one, but no longer than so many seconds."""
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


class Done(NamedTuple):
    """What `add_due` has done; times are seconds since the epoch.

    Attributes:
        ids: of the jobs that were added.
        last: the last tick; the time of the first call when there was none yet.
        now: the present time.
        in_the_way: the key of what keeps ticks from being added: a job that has not finished, or a pause.
        dropped: the newest of the missed ticks that were given up because there were too many.
    """

    ids: list[JobId]
    last: float
    now: float
    in_the_way: bytes | None = None
    dropped: float | None = None


async def add_due(unit: UnitOfWork, periodic: Periodic, most: int) -> Done:
    """Add the jobs of the ticks that are due, as many as a transaction can hold, and remember the last of them.

    Nothing is added while the type is paused; nor, unless jobs may overlap, while the last of them has not finished.
    Ticks of that time count as missed.

    Args:
        unit: of the transaction.
        periodic: the handler and its schedule.
        most: ticks at most.
    """
    handler = periodic.handler
    keys = unit.keyspace.of(handler.type)
    key = unit.keyspace.sections[PERIODIC] + keys.packed
    last = tick_of(await unit.transaction.get(key))
    if last is not None and periodic.schedule.next_after(last) <= unit.now:
        in_the_way = await _in_the_way(unit, keys, None if periodic.overlap else last)
        if in_the_way is not None:
            return Done([], last, unit.now, in_the_way)
    since, dropped = last, None
    if last is not None and periodic.missed is Missed.ALL:
        since = made_up_since(periodic.schedule, last, unit.now)
        dropped = since if since > last else None
    ticks = due_ticks(periodic.schedule, since, unit.now, periodic.missed)
    if last is None and ticks and await unit.is_paused(keys):
        ticks = []
    del ticks[most if periodic.overlap else 1 :]  # those that may not overlap come one after the other
    spec = creation.spec_of(handler.type, "", handler.data(UNSET), 0, None)
    ids: list[JobId] = []
    newest = unit.now if last is None else last
    for tick in ticks:
        id, newest = tick_id(tick), tick
        await creation.enqueue(unit, place_of(keys, id), spec, True, handler.timeout)
        ids.append(id)
        if unit.is_full:
            break
    if newest != last:
        unit.transaction.set(key, fdb.tuple.pack((newest,)))
    return Done(ids, newest, unit.now, None, dropped)


async def _in_the_way(unit: UnitOfWork, keys: TypeKeys, last: float | None) -> bytes | None:
    """Return the key of the type's pause, or of the job of the last tick (if given) that has not finished."""
    if await unit.is_paused(keys):
        return keys.paused
    if last is None:
        return None
    try:
        entry = await unit.load(place_of(keys, tick_id(last)))
    except RecordDamaged:  # it would be in the way for ever
        return None
    record = entry.record
    return None if record is None or record.state is JobState.FINISHED else keys.data + entry.packed_id


def tick_id(tick: float) -> JobId:
    """Return the id of a tick's job: its time in ISO 8601, UTC."""
    return datetime.fromtimestamp(tick, UTC).isoformat().replace("+00:00", "Z")
