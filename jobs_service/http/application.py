"""The ASGI application: routes requests to endpoints, checks their rights, and answers; errors become problems."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import fields
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Route, Router
from starlette.types import Message, Receive, Scope, Send

from jobs_service import job_context, json_types, tracing
from jobs_service.errors import InvalidSettings, JobsError, StoreError, in_one_line, meant
from jobs_service.http import (
    bodies,
    daemon_endpoints,
    gate,
    job_endpoints,
    problems,
    streams,
    type_endpoints,
    worker_endpoints,
)
from jobs_service.http.endpoint import ENDPOINTS, Call, Endpoint, Routes, path_of, query_of
from jobs_service.http.problems import Refusal
from jobs_service.http.state import STREAM, ServerOptions, ServerState
from jobs_service.http.tokens import Identity, Role
from jobs_service.log import EventLog

if TYPE_CHECKING:
    from jobs_service.service import JobsService

log = EventLog("jobs_service.http")

REGISTERED: Final = (daemon_endpoints, job_endpoints, streams, type_endpoints, worker_endpoints)
"""The modules whose import has filled ENDPOINTS."""

_DASHBOARD: Final = "jobs_service.dashboard"
_WHO, _FROM = "jobs_service.who", "jobs_service.from"
"""Keys of a request's scope: the caller and the client's address, once they are known."""
_EVERYWHERE = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
    (
        b"content-security-policy",
        b"default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'",
    ),
    (b"cache-control", b"no-store"),
]
"""Headers of all answers that do not set them themselves."""


class Application:
    """A service over HTTP.

    Args:
        service: the service; the application does not open it.
        options: settings of the server.
    """

    def __init__(self, service: JobsService, options: ServerOptions | None = None) -> None:
        self.state = ServerState(service, options)
        self._routes = Routes(ENDPOINTS)
        # The dashboard imports http, and may be missing.
        self._dashboard = import_module(_DASHBOARD) if find_spec(_DASHBOARD) else None
        pages = self._dashboard.routes(self.state) if self._dashboard else []
        self._pages = Router(routes=pages, redirect_slashes=False)
        own = {
            each.path.split("/")[1] for each in (*ENDPOINTS, *self._pages.routes) if isinstance(each, Endpoint | Route)
        }
        if (prefix := self.state.options.prefix).split("/")[1:2] and prefix.split("/")[1] in own:
            # It would be ambiguous whether a proxy has stripped the prefix.
            raise InvalidSettings(
                f"prefix {prefix}: the server's own paths begin like that; take another one, as /jobs"
            )
        service.before_leaving(self.state.end_waiting)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an ASGI request."""
        if scope["type"] == "lifespan":
            return await _lifespan(receive, send)
        if scope["type"] != "http":
            await receive()
            return await send({"type": "websocket.close", "code": 1003})
        if prefix := self.state.options.prefix:
            scope["root_path"] = scope.get("root_path", "") + prefix
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = [*message.get("headers", [])]
                there = {name.lower() for name, _ in headers}
                message["headers"] = headers + [each for each in _EVERYWHERE if each[0] not in there]
            await send(message)

        try:
            response = await self._answered(scope, receive, sending)
            if response is not None:
                await response(scope, receive, sending)
            return
        except ClientDisconnect:
            return
        except Exception as error:
            if isinstance(error, Refusal) and error.is_denial:
                self._note(error, scope)
            response = self._negotiated(scope, *_failed(error, scope))
            if started:
                # The answer has begun: the connection is cut, so that no client takes it for complete.
                raise RuntimeError("an answer failed after it had begun") from error
        await response(scope, receive, sending)

    async def _answered(self, scope: Scope, receive: Receive, send: Send) -> Response | None:
        """Return a long-lived answer, to be sent without holding a place; None if the answer has been sent."""
        gate.check_size(scope, self.state.options.limits.head)
        headers = gate.Headers(scope)
        origin = gate.Origin(scope, headers, self.state.options.proxies)
        scope[_FROM] = origin.client
        method = scope["method"]
        gate.check_host(origin.host, self.state.options.allowed_hosts)
        gate.check_site(method, origin.host, headers, self.state.options.allowed_hosts)
        query = query_of(scope)
        found = self._routes.find(path_of(scope), dict(query))
        if found is None:
            return await self._page(scope, receive, send, headers, origin)
        endpoint = found.methods.get("GET" if method == "HEAD" else method)
        if endpoint is None or (endpoint.is_long and method == "HEAD"):
            allowed = sorted({*found.methods} | ({"HEAD"} if "GET" in found.methods else set()))
            raise Refusal(
                "method-not-allowed", f"allowed are {', '.join(allowed)}", headers={"Allow": ", ".join(allowed)}
            )
        who = await self._who(endpoint, scope, headers)
        request = Request(scope, receive, send)
        call = Call(self.state, request, who, origin.client, origin.is_secure)
        call.names = found.names
        if endpoint.role is Role.WORK:  # every address for workers is of one type
            call.check_may_run(call.type)
        # As pairs, because a repeated name is refused there.
        _check_query(call, endpoint, [(name, value) for name, value in query if name not in found.used])
        if endpoint.is_health:
            return await endpoint.answer(call)
        if endpoint.is_long:
            with self.state.place(who, origin.client):
                await _read_body(call, endpoint, headers)
            return await endpoint.answer(call)
        trace = tracing.within(headers.first("traceparent"), headers.first("tracestate"))
        context = job_context.of_request(headers.first(job_context.HEADER.lower()))
        with self.state.place(who, origin.client), trace, context:
            await _read_body(call, endpoint, headers)
            response = await endpoint.answer(call)
            await response(scope, receive, send)
        return None

    async def _who(self, endpoint: Endpoint, scope: Scope, headers: gate.Headers) -> Identity:
        if endpoint.role is Role.NOBODY:
            # Without a role, the store is not read: liveness must not depend on it.
            return Identity("", Role.NOBODY)
        who = scope[_WHO] = await gate.identify(self.state, scope, headers)
        return gate.check_role(self.state, who, endpoint.role, changes=endpoint.changes)

    async def _page(
        self, scope: Scope, receive: Receive, send: Send, headers: gate.Headers, origin: gate.Origin
    ) -> Response | None:
        """Let a page answer, if there is one; the page checks the caller's role itself, by `require`."""
        # In ASGI the path begins with the mount point, even if a proxy has stripped it.
        path, root = path_of(scope), scope.get("root_path", "")
        scope["path"], scope["raw_path"] = root + unquote(path), quote(root).encode() + path
        matches = [(route, route.matches(scope)[0]) for route in self._pages.routes]
        found = [match for _, match in matches if match is not Match.NONE]
        if not found:
            raise Refusal(
                "not-found", f"there is no such address; {quote(root).rstrip('/')}/openapi.json has all of them"
            )
        if Match.FULL not in found:
            raise Refusal("method-not-allowed", "a page takes GET; its buttons send POST")
        who = await gate.identify(self.state, scope, headers)
        scope.setdefault("state", {})
        scope["state"] = {
            **scope["state"],
            "jobs": self.state,
            "who": who,
            "client": origin.client,
            "is_secure": origin.is_secure,
            "base": origin.base,
        }
        is_stream = any(match is Match.FULL and getattr(route, "name", "") == STREAM for route, match in matches)
        # A stream takes a place of another kind while its page is open.
        with nullcontext() if is_stream else self.state.place(who, origin.client):
            await self._pages(scope, receive, send)
        return None

    def _note(self, refusal: Refusal, scope: Scope) -> None:
        """Note a refusal in the audit log, with the caller and address as far as they are known."""
        who, client = scope.get(_WHO), scope.get("client")
        address = scope.get(_FROM) or (client[0] if client else "")
        self.state.audit.refused("" if who is None else who.name, address, refusal.slug, scope["method"], scope["path"])

    def _negotiated(self, scope: Scope, problem: Mapping[str, Any], headers: Mapping[str, str]) -> Response:
        """Return a problem in the form for its reader: JSON for programs, a page for people."""
        accepts = gate.Headers(scope).all("accept")
        if not any("text/html" in each for each in accepts) or self._dashboard is None:
            return problem_response(problem, headers)
        scope.setdefault("state", {})
        scope["state"] = {"who": None, **scope["state"]}
        found: Response = self._dashboard.problem(Request(scope), self.state, problem)
        found.headers.update(headers)
        return found


