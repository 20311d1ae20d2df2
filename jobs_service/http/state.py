"""The shared state of one server's requests: service, options, tokens, open places, recent accepts and streams."""

from __future__ import annotations

import asyncio
import re
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from jobs_service.errors import InvalidSettings, JobsError, shown
from jobs_service.http import wire
from jobs_service.http.audit import Audit
from jobs_service.http.problems import Refusal
from jobs_service.http.tokens import Identity, Role, Session, Tokens
from jobs_service.model import Job, JobEvent, JobId, JobType, RunningJob
from jobs_service.redaction import Redaction
from jobs_service.service import bulk_actions
from jobs_service.service.queries import redactor, rules_of_changed

if TYPE_CHECKING:
    from jobs_service.http.streams import EventStream
    from jobs_service.service import JobsService

_COLOURS: Final = {
    "red": "#b3261e",
    "orange": "#b35309",
    "yellow": "#e0b400",
    "green": "#1a6a35",
    "blue": "#1a56b4",
    "purple": "#7338a0",
    "grey": "#545f72",
    "gray": "#545f72",
}
STREAM: Final = "stream"
"""The name of a page's route with an answer that lasts while the page is open."""


# Options


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """The limits of one server; bytes and seconds.

    Attributes:
        body: size of a request's body, and of a line of NDJSON.
        head: size of request line and headers.
        body_time: longest silence of a client within a body.
        connections: open connections, idle ones included.
        requests, requests_of_client: concurrent requests of all identified clients, and of one of them.
        strangers, strangers_of_address: the same for unidentified clients, and for one address.
        polls, polls_of_client: concurrent requests that wait for jobs.
        poll_time: longest wait of one of them.
        streams, streams_of_client: open streams of events.
        jobs_of_stream: jobs of one stream.
        followed, followed_of_client: jobs of all streams together, counted once per stream.
        heartbeat: time between two signs of life on a stream.
    """

    body: int = 1 << 20
    head: int = 32 << 10
    body_time: float = 10.0
    connections: int = 5000
    requests: int = 1000
    requests_of_client: int = 500
    strangers: int = 200
    strangers_of_address: int = 50
    polls: int = 2000
    polls_of_client: int = 1000
    poll_time: float = 30.0
    streams: int = 1000
    streams_of_client: int = 500
    jobs_of_stream: int = 1000
    followed: int = 200_000
    followed_of_client: int = 20_000
    heartbeat: float = 15.0

    @property
    def whole_body_time(self) -> float:
        """Seconds to receive a whole body."""
        return 6 * self.body_time


