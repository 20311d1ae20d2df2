"""Runs the application on an address of this machine.

A client that is slow, or that sends endless headers, is the business of the proxy in front: see docs/http.md.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import uvicorn

from jobs_service.errors import InvalidSettings, in_one_line
from jobs_service.http import token_file
from jobs_service.http.application import Application
from jobs_service.http.state import ServerOptions
from jobs_service.log import EventLog
from jobs_service.sources import raised_file_limit

if TYPE_CHECKING:
    from jobs_service.service import JobsService

_GRACE: Final = 5
"""Seconds for unfinished answers at the end of the server."""
_KEEP_ALIVE: Final = 75
"""Seconds for which an idle connection stays open."""
_BACKLOG: Final = 2048

log = EventLog("jobs_service.http")


@dataclass(frozen=True, slots=True)
class Address:
    """The address and the options of a server.

    Attributes:
        address: HOST:PORT.
        options: see ServerOptions.
        certificate, key: files for TLS; None without.
    """

    address: str
    options: ServerOptions
    certificate: str | None = None
    key: str | None = None


@asynccontextmanager
async def serving(service: JobsService, where: Address) -> AsyncIterator[Server]:
    """Serve an open service while the block runs; at its end streams are closed and waiting requests answered.

    The server's own token is in a file of its user: a local connection proves nothing, because proxies are local as
    well.

    Args:
        service: the open service.
        where: see Address.

    Raises:
        InvalidSettings: the address cannot be used, or other machines reach it and there are no tokens.
    """
    host, port = parse_address(where.address)
    application = Application(service, where.options)
    tokens = await application.state.tokens.known()
    if not token_file.is_loopback(host) and not tokens and where.options.authenticate is None:
        raise InvalidSettings(
            f"address {where.address}: others than this machine reach it, and there are no tokens; "
            "add one first: jobs-service token add NAME --role admin"
        )
    listening = bound(host, port)
    try:
        server = Server(application, listening, where.certificate, where.key)
    except BaseException:
        listening.close()
        raise
    files = raised_file_limit()
    with token_file.kept(host, listening.getsockname()[1], application.state.tokens.new_own()) as path:
        await server.start()
        if not where.options.read_only:
            application.state.bulk.start()  # including bulk actions that another process has left, or leaves
        log.info(
            "http_serving",
            url=server.url,
            token_file=None if path is None else str(path),
            tokens=len(tokens),
            read_only=where.options.read_only,
            files=files,
        )
        try:
            yield server
        finally:
            await server.stop()


class Server:
    """One application at one socket.

    Args:
        application: the application.
        listening: the socket; closed with the server.
        certificate, key: files, for TLS; None without.

    Raises:
        InvalidSettings: the files are no certificate and key.
    """

    def __init__(
        self, application: Application, listening: socket.socket, certificate: str | None = None, key: str | None = None
    ) -> None:
        self._application = application
        self._listening = listening
        config = uvicorn.Config(
            application,
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=application.state.options.limits.connections,
            timeout_keep_alive=_KEEP_ALIVE,
            timeout_graceful_shutdown=_GRACE,
            ssl_certfile=certificate,
            ssl_keyfile=key,
        )
        if certificate is None and key is not None:
            raise InvalidSettings(f"the TLS key {key} is without a certificate; --tls-certificate names it")
        try:
            config.load()
        except (OSError, ssl.SSLError) as error:
            files = f"the TLS files {certificate} and {key}"
            if key is None:
                files = f"the TLS file {certificate}, which has to have the key as well where no other file is named"
            raise InvalidSettings(f"{files}: {error}") from None
        self._server = _Quiet(config)
        self._serving: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """The URL of the server."""
        host, port = self._listening.getsockname()[:2]
        scheme = "https" if self._server.config.is_ssl else "http"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    def login_url(self) -> str:
        """Return a one-time address that logs a browser in with the server's own token."""
        prefix = self._application.state.options.prefix
        return f"{self.url}{prefix}/login?code={self._application.state.tokens.new_code()}"

    async def start(self) -> None:
        """Begin to answer requests."""
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._listening]))
        # Clients that have connected meanwhile wait in the socket's backlog.
        await asyncio.sleep(0)

    async def end_waiting(self) -> None:
        """End streams of events, and answer requests that wait for jobs; other requests go on."""
        await self._application.state.close()

    async def stop(self) -> None:
        """Take no more requests, end streams and waits, and return after the last answer."""
        await self.end_waiting()
        self._server.should_exit = True
        if self._serving is not None:
            await self._serving
            self._serving = None
        self._listening.close()


class _Quiet(uvicorn.Server):
    """A server that leaves signals to its program."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`, `[IPV6]:PORT` or `:PORT` (loopback).

    Raises:
        InvalidSettings: the text is no address.
    """
    host, _, port = text.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not (port.isascii() and port.isdecimal() and len(port) < 6 and int(port) < 65_536):
        raise InvalidSettings(f"address {in_one_line(text, 60)}: HOST:PORT is needed, as in 127.0.0.1:8700")
    return host, int(port)


def bound(host: str, port: int) -> socket.socket:
    """Return a listening socket at an address.

    Raises:
        InvalidSettings: the address is taken, or not of this machine.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listening = socket.socket(family, kind, protocol)
    except UnicodeError:
        raise InvalidSettings(f"address {in_one_line(host, 60)}:{port}: that is no name of a host") from None
    except OSError as error:
        raise InvalidSettings(f"address {in_one_line(host, 60)}:{port}: {error.strerror or error}") from None
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise InvalidSettings(f"address {in_one_line(host, 60)}:{port}: {error.strerror or error}") from None
    listening.setblocking(False)
    return listening
