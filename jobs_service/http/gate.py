"""Checks of every request before any work: the host that it names, its site of origin, and its caller.

The limits of what a client may have open (429), and all clients (503), are kept by `Places` in `http/state.py`."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from inspect import isawaitable
from typing import Any, Final
from urllib.parse import quote

from starlette.requests import cookie_parser

from jobs_service.errors import shown
from jobs_service.http.problems import Refusal
from jobs_service.http.state import ServerState
from jobs_service.http.token_file import is_loopback
from jobs_service.http.tokens import TOKEN_ROLES, Identity, Role
from jobs_service.model import JobType
from jobs_service.replication.stored import CONTINUOUS, ONE_SHOT
from jobs_service.runner.commands import COMMAND_TYPE
from jobs_service.service import bulk_actions

COOKIE: Final = "jobs_service_session"
SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_OF_PROXIES: Final = re.compile(
    r"forward|^via$|^x-(real|original|rewrite|envoy|amzn|amz-cf|azure|appengine|proxy|arr)|client-?ip|connecting-ip"
    r"|user-ip|remote-(addr|ip)|cluster-ip|^cf-|^fly-|^fastly-|^cdn-|^max-forwards$|^front-end-|^proxy-|^x-(host|scheme)$"
)
"""Headers that proxies add to requests, and that no client sends by itself."""
_MOST_COOKIES: Final = 5
_PORTS: Final = {"http": "80", "https": "443"}
_SAME: Final = frozenset({"same-origin", "none"})
_SEND_A_TOKEN: Final = (
    "send a token: Authorization: Bearer TOKEN; `jobs-service token add` makes one, and whoever has started the server "
    "has one in the file that its log names"
)


_ASKED_FOR: Final[Mapping[JobType, str]] = {
    bulk_actions.TYPE: "a bulk action is asked for by POST /v1/types/TYPE/bulk, or by the pages of the dashboard",
    ONE_SHOT: "a replication is asked for by `jobs-service replicate`",
    CONTINUOUS: "a replication is asked for by `jobs-service replicate`",
}
INTERNAL_TYPES: Final = frozenset(_ASKED_FOR)
"""Types of the service's own jobs: a daemon runs them, regardless of their origin."""


class Headers:
    """The headers of a request, by lower-case name.

    Args:
        scope: of the request.
    """

    def __init__(self, scope: Mapping[str, Any]) -> None:
        self._all: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            self._all.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))

    def one(self, name: str) -> str | None:
        """Return the value of a header that may occur once.

        Raises:
            Refusal: it occurs more than once: a proxy may have used another value.
        """
        values = self._all.get(name, [])
        if len(values) > 1:
            raise Refusal("bad-request", f"the header {name} is there {len(values)} times")
        return values[0] if values else None

    def first(self, name: str) -> str | None:
        """Return the first value of a header; no check may depend on it."""
        return next(iter(self._all.get(name, ())), None)

    @property
    def names(self) -> Iterable[str]:
        """The names of all headers, in lower case."""
        return self._all.keys()

    def all(self, name: str) -> list[str]:
        """Return all values of a header."""
        return self._all.get(name, [])


class Origin:
    """The source and the target of a request.

    Args:
        scope: of the request.
        headers: its headers.
        proxies: addresses whose forwarded headers are trusted.

    Attributes:
        client: address of the client.
        host: the server's name in the request, with the port.
        is_secure: whether the client's connection is encrypted.
        base: URL of the server for the client, without a slash at the end.
    """

    def __init__(self, scope: Mapping[str, Any], headers: Headers, proxies: tuple[str, ...]) -> None:
        peer = scope.get("client")
        self.client: str = peer[0] if peer else ""
        self.host = headers.one("host")
        self.is_secure = scope.get("scheme") == "https"
        if self.client in proxies:
            self._believe(headers, proxies)
        root = quote(scope.get("root_path", "").rstrip("/"))
        self.base = f"{'https' if self.is_secure else 'http'}://{self.host or ''}{root}"

    def _believe(self, headers: Headers, proxies: tuple[str, ...]) -> None:
        chain = [each.strip() for line in headers.all("x-forwarded-for") for each in line.split(",")]
        # The last address that is no trusted proxy was seen by a trusted one.
        self.client = next((each for each in reversed(chain) if each and each not in proxies), self.client)
        self.is_secure = self.is_secure or (headers.one("x-forwarded-proto") or "").strip().lower() == "https"
        self.host = headers.one("x-forwarded-host") or self.host


