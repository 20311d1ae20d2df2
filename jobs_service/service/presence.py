"""Processes: this one is listed in the store while it runs handlers or is a daemon, and obeys requests of others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final

from jobs_service import __version__
from jobs_service.actors.context import Context
from jobs_service.actors.process_row import ProcessRowWriter, all_rows
from jobs_service.errors import JobsError, ProcessGone
from jobs_service.layer import process_rows
from jobs_service.layer.process_rows import ProcessRow
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.log import EventLog
from jobs_service.model import HandlerSlots, ProcessAction, ProcessInfo, ProcessRequest, ProcessState
from jobs_service.service.handler_registry import HandlerRegistry
from jobs_service.service.store_access import StoreAccess
from jobs_service.supervision import ChildSpec, PatientSupervisor, Process, run_tree
from jobs_service.uncancelable import through_cancellation

log = EventLog("jobs_service")

DAEMON: Final = "daemon"
RUNNER: Final = "runner"

_LEAVE_WITHIN: Final = 2.0
"""Seconds to remove the row at the end; an unavailable store delays the exit no longer."""


class Presence:
    """Lists this process in the store.

    Args:
        context, registry: of the service.

    Attributes:
        id: of the process in the list; empty while it is not listed.
        is_quiet: whether the process was asked to take no more jobs.
    """

    def __init__(self, context: Context, registry: HandlerRegistry) -> None:
        self.id = ""
        self.is_quiet = False
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
        self.id = sources.token(process_rows.ID_BYTES).hex()
        self._role, self._stop, self._started = role, stop, sources.wall_time()
        writers: list[ChildSpec[Process]] = [ChildSpec("process row", self._new_writer)]
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

    def _new_writer(self) -> ProcessRowWriter:
        self._writer = ProcessRowWriter(self._context, self.id, self._row, self._obey)
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
            process_rows.remove(unit, id)

        try:
            async with asyncio.timeout(_LEAVE_WITHIN):
                await self._context.retried(lambda: self._context.transact(remove))
        except (JobsError, TimeoutError) as error:
            log.debug("process_row_left", id=id, error=str(error))

    def _row(self) -> ProcessRow:
        """Return the row that describes this process now."""
        context, runner = self._context, self._registry.runner
        uses = {} if runner is None else runner.slot_uses()
        handlers, unnamed = process_rows.some_of(HandlerSlots(type, use.slots, use.busy) for type, use in uses.items())
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
        )
        return ProcessRow(info, context.settings.process_heartbeat, context.store.instance)

    @property
    def _state(self) -> ProcessState:
        runner = self._registry.runner
        if self._is_stopping or (runner is not None and runner.is_draining):
            return ProcessState.STOPPING
        return ProcessState.QUIET if self.is_quiet else ProcessState.RUNNING

    def _obey(self, request: ProcessRequest) -> None:
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


async def processes(access: StoreAccess, context: Context) -> list[ProcessInfo]:
    """Return the listed processes; see JobsService.processes."""
    rows, dead = await all_rows(access.read, context)
    now = context.sources.wall_time()
    found = [row.as_of(now, dead) for row in rows]
    return sorted(found, key=lambda each: (each.host, each.started, each.id))


async def ask(access: StoreAccess, context: Context, id: Any, action: ProcessAction, who: str) -> ProcessInfo:
    """Send a request to a process; see JobsService.ask_process."""
    checked = process_rows.checked_id(id)
    sources, keyspace = context.sources, access.keyspace
    row = await access.read(lambda transaction: process_rows.one(transaction.snapshot, keyspace, checked))
    if row is None:
        raise ProcessGone(f"there is no process {checked}")
    dead = await context.store.ended_instances({row.instance} if row.instance else ())
    found = row.as_of(sources.wall_time(), dead)
    if found.state is ProcessState.DEAD:
        heard = datetime.fromtimestamp(found.heard, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        raise ProcessGone(f"process {checked} has died; it was heard of last at {heard}")
    request = ProcessRequest(action, who or sources.worker, sources.wall_time())
    await access.transact(lambda unit: process_rows.ask(unit, checked, request))
    return found


def _nothing() -> None:
    """Stop nothing: no stop function was given."""
