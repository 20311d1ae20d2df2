"""The server itself: connections, who may ask, faults, and which handler answers."""

import asyncio
import base64
import gzip
import json
import secrets
import time
import zlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import unquote

from aiohttp import web

from tests.replication.server import database_requests, document_requests
from tests.replication.server.databases import Refused, StoredDatabase
from tests.replication.server.oddities import Fault, Oddities

_SHUTDOWN = 0.1


@dataclass(slots=True)
class Answer:
    """What a handler answers: JSON, bytes, or a stream."""

    status: int
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Asked:
    """A request as a handler sees it: the path's parts decoded, the query, the headers, the body read when wanted."""

    method: str
    path: list[str]
    query: dict[str, str]
    headers: Mapping[str, str]
    request: web.Request
    server: "Server"

    async def json(self) -> Any:
        """The body, which must be JSON and say so."""
        if not self.headers.get("Content-Type", "").startswith("application/json"):
            raise Refused(415, "bad_content_type", "Content-Type must be application/json")
        try:
            return json.loads(await self.read())
        except ValueError:
            raise Refused(400, "bad_request", "invalid UTF-8 JSON") from None

    async def read(self) -> bytes:
        """The body; refused unread where it is larger than allowed."""
        limit = self.server.oddities.max_request
        if limit is not None and (self.request.content_length or 0) > limit:
            raise Refused(413, "too_large", "the request entity is too large")
        await self.agree()
        return bytes(await self.request.content.read())

    async def agree(self) -> None:
        """Tell a client that asks first to send the body."""
        if self.headers.get("Expect", "").lower() == "100-continue" and self.server.oddities.agrees:
            transport = self.request.transport
            assert transport is not None
            transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")