def check_size(scope: Mapping[str, Any], most: int) -> None:
    """Check the size of the request line and headers: `most` bytes.

    Raises:
        Refusal: they are larger.
    """
    line = len(scope.get("raw_path") or b"") + len(scope["query_string"])
    if line + sum(len(name) + len(value) + 4 for name, value in scope["headers"]) > most:
        raise Refusal("headers-too-large", f"request line and headers of more than {most} bytes")


def check_host(host: str | None, allowed: tuple[str, ...]) -> None:
    """Check that a request names a host of this server: a foreign page whose name resolves to it names its own.

    Raises:
        Refusal: it names another host.
    """
    if host is None:
        raise Refusal("bad-request", "the header Host is missing")
    name = _name_of(host)
    if "*" in allowed or name == "localhost" or _is_address(name) or name in (each.lower() for each in allowed):
        return
    how = "allow it with --allow-host NAME, or with allowed_hosts= of jobs.asgi()"
    raise Refusal("host-not-allowed", f"the Host {shown(host)} is not known here; {how}")


def check_site(method: str, host: str | None, headers: Headers, allowed: tuple[str, ...]) -> None:
    """Check that no foreign page sends the request: only links may lead here from other sites.

    The browser's own statement on the site decides, because a proxy may have replaced the host. Browsers make it on
    connections that are encrypted or lead to this machine; on others the Origin has to match.

    Raises:
        Refusal: a foreign page sends it.
    """
    site, origin = headers.one("sec-fetch-site"), headers.one("origin")
    if site is not None:
        is_link = headers.one("sec-fetch-mode") == "navigate" and headers.one("sec-fetch-dest") == "document"
        if site.lower() not in _SAME and not (is_link and method in SAFE):
            raise Refusal("cross-site", "a browser says that a page of another site asks for this")
        return
    # A page cannot make a browser send X-Forwarded-Host to another site, so here it counts from any sender.
    hosts = [host or "", *headers.all("x-forwarded-host")]
    if origin is not None and not any(_is_ours(origin, each, allowed) for each in hosts):
        # Another site cannot read the answer to a plain GET, but no client of this server sends a foreign Origin.
        how = "have it pass the Host on, or name what browsers call this server with --allow-host NAME"
        raise Refusal("cross-site", f"the Origin of the request is not this server; if a proxy is in front, {how}")


def _is_ours(origin: str, host: str, allowed: tuple[str, ...], *, by_port: bool = False) -> bool:
    """Return whether pages of an origin are pages of this server.

    All ports of a host share their cookies, so a port that a proxy has dropped need not be known, unless the caller is
    identified `by_port` alone.
    """
    scheme, _, place = origin.lower().partition("://")
    name = _name_of(place)
    if not name or name in (each.lower() for each in allowed):
        return bool(name)
    usual = _PORTS.get(scheme, "")
    port = _port_of(host) or (usual if by_port else "")
    return name == _name_of(host) and (not port or port == (_port_of(place) or usual))


async def identify(state: ServerState, scope: Mapping[str, Any], headers: Headers) -> Identity | None:
    """Return the caller; None if it needs credentials and has none.

    Raises:
        Refusal: the token is malformed, unknown or revoked.
        JobsError: the store cannot be read.
    """
    authenticate = state.options.authenticate
    if authenticate is not None:
        found = authenticate(scope)
        return _host_identity(await found if isawaitable(found) else found)
    authorization = headers.one("authorization")
    if authorization is not None:
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise unauthorized("the header is not as in Authorization: Bearer TOKEN")
        who = await state.tokens.of_token(token.strip())
        if who is None:
            raise unauthorized("the token is not known here, or not any more")
        return who
    for cookie in cookies(headers):
        if (who := await state.tokens.of_session(cookie)) is not None:
            return who
    if state.options.is_open and _is_here(scope, headers, state.options.proxies):
        tokens = await state.tokens.known()
        if not tokens and not state.tokens.were_there:
            return Identity("", Role.ADMIN)
    return None


