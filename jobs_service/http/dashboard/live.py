"""Tells open pages that something has changed: one read of the counts a second for all of them together.

A page is told no more than that; the browser then asks for the page again, with the rights that it has.
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
"""Seconds between two signs of life on a stream on which nothing happens."""
LEAST: Final = 1.0
"""Seconds between two looks at the store, and between two news to one page."""
_SHARE: Final = 20
"""Looking takes at most one part in so many of the time, however many types there are."""
_MOST: Final = 10.0
"""Most seconds between two looks: one also takes very long while the store is away."""

CHANGED: Final = b"event: changed\ndata: \n\n"


class Pulse:
    """Looks at the store as long as a page is open, and knows when which type has changed.

    Args:
        counts: of all types.
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
        """Look at the store as long as the block runs."""
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
        """Return a mark of a type's state, or of all of them, that is another one after each change."""
        return self._all if name is None else self._seen.get(name, b"")

    async def looked(self) -> None:
        """Return when the store was looked at again."""
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
    """Return a mark of the state of each type by its name, and one of all of them."""
    seen = {shown(type): hash(each).to_bytes(8, "big", signed=True) for type, each in counts.items()}
    return seen, hashlib.blake2b(b"".join(seen.values()), digest_size=8).digest()


async def live(visit: Visit, pulse: Pulse) -> Response:
    """Return a stream of server-sent events: "changed" whenever the page that is open shows something old."""
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
    """Yield news as one of the streams that the server and this client may have open, as long as its token is there."""
    state = visit.state
    stream = state.stream(visit.request.state.who)
    with contextlib.suppress(Refusal):  # too many are open: the page asks by itself
        async with contextlib.aclosing(news):
            with state.open_streams.taken_by(visit.role.name or visit.request.state.client):
                state.streams.add(stream)
                try:
                    async with contextlib.aclosing(_told(news, stream)) as told:
                        # The server may have begun to end before the stream was there to be ended.
                        while not state.closing.is_set() and (each := await anext(told, None)) is not None:
                            yield each
                finally:
                    state.streams.discard(stream)


async def _told(news: AsyncGenerator[bytes, None], stream: Stream) -> AsyncGenerator[bytes, None]:
    """Yield news and signs of life, until the stream is ended or there are no more news."""

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
    """Yield whenever the counts of a type, or of any type, have changed, or what else the page shows."""
    known: Any = None  # so that the first look is news: something may have changed since the page was made
    async with pulse.listening():
        while True:
            await pulse.looked()
            with contextlib.suppress(JobsError):  # a store that cannot be reached now: the page's own answer says so
                if (now := (pulse.of(name), await more())) != known:
                    known = now
                    yield CHANGED


def _shape(node: dict[str, Any]) -> bytes:
    """Return a mark of a supervisor tree, without how long its parts have run."""

    def parts(node: dict[str, Any]) -> Any:
        return (node.get("name"), node.get("state"), node.get("restarts"), [*map(parts, node.get("children", ()))])

    return hashlib.blake2b(repr(parts(node)).encode(), digest_size=8).digest()


async def _of_job(service: Any, type: Any, id: Any) -> AsyncGenerator[bytes, None]:
    """Yield whenever a job has changed; one that has ended may be run again, so it is looked at from time to time."""
    while True:
        try:
            await service.get(type, id)  # who follows jobs that are not there may leave rows in the store
            async with service.subscribe(type, id) as events:
                # The first one is the present state, which may have come about since the page was made.
                async for event in events:
                    yield CHANGED
                    if event.state is JobState.REMOVED:
                        return
                    await asyncio.sleep(LEAST / 2)
        except JobsError:  # no such job, no supervisor tree, or no store now: the page asks by itself
            return
        await asyncio.sleep(2 * LEAST)
