"""The list of processes in the store; this process, which obeys requests while listed; the run of its handlers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from jobs_service import __version__, names
from jobs_service.actors.context import Context, DutifulActor, StoreAccess, parts_of
from jobs_service.arguments import exact_int
from jobs_service.errors import InvalidSettings, JobsError, ProcessGone, StoreError, shown
from jobs_service.layer import rows
from jobs_service.layer.rows import ProcessRow
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.log import EventLog
from jobs_service.model import HandlerSlots, JobType, ProcessAction, ProcessInfo, ProcessRequest, ProcessState
from jobs_service.model.process import OutboxInfo
from jobs_service.runner.handler import Handler
from jobs_service.runner.run import ServiceAccess
from jobs_service.runner.runner import Runner, log_retention
from jobs_service.service.handler_registry import HandlerRegistry
from jobs_service.service.lifecycle import Lifecycle
from jobs_service.store.base import Transaction, Watch
from jobs_service.supervision import ChildSpec, PatientSupervisor, SupervisedProcess, run_tree
from jobs_service.uncancelable import through_cancellation

if TYPE_CHECKING:
    from jobs_service.service.service import JobsService

log = EventLog("jobs_service")

DAEMON: Final = "daemon"
RUNNER: Final = "runner"
GONE: Final = (ProcessState.SILENT, ProcessState.DEAD)
"""States of processes that run nothing any more, as far as is known."""

_MOST_PROCESSES: Final = 1000

_LEAVE_WITHIN: Final = 2.0
"""Seconds to remove the row at the end; an unavailable store delays the exit no longer."""


# This process in the list


class Presence:
    """Lists this process in the store.

    Args:
        context, registry: of the service.

    Attributes:
        id: of the process in the list; empty while it is not listed.
        is_quiet: whether the process was asked to take no more jobs.
        outboxes: the outboxes whose rows this process moves, by name.
    """

    def __init__(self, context: Context, registry: HandlerRegistry) -> None:
        self.id = ""
        self.is_quiet = False
        self.outboxes: dict[str, OutboxInfo] = {}
        self._context = context
        self._registry = registry
        self._role = ""
        self._started = 0.0
        self._is_stopping = False
        self._stop: Callable[[], object] = _nothing
        self._writer: ProcessRowWriter | None = None

    @asynccontextmanager
    async def listed(self, role: str, stop: Callable[[], object]) -> AsyncIterator[None]:
        """List this process as long as the block runs, unless it is listed already, or the settings say never.

        Args:
            role: DAEMON or RUNNER.
            stop: called once, at a request to stop the process.
        """
        settings, sources = self._context.settings, self._context.sources
        if self.id or not settings.process_heartbeat:
            yield
            return
        self.id = sources.token(rows.ID_BYTES).hex()
        self._role, self._stop, self._started = role, stop, sources.wall_time()
        writers: list[ChildSpec[SupervisedProcess]] = [ChildSpec("process row", self._new_writer)]
        tree = PatientSupervisor(
            "presence",
            writers,
            first_pause=settings.retry_backoff,
            longest_pause=settings.process_heartbeat,
            calm=settings.restart_period,
        )
        task = asyncio.get_running_loop().create_task(run_tree(tree), name="presence")
        try:
            yield
        finally:
            await through_cancellation(self._leave(task))

    def changed(self) -> None:
        """Have the row updated soon."""
        if self._writer is not None:
            self._writer.changed()

    def outbox_changed(self, info: OutboxInfo) -> None:
        """Take over the state of an outbox from its relay; others see it at once if its error is another."""
        before = self.outboxes.get(info.name)
        self.outboxes[info.name] = info
        if before is None or before.error != info.error:
            self.changed()

    def _new_writer(self) -> ProcessRowWriter:
        self._writer = ProcessRowWriter(self._context, self.id, self._row, self.obey)
        return self._writer

    async def _leave(self, task: asyncio.Task[None]) -> None:
        """Remove this process from the list."""
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("process_not_listed", exc_info=error)
        id, self.id, self._writer = self.id, "", None
        self.is_quiet = self._is_stopping = False
        self._stop = _nothing

        async def remove(unit: UnitOfWork) -> None:
            rows.remove(unit, id)

        try:
            async with asyncio.timeout(_LEAVE_WITHIN):
                await self._context.retried(lambda: self._context.transact(remove))
        except (JobsError, TimeoutError) as error:
            log.debug("process_row_left", id=id, error=str(error))

    def _row(self) -> ProcessRow:
        """Return the row that describes this process now."""
        context, runner = self._context, self._registry.runner
        uses = {} if runner is None else runner.slot_uses()
        handlers, unnamed = rows.some_of(HandlerSlots(type, use.slots, use.busy) for type, use in uses.items())
        host, pid = context.sources.place
        info = ProcessInfo(
            self.id,
            host,
            pid,
            context.sources.worker,
            __version__,
            self._role,
            self._started,
            context.sources.wall_time(),
            self._state,
            sum(use.slots for use in uses.values()),
            sum(use.busy for use in uses.values()),
            handlers,
            unnamed,
            outboxes=tuple(self.outboxes.values()),
        )
        return ProcessRow(info, context.settings.process_heartbeat, context.store.instance)

    @property
    def _state(self) -> ProcessState:
        runner = self._registry.runner
        if self._is_stopping or (runner is not None and runner.is_draining):
            return ProcessState.STOPPING
        return ProcessState.QUIET if self.is_quiet else ProcessState.RUNNING

    def obey(self, request: ProcessRequest) -> None:
        """Obey a request, unless it has been obeyed already."""
        action = request.action
        if action is ProcessAction.STOP:
            if self._is_stopping:
                return
            self._is_stopping = True
        elif self.is_quiet == (action is ProcessAction.QUIET):
            return
        log.info("process_asked", action=action.value, who=request.who, id=self.id)
        if action is ProcessAction.STOP:
            self._stop()
        else:
            self.is_quiet = action is ProcessAction.QUIET
            if self._registry.runner is not None:
                self._registry.runner.set_quiet(self.is_quiet)
        self.changed()


def _nothing() -> None:
    """Stop nothing: no stop function was given."""


# All processes


async def processes(access: StoreAccess, context: Context) -> list[ProcessInfo]:
    """Return the listed processes; see JobsService.processes."""
    every, dead = await all_rows(access.read, context)
    now = context.sources.wall_time()
    found = [row.as_of(now, dead) for row in every]
    return sorted(found, key=lambda each: (each.host, each.started, each.id))


def relayed(processes: Iterable[ProcessInfo]) -> list[OutboxInfo]:
    """Return the outboxes whose rows these processes move, if they live, as of their last heartbeats.

    Of several processes, one that moves rows tells of the outbox, not one whose connection to it has failed.
    """
    found = [outbox for each in processes if each.state not in GONE for outbox in each.outboxes]
    return [*{outbox.name: outbox for outbox in sorted(found, key=lambda each: not each.error)}.values()]


async def ask(
    access: StoreAccess, context: Context, here: Presence, id: Any, action: ProcessAction, who: str
) -> ProcessInfo:
    """Send a request to a process; see JobsService.ask_process."""
    checked = rows.checked_id(id)
    sources, keyspace = context.sources, access.keyspace
    row = await access.read(lambda transaction: rows.one(transaction.snapshot, keyspace, checked))
    if row is None:
        raise ProcessGone(f"there is no process {checked}")
    dead = await context.store.ended_instances({row.instance} if row.instance else ())
    found = row.as_of(sources.wall_time(), dead)
    if found.state is ProcessState.DEAD:
        heard = datetime.fromtimestamp(found.heard, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        raise ProcessGone(f"process {checked} has died; it was heard of last at {heard}")
    request = ProcessRequest(action, who or sources.worker, sources.wall_time())
    await access.transact(lambda unit: rows.ask(unit, checked, request))
    if checked == here.id:
        here.obey(request)
    return found


# The run of handlers


class HandlerRuns:
    """Runs handlers, one Runner at a time.

    Args:
        context, registry, lifecycle, presence: of the service.
        service: the runner's access to the service.
    """

    def __init__(
        self,
        context: Context,
        registry: HandlerRegistry,
        lifecycle: Lifecycle,
        presence: Presence,
        service: ServiceAccess,
    ) -> None:
        self._context = context
        self._registry = registry
        self._lifecycle = lifecycle
        self._presence = presence
        self._service = service
        # Types whose retention was logged already.
        self._retention_logged: set[bytes] = set()

    async def run(
        self,
        handlers: list[Handler[Any, Any]],
        max_jobs: int | None,
        started: Callable[[], object] | None,
        setup: Callable[[], object] | None,
    ) -> None:
        """Run handlers until the caller is canceled, the service is left, or this process is asked to stop."""

        def begun() -> None:
            for packed in self._registry.handlers:
                self._lifecycle.tree.timeout_changed(self._context.keyspace.of_packed(packed))
            self._log_retention(handlers)
            self._presence.changed()
            if started is not None:
                started()

        periodic = [each for each in self._registry.periodic if each.handler in handlers]
        around = self._registry.surroundings()
        runner = Runner(self._service, handlers, periodic, around, max_jobs, begun, self._presence.changed, setup)
        runner.set_quiet(self._presence.is_quiet)
        self._registry.runner = runner
        try:
            await self._lifecycle.run(self._run_listed(runner))
        finally:
            self._registry.runner = None

    async def _run_listed(self, runner: Runner) -> None:
        async with self._presence.listed(RUNNER, runner.stop):
            await runner.run()

    def _log_retention(self, handlers: list[Handler[Any, Any]]) -> None:
        """Log the retention of these handlers' finished jobs, once per handler over all runs."""
        fresh = [each for each in handlers if each.packed not in self._retention_logged]
        self._retention_logged.update(each.packed for each in fresh)
        log_retention(fresh, [each.handler for each in self._registry.periodic])


