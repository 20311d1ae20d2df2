"""What every request passes before anything is done: whose host it names, which site it comes from, and who asks."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from inspect import isawaitable
from typing import Any, Final
from urllib.parse import quote

from starlette.requests import cookie_parser

from jobs_service.errors import shown
from jobs_service.http.refusals import Refusal
from jobs_service.http.roles import TOKEN_ROLES, Identity, Role
from jobs_service.http.state import State
from jobs_service.http.token_file import is_loopback
from jobs_service.model import JobType
from jobs_service.replication.stored import CONTINUOUS, ONE_SHOT
from jobs_service.runner.commands import COMMAND_TYPE
from jobs_service.service.bulk_actions import TYPE as BULK_ACTIONS

COOKIE: Final = "jobs_service_session"
SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_OF_PROXIES: Final = re.compile(
    r"forward|^via$|^x-(real|original|rewrite|envoy|amzn|amz-cf|azure|appengine|proxy|arr)|client-?ip|connecting-ip"
    r"|user-ip|remote-(addr|ip)|cluster-ip|^cf-|^fly-|^fastly-|^cdn-|^max-forwards$|^front-end-|^proxy-|^x-(host|scheme)$"
)
"""Headers that programs which pass requests on add, and that no client sends by itself."""
_MOST_COOKIES: Final = 5
_PORTS: Final = {"http": "80", "https": "443"}
_SAME: Final = frozenset({"same-origin", "none"})
_SEND_A_TOKEN: Final = (
    "send a token: Authorization: Bearer TOKEN; `jobs-service token add` makes one, and whoever has started the server "
    "has one in the file that its log names"
)


_ASKED_FOR: Final[Mapping[JobType, str]] = {
    BULK_ACTIONS: "a bulk action is asked for by POST /v1/types/TYPE/bulk, or by the pages of the dashboard",
    ONE_SHOT: "a replication is asked for by `jobs-service replicate`",
    CONTINUOUS: "a replication is asked for by `jobs-service replicate`",
}
INTERNAL_TYPES: Final = frozenset(_ASKED_FOR)
"""Types whose jobs are done by a daemon, whoever has added them."""


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
        """Return the value of a header that may be there once.

        Raises:
            Refusal: it is there more than once: others may have believed another one.
        """
        values = self._all.get(name, [])
        if len(values) > 1:
            raise Refusal("bad-request", f"the header {name} is there {len(values)} times")
        return values[0] if values else None

    def first(self, name: str) -> str | None:
        """Return the first value of a header that nothing depends on."""
        return next(iter(self._all.get(name, ())), None)

    @property
    def names(self) -> Iterable[str]:
        """The names of all headers, in lower case."""
        return self._all.keys()

    def all(self, name: str) -> list[str]:
        """Return all values of a header."""
        return self._all.get(name, [])


class Origin:
    """Where a request comes from, and where it is meant to go.

    Args:
        scope: of the request.
        headers: its headers.
        proxies: addresses whose forwarded headers are believed.

    Attributes:
        client: the address that it comes from.
        host: what it calls this server, with the port.
        is_secure: whether its way here is encrypted.
        base: where whoever asks finds this server, without a slash at the end.
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
        # Whoever is named last, and is no proxy of ours, was seen by one of ours.
        self.client = next((each for each in reversed(chain) if each and each not in proxies), self.client)
        self.is_secure = self.is_secure or (headers.one("x-forwarded-proto") or "").strip().lower() == "https"
        self.host = headers.one("x-forwarded-host") or self.host


def check_host(host: str | None, allowed: tuple[str, ...]) -> None:
    """Check that a request names a host of this server: a page of others whose name leads here names its own.

    Raises:
        Refusal: it does not.
    """
    if host is None:
        raise Refusal("bad-request", "the header Host is missing")
    name = _name_of(host)
    if "*" in allowed or name == "localhost" or _is_address(name) or name in (each.lower() for each in allowed):
        return
    how = "allow it with --allow-host NAME, or with allowed_hosts= of jobs.asgi()"
    raise Refusal("host-not-allowed", f"the Host {shown(host)} is not known here; {how}")


