"""Streams of server-sent events: the answer to one client, the events of jobs, and the changes of a type's jobs."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from jobs_service import json_types, names
from jobs_service.actors.subscriptions import Mailbox, SubscribedJob
from jobs_service.durations import rest_after
from jobs_service.errors import (
    JobNotFound,
    JobsError,
    NoTypeTimeout,
    RecordDamaged,
    ServiceClosed,
    StoreError,
    SupervisorFailed,
    job_name,
)
from jobs_service.http import forms, problems
from jobs_service.http.endpoint import Call, endpoint
from jobs_service.http.problems import Refusal
from jobs_service.http.tokens import Identity, Role
from jobs_service.layer import changes, counters, running_jobs
from jobs_service.layer.changes import Position
from jobs_service.layer.keyspace import TypeKeys, is_id, pack_id, unpack_id
from jobs_service.layer.record import Record
from jobs_service.model import Job, JobEvent, JobId, JobState, JobType
from jobs_service.store.base import Transaction, Watch

if TYPE_CHECKING:
    from jobs_service.http.state import ServerState
    from jobs_service.service import JobsService


T = TypeVar("T")

_BEGIN: Final = b"retry: 1000\n\n"
"""The begin of a stream: the milliseconds after which a browser connects again."""
ALIVE: Final = b": alive\n\n"
RESET: Final = b"event: reset\ndata: {}\n\n"
END: Final = b"event: end\ndata: {}\n\n"
_FIRST_WITHIN: Final = 5.0
"""Seconds after which the answer begins, with or without an event."""

_MOST_AT_ONCE: Final = 1 << 16
"""Bytes of events from which on they are sent."""
_DIGEST_BYTES: Final = 6
"""Size of one job's digest: the digests of a thousand jobs still fit into one header."""
_NOT_TOLD: Final = bytes(_DIGEST_BYTES)
_ALL: Final = "all"
"""Prefix of the event ids of a stream of several jobs."""

_PAGE: Final = 200
_RECORDS: Final = 50
"""Records of one read: each may be large."""
_SEEN_FOR: Final = 10.0
"""Seconds for which rows of changes are left for slower followers."""


# The answer


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
        state: ServerState,
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
                async with ClientPresence(self._request) as presence:
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


