"""A service over HTTP on a port of its own, in the same process, and a client of it that the service's suites take."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from jobs_service import Job, JobsClient, JobsService, RunningJob, Settings
from jobs_service.http.application import Application
from jobs_service.http.state import ServerOptions
from jobs_service.store import Store


@asynccontextmanager
async def listening(jobs: JobsService, options: ServerOptions | None = None, port: int = 0) -> AsyncIterator[str]:
    """Serve a service on loopback, and yield its URL; on leaving all connections end at once."""
    application = Application(jobs, ServerOptions(is_open=True) if options is None else options)
    config = uvicorn.Config(application, lifespan="off", log_config=None, access_log=False, ws="none")
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: HttpToolsProtocol(config=config, server_state=state, app_state={}), "127.0.0.1", port
    )
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await application.state.close()
        for connection in [*state.connections]:
            assert isinstance(connection, HttpToolsProtocol)
            connection.transport.abort()
        await asyncio.gather(*state.tasks, return_exceptions=True)


class ServedClient(JobsClient):
    """A client with what tests of a service use beside its operations: they look at the service behind it.

    Attributes:
        served: that service.
    """

    served: JobsService

    @property
    def store(self) -> Store:
        return self.served.store

    @property
    def _waiting(self) -> Any:
        return self.served._waiting

    def supervision(self) -> Any:
        return self.served.supervision()

    def handler(self, *arguments: Any, **options: Any) -> Any:
        return self.served.handler(*arguments, **options)

    async def run(self, *_: Any, **__: Any) -> None:
        await self.served.run()

    async def transact(self, function: Callable[[Any], Awaitable[Any]]) -> Any:
        """Do without the transaction what a function does in it."""
        return await function(_Steps(self))


class _Steps:
    """The operations of a JobTransaction that the suites use, each on its own."""

    def __init__(self, jobs: JobsClient) -> None:
        self._jobs = jobs

    async def update(self, job: RunningJob, *data: Any) -> RunningJob:
        return await job.update(*data)

    async def finish(self, job: RunningJob, *data: Any) -> Job:
        return await job.finish(*data)

    async def resubmit(self, job: Any, *id: Any, **changes: Any) -> Job:
        if isinstance(job, RunningJob):
            return await job.resubmit(**changes)
        return await self._jobs.resubmit(job, *id, **changes)


@asynccontextmanager
async def served(
    store: str | Store = "memory:", settings: Settings | None = None, **more: Any
) -> AsyncIterator[ServedClient]:
    """Yield a client of a service that is served on a port of its own."""
    async with (
        JobsService(store, settings=settings, **more) as jobs,
        listening(jobs) as url,
        ServedClient(url) as client,
    ):
        client.served = jobs
        yield client
