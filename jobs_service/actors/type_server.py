"""The type server: keeps one activity monitor and one notifier running for every type in the store. Floor: actors."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from jobs_service.actors.activity_monitor import LOOK_AGAIN, ActivityMonitor
from jobs_service.actors.context import Context, log
from jobs_service.actors.notifier import Notifier
from jobs_service.actors.sampler import Sampler
from jobs_service.actors.subscriptions import Hub
from jobs_service.errors import JobsError
from jobs_service.layer import activity
from jobs_service.layer.keyspace import TypeKeys
from jobs_service.store.base import Transaction
from jobs_service.supervision import Actor, ChildSpec, Down, DynamicSupervisor, Process, Restart

CHECK_TYPES: Final = "check types"
"""The message that types, or their timeouts, may have changed; answered when all of them are served."""


@dataclass(frozen=True, slots=True)
class _Served:
    """What runs for a type."""

    timeout: float | None
    monitor: Process | None
    notifier: Process


class TypeServer(Actor):
    """Compares the types in the store with those that are served, and starts or stops what runs for them.

    Args:
        context: the service's.
        hub: where the subscriptions are: a type that somebody has subscribed to keeps its notifier.
        monitors, notifiers: the supervisors of what it starts.
    """

    def __init__(self, context: Context, hub: Hub, monitors: DynamicSupervisor, notifiers: DynamicSupervisor) -> None:
        super().__init__("type server")
        self._context = context
        self._hub = hub
        self._monitors = monitors
        self._notifiers = notifiers
        self._sampler = Sampler(context)
        self._served: dict[TypeKeys, _Served] = {}

    async def init(self) -> None:
        # What an earlier type server had started is left over: its end would not be noticed by this one.
        await self._monitors.stop_all()
        await self._notifiers.stop_all()
        self.spawn_link(self._sampler.run(), "sampler")
        await self._check_types()
        self._hub.on_missing_notifier(lambda keys: self.cast(CHECK_TYPES))

    async def terminate(self) -> None:
        self._hub.on_missing_notifier(None)

    async def run(self) -> None:
        settings = self._context.settings
        time = asyncio.get_running_loop().time
        next_check = time()
        while True:
            now = time()
            if next_check <= now:
                jitter = self._context.sources.uniform(0.0, settings.type_check_max_jitter)
                next_check = now + settings.type_check_period + jitter
            message = await self.receive(next_check - now)
            if message is None:
                await self._check_types()
            else:
                await self.handle(message.body)
                message.reply(None)

    async def handle(self, message: object) -> None:
        if isinstance(message, Down):
            raise JobsError(f"{message.process.name} ended unexpectedly") from message.cause
        if message != CHECK_TYPES:
            await super().handle(message)
        await self._check_types()

    async def _check_types(self) -> None:
        found = await self._context.retried(lambda: self._context.read(self._timeouts))
        gone = [keys for keys in self._served if keys not in found]
        changed = [keys for keys, timeout in found.items() if not self._is_served(keys, timeout)]
        async with asyncio.TaskGroup() as group:
            for keys in gone:
                group.create_task(self._stop(keys))
            for keys in changed:
                group.create_task(self._serve(keys, found[keys]))

    async def _timeouts(self, transaction: Transaction) -> dict[TypeKeys, float | None]:
        """Return the timeouts of the types in the store, None for those that only have subscribers."""
        keyspace = self._context.keyspace
        keys = [keyspace.stored(type) for type in await activity.types(transaction, keyspace)]
        found: dict[TypeKeys, float | None] = dict.fromkeys(self._hub.types())
        for each, (timeout, _) in zip(keys, await activity.samples(transaction, keys), strict=True):
            found[each] = timeout
        return found

    def _is_served(self, keys: TypeKeys, timeout: float | None) -> bool:
        served = self._served.get(keys)
        return served is not None and served.timeout == timeout

    async def _serve(self, keys: TypeKeys, timeout: float | None) -> None:
        """Start what is missing for a type, stop a monitor that it needs no more, tell one of a changed timeout."""
        served = self._served.get(keys)
        monitor = None if served is None else served.monitor
        if timeout is None and monitor is not None:
            await self._stop_child(self._monitors, monitor)
            monitor = None
        elif timeout is not None and isinstance(monitor, ActivityMonitor):
            monitor.cast(LOOK_AGAIN)
        elif timeout is not None:
            monitor = await self._start_child(
                self._monitors, f"{keys.type!r}", ActivityMonitor(self._context, keys, self._sampler)
            )
        notifier = (
            await self._start_child(self._notifiers, f"{keys.type!r}", Notifier(self._context, keys, self._hub))
            if served is None
            else served.notifier
        )
        self._served[keys] = _Served(timeout, monitor, notifier)
        if served is None:
            log.debug("type_served", type=keys.type, timeout=timeout)

    async def _stop(self, keys: TypeKeys) -> None:
        served = self._served.pop(keys)
        if served.monitor is not None:
            await self._stop_child(self._monitors, served.monitor)
        await self._stop_child(self._notifiers, served.notifier)
        log.debug("type_left", type=keys.type)

    async def _start_child(self, supervisor: DynamicSupervisor, name: str, actor: Actor) -> Process:
        process = await supervisor.start_child(ChildSpec(name, lambda: actor, Restart.TEMPORARY))
        self.monitor(process)
        return process

    async def _stop_child(self, supervisor: DynamicSupervisor, process: Process) -> None:
        self.demonitor(process)
        await supervisor.stop_child(process)