class ClientPresence:
    """Watches whether the client of a request is still connected; a context manager around the work for it.

    Args:
        request: the request, after its body has been read.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self.leaving: asyncio.Task[None] | None = None

    async def __aenter__(self) -> ClientPresence:
        self.leaving = asyncio.create_task(self._left())
        # Lets the task begin to wait before the first look at it.
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self.leaving is not None
        self.leaving.cancel()
        with suppress(asyncio.CancelledError):
            await self.leaving

    @property
    def is_gone(self) -> bool:
        """Whether the client has closed its connection."""
        return self.leaving is not None and self.leaving.done()

    async def _left(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass

    async def unless_gone(
        self, work: Coroutine[Any, Any, T], closing: asyncio.Event, give_back: Callable[[T], Awaitable[object]]
    ) -> T | None:
        """Return the result of some work; None if the server is about to end.

        Args:
            work: the work; if canceled, it gives back anything that it has taken.
            closing: set when the server is about to end.
            give_back: called with a result that comes in spite of the cancellation.

        Raises:
            Gone: the client has gone meanwhile.
        """
        assert self.leaving is not None
        doing = asyncio.create_task(work)
        ending = asyncio.create_task(closing.wait())
        try:
            await asyncio.wait((doing, ending, self.leaving), return_when=asyncio.FIRST_COMPLETED)
            if doing.done():
                return doing.result()
            if self.is_gone:
                raise Gone
            return None
        finally:
            ending.cancel()
            if not doing.done():
                doing.cancel()
                with suppress(asyncio.CancelledError):
                    await give_back(await doing)


class Gone(Exception):
    """The client has gone before its answer."""


# Events of jobs


class _Job(SubscribedJob):
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
    state: ServerState, jobs: Sequence[tuple[TypeKeys, JobId]], last_id: str, *, alone: bool
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
    unheard: set[SubscribedJob] = {*targets}
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
                yield bytes(parts) + (b"" if size == 1 else _digests(targets))
                parts.clear()
            elif mailbox.open_targets and not unheard:
                yield ALIVE  # tells the client that it is up to date
    finally:
        for target in targets:
            hub.discard(target)


async def _frame(state: ServerState, target: SubscribedJob, event: JobEvent | JobsError, *, raises: bool) -> bytes:
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
    return b"%s\ndata: %s\n\n" % (head.encode(), json_types.dumps(form))


def _digest(form: object) -> str:
    return blake2b(json_types.dumps(form), digest_size=_DIGEST_BYTES).hexdigest()


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


def _digests(targets: Iterable[_Job]) -> bytes:
    """Return the id after which a stream of several jobs goes on: an event without data, with the last digests."""
    packed = b"".join(bytes.fromhex(target.told) or _NOT_TOLD for target in targets)
    return b"id: %s.%s\n\n" % (_ALL.encode(), base64.b64encode(packed, b"-_"))


# Changes of a type's jobs


class TypeFeed:
    """The changes of one type's jobs, for one client.

    Args:
        state: of the server.
        keys: of the type.
    """

    def __init__(self, state: ServerState, keys: TypeKeys) -> None:
        self._state = state
        self._context = state.service.remote.context
        self._keys = keys
        self._removable: tuple[float, Position] | None = None

    async def parts(self, last_id: str) -> AsyncGenerator[bytes, None]:
        """Yield the changes as events, as bytes: from now on, or from the client's last position.

        Args:
            last_id: id of the client's last event, empty for none.

        Raises:
            JobsError: there is no such type, or the store failed.
        """
        if not await existing(self._state.service, [self._keys]):
            raise NoTypeTimeout.of(self._keys.type)
        position = _position_of(last_id)
        if position is None:
            position = await self._now()
            yield (RESET if last_id else b"") + _mark(position)
        else:
            yield _mark(position)
        time = asyncio.get_running_loop().time
        while True:
            watch = await self._read(self._watch)
            try:
                began, more = time(), True
                while more:
                    since = partial(changes.since, keys=self._keys, position=position, limit=_PAGE)
                    found = await self._read(since)
                    if found is None:
                        position = await self._now()
                        yield RESET + _mark(position)
                        continue
                    for start in range(0, len(found.packed_ids), _RECORDS):
                        yield await self._frames(found.packed_ids[start : start + _RECORDS])
                    position, more = found.position, found.more
                    if found.packed_ids:
                        yield _mark(position)
                    if found.logged and self._removable is None:
                        self._removable = time() + _SEEN_FOR, position
                await self._remove_seen(position)
                took = time() - began
                wait = None if self._removable is None else max(self._removable[0] - time(), 0.0)
                with suppress(StoreError, TimeoutError):
                    async with asyncio.timeout(wait):
                        await watch.wait()
            finally:
                watch.cancel()
            # Slow reads are repeated less often, to spare the event loop.
            await asyncio.sleep(max(self._context.settings.notify_holdoff, rest_after(took)))

    async def _read(self, read: Callable[[Transaction], Coroutine[Any, Any, T]]) -> T:
        return await self._context.retried(lambda: self._context.read(read))

    async def _watch(self, transaction: Transaction) -> Watch:
        watch: Watch = transaction.watch(self._keys.watch_activity)
        await transaction.get(self._keys.watch_activity)
        return watch

    async def _now(self) -> Position:
        """Return the position for following the type from now on."""
        while True:
            position = await self._read(lambda transaction: changes.begin(transaction, self._keys, new=True))
            if position is not None:
                return position
            await self._context.retried(
                lambda: self._context.transact(lambda unit: changes.follow(unit.transaction, self._keys, new=True))
            )

    async def _frames(self, packed_ids: list[bytes]) -> bytes:
        data = self._keys.data
        # A damaged row may hold an invalid id.
        packed_ids = [packed_id for packed_id in packed_ids if is_id(packed_id)]

        async def read(transaction: Transaction) -> tuple[list[bytes | None], dict[bytes, bytes | None]]:
            raws = await transaction.get_many([data + packed_id for packed_id in packed_ids])
            gone = [packed_id for packed_id, raw in zip(packed_ids, raws, strict=True) if raw is None]
            last = await transaction.get_many([self._keys.last + packed_id for packed_id in gone]) if gone else ()
            return [*raws], dict(zip(gone, last, strict=True))

        raws, last = await self._read(read)
        jobs: list[Job] = []
        gone: dict[bytes, dict[str, Any]] = {}
        for packed_id, raw in zip(packed_ids, raws, strict=True):
            id = unpack_id(packed_id)
            brief = {"type": names.name(self._keys.type), "id": names.name(id)}
            try:
                if raw is None:
                    gone[packed_id] = {**brief, "state": JobState.REMOVED.value}
                # A job that was removed at its end is reported as finished first, then as removed.
                if (raw := raw or last[packed_id]) is not None:
                    jobs.append(Job(self._keys.type, id, Record.decode(raw, True)))
            except RecordDamaged:
                gone[packed_id] = {**brief, "state": JobState.UNREADABLE.value}
        frames = dict.fromkeys(packed_ids, b"")
        for job, form in zip(jobs, await self._state.job_forms(jobs), strict=True):
            frames[pack_id(job.id)] = _change_frame(_brief(form))
        for packed_id, brief in gone.items():
            frames[packed_id] += _change_frame(brief)
        return b"".join(frames.values())

    async def _remove_seen(self, position: Position) -> None:
        """Remove rows of changes that all followers of the type should have seen by now."""
        if self._removable is None or self._removable[0] > asyncio.get_running_loop().time():
            return
        seen = self._removable[1]
        self._removable = None
        await self._context.retried(
            lambda: self._context.transact(lambda unit: changes.remove_seen(unit.transaction, self._keys, seen))
        )
        if position.changed > seen.changed:
            self._removable = asyncio.get_running_loop().time() + _SEEN_FOR, position


async def existing(service: JobsService, keys: list[TypeKeys]) -> set[TypeKeys]:
    """Return the types that exist or have jobs; following another type would leave rows of it in the store."""
    read = await service.remote.access.read(lambda transaction: running_jobs.samples(transaction, keys))
    found = {each for each, (timeout, _) in zip(keys, read, strict=True) if timeout}
    others = [each for each in keys if each not in found]
    if others:
        counts = await service.remote.access.read(lambda transaction: counters.of_types(transaction, others))
        found |= {each for each, its in zip(others, counts, strict=True) if its is not None and its.jobs}
    return found


def _change_frame(form: dict[str, Any]) -> bytes:
    return b"event: job\ndata: %s\n\n" % json_types.dumps(form)


def _brief(form: dict[str, Any]) -> dict[str, Any]:
    """Return a change as JSON: a summary of the job."""
    error = form["error"]
    fields = ("type", "id", "state", "outcome", "seq", "attempts", "progress", "run_at", "retrying", "cancel")
    return {
        **{field: form[field] for field in fields},
        "error": None if error is None else {"type": error["type"], "message": error["message"][:200]},
    }


def _mark(position: Position) -> bytes:
    """Return an event without data: the position of a client after all events before it."""
    return b"id: %s\n\n" % ".".join(part.hex() for part in position).encode()


def _position_of(last_id: str) -> Position | None:
    """Return the position in an event's id; None if the id is malformed."""
    try:
        generation, changed, active = (bytes.fromhex(part) for part in last_id.split("."))
    except ValueError:
        return None
    return Position(generation, changed, active) if len(changed) == len(active) == 12 else None


