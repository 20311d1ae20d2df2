"""The type server: keeps a monitor running for every awake type, and a notifier for every type with subscribers.

All idle types of the store together cost a service one watch, on the counter of `layer/awake_types.py`. When the
counter changes, the server reads the awake types, and starts and stops monitors accordingly. A monitor reports when its
type has been idle for a while; the server then settles such types, many in one transaction. It also wakes the types
whose alarm is due. The first of a store's services to commit does it for all.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Final

from jobs_service.actors.activity_monitor import CHECK_TIMEOUT, ActivityMonitor, Sampler
from jobs_service.actors.context import Context, DutifulActor, log
from jobs_service.actors.notifier import Notifier
from jobs_service.actors.subscriptions import Hub
from jobs_service.durations import rest_after
from jobs_service.errors import JobsError
from jobs_service.layer import awake_types, counters, far_ahead
from jobs_service.layer.keyspace import ACTIVITY, HOURS, TypeKeys
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.sources import MOST_AHEAD
from jobs_service.store.base import Transaction, Watch
from jobs_service.supervision import Actor, ChildSpec, Down, DynamicSupervisor, SupervisedProcess

_WAKE_UP: Final = "wake up"
"""The message that a duty of the server may be due."""

_NEVER = math.inf
_CLOCK_CHECK: Final = 5.0
_AHEAD: Final = 1.0
"""Seconds from the wake-up of a type until its jobs come due: time to start its monitor."""

_HOLDOFF: Final = 0.02
"""Least seconds between two reads of the awake types."""

_LOST_WATCH_PAUSE: Final = 0.25

_SETTLED_TOGETHER: Final = 50
_SCANNED_TOGETHER: Final = 100

_JITTER: Final = 1 / 3
"""Share of the period by which a check comes later at random: many processes must not search at the same moment."""

_SWEEP_PERIOD: Final = 3600.0
"""Seconds to the first pass over all types, for old counts or times far ahead, and between two passes."""

_SWEPT_TOGETHER: Final = 20
"""Types that one check examines, for old counts or times far ahead: each may have 2,340 rows of counts to remove."""

_SUSPECTS_TOGETHER: Final = 100
"""Jobs that one check examines for times written by a clock far ahead."""


class TypeServer(DutifulActor):
    """Starts and stops the actors of types.

    Args:
        context: the service's.
        hub: holds the subscriptions: a type with some keeps its notifier.
        monitors, notifiers: the supervisors of the actors that it starts.
        schedules: makes the actor that has the store's schedules tick, while there are some.
    """

    def __init__(
        self,
        context: Context,
        hub: Hub,
        monitors: DynamicSupervisor,
        notifiers: DynamicSupervisor,
        schedules: Callable[[], Actor],
    ) -> None:
        super().__init__("type server", context)
        self._make_schedules = schedules
        self._schedules: Actor | None = None
        self._hub = hub
        self._monitor_supervisor = monitors
        self._notifier_supervisor = notifiers
        self._sampler = Sampler(context)
        # By packed type: keys of idle types would fill the memory.
        self._monitors: dict[bytes, ActivityMonitor] = {}
        self._notifiers: dict[TypeKeys, Notifier] = {}
        self._unused: set[TypeKeys] = set()
        self._subscribed: dict[TypeKeys, None] = {}
        self._idle: dict[TypeKeys, None] = {}
        self._watch: Watch | None = None
        self._read_at = _NEVER
        self._held_off_until = 0.0
        self._check_at = 0.0
        # The begin and the time of the next examination of types for old counts.
        self._sweep_from = b""
        self._sweep_at = 0.0
        # The begin and the time of the next examination of jobs whose time lies far ahead.
        self._far_ahead_from = b""
        self._far_ahead_at = 0.0
        self._next_alarm = _NEVER
        self._wake_at: float | None = None
        self._is_woken = False  # whether a wake-up message is in the inbox already

    async def init(self) -> None:
        await super().init()
        # Children of an earlier type server still run. This one would not notice their end.
        await self._monitor_supervisor.stop_all()
        await self._notifier_supervisor.stop_all()
        self.spawn_link(self._sampler.run(), "sampler")
        try:
            await self._read_awake()
            self._plan_check()
            self._sweep_at = self._far_ahead_at = self._time() + _SWEEP_PERIOD
            self._hub.on_missing_notifier(self._note_subscribed)
            for keys in self._hub.types():
                self._subscribed[keys] = None
            await self._start_notifiers()
        except BaseException:
            await self.terminate()  # a failed start does not call it, and the watch would stay
            raise

    async def terminate(self) -> None:
        self._hub.on_missing_notifier(None)
        self._cancel_watch()

    def _cancel_watch(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._watch = None

    async def run(self) -> None:
        while True:
            message = await self.receive(self._wait())
            if message is not None:
                await self.handle(message)
            await self._take_turn()

    async def handle(self, message: object) -> None:
        if isinstance(message, Down):
            raise JobsError(f"{message.process.name} ended unexpectedly") from message.cause
        if message != _WAKE_UP:
            await super().handle(message)
            return
        self._is_woken = False

    def _wake_up(self) -> None:
        """Send the wake-up message, unless it is in the inbox already: a slow store must not make the inbox grow."""
        if self.is_alive and not self._is_woken:
            self._is_woken = True
            self.cast(_WAKE_UP)

    def check_timeout(self, keys: TypeKeys) -> None:
        """Have a type's monitor read its timeout, which may have changed. An idle type needs no monitor for that."""
        monitor = self._monitors.get(keys.packed)
        if monitor is not None:
            monitor.cast(CHECK_TIMEOUT)

    def _wait(self) -> float:
        now = self._time()
        wait = min(self._read_at, self._check_at) - now
        if self._wake_at is not None:
            wait = min(wait, self._wake_at - now)
        elif self._next_alarm != _NEVER:
            # The wall clock may be set forward or back: sleep by the loop's clock, and compare every few seconds.
            wait = min(wait, self._until_alarm(), _CLOCK_CHECK)
        return 0.0 if self._idle or self._subscribed else wait

    async def _take_turn(self) -> None:
        """Do a bounded part of every due duty."""
        if self._subscribed:
            await self._start_notifiers()
        if self._idle:
            await self._settle()
        if self._wake_at is None and self._until_alarm() <= 0:
            # All services read the same alarm. A random pause lets one of them be first; the others find the work done.
            self._wake_at = self._time() + self._context.sources.uniform(0.0, _AHEAD / 2)
        if self._wake_at is not None and self._wake_at <= self._time():
            await self._wake_due()
        if self._read_at <= self._time():
            await self._read_awake()
        if self._check_at <= self._time():
            await self._check()

    def _until_alarm(self) -> float:
        return self._next_alarm - _AHEAD - self._context.sources.wall_time()

    # Awake types

    async def _read_awake(self) -> None:
        """Read the awake types, and have monitors for exactly these."""
        self._cancel_watch()
        self._read_at = _NEVER
        began = self._time()
        await self._serve(await self._awake())
        took = self._time() - began
        self._held_off_until = self._time() + max(_HOLDOFF, rest_after(took))
        if (watch := self._watch) is not None:
            watch.on_fire(lambda: self._awake_changed(lost=watch.error is not None))

    async def _awake(self) -> dict[bytes, None]:
        """Return the awake types; set a watch that fires when they change, and note the next alarm."""
        keyspace = self._context.keyspace

        async def first(transaction: Transaction) -> tuple[Watch, float, awake_types.TypePage]:
            # The other pages are read in later transactions. A change in between changes the counter, which has this
            # watch, so that all is read again.
            watch = transaction.watch(awake_types.counter(keyspace))
            alarm = await awake_types.next_alarm(transaction, keyspace)
            return watch, alarm, await self._page(awake_types.awake_types, transaction, None)

        self._watch, self._next_alarm, page = await self._read(first)
        found = dict.fromkeys(page.types)
        if page.more:
            async for types in self._types(awake_types.awake_types, page.types[-1]):
                found |= dict.fromkeys(types)
        return found

    def _awake_changed(self, *, lost: bool) -> None:
        now = self._time()
        # Stores may lose watches, and may lose the next one at once: pause, so as not to read in a tight loop.
        self._read_at = max(now + _LOST_WATCH_PAUSE if lost else now, self._held_off_until)
        self._wake_up()

    async def _serve(self, found: dict[bytes, None]) -> None:
        """Stop the monitors of types that are no longer awake, and start missing monitors; likewise for schedules."""
        await self._serve_schedules(awake_types.HAS_SCHEDULES in found)
        found.pop(awake_types.HAS_SCHEDULES, None)
        gone = [type for type in self._monitors if type not in found]
        async with asyncio.TaskGroup() as group:
            for type in gone:
                group.create_task(self._stop_monitor(type))
            for type in found:
                if type not in self._monitors:
                    group.create_task(self._start_monitor(type))

    async def _serve_schedules(self, wanted: bool) -> None:
        if wanted and self._schedules is None:
            actor = self._schedules = self._make_schedules()
            self.monitor(await self._monitor_supervisor.start_child(ChildSpec(actor.name, lambda: actor)))
        elif not wanted and self._schedules is not None:
            actor, self._schedules = self._schedules, None
            await self._stop_child(self._monitor_supervisor, actor)

    async def _start_monitor(self, type: bytes) -> None:
        keys = self._context.keyspace.found(type)
        if keys is None:
            return
        monitor = ActivityMonitor(self._context, keys, self._sampler, self._note_idle)
        await self._start_child(self._monitor_supervisor, keys, monitor)
        self._monitors[type] = monitor
        log.debug("type_served", type=keys.type)

    async def _stop_monitor(self, type: bytes) -> None:
        monitor = self._monitors.pop(type)
        self._idle.pop(monitor.keys, None)
        await self._stop_child(self._monitor_supervisor, monitor)
        log.debug("type_left", type=monitor.keys.type)

    # Settling and waking types

    def _note_idle(self, keys: TypeKeys) -> None:
        self._idle[keys] = None
        self._wake_up()

    async def _settle(self) -> None:
        """Settle idle types. A type that is not idle after all stays awake, and its monitor reports again later."""
        keyspace = self._context.keyspace
        idle = list(self._idle)[:_SETTLED_TOGETHER]
        sleep_from = self._context.sources.wall_time() + self._context.settings.type_idle_after + _AHEAD

        async def settle(unit: UnitOfWork) -> None:
            for keys in idle:
                await awake_types.settle(unit.transaction, keyspace, keys, sleep_from)

        await self._transact(settle)
        for keys in idle:
            self._idle.pop(keys, None)

    async def _wake_due(self) -> None:
        """Wake the types whose alarm is due: their next jobs come due, or expire, in a moment."""
        keyspace, page = self._context.keyspace, _SCANNED_TOGETHER
        until = self._context.sources.wall_time() + _AHEAD
        woken = await self._transact(lambda unit: awake_types.wake_due(unit.transaction, keyspace, until, page))
        # Thousands may be due at once, at midnight for example: no pause for each page of them.
        self._wake_at = self._time() if woken == page else None
        self._read_at = self._time()

    # Occasional checks

    def _plan_check(self) -> None:
        period = self._context.settings.type_check_period
        self._check_at = self._time() + period + self._context.sources.uniform(0.0, _JITTER * period)

    async def _check(self) -> None:
        """Wake types with running jobs that are not marked as awake: after a restore of the store, for example.

        Also remove old counts of some types, and correct times written by a clock far ahead: for inactive types nothing
        else does so.
        """
        await self._wake_active()
        if self._sweep_at <= self._time():
            await self._remove_old_counts()
        if self._far_ahead_at <= self._time():
            await self._set_times_right()
        self._read_at = self._time()
        await self._stop_unused_notifiers()
        self._plan_check()

    async def _remove_old_counts(self) -> None:
        keyspace = self._context.keyspace

        async def read(transaction: Transaction) -> tuple[list[TypeKeys], bytes | None]:
            # A type with rows of minutes has rows of hours.
            types, behind = await awake_types.types_in(transaction, keyspace, HOURS, self._sweep_from, _SWEPT_TOGETHER)
            now = self._context.sources.wall_time()
            return await counters.with_old(transaction, map(keyspace.of_packed, types), now), behind

        old, behind = await self._read(read)
        if old:

            async def remove(unit: UnitOfWork) -> None:
                counters.remove_old(unit.transaction, old, unit.now)

            await self._transact(remove)
        self._sweep_from = behind or b""
        if behind is None:
            self._sweep_at = self._time() + _SWEEP_PERIOD

    async def _set_times_right(self) -> None:
        """Examine some jobs whose time lies far ahead, since the clock at the end of their run may have been wrong."""
        looked_at = 0
        for _ in range(_SWEPT_TOGETHER):
            looked_at += await self._set_times_of_one_type_right(_SUSPECTS_TOGETHER - looked_at)
            if looked_at >= _SUSPECTS_TOGETHER or self._far_ahead_at > self._time():
                return

    async def _set_times_of_one_type_right(self, most: int) -> int:
        """Examine so many jobs of the next type; return the number of examined jobs."""
        context, begin, examined = self._context, self._far_ahead_from, 0
        now = context.sources.wall_time()
        suspects, behind = await self._read(
            lambda transaction: far_ahead.suspects(transaction, context.keyspace, begin, now, most)
        )
        if suspects is not None:
            keys, ids, rows = suspects
            examined, changed = await self._transact(lambda unit: far_ahead.set_right(unit, keys, ids))
            if changed:
                self._log.warning("clock_was_ahead", type=keys.type, count=changed, most=MOST_AHEAD)
            if examined < len(rows):
                behind = rows[examined]
        self._far_ahead_from = behind or b""
        if behind is None:
            self._far_ahead_at = self._time() + _SWEEP_PERIOD
        return examined

    async def _wake_active(self) -> None:
        """Wake the types that have running jobs."""
        keyspace = self._context.keyspace
        begin: bytes | None = b""

        async def read(transaction: Transaction) -> tuple[list[bytes], bytes | None]:
            assert begin is not None
            return await awake_types.unmarked_in(transaction, keyspace, ACTIVITY, begin, _SCANNED_TOGETHER)

        while begin is not None:
            unmarked, begin = await self._read(read)
            await self._wake_types(unmarked)

    async def _wake_types(self, types: Sequence[bytes]) -> None:
        keyspace = self._context.keyspace

        async def wake(unit: UnitOfWork) -> None:
            for type in types:
                await awake_types.wake(unit.transaction, keyspace, keyspace.of_packed(type), -_NEVER)

        if types:
            await self._transact(wake)

    # Types with subscribers

    def _note_subscribed(self, keys: TypeKeys) -> None:
        self._subscribed[keys] = None
        self._wake_up()

    async def _start_notifiers(self) -> None:
        wanted, self._subscribed = self._subscribed, {}
        async with asyncio.TaskGroup() as group:
            for keys in wanted:
                if keys not in self._notifiers:
                    group.create_task(self._start_notifier(keys))

    async def _start_notifier(self, keys: TypeKeys) -> None:
        notifier = Notifier(self._context, keys, self._hub)
        await self._start_child(self._notifier_supervisor, keys, notifier)
        self._notifiers[keys] = notifier

    async def _stop_unused_notifiers(self) -> None:
        """Stop the notifiers of types that had no subscribers in this check and in the previous one."""
        unused = {keys for keys in self._notifiers if not self._hub.targets(keys)}
        for keys in list(self._notifiers):
            if keys in unused and keys in self._unused:
                await self._stop_child(self._notifier_supervisor, self._notifiers.pop(keys))
        self._unused = unused & self._notifiers.keys()
        # A subscription may have come while its type's notifier was being stopped.
        self._subscribed |= {keys: None for keys in self._hub.types() if keys not in self._notifiers}

    # Children

    async def _start_child(self, supervisor: DynamicSupervisor, keys: TypeKeys, actor: Actor) -> None:
        self.monitor(await supervisor.start_child(ChildSpec(keys.name, lambda: actor)))

    async def _stop_child(self, supervisor: DynamicSupervisor, process: SupervisedProcess) -> None:
        self.demonitor(process)
        await supervisor.stop_child(process)
