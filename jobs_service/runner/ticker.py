"""The ticker: an actor that adds one job per tick of each periodic handler, however many of it there are.

Floor: runner. The last tick of each is in the store, and read and written in the transaction that adds its jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import fdb.tuple

from jobs_service.actors.context import Context, log
from jobs_service.layer import creation
from jobs_service.layer.keyspace import PERIODIC, place_of
from jobs_service.layer.unit import Unit
from jobs_service.model import JobId
from jobs_service.runner.handler import Handler
from jobs_service.runner.schedule import Missed, Schedule, due_ticks
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
    """

    handler: Handler[Any, Any]
    schedule: Schedule
    missed: Missed


class Ticker(Actor):
    """Adds the jobs of periodic handlers.

    Args:
        context: the service's.
        periodic: at least one.
    """

    def __init__(self, context: Context, periodic: Sequence[Periodic]) -> None:
        super().__init__("ticker")
        self._context = context
        self._periodic = periodic

    async def run(self) -> None:
        while True:
            next_tick = min([await self._tick(each) for each in self._periodic])
            wait = next_tick - self._context.sources.wall_time()
            await asyncio.sleep(min(max(wait, _HOLDOFF), _CLOCK_CHECK))

    async def _tick(self, periodic: Periodic) -> float:
        """Add what is due; return when the next tick is, seconds since the epoch."""
        added, last, now = await self._context.retried(
            lambda: self._context.transact(lambda unit: add_due(unit, periodic)), type=periodic.handler.type
        )
        if added:
            log.debug("ticked", type=periodic.handler.type, ids=added)
        # Ticks that were passed over are over; of all that are to be made up for there may be more.
        return periodic.schedule.next_after(last if periodic.missed is Missed.ALL else max(last, now))


async def add_due(unit: Unit, periodic: Periodic) -> tuple[list[JobId], float, float]:
    """Add the jobs of all ticks that are due, and remember the last of them.

    Returns:
        The jobs' ids; the last tick, seconds since the epoch (the time of the first look when there was none yet); and
        the present time.
    """
    handler = periodic.handler
    keys = unit.keyspace.of(handler.type)
    key = unit.keyspace.sections[PERIODIC] + keys.packed
    packed = await unit.transaction.get(key)
    last: float | None = None if packed is None else fdb.tuple.unpack(packed)[0]
    ticks = due_ticks(periodic.schedule, last, unit.now, periodic.missed)
    spec = creation.spec_of(handler.type, "", None, 0, None)
    ids: list[JobId] = []
    for tick in ticks:
        id = tick_id(tick)
        await creation.enqueue(unit, place_of(keys, id), spec, True, handler.timeout)
        ids.append(id)
    newest = ticks[-1] if ticks else unit.now if last is None else last
    if newest != last:
        unit.transaction.set(key, fdb.tuple.pack((newest,)))
    return ids, newest, unit.now


def tick_id(tick: float) -> JobId:
    """Return the id of a tick's job: its time in ISO 8601, UTC."""
    return datetime.fromtimestamp(tick, UTC).isoformat().replace("+00:00", "Z")