# Endpoints


_MEDIA: Final = {"text/event-stream": "Server-sent events"}
_LONGEST_ID: Final = 9_000
"""Characters: enough for the digests of a thousand jobs."""
_JOBS_OF_A_TYPE: Final = 10
"""Jobs for which a stream of a type counts."""


@endpoint(
    "GET /v1/types/{type}/jobs/{id}/events", Role.READ, "The events of a job", {204: None}, media=_MEDIA, is_long=True
)
async def job_events(call: Call) -> Response:
    return _of_jobs(call, [(call.type, call.id)], is_alone=True)


@endpoint("GET /v1/events", Role.READ, "The events of several jobs", {204: None}, media=_MEDIA, is_long=True)
async def events(call: Call, query: forms.EventsQuery) -> Response:
    return _of_jobs(call, [_pair(each) for each in query.job])


@endpoint(
    "POST /v1/events", Role.READ, "The events of several jobs", {204: None}, media=_MEDIA, changes=False, is_long=True
)
async def events_of_body(call: Call, form: forms.EventsForm) -> Response:
    return _of_jobs(call, form.jobs)


@endpoint("GET /v1/types/{type}/events", Role.READ, "What changes among the jobs of a type", media=_MEDIA, is_long=True)
async def type_events(call: Call) -> Response:
    parts = TypeFeed(call.state, call.remote.access.keys(call.type)).parts(_last_id(call))
    return EventStream(call.state, call.request, call.who, call.client, parts, _JOBS_OF_A_TYPE)


def _of_jobs(call: Call, jobs: Iterable[tuple[JobType, JobId]], *, is_alone: bool = False) -> Response:
    """Answer with the events of jobs.

    Raises:
        JobsError: a type or an id is invalid, or there is no supervisor tree.
    """
    call.service.subscribe_many([])  # raises without a supervisor tree
    wanted = dict.fromkeys(call.remote.access.place(type, id)[:2] for type, id in jobs)
    if len(wanted) > (most := call.state.options.limits.jobs_of_stream):
        raise Refusal("too-many-requests", f"a stream tells of {most} jobs at most")
    parts = job_parts(call.state, [*wanted], _last_id(call), alone=is_alone)
    return EventStream(call.state, call.request, call.who, call.client, parts, len(wanted))


def _last_id(call: Call) -> str:
    found = call.request.headers.get("last-event-id", "")
    return found if len(found) <= _LONGEST_ID else ""


def _pair(text: str) -> tuple[Any, Any]:
    """Return the type and id of a job in a query: each is percent-encoded within it."""
    type, slash, id = text.partition("/")
    try:
        if not slash:
            raise ValueError("type and id with a slash between them are needed")
        return names.parsed(unquote(type, errors="strict")), names.parsed(unquote(id, errors="strict"))
    except (ValueError, RecursionError) as error:
        raise Refusal("bad-request", f"job={text[:100]!r}: {str(error)[:200]}") from None
