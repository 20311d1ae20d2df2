"""Notifies open pages of changes.

The notification has no content; the browser then requests the page again, with its own rights.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final

from starlette.responses import Response

from jobs_service.dashboard.visit import Visit
from jobs_service.errors import JobsError
from jobs_service.http.streams import EventStream
from jobs_service.model import JobEvent, JobState

LEAST: Final = 1.0
"""Least seconds between two looks at the store, and between two notifications of one page; all pages share the look."""
_SHARE: Final = 20
"""The looks take at most one part in 20 of the time, even with very many types."""
_MOST: Final = 10.0
"""Most seconds between two looks; a look also takes very long while the store is away."""

CHANGED: Final = b"event: changed\ndata: \n\n"


async def live(visit: Visit) -> Response:
    """Return a stream of server-sent events: "changed" whenever the open page is out of date."""
    of, service = visit.query.get("of", "types"), visit.service
    if of == "job":
        news = of_job(service, visit.type(), visit.id())
    elif of == "processes":
        news = changes(service.processes)
    elif of == "tree":
        news = changes(lambda: _shape(service.supervision()))
    elif of == "type":
        type = visit.type()

        async def type_now() -> Any:
            return (await visit.counts(LEAST / 2)).get(type), await service.paused(type)

        news = changes(type_now)
    else:
        news = changes(lambda: visit.counts(LEAST / 2))
    who, address = visit.request.state.who, visit.request.state.client
    return EventStream(visit.state, visit.request, who, address, news)


async def changes(look: Callable[[], Awaitable[Any]]) -> AsyncGenerator[bytes, None]:
    """Yield whenever something has changed, and first at once: the page may be out of date already.

    Args:
        look: returns what the page shows.
    """
    known: Any = object()
    while True:
        began = time.monotonic()
        now = known
        with contextlib.suppress(JobsError):  # a store that cannot be reached now: the page's own answer says so
            now = await look()
        took = time.monotonic() - began
        if now != known:
            known = now
            yield CHANGED
        await asyncio.sleep(min(max(LEAST, took * _SHARE), _MOST))


async def _shape(node: dict[str, Any]) -> bytes:
    """Return a mark of a supervisor tree that ignores the uptime of its parts."""

    def parts(node: dict[str, Any]) -> Any:
        return (node.get("name"), node.get("state"), node.get("restarts"), [*map(parts, node.get("children", ()))])

    return hashlib.blake2b(repr(parts(node)).encode(), digest_size=8).digest()


async def of_job(service: Any, type: Any, id: Any) -> AsyncGenerator[bytes, None]:
    """Yield after each change of a job; an ended job is checked from time to time, as it may be run again.

    Raises:
        JobsError: there is no such job, no supervisor tree, or no store now: the page polls instead.
    """
    known: JobEvent | None = None
    while True:
        await service.get(type, id)  # a subscription to a missing job may leave rows in the store
        async with service.subscribe(type, id) as events:
            # The first event is the present state, which may be newer than the page.
            async for event in events:
                if event != known:
                    known = event
                    yield CHANGED
                if event.state is JobState.REMOVED:
                    return
                await asyncio.sleep(LEAST / 2)
        await asyncio.sleep(2 * LEAST)