def _is_here(scope: Mapping[str, Any], headers: Headers, proxies: tuple[str, ...]) -> bool:
    """Return whether a request seems to be made on this machine, and not passed on by a proxy beside the server.

    A proxy may be invisible: nginx from 1.29.7 on names this server as the host, speaks HTTP/1.1 and adds no header,
    unless configured to.
    """
    peer = scope.get("client")
    if (peer and peer[0] in proxies) or scope.get("http_version") == "1.0":
        return False
    if any(map(_OF_PROXIES.search, headers.names)):
        return False
    host, origin = headers.one("host") or "", headers.one("origin")
    if origin is not None and not _is_ours(origin, host, (), by_port=True):  # the browser asked another host
        return False
    return is_loopback(_name_of(host))


def unauthorized(why: str) -> Refusal:
    """Return the refusal of a caller without valid credentials."""
    return Refusal("unauthorized", why, headers={"WWW-Authenticate": 'Bearer realm="jobs_service"'})


def check_role(state: ServerState, who: Identity | None, role: Role, *, changes: bool) -> Identity:
    """Check that the caller has a role, and return its identity.

    Raises:
        Refusal: it does not, or the server is read-only.
    """
    if role is Role.NOBODY:
        return who or Identity("", Role.NOBODY)
    if who is None and state.options.authenticate is not None:
        raise unauthorized("the application that serves this does not know who asks; log in there")
    if who is None:
        raise unauthorized(_SEND_A_TOKEN)
    if changes and state.options.read_only:
        raise Refusal("read-only", "this server was started with --read-only")
    if who.role < role:
        raise Refusal("forbidden", f"this needs the role {role.label}; the token {who.name} has {who.role.label}")
    return who


def check_may_run(state: ServerState, who: Identity | None, type: JobType) -> None:
    """Check that the caller may control the runs of a type: add its jobs, take and end them, make them run again.

    A daemon runs jobs of the service's own types with its own rights, so no caller may write their contents: bulk
    actions have an address of their own, which knows the caller. Commands are for admins with a token, on servers
    that allow them.

    Raises:
        Refusal: it may not.
    """
    if type in INTERNAL_TYPES:
        raise Refusal("internal-type", f"jobs of the type {shown(type)} are the service's own: {_ASKED_FOR[type]}")
    if type == COMMAND_TYPE:
        check_commands(state, who)


def check_commands(state: ServerState, who: Identity | None) -> None:
    """Check that the caller may use commands.

    Raises:
        Refusal: it may not, or the server does not allow commands.
    """
    if who is None or not (state.options.commands and who.role is Role.ADMIN and who.proven):
        raise Refusal("commands-forbidden", "commands need a server with --commands, and a token with the role admin")


def _host_identity(found: Any) -> Identity | None:
    """Return the identity that a host application has found for a caller.

    Raises:
        ValueError: an invalid result of the host application.
    """
    if found is None:
        return None
    name, role = found if isinstance(found, tuple) and len(found) == 2 else ("", found)
    known = role if isinstance(role, Role) else TOKEN_ROLES.get(role) if isinstance(role, str) else None
    if known is None:
        allowed = f"None, {', '.join(TOKEN_ROLES)}, and (name, role)"
        raise ValueError(f"authenticate= has returned {shown(found)}; allowed are {allowed}")
    return Identity(str(name), known, proven=True)


def cookies(headers: Headers) -> list[str]:
    """Return the login cookies of a browser; of several, as of servers on nested paths, the first few.

    All servers of a host get each other's cookies, regardless of their ports, so cookies of other names are ignored,
    even malformed ones.
    """
    parts = [part for line in headers.all("cookie") for part in line.split(";")]
    return [cookie_parser(part)[COOKIE] for part in parts if part.strip().startswith(f"{COOKIE}=")][:_MOST_COOKIES]


def _name_of(host: str) -> str:
    """Return a host without its port."""
    host = host.strip().lower()
    if host.startswith("["):
        name, bracket, port = host[1:].partition("]")
        # A text that other programs may read otherwise is no address.
        return name if bracket and (not port or (port[0] == ":" and port[1:].isdecimal())) else ""
    name, _, port = host.rpartition(":")
    name = name if name and port.isdecimal() else host
    return name.rstrip(".")


def _port_of(host: str) -> str:
    """Return the port of a host; "" for none."""
    _, colon, port = host.rpartition("]")[2].rpartition(":")
    return port if colon and port.isdecimal() else ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
