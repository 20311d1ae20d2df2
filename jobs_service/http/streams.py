"""Streams of server-sent events: the answer to one client, and the events of jobs for it."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from jobs_service.actors.subscriptions import Mailbox, Target
from jobs_service.errors import JobNotFound, JobsError, ServiceClosed, SupervisorFailed, job_name
from jobs_service.http import problems, wire
from jobs_service.http.roles import Identity
from jobs_service.http.type_feeds import existing
from jobs_service.http.waiting import Presence
from jobs_service.layer.keyspace import TypeKeys
from jobs_service.model import JobEvent, JobId, JobState

if TYPE_CHECKING:
    from jobs_service.http.state import State

ALIVE: Final = b": alive\n\n"
END: Final = b"event: end\ndata: {}\n\n"
_BEGIN: Final = b"retry: 1000\n\n"
"""Milliseconds after which a browser connects again."""
_FIRST_WITHIN: Final = 5.0
"""Seconds after which the answer begins, with or without an event."""
_MOST_AT_ONCE: Final = 1 << 16
"""Bytes of events from which on they are sent."""
_DIGEST_BYTES: Final = 6
"""Size of one job's digest: the digests of a thousand jobs still fit into one header."""
_ALL: Final = "all"
"""Prefix of the event ids of a stream of several jobs."""
_NOT_TOLD: Final = bytes(_DIGEST_BYTES)