def handlers_to_run(
    registry: HandlerRegistry, types: Iterable[JobType] | None, max_jobs: int | None
) -> list[Handler[Any, Any]]:
    """Return the handlers to run; arguments and errors as for JobsService.run."""
    if max_jobs is not None and ((count := exact_int(max_jobs)) is None or count < 1):
        raise InvalidSettings(f"max_jobs={shown(max_jobs)}: allowed are None and integers from 1 up")
    handlers = registry.of_types(types)
    if registry.runner is not None:
        raise JobsError("this service's handlers run already")
    return handlers


async def run_processes(
    service: JobsService,
    handlers: list[Handler[Any, Any]],
    max_jobs: int | None,
    processes: Any,
    started: Callable[[], object] | None,
) -> None:
    """Run handlers in worker processes; arguments and errors as for JobsService.run."""
    from jobs_service.service.worker_processes import WorkerProcesses, application_of
    from jobs_service.store.memory import MemoryStore

    if (count := exact_int(processes)) is None or not 1 <= count <= _MOST_PROCESSES:
        raise InvalidSettings(
            f"processes={shown(processes)}: allowed are None and integers from 1 to {_MOST_PROCESSES}"
        )
    if isinstance(service.store, MemoryStore):
        raise InvalidSettings("processes: a memory: store is one process's; use lmdb:, sqlite: or fdb:")
    options = {
        "application": application_of(service),
        "types": [names.shown(handler.type) for handler in handlers],
        "max_jobs": max_jobs,
    }
    orders = {"options": options, "http": False, "most_jobs": None, "most_memory": None}
    if await WorkerProcesses([orders] * count).run(started):
        raise InvalidSettings("no worker process could begin; their log says why")