def check_site(method: str, host: str | None, headers: Headers, allowed: tuple[str, ...]) -> None:
    """Check that no page of others asks: only links may lead here from elsewhere.

    What the browser itself says of the site counts: a proxy may have put another host into the request than the browser
    asked for. Browsers say it where connections are encrypted or lead to this machine; elsewhere the Origin has to fit.

    Raises:
        Refusal: one does.
    """
    site, origin = headers.one("sec-fetch-site"), headers.one("origin")
    if site is not None:
        is_link = headers.one("sec-fetch-mode") == "navigate" and headers.one("sec-fetch-dest") == "document"
        if site.lower() not in _SAME and not (is_link and method in SAFE):
            raise Refusal("cross-site", "a browser says that a page of another site asks for this")
        return
    # No page can have a browser send X-Forwarded-Host elsewhere, so for this it counts whoever has sent it.
    hosts = [host or "", *headers.all("x-forwarded-host")]
    if origin is not None and not any(_is_ours(origin, each, allowed) for each in hosts):
        # A plain GET tells another site nothing, but no program of our own sends an Origin that is not ours.
        how = "have it pass the Host on, or name what browsers call this server with --allow-host NAME"
        raise Refusal("cross-site", f"the Origin of the request is not this server; if a proxy is in front, {how}")


def _is_ours(origin: str, host: str, allowed: tuple[str, ...], *, by_port: bool = False) -> bool:
    """Return whether a page of an origin is a page of this server.

    The ports of a host have their cookies in common, so a port that a proxy has taken away need not be known, unless
    who asks is known `by_port` alone.
    """
    scheme, _, place = origin.lower().partition("://")
    name = _name_of(place)
    if not name or name in (each.lower() for each in allowed):
        return bool(name)
    usual = _PORTS.get(scheme, "")
    port = _port_of(host) or (usual if by_port else "")
    return name == _name_of(host) and (not port or port == (_port_of(place) or usual))


async def identify(state: State, scope: Mapping[str, Any], headers: Headers) -> Identity | None:
    """Return who asks; None for somebody who has not said so and would have to.

    Raises:
        Refusal: a token that is none, or none any more.
        JobsError: the store cannot be asked.
    """
    authenticate = state.options.authenticate
    if authenticate is not None:
        found = authenticate(scope)
        return _told(await found if isawaitable(found) else found)
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
    """Whether a request seems to be made on this machine: what a proxy beside the server lets through is anybody's.

    A proxy need not say that it is one: nginx from 1.29.7 on names this server as the host, speaks HTTP/1.1 and adds no
    header, unless it is told to.
    """
    peer = scope.get("client")
    if (peer and peer[0] in proxies) or scope.get("http_version") == "1.0":
        return False
    if any(map(_OF_PROXIES.search, headers.names)):
        return False
    host, origin = headers.one("host") or "", headers.one("origin")
    if origin is not None and not _is_ours(origin, host, (), by_port=True):  # the browser has asked for another host
        return False
    return is_loopback(_name_of(host))


def unauthorized(why: str) -> Refusal:
    """Return the refusal for somebody who has not said who they are."""
    return Refusal("unauthorized", why, headers={"WWW-Authenticate": 'Bearer realm="jobs_service"'})


def check_role(state: State, who: Identity | None, role: Role, *, changes: bool) -> Identity:
    """Check that somebody may do what needs a role, and return them.

    Raises:
        Refusal: they may not, or nobody may.
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


def check_may_run(state: State, who: Identity | None, type: JobType) -> None:
    """Check that somebody may say what is run of a type: add its jobs, take and end them, have them run again.

    Jobs of the service's own types are done by a daemon, with the rights of a daemon, so nobody may write what is in
    them: who asks for a bulk action goes by the address for that, which knows who asks. Commands are for admins with a
    token, if they are at all.

    Raises:
        Refusal: they may not.
    """
    if type in INTERNAL_TYPES:
        raise Refusal("internal-type", f"jobs of the type {shown(type)} are the service's own: {_ASKED_FOR[type]}")
    if type == COMMAND_TYPE:
        check_commands(state, who)


def check_commands(state: State, who: Identity | None) -> None:
    """Check that somebody may have to do with commands.

    Raises:
        Refusal: they may not, or a server that does not.
    """
    if who is None or not (state.options.commands and who.role is Role.ADMIN and who.proven):
        raise Refusal("commands-forbidden", "commands need a server with --commands, and a token with the role admin")


def _told(found: Any) -> Identity | None:
    """Return what a host application says of whoever asks.

    Raises:
        ValueError: it is none of what it may say.
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
    """Return what a browser shows as the cookie of a login: of several, as of servers below one another, the first few.

    All servers of a host get the cookies of all of them, whatever their ports are, so what the others look like, and
    whether they can be read, is no concern of ours.
    """
    parts = [part for line in headers.all("cookie") for part in line.split(";")]
    return [cookie_parser(part)[COOKIE] for part in parts if part.strip().startswith(f"{COOKIE}=")][:_MOST_COOKIES]


def _name_of(host: str) -> str:
    """Return a host without its port."""
    host = host.strip().lower()
    if host.startswith("["):
        name, bracket, port = host[1:].partition("]")
        # What others may read otherwise is no address.
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
