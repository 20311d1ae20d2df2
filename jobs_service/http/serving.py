"""The HTTP interface beside a running service, for `serve --http` and tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jobs_service.errors import InvalidSettings
from jobs_service.http import token_file
from jobs_service.http.application import Application
from jobs_service.http.server import Server, bound, parse_address
from jobs_service.http.state import Options
from jobs_service.http.token_file import is_loopback
from jobs_service.log import EventLog
from jobs_service.sources import raised_file_limit

if TYPE_CHECKING:
    from jobs_service.service import JobsService

log = EventLog("jobs_service.http")


@dataclass(frozen=True, slots=True)
class Address:
    """The address and the options of a server.

    Attributes:
        address: HOST:PORT.
        options: see Options.
        certificate, key: files for TLS; None without.
    """

    address: str
    options: Options
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
    if not is_loopback(host) and not tokens and where.options.authenticate is None:
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
