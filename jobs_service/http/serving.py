"""The HTTP interface beside a service that runs already: what `serve --http` and tests start."""

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
    """Where and how a service is served.

    Attributes:
        address: HOST:PORT.
        options: see there.
        certificate, key: files for TLS; None without.
    """

    address: str
    options: Options
    certificate: str | None = None
    key: str | None = None


@asynccontextmanager
async def serving(service: JobsService, where: Address) -> AsyncIterator[Server]:
    """Serve an open service as long as the block runs; at its end streams are closed and who waits is answered.

    Whoever has started it has a token in a file of theirs: being on the same machine is no proof of anything, as a
    proxy is there as well.

    Args:
        service: open.
        where: see Address.

    Raises:
        InvalidSettings: the address cannot be used, or others reach it and have no tokens.
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
            application.state.bulk.start()  # also those that another process has left, or leaves
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
