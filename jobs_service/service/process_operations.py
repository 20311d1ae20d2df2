"""A service's operations on the processes that use its store: list them, and quiet, resume or stop one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from jobs_service.actors.context import Context
from jobs_service.actors.process_row import all_rows
from jobs_service.errors import ProcessGone
from jobs_service.layer import process_rows
from jobs_service.model import ProcessAction, ProcessInfo, ProcessRequest, ProcessState
from jobs_service.service.store_access import StoreAccess


class ProcessOperations:
    """The part of JobsService about processes."""

    _access: StoreAccess
    _context: Context

    async def processes(self) -> list[ProcessInfo]:
        """Return the processes that run handlers or are daemons, in the order of their hosts and starts.

        Programs that only add or read jobs, or accept them without handlers, are not listed. A process that has ended
        without removing itself is listed as dead, or silent, for a day.
        """
        rows, dead = await all_rows(self._access.read, self._context)
        now = self._context.sources.wall_time()
        found = [row.as_of(now, dead) for row in rows]
        return sorted(found, key=lambda each: (each.host, each.started, each.id))

    async def quiet_process(self, id: str) -> ProcessInfo:
        """Have a process take no more jobs for its handlers; running jobs go on, and the process stays.

        The request arrives at once; a disconnected process gets it when it reads its row again.

        Args:
            id: of the process, as `processes` has it.

        Returns:
            The process, as it was before.

        Raises:
            ProcessGone: there is no such process, or it has died, or was asked to stop.
        """
        return await self._ask_process(id, ProcessAction.QUIET)

    async def resume_process(self, id: str) -> ProcessInfo:
        """Have a quiet process take jobs again; see `quiet_process`."""
        return await self._ask_process(id, ProcessAction.RESUME)

    async def stop_process(self, id: str) -> ProcessInfo:
        """Have a process end, as on SIGTERM: running handlers get their grace period, then their jobs are released.

        A daemon ends. In a program that runs handlers itself, `run` returns, and the program goes on. See
        `quiet_process`.
        """
        return await self._ask_process(id, ProcessAction.STOP)

    async def _ask_process(self, id: Any, action: ProcessAction, who: str | None = None) -> ProcessInfo:
        """Send a request to a process.

        Args:
            id, action: see above.
            who: the requester; None for this process.
        """
        checked = process_rows.checked_id(id)
        sources, keyspace = self._context.sources, self._access.keyspace
        row = await self._access.read(lambda transaction: process_rows.one(transaction.snapshot, keyspace, checked))
        if row is None:
            raise ProcessGone(f"there is no process {checked}")
        dead = await self._context.store.ended_instances({row.instance} if row.instance else ())
        found = row.as_of(sources.wall_time(), dead)
        if found.state is ProcessState.DEAD:
            heard = datetime.fromtimestamp(found.heard, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            raise ProcessGone(f"process {checked} has died; it was heard of last at {heard}")
        request = ProcessRequest(action, sources.worker if who is None else who, sources.wall_time())
        await self._access.transact(lambda unit: process_rows.ask(unit, checked, request))
        return found
