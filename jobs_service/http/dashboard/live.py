"""Notifies open pages of changes, with one read of the counts per second for all pages together.

The notification has no content; the browser then requests the page again, with its own rights.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final

from starlette.responses import Response, StreamingResponse

from jobs_service.errors import JobsError
from jobs_service.http.dashboard.shared_counts import SharedCounts
from jobs_service.http.dashboard.visit import Visit
from jobs_service.http.refusals import Refusal
from jobs_service.http.streams import Stream
from jobs_service.model import JobState, JobType
from jobs_service.model.counts import TypeCounts
from jobs_service.names import shown

HEARTBEAT: Final = 15.0
"""Seconds between two signs of life on an idle stream."""
LEAST: Final = 1.0
"""Least seconds between two reads of the store, and between two notifications of one page."""
_SHARE: Final = 20
"""The reads take at most one part in 20 of the time, even with very many types."""
_MOST: Final = 10.0
"""Most seconds between two reads; a read also takes very long while the store is away."""

CHANGED: Final = b"event: changed\ndata: \n\n"


class Pulse:
    """Reads the counts while a page is open, and detects changes of each type.

    Args:
        counts: the counts of all types.
    """

    def __init__(self, counts: SharedCounts) -> None:
        self._counts = counts
        self._seen: dict[str, bytes] = {}
        self._all = b""
        self._listeners = 0
        self._task: asyncio.Task[None] | None = None
        self._turn = asyncio.Event()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Read the store repeatedly while the block runs."""
        self._listeners += 1
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._look_on())
        try:
            yield
        finally:
            self._listeners -= 1
            if not self._listeners and self._task is not None:
                task, self._task = self._task, None
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    def of(self, name: str | None) -> bytes:
        """Return a mark of the state of a type, or of all types, that differs after each change."""
        return self._all if name is None else self._seen.get(name, b"")

    async def looked(self) -> None:
        """Wait for the next read of the store."""
        await self._turn.wait()

    async def _look_on(self) -> None:
        while True:
            begun = time.monotonic()
            with contextlib.suppress(JobsError):  # a store that cannot be reached now: the page's own answer says so
                counts = await self._counts.get()
                # There may be very many types: the loop goes on meanwhile.
                self._seen, self._all = await asyncio.to_thread(_marks, counts)
            turn, self._turn = self._turn, asyncio.Event()
            turn.set()
            await asyncio.sleep(min(max(LEAST, (time.monotonic() - begun) * _SHARE), _MOST))


def _marks(counts: Mapping[JobType, TypeCounts]) -> tuple[dict[str, bytes], bytes]:
    """Return a mark of the state of each type by its name, and a mark of all types together."""
    seen = {shown(type): hash(each).to_bytes(8, "big", signed=True) for type, each in counts.items()}
    return seen, hashlib.blake2b(b"".join(seen.values()), digest_size=8).digest()


async def live(visit: Visit, pulse: Pulse) -> Response:
    """Return a stream of server-sent events: "changed" whenever the open page is out of date."""
    of = visit.query.get("of", "types")
    if of == "job":
        type, id = visit.type(), visit.id()
        news = _of_job(visit.service, type, id)
    else:
        type = visit.type() if of == "type" else None
        service = visit.service

        async def more() -> Any:
            if of == "tree":
                return _shape(service.supervision())
            if of == "processes":
                return await service.processes()
            return None if type is None else await service.paused(type)

        news = _of_types(pulse, None if type is None else shown(type), more)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_counted(visit, news), media_type="text/event-stream", headers=headers)


async def _counted(visit: Visit, news: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Yield news while the token is valid; the stream counts against the limits of the server and of this client."""
    state = visit.state
    stream = state.stream(visit.request.state.who)
    with contextlib.suppress(Refusal):  # too many are open: the page polls instead
        async with contextlib.aclosing(news):
            with state.open_streams.taken_by(visit.role.name or visit.request.state.client):
                state.streams.add(stream)
                try:
                    async with contextlib.aclosing(_told(news, stream)) as told:
                        # The server may have begun to end before the stream was registered.
                        while not state.closing.is_set() and (each := await anext(told, None)) is not None:
                            yield each
                finally:
                    state.streams.discard(stream)


async def _told(news: AsyncGenerator[bytes, None], stream: Stream) -> AsyncGenerator[bytes, None]:
    """Yield news and signs of life until the stream is ended or the news are over."""

    async def put_all() -> None:
        try:
            async for each in news:
                stream.put("page", each)
        finally:
            stream.end()

    putting = asyncio.ensure_future(put_all())
    try:
        yield b"retry: 2000\n\n"
        while (part := await stream.next(HEARTBEAT)) is not None:
            yield part
    finally:
        putting.cancel()
        with contextlib.suppress(asyncio.CancelledError, JobsError):
            await putting


async def _of_types(pulse: Pulse, name: str | None, more: Callable[[], Awaitable[Any]]) -> AsyncGenerator[bytes, None]:
    """Yield after each change of the counts of a type, or of any type, or of the page's other content."""
    known: Any = None  # so that the first read is news: the page may be out of date already
    async with pulse.listening():
        while True:
            await pulse.looked()
            with contextlib.suppress(JobsError):  # a store that cannot be reached now: the page's own answer says so
                if (now := (pulse.of(name), await more())) != known:
                    known = now
                    yield CHANGED


def _shape(node: dict[str, Any]) -> bytes:
    """Return a mark of a supervisor tree that ignores the uptime of its parts."""

    def parts(node: dict[str, Any]) -> Any:
        return (node.get("name"), node.get("state"), node.get("restarts"), [*map(parts, node.get("children", ()))])

    return hashlib.blake2b(repr(parts(node)).encode(), digest_size=8).digest()


async def _of_job(service: Any, type: Any, id: Any) -> AsyncGenerator[bytes, None]:
    """Yield after each change of a job; an ended job is checked from time to time, as it may be run again."""
    while True:
        try:
            await service.get(type, id)  # a subscription to a missing job may leave rows in the store
            async with service.subscribe(type, id) as events:
                # The first event is the present state, which may be newer than the page.
                async for event in events:
                    yield CHANGED
                    if event.state is JobState.REMOVED:
                        return
                    await asyncio.sleep(LEAST / 2)
        except JobsError:  # no such job, no supervisor tree, or no store now: the page polls instead
            return
        await asyncio.sleep(2 * LEAST)
