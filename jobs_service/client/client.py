"""JobsClient: reaches a service in another process, on this machine or another one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, overload

from jobs_service.actors.subscriptions import Subscription
from jobs_service.arguments import check_seconds
from jobs_service.client.acceptor import RemoteAcceptor
from jobs_service.client.access import ServerAccess
from jobs_service.client.adder import RemoteAdder
from jobs_service.client.connection import Connection
from jobs_service.client.creator_operations import RemoteCreatorOperations
from jobs_service.client.hub import RemoteHub, RemoteType
from jobs_service.client.process_operations import RemoteProcessOperations
from jobs_service.client.reader_operations import RemoteReaderOperations
from jobs_service.client.type_operations import RemoteTypeOperations
from jobs_service.client.worker_operations import RemoteWorker, RemoteWorkerOperations
from jobs_service.durations import Duration
from jobs_service.errors import JobsError, ServiceClosed
from jobs_service.model import EndedJob, JobEvent, JobId, JobState, JobType
from jobs_service.model.enqueueing import Enqueueable, ResultT
from jobs_service.service import waiting
from jobs_service.sources import Sources

if TYPE_CHECKING:
    import ssl

    import httpx

    from jobs_service.service import JobsService

_TIMEOUT: Final = 30.0


class JobsClient(
    RemoteTypeOperations,
    RemoteCreatorOperations,
    RemoteReaderOperations,
    RemoteWorkerOperations,
    RemoteProcessOperations,
):
    """A JobsService in another process, over HTTP: an async context manager with its operations.

    They have the same arguments, results and errors. `run` runs the handlers of an application. Operations that need
    the store raise JobsError: `transact`, `within`, and `finish_with` of a running job. The network adds two errors:
    StoreUnavailable, if the server cannot be reached or has not answered in time, and AccessDenied. A request whose
    answer is lost is sent again within `timeout`; `remove` and `resubmit` only if the server cannot have begun them.
    Subscriptions, `wait`, `result` and `run` reconnect by themselves, without a time limit.

    Args:
        url: `http://HOST:PORT` or `https://...`, with any prefix, as `jobs-service serve --http` prints it.
        token: as `jobs-service token add` prints it; None for no token, or to find the token of a server that the same
            user has started on this machine.
        timeout: duration after which a call to an unreachable server fails.
        verify: TLS verification: True for the usual certificate authorities, an ssl.SSLContext for others.
        transport: an httpx transport, for Unix sockets or proxies; None for TCP.
        sources: this process's name in the history of its jobs, and randomness; None for the machine's.

    Raises:
        InvalidAddress: the URL is invalid for a server.
        JobsError: httpx is not installed, or an argument is invalid.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout: Duration = _TIMEOUT,
        verify: bool | ssl.SSLContext = True,
        transport: httpx.AsyncBaseTransport | None = None,
        sources: Sources | None = None,
    ) -> None:
        sources = sources if sources is not None else Sources()
        connection = self._connection = Connection(url, token, check_seconds(timeout), verify, transport, sources)
        access = self._access = ServerAccess(connection, sources)
        self._adder = RemoteAdder(access)
        self._worker = RemoteWorker(access)
        self._acceptor = RemoteAcceptor(access, self._worker)
        self._hub = RemoteHub(connection, sources)

    async def __aenter__(self) -> Self:
        await self._connection.open()
        self._hub.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hub.close(ServiceClosed("the client was left: it takes nothing new"))
        await self._hub.closed()
        await self._acceptor.closed()
        await self._connection.close()
        await self._adder.closed()

    @property
    def url(self) -> str:
        """The address of the server."""
        return self._connection.url

    async def run(
        self,
        jobs: JobsService,
        *,
        types: Iterable[JobType] | None = None,
        max_jobs: int | None = None,
        started: Callable[[], object] | None = None,
    ) -> None:
        """Run the handlers of an application with the server's jobs until the caller is canceled.

        Retries, heartbeats, progress, turns and the end with its grace are those of JobsService.run. While the server
        is away, handlers go on; their outcomes are sent when it is back. The token needs the role work, and for
        periodic handlers, which add jobs, the role write. Opens the client if it is not open.

        Args:
            jobs: the service with the handlers; it need not be open, and its store is not used.
            types, max_jobs, started: as for JobsService.run.

        Raises:
            InvalidSettings, SupervisorFailed, JobsError: as JobsService.run.
            AccessDenied: the token does not allow it.
        """
        if not self._connection.is_open:
            async with self:
                return await self.run(jobs, types=types, max_jobs=max_jobs, started=started)
        runs = import_module("jobs_service.client.runs")
        await runs.run(self._access, self._acceptor, self._worker, jobs, types, max_jobs, started)

    async def transact(self, function: Any) -> NoReturn:
        """Raise JobsError: a transaction needs the store itself."""
        raise _needs_the_store("transact")

    def within(self, transaction: object) -> NoReturn:
        """Raise JobsError: a transaction needs the store itself."""
        raise _needs_the_store("within")

    def subscribe_many(self, jobs: Iterable[tuple[JobType, JobId]]) -> Subscription:
        """Return the events of several jobs as one iterator; see JobsService.subscribe_many."""
        wanted: dict[tuple[Any, JobId], None] = {}
        for type, id in waiting.checked_pairs(jobs):
            self._access.of_job(type, id)
            wanted[RemoteType(type), id] = None
        return Subscription(self._hub, [*wanted])

    def subscribe(self, type: JobType, id: JobId) -> Subscription:
        """Return the events of a job; see JobsService.subscribe."""
        return self.subscribe_many([(type, id)])

    async def wait(
        self, type: JobType, id: JobId, *states: JobState | str, timeout: Duration | None = None
    ) -> JobEvent:
        """Wait until a job is in one of these states; see JobsService.wait."""
        return await waiting.wait(self.subscribe, type, id, states, timeout)

    @overload
    async def result(
        self, type: Enqueueable[Any, EndedJob[ResultT]], id: JobId, *, timeout: Duration | None = None
    ) -> ResultT: ...

    @overload
    async def result(
        self, type: Enqueueable[Any, ResultT | EndedJob[ResultT]], id: JobId, *, timeout: Duration | None = None
    ) -> ResultT: ...

    @overload
    async def result(self, type: JobType, id: JobId, *, timeout: Duration | None = None) -> Any: ...

    async def result(self, type: Any, id: JobId, *, timeout: Duration | None = None) -> Any:
        """Wait until a job has finished, and return its result; see JobsService.result."""
        return await waiting.result(self.subscribe, type, id, timeout)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"


def _needs_the_store(what: str) -> JobsError:
    return JobsError(f"{what} needs the store itself, which a client does not have: use a JobsService beside the store")
