"""Runs the application on an address of this machine, with limits that an ASGI application cannot enforce."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from jobs_service.errors import InvalidSettings, in_one_line
from jobs_service.http.application import Application
from jobs_service.http.limits import Limits
from jobs_service.http.problems import problem
from jobs_service.http.refusals import Refusal

_GRACE: Final = 5
"""Seconds for unfinished answers at the end of the server."""
_KEEP_ALIVE: Final = 75
"""Seconds for which an idle connection stays open."""
_WRITE_BUFFER: Final = 1 << 16
"""Bytes that are buffered for a client before its answer waits."""
_BACKLOG: Final = 2048


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
        limits = application.state.options.limits
        config = uvicorn.Config(
            application,
            http=type("Protocol", (_Protocol,), {"limits": limits}),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
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

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Protocol(HttpToolsProtocol):
    """One connection, with limits on the size and time of request heads.

    Attributes:
        limits: of the server.
    """

    limits = Limits()

    def connection_made(self, transport: Any) -> None:
        """Start the timer of the first request."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=_WRITE_BUFFER)
        self._head = self._head_before = self._beside = 0
        self._in_head = True
        self._is_refused = self._has_asked = False
        self._unanswered: deque[Any] = deque()
        self._stalled: asyncio.TimerHandle | None = None
        self._patience: asyncio.TimerHandle | None = self.loop.call_later(self.limits.head_time, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection, and notify all of its unfinished answers: uvicorn notifies only the last one."""
        self._wait_no_more()
        for cycle in self._unanswered:
            cycle.disconnected = True
            cycle.message_event.set()
        if self._stalled is not None:
            self._stalled.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, unless the connection is being closed already."""
        if self._is_refused:
            return
        if self._in_head and self._patience is None:
            self._patience = self.loop.call_later(self.limits.head_time, self._too_slow)
        self._head_before = self._head
        self._has_ended = self._has_brought = False
        super().data_received(data)
        # An incomplete header has not been counted yet.
        if self._in_head and not self._has_ended:
            self._head = max(self._head, self._head_before + len(data))
            self._check_head()
        elif not self._in_head:
            # The parser keeps a header behind a body, however long, until it is complete.
            self._beside = 0 if self._has_brought else self._beside + len(data)
            self._check_head()

    def on_message_begin(self) -> None:
        """Begin to count the bytes of a head."""
        self._in_head = True
        self._head = self._head_before = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Count a part of the request line."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header. A header behind the body is dropped: the checks of the request have not seen it."""
        self._count(len(name) + len(value) + 4)
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start the answer."""
        self._in_head = False
        self._has_brought = True
        self._wait_no_more()
        if not self._is_refused:
            super().on_headers_complete()
            self._has_asked = True
            self._unanswered.append(self.cycle)

    def on_body(self, body: bytes) -> None:
        """Take a part of a body."""
        self._has_brought = True
        if not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Take the end of a body."""
        if not self._is_refused:
            super().on_message_complete()
        self._in_head = self._has_ended = True
        self._head = self._beside = 0
        self._wait_no_more()

    def on_response_complete(self) -> None:
        """Go on with the next request; the rest of an answered request's body has to end soon."""
        self._unanswered.popleft()
        super().on_response_complete()
        if not self._in_head and self.cycle.response_complete and not self.transport.is_closing():
            self._patience = self.loop.call_later(self.limits.whole_body_time, self.transport.close)

    def pause_writing(self) -> None:
        """Wait for a client that reads nothing, but not for ever."""
        super().pause_writing()
        self._stalled = self.loop.call_later(self.limits.send_time, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on with a client that reads again."""
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that is not HTTP, with a problem."""
        if not self._is_refused:
            self._refuse(Refusal("bad-request", "the request is not HTTP"))

    def _count(self, size: int) -> None:
        self._head += size
        self._check_head()

    def _check_head(self) -> None:
        if max(self._head, self._beside) > self.limits.head and not self._is_refused:
            self._refuse(
                Refusal("headers-too-large", f"request line and headers of more than {self.limits.head} bytes")
            )

    def _too_slow(self) -> None:
        self._patience = None
        if not self._in_head or self.transport.is_closing() or self._is_answering():
            return
        if self._head:
            self._refuse(Refusal("too-slow", f"the headers took more than {self.limits.head_time:g} s"))
        elif not self._has_asked:  # an idle connection after a request has another limit
            self._is_refused = True
            self.transport.close()

    def _is_answering(self) -> bool:
        return self._has_asked and not self.cycle.response_complete

    def _wait_no_more(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _refuse(self, refusal: Refusal) -> None:
        """Answer with a problem and close, unless another answer is under way."""
        self._is_refused = True
        self._wait_no_more()
        if not self._is_answering():
            body = json.dumps(problem(refusal)).encode()
            head = (
                f"HTTP/1.1 {refusal.http_status} {refusal.slug}\r\ncontent-type: application/problem+json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()
