"""Schedules that are made and changed while programs run: the operations of `jobs.schedules`, and their ticks."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from heapq import heappop, heappush
from typing import Any, Final

from jobs_service import json_data
from jobs_service.actors.context import Context, DutifulActor, StoreAccess, parts_of
from jobs_service.arguments import check_schedule_name
from jobs_service.durations import Duration
from jobs_service.layer.creation import handler_of
from jobs_service.model import UNSET, JobType
from jobs_service.model.enqueueing import Enqueueable
from jobs_service.model.type_state import StoredSchedule
from jobs_service.runner import stored_schedules
from jobs_service.runner.run import ServiceAccess
from jobs_service.runner.schedule import Missed
from jobs_service.runner.stored_schedules import StoredPeriodic, defined, times_of
from jobs_service.runner.ticker import Ticker
from jobs_service.service.handler_registry import HandlerRegistry, checked_policy
from jobs_service.sources import MOST_AHEAD
from jobs_service.store.base import Transaction, Watch

_CLOCK_CHECK: Final = 30.0
"""Most seconds between two comparisons with the wall clock, which may have jumped."""

_LOST_WATCH_PAUSE: Final = 0.25
"""Seconds before a lost watch is made anew: the store may lose the next one at once."""

_TOGETHER: Final = 20
"""Most schedules that tick at the same time: at midnight there may be thousands."""


# Operations


class Schedules:
    """The schedules in the store: `jobs.schedules`.

    They tick as those in code do, which they neither contain nor change, as long as any service is open on the store
    with its supervisor tree. A tick comes once, by the latest definition.

    Args:
        context, access, registry: of the service.
    """

    def __init__(self, context: Context, access: StoreAccess, registry: HandlerRegistry) -> None:
        self._context = context
        self._access = access
        self._registry = registry

    async def set(
        self,
        name: str,
        handler: Enqueueable[Any, Any] | JobType,
        args: Any = UNSET,
        *,
        every: Duration | None = None,
        cron: str | None = None,
        timezone: str = "UTC",
        missed: Missed | str = Missed.ONCE,
        overlap: bool = False,
    ) -> StoredSchedule:
        """Make a schedule, or change the one of this name: its next tick is the first one after now by these times.

        If only other things than the times change, a tick that is due already comes as well, by the new definition. A
        schedule that is paused stays so.

        Args:
            name: of the schedule, 1 to 100 printable characters; its jobs have the ids `NAME@TIME`.
            handler: of the jobs, or their type.
            args: of the jobs, as one value, as for `enqueue`; at most 20,000 bytes of JSON.
            every: a duration between two ticks.
            cron: a cron expression, instead of `every`.
            timezone: of the expression's times, an IANA name.
            missed, overlap: as for `JobsService.every`.

        Raises:
            InvalidJob, JobTooLarge: a name, arguments or times that cannot be.
            InvalidSettings: an unknown `missed`.
            NoTypeTimeout: the type does not exist, and this program has no handler of it.
            StoreError: the store failed.
        """
        self._access.check_open()
        found = handler_of(handler, self._registry.handlers)
        policy, times = checked_policy(missed, overlap), times_of(every, cron, timezone)
        data = json_data.decode(json_data.encode(found.data(args)))
        wanted = defined(name, found, data, times, policy, overlap)
        must_exist = found.timeout is None
        return self._seen(
            await self._access.transact(lambda unit: stored_schedules.put(unit, wanted, must_exist=must_exist))
        )

    async def get(self, name: str) -> StoredSchedule:
        """Return a schedule.

        Raises:
            ScheduleNotFound: there is none of this name.
        """
        checked, keyspace = check_schedule_name(name), self._access.keyspace
        found = await self._access.read(lambda tr: stored_schedules.read(tr.snapshot, keyspace, checked))
        if found is None:
            raise stored_schedules.not_found(name)
        return self._seen(found)

    async def list(self) -> Sequence[StoredSchedule]:
        """Return all schedules in the order of their names."""
        return [self._seen(each) async for each in every_schedule(self._access.read, self._access)]

    async def remove(self, name: str) -> None:
        """Remove a schedule; the jobs that it has added stay.

        Raises:
            ScheduleNotFound: there is none of this name.
        """
        checked = check_schedule_name(name)
        await self._access.transact(lambda unit: stored_schedules.remove(unit, checked))

    async def pause(self, name: str) -> StoredSchedule:
        """Hold up the ticks of a schedule until `resume`; the ticks in between are missed ticks. Raises like `get`."""
        return await self._set_paused(name, True)

    async def resume(self, name: str) -> StoredSchedule:
        """Let the ticks of a schedule come again. Raises like `get`."""
        return await self._set_paused(name, False)

    async def _set_paused(self, name: str, paused: bool) -> StoredSchedule:
        checked = check_schedule_name(name)
        found = await self._access.transact(lambda unit: stored_schedules.set_paused(unit, checked, paused=paused))
        return self._seen(found)

    def _seen(self, found: StoredPeriodic) -> StoredSchedule:
        return found.seen(self._context.sources.wall_time())


async def every_schedule(
    read: Any, owner: Any, decode: stored_schedules.Decode = stored_schedules.decoded
) -> AsyncIterator[StoredPeriodic]:
    """Yield all schedules, by pages that are read in a transaction each.

    Args:
        read: reads in a transaction.
        owner: has the keyspace.
        decode: as for `stored_schedules.page`.
    """

    async def page(transaction: Transaction, after: bytes | None) -> Any:
        return await stored_schedules.page(transaction.snapshot, owner.keyspace, after, decode)

    async for found in parts_of(read, page):
        for each in found:
            yield each


async def without_secrets(service: Any, found: StoredSchedule) -> StoredSchedule:
    """Return a schedule for display: what its type calls secret is hidden in its data."""
    return replace(found, data=(await service.get_redaction(found.type)).data(found.data))


# Ticks


@dataclass(slots=True, eq=False)
class _Plan:
    """A schedule that ticks.

    Attributes:
        periodic: its definition.
        ticker: adds its jobs.
        at: when it is looked at next, seconds since the epoch; infinite while it ticks.
        obstacle: a watch on what holds up its ticks, if anything does.
    """

    periodic: StoredPeriodic
    ticker: Ticker
    at: float = math.inf
    obstacle: Watch | None = None

    def leave(self) -> None:
        """Drop the watch."""
        if self.obstacle is not None:
            self.obstacle.cancel()
            self.obstacle = None


class ScheduleServer(DutifulActor):
    """Has the schedules of the store tick: one actor for all, with one watch on their definitions.

    Args:
        context: the service's.
        service: adds the jobs.
    """

    def __init__(self, context: Context, service: ServiceAccess) -> None:
        super().__init__("schedules", context)
        self._service = service
        self._plans: dict[str, _Plan] = {}
        # The plans by the times at which they are looked at, as a heap. A plan whose time has changed has another entry
        # beside the old one, which is passed over.
        self._order: list[tuple[float, int, _Plan]] = []
        self._entries = itertools.count()
        self._rows: dict[bytes, tuple[bytes, StoredPeriodic | None]] = {}
        self._changes: Watch | None = None
        self._is_stale = True
        self._is_woken = False

    async def run(self) -> None:
        while True:
            if self._is_stale:
                await self._read_definitions()
            if due := self._due():
                async with asyncio.TaskGroup() as group:
                    for plan in due:
                        group.create_task(self._tick(plan))
            else:
                await self.receive(self._wait())
                self._is_woken = False

    async def terminate(self) -> None:
        if self._changes is not None:
            self._changes.cancel()
        for plan in self._plans.values():
            plan.leave()

    def _due(self) -> list[_Plan]:
        """Take the plans whose time has come, as many as tick at the same time."""
        now, order = self._context.sources.wall_time(), self._order
        due: list[_Plan] = []
        while order and order[0][0] <= now and len(due) < _TOGETHER:
            at, _, plan = heappop(order)
            if plan.at == at and self._plans.get(plan.periodic.name) is plan:
                due.append(plan)
                plan.at = math.inf
        return due

    def _wait(self) -> float:
        first = self._order[0][0] if self._order else math.inf
        wait = first - self._context.sources.wall_time()
        return 0.0 if self._is_stale else min(max(wait, 0.0), _CLOCK_CHECK)

    def _look_at(self, plan: _Plan, at: float) -> None:
        plan.at = at
        heappush(self._order, (at, next(self._entries), plan))

    async def _read_definitions(self) -> None:
        """Plan the schedules that are new or were changed, and forget those that are gone or paused."""
        if self._changes is not None:
            self._changes.cancel()
            if self._changes.error is not None:
                await asyncio.sleep(_LOST_WATCH_PAUSE)
        self._is_stale = False

        async def watch(transaction: Transaction) -> Watch:
            return stored_schedules.watch(transaction, self._context.keyspace)

        self._changes = await self._read(watch)
        self._changes.on_fire(self._changed)
        before, self._plans = self._plans, {}
        known, self._rows = self._rows, {}

        def decode(name: bytes, value: bytes) -> StoredPeriodic | None:
            # To decode a row takes ten times as long as to read it, and one change has all of them read.
            row = known.get(name)
            if row is None or row[0] != value:
                row = value, stored_schedules.decoded(name, value)
            self._rows[name] = row
            return row[1]

        latest = self._context.sources.wall_time() + MOST_AHEAD
        async for found in every_schedule(self._read, self._context, decode):
            plan = before.get(found.name)
            if found.is_paused:
                continue
            same = plan is not None and (found is plan.periodic or plan.periodic.definition == found.definition)
            if same:
                self._plans[found.name] = before.pop(found.name)
                continue
            at = found.schedule.next_after(found.last) if found.last <= latest else 0.0
            self._plans[found.name] = _Plan(found, Ticker(self._service, found), at)
        for plan in before.values():
            plan.leave()
        self._order.clear()
        for plan in self._plans.values():
            self._look_at(plan, plan.at)

    def _changed(self) -> None:
        self._is_stale = True
        self._wake_up()

    def _wake_up(self) -> None:
        if self.is_alive and not self._is_woken:
            self._is_woken = True
            self.cast("wake up")

    async def _tick(self, plan: _Plan) -> None:
        plan.leave()
        at, plan.obstacle = await plan.ticker.tick()
        self._look_at(plan, at)
        if plan.obstacle is not None:
            plan.obstacle.on_fire(partial(self._obstacle_changed, plan))

    def _obstacle_changed(self, plan: _Plan) -> None:
        self._look_at(plan, 0.0)
        self._wake_up()
