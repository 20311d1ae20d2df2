"""The ticker of one periodic handler: an actor that adds one job per tick, however many processes have it.

Floor: runner. The last tick is in the store, and read and written in the transaction that adds its jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NamedTuple

import fdb.tuple

from jobs_service.actors.context import Context, log
from jobs_service.errors import JobTooLarge, NoTypeTimeout, RecordDamaged, StoreError, TransactionTooLarge
from jobs_service.layer import creation
from jobs_service.layer.batch_bounds import Batch, Pace, too_much_for
from jobs_service.layer.key_parts import unpacked
from jobs_service.layer.keyspace import PERIODIC, TypeKeys, place_of
from jobs_service.layer.record import Record
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model import UNSET, JobId, JobState
from jobs_service.runner.handler import Handler
from jobs_service.runner.schedule import MOST_MADE_UP, Missed, Schedule, due_ticks, made_up_since
from jobs_service.store.base import Transaction, Watch
from jobs_service.supervision import Actor

_CLOCK_CHECK: Final = 30.0
"""Seconds after which the wall clock, which may have jumped, is looked at again."""

_HOLDOFF: Final = 0.05
"""Seconds to wait at least, so that rounding does not make it look in vain."""


@dataclass(frozen=True, slots=True)
class Periodic:
    """A handler whose jobs come by themselves.

    Attributes:
        handler: runs them.
        schedule: when they come.
        missed: what becomes of ticks at which no process was there.
        overlap: whether a tick's job is added while that of the tick before it has not finished.
    """

    handler: Handler[Any, Any]
    schedule: Schedule
    missed: Missed
    overlap: bool = False


class Ticker(Actor):
    """Adds the jobs of one periodic handler: whatever keeps those of another from being added concerns it not.

    Args:
        context: the service's.
        periodic: the handler.
    """

    def __init__(self, context: Context, periodic: Periodic) -> None:
        super().__init__(f"ticker {context.keyspace.of(periodic.handler.type).name}")
        self._context = context
        self._periodic = periodic
        self._pace = Pace(Batch.of(context.store.limits, jobs=MOST_MADE_UP))

    async def run(self) -> None:
        while True:
            next_tick, watch = await self._tick(self._periodic)
            wait = next_tick - self._context.sources.wall_time()
            await _fired(watch, min(max(wait, _HOLDOFF), _CLOCK_CHECK))

    async def _tick(self, periodic: Periodic) -> tuple[float, Watch | None]:
        """Add what is due.

        Returns:
            When the next tick is, seconds since the epoch; and a watch on what is in the way of ticks.
        """
        type = periodic.handler.type
        try:
            done = await self._pace.fitting(partial(self._add_due, periodic))
        except (NoTypeTimeout, RecordDamaged, JobTooLarge, TransactionTooLarge) as error:
            # Somebody has removed the type since its handler started, the tick's job is there and cannot be read, or
            # is larger than the store takes: the ticks of others come all the same.
            log.warning("tick_refused", type=type, error=str(error))
            return periodic.schedule.next_after(self._context.sources.wall_time()), None
        if done.ids:
            log.debug("ticked", type=type, ids=done.ids)
        if done.dropped:
            log.warning("ticks_dropped", type=type, until=tick_id(done.dropped), kept=MOST_MADE_UP)
        if done.in_the_way is not None:
            watch = await self._watch(periodic, done.in_the_way)
            return (math.inf if watch is not None else done.now), watch
        # Ticks that were passed over are over; of all that are to be made up for there may be more.
        return periodic.schedule.next_after(
            done.last if periodic.missed is Missed.ALL else max(done.last, done.now)
        ), None

    async def _add_due(self, periodic: Periodic, most: int) -> Done:
        return await self._context.retried(
            lambda: self._context.transact(lambda unit: add_due(unit, periodic, most)),
            unless=too_much_for(most),
            type=periodic.handler.type,
        )

    async def _watch(self, periodic: Periodic, key: bytes) -> Watch | None:
        """Return a watch on what is in the way of ticks; None when it is not there any more."""

        async def look(transaction: Transaction) -> tuple[Watch, bytes | None]:
            return transaction.watch(key), await transaction.get(key)

        watch, raw = await self._context.retried(lambda: self._context.read(look), type=periodic.handler.type)
        paused = self._context.keyspace.of(periodic.handler.type).paused
        if raw is None or (key != paused and _is_over(raw)):
            watch.cancel()
            return None
        return watch


def _is_over(raw: bytes) -> bool:
    """Whether a tick's job is in the way of no other: one whose record cannot be read would be for ever."""
    try:
        return Record.decode(raw).state is JobState.FINISHED
    except RecordDamaged:
        return True


async def _fired(watch: Watch | None, seconds: float) -> None:
    """Wait until a watch has fired or was lost, if there is one, but no longer than so many seconds."""
    if watch is None:
        await asyncio.sleep(seconds)
        return
    try:
        with contextlib.suppress(TimeoutError, StoreError):  # one that was lost: look again
            async with asyncio.timeout(seconds):
                await watch.wait()
        # A job's heartbeats are no reason to look again at once.
        await asyncio.sleep(_HOLDOFF)
    finally:
        watch.cancel()


class Done(NamedTuple):
    """What a look at one periodic handler has come to; times in seconds since the epoch.

    Attributes:
        ids: of the jobs that were added.
        last: the last tick; the time of the first look when there was none yet.
        now: the present time.
        in_the_way: the key of what keeps ticks from being added: a job that has not finished, or a pause.
        dropped: up to when ticks were given up, because there were more than are made up for.
    """

    ids: list[JobId]
    last: float
    now: float
    in_the_way: bytes | None = None
    dropped: float | None = None


async def add_due(unit: UnitOfWork, periodic: Periodic, most: int) -> Done:
    """Add the jobs of the ticks that are due, as many as a transaction can hold, and remember the last of them.

    While the type is paused, and unless its jobs may overlap while the last of them has not finished, nothing is added:
    ticks of that time are missed.

    Args:
        unit: as everywhere.
        periodic: whose ticks.
        most: ticks.
    """
    handler = periodic.handler
    keys = unit.keyspace.of(handler.type)
    key = unit.keyspace.sections[PERIODIC] + keys.packed
    last = _last_tick(await unit.transaction.get(key))
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


def _last_tick(packed: bytes | None) -> float | None:
    """Return the last tick that is remembered; None when there is none, or when it cannot be read: ticks begin anew."""
    found = unpacked(packed)
    return found[0] if len(found) == 1 and isinstance(found[0], float) and math.isfinite(found[0]) else None


async def _in_the_way(unit: UnitOfWork, keys: TypeKeys, last: float | None) -> bytes | None:
    """Return the key of a pause, or of the job of the last tick if that is given and has not finished."""
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
