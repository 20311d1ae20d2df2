"""What the handlers of requests share: the service, who may do what, and what is open."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from jobs_service.errors import InvalidSettings, JobsError, shown
from jobs_service.http import wire
from jobs_service.http.accepts import Accepts
from jobs_service.http.audit import Audit
from jobs_service.http.colours import colour_of
from jobs_service.http.limits import Limits, Places
from jobs_service.http.roles import Identity, Role, Session
from jobs_service.http.streams import Frames, Stream
from jobs_service.http.tokens import Tokens
from jobs_service.http.type_feeds import TypeFeeds
from jobs_service.model import Job, JobEvent, JobId, JobType, RunningJob
from jobs_service.redaction import Redaction
from jobs_service.runner.stats import exact_type
from jobs_service.service import bulk_actions
from jobs_service.service.answers import rules_of_changed

if TYPE_CHECKING:
    from jobs_service.service import JobsService

_PREFIX: Final = re.compile(r"(/[A-Za-z0-9_-][A-Za-z0-9._~-]*)+")
STREAM: Final = "stream"
"""The name of a page's route whose answer lasts as long as the page is open."""


@dataclass(frozen=True, slots=True)
class Options:
    """How a server was started.

    Attributes:
        allowed_hosts: names that the Host of a request may be, beside IP addresses and localhost; "*" for all.
        proxies: addresses whose forwarded headers are believed.
        is_open: whether every program of this machine has all roles as long as there are no tokens; a proxy is one too.
        read_only: whether all that changes something is refused.
        commands: whether command jobs are reachable, for admins with a token.
        prefix: of all paths, as /jobs, for a server behind a proxy; with and without it an address is the same.
        environment: what the pages call this environment; empty for nothing.
        colour: of that name, see `colour_of`; empty for the pages' own.
        audit_log: path of a file that gets a line for each change; None for none.
        authenticate: the host application's function from an ASGI scope to a role, (name, role) or None, perhaps a
            coroutine function; None for tokens.
        limits: how much of the server may be taken.

    Raises:
        InvalidSettings: a colour that is none, a prefix that cannot be.
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
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        colour_of(self.colour)
        if self.prefix and not _PREFIX.fullmatch(self.prefix):
            raise InvalidSettings(
                f"prefix {shown(self.prefix, 60)}: allowed is a path as /jobs, of letters, digits and - . _ ~"
            )


class State:
    """What the requests of one server share.

    Args:
        service: that they are about; it need not be open yet.
        options: see there.

    Attributes:
        tokens: who may do what.
        audit: who has changed what.
        closing: set when streams are to end, and nobody is to wait for jobs any more.
        bulk: bulk actions.
        accepts: which accept has taken which jobs.
    """

    def __init__(self, service: JobsService, options: Options | None = None) -> None:
        self.service = service
        self.options = options if options is not None else Options()
        limits = self.options.limits
        self.tokens = Tokens(service, self._revoked)
        self.audit = Audit(self.options.audit_log)
        self.bulk = bulk_actions.BulkActions(service, self._bulk_action_ended)
        self.closing = asyncio.Event()
        self._is_closed = False
        self._requests = Places("requests", limits.requests, limits.requests_of_client)
        self._strangers = Places("requests without a token", limits.strangers, limits.strangers_of_address)
        self.polls = Places("requests that wait for jobs", limits.polls, limits.polls_of_client)
        self.streams: set[Stream] = set()
        self.accepts = Accepts()
        self.frames = Frames(self.event_form)
        self.type_feeds = TypeFeeds(self)
        self.open_streams = Places("streams of events", limits.streams, limits.streams_of_client)
        self.followed = Places("jobs that streams tell of", limits.followed, limits.followed_of_client)

    def place(self, who: Identity | None, address: str) -> AbstractContextManager[None]:
        """Take the place of a request as long as the block runs: strangers take none of those who have a token.

        Args:
            who: asks; None for a stranger.
            address: from where.

        Raises:
            Refusal: there is none.
        """
        if who is None or who.role is Role.NOBODY:
            return self._strangers.taken_by(address)
        return self._requests.taken_by(who.name or address)

    async def job_form(self, job: Job) -> dict[str, Any]:
        """Return a job as JSON has it, without what is secret; a part that cannot be read makes it "unreadable"."""
        return wire.listed_job((await self.service.get_redaction(job.type)).job(job))

    async def changed_form(self, job: Job) -> dict[str, Any]:
        """Do the same with a job that was just changed, also when the store has failed since."""
        return next(await self.changed_forms([job]))

    async def job_forms(self, jobs: Iterable[Job]) -> Iterator[dict[str, Any]]:
        """Do the same with many jobs, by one read per type; each is made when it is its turn."""
        return await _forms([*jobs], self.service.get_redaction)

    async def changed_forms(self, jobs: Iterable[Job]) -> Iterator[dict[str, Any]]:
        """Do the same with jobs that were just changed, also when the store has failed since."""
        return await _forms([*jobs], partial(rules_of_changed, self.service))

    def running_form(self, job: RunningJob) -> dict[str, Any]:
        """Return a running job for its worker, who must see everything."""
        return wire.running_job(job)

    async def event_form(self, event: JobEvent) -> dict[str, Any]:
        """Return an event as JSON has it, without what is secret."""
        return wire.event((await self.service.get_redaction(event.type)).event(event))

    def stream(self, who: Identity | None, last_id: str = "") -> Stream:
        """Return a stream for somebody, which ends with their token or login; `last_id` as Stream has it."""
        if who is None or who.session is None:
            return Stream("" if who is None else who.name, last_id)
        return Stream(who.name, last_id, who.session, partial(self._holds, who.session))

    async def _holds(self, login: Session) -> bool:
        try:
            return await self.tokens.of_login(login) is not None
        except JobsError:  # the store cannot be asked now
            return True

    async def log_out(self, cookie: str) -> None:
        """End the login of a cookie, and the streams that are read by it."""
        login = await self.tokens.end_session(cookie)
        for stream in [*self.streams]:
            if login is not None and stream.session == login:
                stream.end()

    async def end_waiting(self) -> None:
        """End all streams and all waiting for jobs: the service is about to be left, and may be opened again."""
        self.closing.set()
        for stream in [*self.streams]:
            stream.end()
        await self.type_feeds.close()
        await self.tokens.close()
        if not self._is_closed:
            self.closing = asyncio.Event()

    async def close(self) -> None:
        """Do the same for good: the server is about to end."""
        self._is_closed = True
        await self.end_waiting()

    def _bulk_action_ended(self, who: str, action: str, id: JobId, changed: int) -> None:
        """Note with how many jobs it was done; who asked for it, and from where, was noted when they did."""
        self.audit.changed(who, "", f"bulk {action} ended", bulk_actions.TYPE, id, changed)

    def _revoked(self, names: set[str]) -> None:
        """Cut off whoever reads events by a token that is there no more."""
        for stream in [*self.streams]:
            if stream.owner in names:
                stream.end()


async def _forms(jobs: list[Job], rules_of: Callable[[JobType], Awaitable[Redaction]]) -> Iterator[dict[str, Any]]:
    # Read after the jobs: what was secret of each when it was added is known by then.
    rules = {type: await rules_of(type) for type in dict.fromkeys(exact_type(job.type) for job in jobs)}
    return (wire.listed_job(rules[exact_type(job.type)].job(job)) for job in jobs)
