"""Streams of server-sent events: of one job, of several jobs, and of all changes of a type's jobs."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final
from urllib.parse import unquote

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from jobs_service import names
from jobs_service.errors import JobNotFound, job_name
from jobs_service.http import forms, streams
from jobs_service.http.endpoint import Call, endpoint
from jobs_service.http.refusals import Refusal
from jobs_service.http.roles import Role
from jobs_service.http.streams import JobTarget, Stream
from jobs_service.http.waiting import Presence
from jobs_service.layer import activity
from jobs_service.layer.creation import check_id, no_type
from jobs_service.layer.keyspace import TypeKeys
from jobs_service.model import JobId, JobType
from jobs_service.store.base import Transaction

_MEDIA: Final = {"text/event-stream": "Server-sent events"}
_FIRST_WITHIN: Final = 5.0
"""Seconds after which the answer begins, with or without an event."""
_LONGEST_ID: Final = 9_000
"""Characters: enough for the digests of a thousand jobs."""
_JOBS_OF_A_TYPE: Final = 10
"""Jobs for which a stream of a type counts: changes of many may wait for a slow client."""


@endpoint(
    "GET",
    "/v1/types/{type}/jobs/{id}/events",
    Role.READ,
    "The events of a job",
    answers={204: None},
    media=_MEDIA,
    is_long=True,
)
async def job_events(call: Call) -> Response:
    return _of_jobs(call, [(call.type, call.id)], is_alone=True)


@endpoint(
    "GET",
    "/v1/events",
    Role.READ,
    "The events of several jobs",
    query=forms.EventsQuery,
    answers={204: None},
    media=_MEDIA,
    is_long=True,
)
async def events(call: Call) -> Response:
    return _of_jobs(call, [_pair(each) for each in call.query.job])


@endpoint(
    "POST",
    "/v1/events",
    Role.READ,
    "The events of several jobs",
    takes=forms.EventsForm,
    answers={204: None},
    media=_MEDIA,
    changes=False,
    is_long=True,
)
async def events_of_body(call: Call) -> Response:
    return _of_jobs(call, call.body.jobs)


@endpoint(
    "GET",
    "/v1/types/{type}/events",
    Role.READ,
    "What changes among the jobs of a type",
    media=_MEDIA,
    is_long=True,
)
async def type_events(call: Call) -> Response:
    stream = call.state.stream(call.who, _last_id(call))
    feeds = call.state.type_feeds

    async def begin() -> None:
        if not await _there(call, [keys := call.remote.access.keys(call.type)]):
            raise no_type(keys)
        await feeds.join(call.type, stream)

    return EventsResponse(call, stream, begin, lambda: feeds.leave(call.type, stream), _JOBS_OF_A_TYPE)


def _of_jobs(call: Call, jobs: Iterable[tuple[JobType, JobId]], *, is_alone: bool = False) -> Response:
    """Answer with the events of jobs.

    Raises:
        JobsError: a type or an id is invalid, or there is no supervisor tree.
    """
    state, hub = call.state, call.remote.hub
    call.service.subscribe_many([])  # raises without a supervisor tree
    stream = call.state.stream(call.who, _last_id(call))
    wanted: dict[tuple[TypeKeys, JobId], None] = {}
    for type, id in jobs:
        keys = call.remote.access.keys(type)
        wanted[keys, check_id(keys, id)] = None
    if len(wanted) > state.options.limits.jobs_of_stream:
        raise Refusal("too-many-requests", f"a stream tells of {state.options.limits.jobs_of_stream} jobs at most")
    targets = [JobTarget(keys, id, stream, state.frames, is_alone=is_alone) for keys, id in wanted]

    async def begin() -> None:
        stream.expect(targets)
        there = await _there(call, list(dict.fromkeys(target.keys for target in targets)))
        hub.add([target for target in targets if target.keys in there])
        for target in targets:
            if target.keys not in there:
                type, id = target.keys.type, target.id
                target.fail(JobNotFound(f"there is no job {job_name(type, id)}", type=type, id=id))

    def leave() -> None:
        for target in targets:
            hub.discard(target)

    return EventsResponse(call, stream, begin, leave, len(targets))


async def _there(call: Call, keys: list[TypeKeys]) -> set[TypeKeys]:
    """Return the types that exist or have jobs; following another type would leave rows of it in the store."""

    async def read(transaction: Transaction) -> list[tuple[float | None, bytes | None]]:
        return await activity.samples(transaction, keys)

    found = {each for each, (timeout, _) in zip(keys, await call.remote.access.read(read), strict=True) if timeout}
    if len(found) < len(keys):
        counts = await call.service.counts()
        found |= {each for each in keys if each.type in counts and counts[each.type].jobs}
    return found


class EventsResponse(Response):
    """Sends a stream until it ends, or the client goes.

    Args:
        call: the request.
        stream: the events for the client.
        begin: makes events go into the stream.
        leave: ends that.
        jobs: number of jobs for which it counts.
    """

    def __init__(
        self,
        call: Call,
        stream: Stream,
        begin: Callable[[], Coroutine[Any, Any, None]],
        leave: Callable[[], None],
        jobs: int,
    ) -> None:
        super().__init__()
        self._jobs = jobs
        self._call = call
        self._stream = stream
        self._begin = begin
        self._leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events as they come."""
        state, stream = self._call.state, self._stream
        who = self._call.who.name or self._call.client
        with state.open_streams.taken_by(who), state.followed.taken_by(who, self._jobs):
            state.streams.add(stream)
            try:
                async with Presence(self._call.request) as presence:
                    assert presence.leaving is not None
                    presence.leaving.add_done_callback(lambda _: stream.end())
                    await self._begin()
                    if state.closing.is_set():
                        stream.end()
                    await self._send(scope, receive, send)
            finally:
                self._leave()
                state.streams.discard(stream)

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        stream, heartbeat = self._stream, self._call.state.options.limits.heartbeat
        part = await stream.next(min(_FIRST_WITHIN, heartbeat))
        if stream.refusal is not None:
            raise stream.refusal
        if part is streams.END and not stream.has_told:
            # This status stops a browser from reconnecting.
            return await Response(status_code=204)(scope, receive, send)
        headers = [(b"content-type", b"text/event-stream"), (b"x-accel-buffering", b"no")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": streams.BEGIN, "more_body": True})
        while part is not None:
            is_last = stream.is_over
            await send({"type": "http.response.body", "body": part, "more_body": not is_last})
            if is_last:
                return
            part = await stream.next(heartbeat)
        await send({"type": "http.response.body", "body": b""})


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