def mounted(service: JobsService, options: Mapping[str, Any]) -> Application:
    """Return the application for `JobsService.asgi`.

    Raises:
        InvalidSettings: an unknown option.
    """
    # The mount point takes the place of a prefix.
    known = [field.name for field in fields(ServerOptions) if field.name not in ("limits", "prefix")]
    for name in options:
        if name not in known:
            raise InvalidSettings(f"asgi has no option {in_one_line(name, 40)}{meant(name, known)}")
    chosen: dict[str, Any] = {
        name: tuple(value) if name in ("allowed_hosts", "proxies") else value for name, value in options.items()
    }
    return Application(service, ServerOptions(**chosen))


def problem_response(problem: Mapping[str, Any], headers: Mapping[str, str]) -> Response:
    """Return an answer with a problem."""
    return Response(json_types.dumps(problem), problem["status"], headers, media_type=problems.MEDIA_TYPE)


def _failed(error: Exception, scope: Mapping[str, Any]) -> tuple[dict[str, Any], Mapping[str, str]]:
    """Return the problem for an error, and headers of the answer."""
    if isinstance(error, Refusal):
        return problems.problem(error), error.headers
    if isinstance(error, JobsError):
        retry = {"Retry-After": "1"} if isinstance(error, StoreError) and error.retryable else {}
        return problems.problem(error), retry
    if isinstance(error, HTTPException):
        kind = {404: "not-found", 405: "method-not-allowed"}.get(error.status_code, "bad-request")
        return {**problems.problem(Refusal(kind, str(error.detail))), "status": error.status_code}, {}
    # Not the query and not the body: there may be secrets in them.
    log.exception("http_failed", method=scope["method"], path=scope["path"])
    return problems.problem(Refusal("internal", "the server failed; its log says more")), {}


