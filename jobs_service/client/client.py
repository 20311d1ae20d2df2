"""JobsClient: what a program uses to reach a service in another process, on this machine or another one."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from jobs_service.actors.subscriptions import Subscription
from jobs_service.arguments import check_seconds
from jobs_service.client.access import ServerAccess
from jobs_service.client.connection import Connection
from jobs_service.client.creator_operations import RemoteCreatorOperations
from jobs_service.client.hub import RemoteHub
from jobs_service.client.process_operations import RemoteProcessOperations
from jobs_service.client.reader_operations import RemoteReaderOperations
from jobs_service.client.type_operations import RemoteTypeOperations
from jobs_service.client.worker_operations import RemoteWorker, RemoteWorkerOperations
from jobs_service.durations import Duration
from jobs_service.errors import ServiceClosed
from jobs_service.layer import creation
from jobs_service.layer.keyspace import TypeKeys
from jobs_service.model import JobId, JobType
from jobs_service.service.watcher_operations import WaitingOperations, checked_pairs
from jobs_service.sources import Sources

if TYPE_CHECKING:
    import ssl

    import httpx

_TIMEOUT: Final = 30.0


class JobsClient(
    RemoteTypeOperations,
    RemoteCreatorOperations,
    RemoteReaderOperations,
    RemoteWorkerOperations,
    RemoteProcessOperations,
    WaitingOperations,
):
    """A JobsService in another process, over HTTP: an async context manager with its operations.

    They have the same arguments, results and errors. Missing are `transact` and `within`, which need the store, and
    handlers with `run`. Two answers of the network are errors of their own: StoreUnavailable when the server cannot
    be reached, or has not answered in time, and AccessDenied. A request whose answer is lost is sent again for as long
    as `timeout` allows; `remove` and `resubmit` only where the server cannot have begun them. Subscriptions, `wait` and
    `result` connect again by themselves, however long it takes.

    Args:
        url: `http://HOST:PORT` or `https://...`, with any prefix, as `jobs-service serve --http` prints it.
        token: as `jobs-service token add` prints it; None for none.
        timeout: duration within which a call is answered while the server is away.
        verify: of TLS: True for the usual certificate authorities, an ssl.SSLContext for others.
        transport: an httpx transport, for Unix sockets or proxies; None for TCP.
        sources: what this process is called in the history of its jobs, and randomness; None for the machine's.

    Raises:
        InvalidAddress: the URL can be no server's.
        JobsError: httpx is not installed, or an argument that cannot be.
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
        self._worker = RemoteWorker(access)
        self._hub = RemoteHub(connection, access.keyspace, sources)

    async def __aenter__(self) -> Self:
        await self._connection.open()
        self._hub.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hub.close(ServiceClosed("the client was left: it takes nothing new"))
        await self._hub.closed()
        await self._connection.close()

    @property
    def url(self) -> str:
        """Where the server is."""
        return self._connection.url

    def subscribe_many(self, jobs: Iterable[tuple[JobType, JobId]]) -> Subscription:
        """Return the events of several jobs as one iterator; see JobsService.subscribe_many."""
        wanted: dict[tuple[TypeKeys, JobId], None] = {}
        for type, id in checked_pairs(jobs):
            keys = self._access.keys(type)
            wanted[keys, creation.check_id(keys, id)] = None
        return Subscription(self._hub, [*wanted])

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"
