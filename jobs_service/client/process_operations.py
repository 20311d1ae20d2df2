"""The operations of a client on the processes that use the server's store."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from jobs_service.client.access import ServerAccess
from jobs_service.errors import ProcessGone, shown
from jobs_service.http.wire import process_of
from jobs_service.model import ProcessAction, ProcessInfo


class RemoteProcessOperations:
    """The part of JobsClient about processes, as in JobsService."""

    _access: ServerAccess

    async def processes(self) -> list[ProcessInfo]:
        """Return the processes that run handlers or are daemons; see JobsService.processes."""
        found = await self._access.call("GET", "/v1/processes")
        return self._access.read(lambda form: [process_of(each) for each in form["processes"]], found)

    async def quiet_process(self, id: str) -> ProcessInfo:
        """Have a process take no more jobs; see JobsService.quiet_process."""
        return await self._ask_process(id, ProcessAction.QUIET)

    async def resume_process(self, id: str) -> ProcessInfo:
        """Have a quiet process take jobs again; see JobsService.resume_process."""
        return await self._ask_process(id, ProcessAction.RESUME)

    async def stop_process(self, id: str) -> ProcessInfo:
        """Have a process end, as on SIGTERM; see JobsService.stop_process."""
        return await self._ask_process(id, ProcessAction.STOP)

    async def _ask_process(self, id: Any, action: ProcessAction) -> ProcessInfo:
        if not isinstance(id, str) or not id.isalnum():
            raise ProcessGone(f"there is no process {shown(id)}")
        found = await self._access.call("POST", f"/v1/processes/{quote(id, safe='')}/{action.value}")
        return self._access.read(process_of, found)