def _check_query(call: Call, endpoint: Endpoint, query: list[tuple[str, str]]) -> None:
    """Check the query against the endpoint's model."""
    if endpoint.query is None:
        if query:
            raise Refusal("invalid-request", f"the address takes no {query[0][0][:60]!r} in its query")
        return
    values: dict[str, Any] = {}
    for name, value in query:
        if name in values and name != "job":
            raise Refusal("invalid-request", f"{name[:60]!r} is there more than once in the query")
        if name == "job":
            values.setdefault(name, []).append(value)
        else:
            values[name] = value
    call.given = bodies.checked(endpoint.query, values, "the query")


async def _read_body(call: Call, endpoint: Endpoint, headers: gate.Headers) -> None:
    """Read and check the body, unless the endpoint reads it itself."""
    if endpoint.method == "GET":
        return
    if endpoint.takes is None:
        # An incomplete request has no effect, even if its body is not used.
        await bodies.whole(call.request, call.state.options.limits)
        return
    kind = bodies.kind_of(call.request)
    if kind in endpoint.media:
        return
    is_empty = headers.one("content-length") in (None, "0") and headers.one("transfer-encoding") is None
    if is_empty and not any(field.is_required() for field in endpoint.takes.model_fields.values()):
        call.given = endpoint.takes.model_validate({})
        return
    if kind != bodies.JSON:
        raise Refusal("unsupported-media-type", "send Content-Type: application/json")
    call.raw = await bodies.whole(call.request, call.state.options.limits)
    call.given = bodies.checked(endpoint.takes, bodies.decoded(call.raw, "the body"), "the body")


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