# Rows of processes


_HOLDOFF: Final = 0.2
"""Least seconds between two writes, even if changes come faster."""


_SPREAD: Final = 0.1
"""Jitter of the heartbeat period, as a fraction, so that processes do not write all at once."""


_CLEAN_EVERY: Final = 3600.0
"""Seconds between two searches for rows that ended processes have left."""


_REMOVED_AT_ONCE: Final = 100
"""Left rows that one transaction removes."""


_Page: TypeAlias = tuple[list[ProcessRow], bytes | None]


async def all_rows(
    read: Callable[[Callable[[Transaction], Coroutine[Any, Any, _Page]]], Awaitable[_Page]], context: Context
) -> tuple[list[ProcessRow], set[bytes]]:
    """Return the rows of all processes, and the ended ones among their store instances.

    Args:
        read: reads in a transaction of its own.
        context: the service's.
    """

    async def page(transaction: Transaction, after: bytes | None) -> _Page:
        return await rows.page(transaction.snapshot, context.keyspace, after)

    every = [row async for found in parts_of(read, page) for row in found]
    return every, await context.store.ended_instances({row.instance for row in every if row.instance})


class ProcessRowWriter(DutifulActor):
    """Writes the row of this process at each heartbeat, and whenever `changed` is called.

    Args:
        context: the service's.
        id: of the process.
        row: returns the present row.
        obey: called with the latest request to the process, whenever it has or may have changed.
    """

    def __init__(
        self, context: Context, id: str, row: Callable[[], ProcessRow], obey: Callable[[ProcessRequest], None]
    ) -> None:
        super().__init__("process row", context)
        self._id = id
        self._row = row
        self._obey = obey

    def changed(self) -> None:
        """Have the row written soon."""
        self.cast("changed")

    async def run(self) -> None:
        """Write the row for ever."""
        context = self._context
        period = context.settings.process_heartbeat
        self.spawn_link(self._listen(), "requests")
        self._clean_at = self._time()
        pause = context.sources.uniform(0.0, period)
        while True:
            await self._write()
            written = self._time()
            if written >= self._clean_at:
                self._clean_at = written + _CLEAN_EVERY
                await self._clean()
            if await self.receive(pause) is not None:
                await asyncio.sleep(written + _HOLDOFF - self._time())
                while await self.receive(0) is not None:
                    pass  # one write covers all changes
            pause = period * context.sources.uniform(1 - _SPREAD, 1 + _SPREAD)

    async def _write(self) -> None:
        def written() -> Awaitable[None]:
            row = self._row()  # here, not in the transaction, which runs on another thread

            async def write(unit: UnitOfWork) -> None:
                rows.write(unit, row)

            return self._context.transact(write)

        await self._context.retried(written)

    async def _listen(self) -> None:
        """Pass on requests to the process."""
        context = self._context

        async def read(transaction: Transaction) -> tuple[ProcessRequest | None, Watch]:
            return await rows.watch_request(transaction, context.keyspace, self._id)

        while True:
            request, watch = await context.retried(lambda: context.read(read))
            try:
                if request is not None:
                    self._obey(request)
                with contextlib.suppress(StoreError):  # after the loss of a watch, read again
                    await watch.wait()
            finally:
                watch.cancel()

    async def _clean(self) -> None:
        """Remove the rows of processes that ended long ago."""
        context = self._context
        every, dead = await all_rows(self._read, context)
        ids = rows.to_remove(every, context.sources.wall_time(), dead)

        async def remove(unit: UnitOfWork) -> None:
            await rows.remove_ended(unit, some, dead)

        for start in range(0, len(ids), _REMOVED_AT_ONCE):
            some = ids[start : start + _REMOVED_AT_ONCE]
            await self._transact(remove)