_PREFIX: Final = re.compile(r"(/[A-Za-z0-9_-][A-Za-z0-9._~-]*)+")


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The settings of a server.

    Attributes:
        allowed_hosts: allowed names in the Host header, beside IP addresses and localhost; "*" for all.
        proxies: addresses whose forwarded headers are trusted.
        is_open: whether every program of this machine, a proxy too, has all roles as long as there are no tokens.
        read_only: whether all changes are refused.
        commands: whether command jobs are reachable, for admins with a token.
        prefix: of all paths, such as /jobs, for a server behind a proxy; addresses work with and without it.
        environment: name of the environment on the pages; empty for none.
        colour: of that name, see `colour_of`; empty for the pages' own.
        audit_log: path of the audit log's file; None for none.
        authenticate: the host application's function from an ASGI scope to a role, (name, role) or None, perhaps a
            coroutine function; None for tokens.
        limits: see ServerLimits.

    Raises:
        InvalidSettings: an invalid colour or prefix.
    """

    allowed_hosts: tuple[str, ...] = ()
    proxies: tuple[str, ...] = ()
    is_open: bool = False
    read_only: bool = False
    commands: bool = False
    prefix: str = ""
    environment: str = ""
    colour: str = ""
    audit_log: str | None = None
    authenticate: Callable[[Mapping[str, Any]], Any] | None = None
    limits: ServerLimits = field(default_factory=ServerLimits)

    def __post_init__(self) -> None:
        colour_of(self.colour)
        if self.prefix and not _PREFIX.fullmatch(self.prefix):
            raise InvalidSettings(
                f"prefix {shown(self.prefix, 60)}: allowed is a path as /jobs, of letters, digits and - . _ ~"
            )


def colour_of(given: str) -> str:
    """Return a colour in CSS notation, `#rrggbb`; "" for "".

    Args:
        given: a colour's name, `#rgb` or `#rrggbb`.

    Raises:
        InvalidSettings: it is none of these.
    """
    text = given.strip().lower()
    colour = _COLOURS.get(text, text)
    if re.fullmatch("#[0-9a-f]{3}", colour):
        colour = "#" + "".join(digit * 2 for digit in colour[1:])
    if colour and not re.fullmatch("#[0-9a-f]{6}", colour):
        raise InvalidSettings(f"colour {shown(given)}: allowed are {', '.join(_COLOURS)}, #RGB and #RRGGBB")
    return colour


# Places


class Places:
    """Counts things that are open at the same time.

    Args:
        what: their name, for messages.
        most: limit for all clients.
        of_client: limit for one client.
    """

    def __init__(self, what: str, most: int, of_client: int) -> None:
        self._what = what
        self._most = most
        self._of_client = of_client
        self._clients: Counter[str] = Counter()
        self.taken = 0

    @contextmanager
    def taken_by(self, client: str, places: int = 1) -> Iterator[None]:
        """Take places while the block runs.

        Args:
            client: its name or address.
            places: number of places.

        Raises:
            Refusal: too few are free.
        """
        if self.taken + places > self._most:
            raise Refusal("busy", f"{self.taken} {self._what} are open; try again later", headers={"Retry-After": "1"})
        if self._clients[client] + places > self._of_client:
            what = f"of {self._what} one client may have {self._of_client}, and has {self._clients[client]}"
            raise Refusal("too-many-requests", f"{what}; close some first", headers={"Retry-After": "5"})
        self.taken += places
        self._clients[client] += places
        try:
            yield
        finally:
            self.taken -= places
            self._clients[client] -= places
            if not self._clients[client]:
                del self._clients[client]


# Recent accepts


_KEPT: Final = 120.0
"""Seconds for which an accept is remembered."""
_MOST: Final = 10_000
"""Most accepts that are remembered; beyond it the oldest are forgotten."""


@dataclass(slots=True)
class Accept:
    """One accept.

    Attributes:
        at: time of its first request, in seconds of the loop's clock.
        jobs: the jobs of its answer.
        canceled: whether its jobs are to be given back.
        answered: set when its request has ended.
    """

    at: float
    jobs: Sequence[RunningJob] = ()
    canceled: bool = False
    answered: asyncio.Event = field(default_factory=asyncio.Event)


class Accepts:
    """The accepts of the last minutes, by caller, type and key."""

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, Accept] = OrderedDict()

    async def begin(self, key: Hashable) -> Accept:
        """Return the accept of a key once no other request for it is open; a repeated accept has its jobs already.

        An accept that took no jobs is begun anew by the next request.
        """
        while (found := self._known.get(key)) is not None and not found.canceled:
            if not found.answered.is_set():
                await found.answered.wait()
            elif found.jobs:
                return found
            else:
                break
        return found if found is not None and found.canceled else self._remember(key)

    def cancel(self, key: Hashable) -> Sequence[RunningJob]:
        """Cancel an accept and return its jobs, once; jobs that it takes later are given back."""
        accept = self._known.get(key) or self._remember(key)
        accept.canceled = True
        jobs, accept.jobs = accept.jobs, ()
        return jobs

    def _remember(self, key: Hashable) -> Accept:
        now = asyncio.get_running_loop().time()
        while self._known and (len(self._known) >= _MOST or next(iter(self._known.values())).at < now - _KEPT):
            self._known.popitem(last=False)
        accept = self._known[key] = Accept(now)
        self._known.move_to_end(key)
        return accept


# State


class ServerState:
    """The state that the requests of one server share.

    Args:
        service: the service; it need not be open yet.
        options: see ServerOptions.

    Attributes:
        tokens: tokens and logins.
        audit: the audit log.
        closing: set when streams and waits for jobs are to end.
        bulk: bulk actions, those of the service.
        accepts: recent accepts and their jobs.
    """

    def __init__(self, service: JobsService, options: ServerOptions | None = None) -> None:
        self.service = service
        self.options = options if options is not None else ServerOptions()
        limits = self.options.limits
        self.tokens = Tokens(service, self._revoked)
        self.audit = Audit(self.options.audit_log)
        self.bulk = service.bulk_actions
        self.bulk.ended.append(self._bulk_action_ended)
        self.closing = asyncio.Event()
        self._is_closed = False
        self._requests = Places("requests", limits.requests, limits.requests_of_client)
        self._strangers = Places("requests without a token", limits.strangers, limits.strangers_of_address)
        self.polls = Places("requests that wait for jobs", limits.polls, limits.polls_of_client)
        self.streams: set[EventStream] = set()
        self.accepts = Accepts()
        self.open_streams = Places("streams of events", limits.streams, limits.streams_of_client)
        self.followed = Places("jobs that streams tell of", limits.followed, limits.followed_of_client)

    def place(self, who: Identity | None, address: str) -> AbstractContextManager[None]:
        """Take the place of a request while the block runs; strangers have places of their own.

        Args:
            who: the caller; None for a stranger.
            address: of the client.

        Raises:
            Refusal: no place is free.
        """
        if who is None or who.role is Role.NOBODY:
            return self._strangers.taken_by(address)
        return self._requests.taken_by(who.name or address)

    async def job_form(self, job: Job) -> dict[str, Any]:
        """Return a job as JSON, without secret fields; an unreadable part makes it "unreadable"."""
        return wire.listed_job((await self.service.get_redaction(job.type)).job(job))

    async def changed_form(self, job: Job) -> dict[str, Any]:
        """Do the same for a changed job, even if the store has failed since the change."""
        return next(await self.changed_forms([job]))

    async def job_forms(self, jobs: Iterable[Job]) -> Iterator[dict[str, Any]]:
        """Do the same for many jobs, with one read per type; each form is made at its turn."""
        return await _forms([*jobs], self.service.get_redaction)

    async def changed_forms(self, jobs: Iterable[Job]) -> Iterator[dict[str, Any]]:
        """Do the same for changed jobs, even if the store has failed since the change."""
        return await _forms([*jobs], partial(rules_of_changed, self.service))

    async def event_form(self, event: JobEvent) -> dict[str, Any]:
        """Return an event as JSON, without secret fields."""
        return (await self.service.get_redaction(event.type)).event(event).to_dict()

    async def holds(self, login: Session) -> bool:
        """Return whether a login is valid, as far as the store can be read."""
        try:
            return await self.tokens.of_login(login) is not None
        except JobsError:  # the store cannot be read now
            return True

    async def log_out(self, cookie: str) -> None:
        """End the login of a cookie, and its streams."""
        login = await self.tokens.end_session(cookie)
        for stream in [*self.streams]:
            if login is not None and stream.session == login:
                stream.end()

    async def end_waiting(self) -> None:
        """End all streams and waits for jobs: the service is about to close, and may be opened again."""
        self.closing.set()
        for stream in [*self.streams]:
            stream.end()
        await self.tokens.close()
        if not self._is_closed:
            self.closing = asyncio.Event()

    async def close(self) -> None:
        """Do the same for good: the server is about to end."""
        self._is_closed = True
        await self.end_waiting()

    def _bulk_action_ended(self, who: str, action: str, id: JobId, changed: int) -> None:
        """Note the number of changed jobs; the caller and the address were noted at the request."""
        self.audit.changed(who, "", f"bulk {action} ended", bulk_actions.TYPE, id, changed)

    def _revoked(self, names: set[str]) -> None:
        """End the streams of revoked tokens."""
        for stream in [*self.streams]:
            if stream.owner in names:
                stream.end()


async def _forms(jobs: list[Job], rules_of: Callable[[JobType], Awaitable[Redaction]]) -> Iterator[dict[str, Any]]:
    return map(wire.listed_job, map(await redactor(jobs, rules_of), jobs))