class EventStream(Response):
    """Sends events to one client, until there are no more, the client goes, or somebody ends the stream.

    Args:
        state: of the server.
        request: the client's request.
        who: the caller, None for a stranger.
        address: of the client.
        parts: the events as bytes. An error before the first one is the answer; a later one ends the stream.
        jobs: number of jobs for which the stream counts.

    Attributes:
        owner: name of the client's token, empty for none.
        session: the client's login, None for none.
    """

    def __init__(
        self,
        state: State,
        request: Request,
        who: Identity | None,
        address: str,
        parts: AsyncGenerator[bytes, None],
        jobs: int = 0,
    ) -> None:
        super().__init__()
        self.owner = "" if who is None else who.name
        self.session = None if who is None else who.session
        self._state = state
        self._request = request
        self._address = address
        self._parts = parts
        self._jobs = jobs
        self._heartbeat = state.options.limits.heartbeat
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asks_at = self._over.get_loop().time() + self._heartbeat

    def end(self) -> None:
        """End the stream; the client connects again."""
        if not self._over.done():
            self._over.set_result(None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events as they come."""
        state, who = self._state, self.owner or self._address
        with state.open_streams.taken_by(who), state.followed.taken_by(who, self._jobs):
            state.streams.add(self)
            try:
                if state.closing.is_set():
                    self.end()
                async with Presence(self._request) as presence:
                    assert presence.leaving is not None
                    await self._send(scope, receive, send, presence.leaving)
            finally:
                await self._parts.aclose()
                state.streams.discard(self)

    async def _send(self, scope: Scope, receive: Receive, send: Send, leaving: asyncio.Future[None]) -> None:
        has_begun = is_last = False
        arriving: asyncio.Future[bytes | None] | None = None
        try:
            while not is_last:
                if arriving is None:
                    arriving = asyncio.ensure_future(anext(self._parts, None))
                seconds = self._heartbeat if has_begun else min(_FIRST_WITHIN, self._heartbeat)
                await asyncio.wait(
                    (arriving, self._over, leaving), timeout=seconds, return_when=asyncio.FIRST_COMPLETED
                )
                if leaving.done():
                    return
                part: bytes | None = ALIVE
                if self._over.done() or not await self._is_allowed():
                    part, is_last = b"", True
                elif arriving.done():
                    try:
                        part, arriving = arriving.result(), None
                    except JobsError:
                        if not has_begun:
                            raise
                        part, is_last = b"", True
                if part is None:
                    if not has_begun:
                        # This status stops a browser from reconnecting.
                        return await Response(status_code=204)(scope, receive, send)
                    part, is_last = END, True
                if not has_begun:
                    has_begun = True
                    headers = [(b"content-type", b"text/event-stream"), (b"x-accel-buffering", b"no")]
                    await send({"type": "http.response.start", "status": 200, "headers": headers})
                    part = _BEGIN + part
                await send({"type": "http.response.body", "body": part, "more_body": not is_last})
        finally:
            if arriving is not None:
                arriving.cancel()
                with suppress(asyncio.CancelledError, JobsError, StopAsyncIteration):
                    await arriving

    async def _is_allowed(self) -> bool:
        """Return whether the client's login is valid; another server may have ended it."""
        now = self._over.get_loop().time()
        if self.session is None or now < self._asks_at:
            return True
        self._asks_at = now + self._heartbeat
        return await self._state.holds(self.session)


class _Job(Target):
    """One job that a client follows.

    Attributes:
        told: the digest of what the client was told last of the job, perhaps on another connection; empty for nothing.
    """

    __slots__ = ("told",)

    def __init__(self, keys: TypeKeys, id: JobId, mailbox: Mailbox, told: str) -> None:
        super().__init__(keys, id, mailbox)
        self.told = told

    @property
    def knows_it(self) -> bool:
        """Whether the client has had an event of the job before."""
        return self.reported is not None or bool(self.told)


async def job_parts(
    state: State, jobs: Sequence[tuple[TypeKeys, JobId]], last_id: str, *, alone: bool
) -> AsyncGenerator[bytes, None]:
    """Yield the events of jobs, as bytes for one client.

    Args:
        state: of the server.
        jobs: the jobs.
        last_id: id of the client's last event, empty for none.
        alone: whether there is one job, of which an error before its first event is raised.

    Raises:
        JobsError: the store or the service failed, or see `alone`.
    """
    hub, mailbox, size = state.service.remote.hub, Mailbox(), len(jobs)
    known = [last_id.rpartition(".")[2]] if size == 1 else _known_of(last_id, size)
    targets = [_Job(keys, id, mailbox, told) for (keys, id), told in zip(jobs, known, strict=True)]
    mailbox.open_targets = size
    unheard: set[Target] = {*targets}
    there = await existing(state.service, [*dict.fromkeys(keys for keys, _ in jobs)])
    parts = bytearray()
    try:
        hub.add([target for target in targets if target.keys in there])
        for target in targets:
            if target.keys not in there:
                type, id = target.keys.type, target.id
                target.fail(JobNotFound(f"there is no job {job_name(type, id)}", type=type, id=id))
        while (news := await mailbox.take_news()) is not None:
            unheard.discard(news[0])
            parts += await _frame(state, *news, raises=alone)
            if mailbox.has_news and len(parts) < _MOST_AT_ONCE:
                continue
            if parts:
                yield bytes(parts) + (b"" if size == 1 else _position(targets))
                parts.clear()
            elif mailbox.open_targets and not unheard:
                yield ALIVE  # tells the client that it is up to date
    finally:
        for target in targets:
            hub.discard(target)


async def _frame(state: State, target: Target, event: JobEvent | JobsError, *, raises: bool) -> bytes:
    """Return an event as bytes; none if the client knows its content already."""
    assert isinstance(target, _Job)
    head = "event: problem"
    if isinstance(event, ServiceClosed | SupervisorFailed):
        raise event
    if isinstance(event, JobsError):
        form = problems.problem(event)
        digest = _digest(form)
        if isinstance(event, JobNotFound) and target.told not in ("", digest):
            # The job existed at the client's last event of it.
            event = JobEvent(target.keys.type, target.id, JobState.REMOVED, None, None, None)
        elif raises and target.reported is None:
            raise event
    if isinstance(event, JobEvent):
        form = await state.event_form(event)
        digest = _digest({**form, "seq": None})  # a heartbeat changes the seq alone
        head = f"id: {form['seq'] or 'removed'}.{digest}\nevent: job"
    if digest == target.told:
        # The client does not learn of the states in between.
        return b""
    target.told = digest
    return b"%s\ndata: %s\n\n" % (head.encode(), wire.dumps(form))


def _digest(form: object) -> str:
    return blake2b(wire.dumps(form), digest_size=_DIGEST_BYTES).hexdigest()


def _known_of(last_id: str, count: int) -> list[str]:
    """Return the digests that the client has of several jobs; empty ones if its last id does not fit them."""
    head, _, text = last_id.partition(".")
    try:
        packed = base64.b64decode(text, b"-_", validate=True)
    except ValueError:
        packed = b""
    if head != _ALL or len(packed) != count * _DIGEST_BYTES:
        return [""] * count
    digests = [packed[start : start + _DIGEST_BYTES] for start in range(0, len(packed), _DIGEST_BYTES)]
    return ["" if digest == _NOT_TOLD else digest.hex() for digest in digests]


def _position(targets: Iterable[_Job]) -> bytes:
    """Return the id after which a stream of several jobs goes on: an event without data, with the last digests."""
    packed = b"".join(bytes.fromhex(target.told) or _NOT_TOLD for target in targets)
    return b"id: %s.%s\n\n" % (_ALL.encode(), base64.b64encode(packed, b"-_"))