class Server:
    """A running server: `async with Server() as server: server.url`."""

    def __init__(self, oddities: Oddities | None = None, *, port: int = 0, ssl: Any = None) -> None:
        self.oddities = oddities or Oddities()
        self.databases: dict[str, StoredDatabase] = {}
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        """Each request as "METHOD /path?query", in order."""
        self.seen_headers: list[dict[str, str]] = []
        self.sessions: dict[str, float] = {}
        self.closing = asyncio.Event()
        self._port, self._ssl = port, ssl
        self._runner: web.ServerRunner | None = None

    @property
    def url(self) -> str:
        """The address of the server, without a slash at the end."""
        return f"{'https' if self._ssl else 'http'}://127.0.0.1:{self._port}"

    @property
    def port(self) -> int:
        return self._port

    def database(self, name: str) -> StoredDatabase:
        """A database, made where there is none."""
        if name not in self.databases:
            self.databases[name] = StoredDatabase(name, self.oddities.gzip_text, self.oddities.revs_limit)
        return self.databases[name]

    async def __aenter__(self) -> Self:
        self._runner = web.ServerRunner(web.Server(self._handle, access_log=None), shutdown_timeout=_SHUTDOWN)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, ssl_context=self._ssl)
        await site.start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.closing.set()
        for database in self.databases.values():
            database.touched()
        assert self._runner is not None
        await self._runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        assert isinstance(request, web.BaseRequest)
        line = f"{request.method} {request.raw_path}"
        self.requests.append(line)
        self.seen_headers.append(dict(request.headers))
        fault = next((fault for fault in self.faults if fault.meets(line)), None)
        if self.oddities.latency:
            await asyncio.sleep(self.oddities.latency)
        if fault is not None and fault.until is not None:
            await fault.until.wait()
        if fault is not None and fault.drop:
            _cut(request)
        if fault is not None and fault.status is not None:
            return await self._send(request, Answer(fault.status, fault.body, fault.headers), None)
        answer = await self._answer(request)
        if fault is not None and fault.drop_after_work:
            _cut(request)
        return await self._send(request, answer, fault)

    async def _answer(self, request: Any) -> Answer:
        path = [unquote(part) for part in request.raw_path.partition("?")[0].split("/")[1:]]
        asked = Asked(request.method, path, dict(request.query), request.headers, request, self)
        try:
            if path == ["_session"]:
                return await self._session(asked)
            cookie = self._authorize(asked)
            answer = await _route(asked)
            return Answer(answer.status, answer.body, {**answer.headers, **cookie})
        except Refused as error:
            return Answer(error.status, {"error": error.error, "reason": error.reason})

    def _authorize(self, asked: Asked) -> dict[str, str]:
        if not self.oddities.users or asked.path == [""]:
            return {}
        if self._basic(asked) or self.sessions.get(_token(asked), 0) > time.monotonic():
            return {}
        raise Refused(401, "unauthorized", "You are not authorized to access this db.")

    def _basic(self, asked: Asked) -> bool:
        kind, _, given = asked.headers.get("Authorization", "").partition(" ")
        if kind != "Basic":
            return False
        name, _, password = base64.b64decode(given).decode().partition(":")
        if self.oddities.users.get(name) != password:
            raise Refused(401, "unauthorized", "Name or password is incorrect.")
        return True

    async def _session(self, asked: Asked) -> Answer:
        if not self.oddities.sessions:
            raise Refused(404, "not_found", "missing")
        if self.oddities.session_wants_basic and not self._basic(asked):
            form = {"error": "unauthorized", "reason": "Authentication required."}
            return Answer(401, form, {"WWW-Authenticate": 'Basic realm="server"'})
        given = await asked.request.post()
        if self.oddities.users.get(str(given.get("name"))) != given.get("password"):
            raise Refused(401, "unauthorized", "Name or password is incorrect.")
        token, seconds = secrets.token_urlsafe(), 600
        self.sessions[token] = time.monotonic() + seconds
        cookie = f"AuthSession={token}; Version=1; Max-Age={seconds}; Path=/; HttpOnly"
        return Answer(200, {"ok": True, "name": given.get("name"), "roles": []}, {"Set-Cookie": cookie})

    async def _send(self, request: Any, answer: Answer, fault: Fault | None) -> web.StreamResponse:
        headers = {"Server": "small", "Cache-Control": "must-revalidate", **answer.headers}
        if isinstance(answer.body, AsyncIterator):
            response = web.StreamResponse(status=answer.status, headers=headers)
            chunks = answer.body
        else:
            data = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode() + b"\n"
            if self.oddities.compresses and "Content-Encoding" not in headers:
                headers["Content-Encoding"] = self.oddities.compresses
                data = gzip.compress(data) if self.oddities.compresses == "gzip" else zlib.compress(data)
            headers.setdefault("Content-Type", "application/json")
            response = web.StreamResponse(status=answer.status, headers=headers)
            response.content_length = len(data)
            chunks = _once(data)
        await response.prepare(request)
        sent = 0
        try:
            async for chunk in chunks:
                if fault is not None and fault.replace is not None:
                    chunk = chunk.replace(*fault.replace)
                if fault is not None and fault.cut is not None and sent + len(chunk) > fault.cut:
                    await response.write(chunk[: fault.cut - sent])
                    _cut(request)
                sent += len(chunk)
                if request.method != "HEAD":
                    await response.write(chunk)
        except (ConnectionError, Cut):
            raise asyncio.CancelledError from None
        await response.write_eof()
        return response


class Cut(Exception):
    """The connection ends here."""


def _cut(request: Any) -> None:
    transport = request.transport
    if transport is not None:
        transport.close()
    raise asyncio.CancelledError


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data


def _token(asked: Asked) -> str:
    for cookie in asked.headers.get("Cookie", "").split(";"):
        name, _, value = cookie.strip().partition("=")
        if name == "AuthSession":
            return value
    return ""


async def _route(asked: Asked) -> Answer:
    path, server = asked.path, asked.server
    if path == [""]:
        return Answer(200, {"couchdb": "Welcome", "version": "3.5.0", "uuid": "0" * 32, "vendor": {"name": "small"}})
    name, rest = path[0], [part for part in path[1:] if part != ""]
    if not rest and asked.method == "PUT":
        return Answer(*database_requests.create(server, name))
    if name not in server.databases:
        raise Refused(404, "not_found", "Database does not exist.")
    database = server.databases[name]
    if not rest and asked.method == "DELETE":
        del server.databases[name]
        return Answer(200, {"ok": True})
    if not rest or (rest[0].startswith("_") and rest[0] not in ("_design", "_local")):
        handler = database_requests.HANDLERS.get((asked.method, rest[0] if rest else ""))
        if handler is None:
            raise Refused(405, "method_not_allowed", f"{asked.method} is not allowed")
        return Answer(*await handler(asked, database))
    return Answer(*await document_requests.handle(asked, database, rest))
