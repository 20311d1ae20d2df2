"""The routes of all pages with their roles, the pages for exceptions, and the stream that refreshes open pages."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from jobs_service.dashboard import actions, bulk_pages, small_pages
from jobs_service.dashboard.failures_page import failures
from jobs_service.dashboard.figures import SizeWatch
from jobs_service.dashboard.job_page import clone_page, download, job_page
from jobs_service.dashboard.jobs import export
from jobs_service.dashboard.overview import overview
from jobs_service.dashboard.reads import Reads
from jobs_service.dashboard.rendering import HERE, SECURITY, error_page, problem_page
from jobs_service.dashboard.search_page import search
from jobs_service.dashboard.small_pages import past
from jobs_service.dashboard.type_page import type_page
from jobs_service.dashboard.visit import BadAddress, Visit
from jobs_service.errors import JobsError
from jobs_service.http.problems import Refusal
from jobs_service.http.state import STREAM
from jobs_service.http.streams import EventStream
from jobs_service.model import JobEvent, JobState, JobType
from jobs_service.service.bulk_actions import BulkActions
from jobs_service.service.selection import BadFilter

LEAST: Final = 1.0
"""Least seconds between two looks at the store, and between two notifications of one page; all pages share the look."""
_SHARE: Final = 25
"""Looks, and pages that are read anew after them, take one part in 25 of the time each, as far as _MOST allows."""
_MOST: Final = 32.0
"""Most seconds between two looks of a page."""
_MOST_OF_A_LOOK: Final = 8.0
"""Most seconds between two looks because the last one took long, as it also does while the store is away."""
_REQUEST: Final = 0.002
"""Seconds that a request takes beside its page."""

CHANGED: Final = b"event: changed\ndata: \n\n"

_STATIC: Final = {
    "style.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}

Handle = Callable[[Visit], Awaitable[Response]]


# Routes


class Dashboard:
    """The pages of one server.

    Args:
        state: the shared state of all request handlers.
    """

    def __init__(self, state: Any) -> None:
        self._state = state
        self._shared = Reads(state.service)
        self._sizes = SizeWatch()
        self._open = OpenPages()
        self._bulk: BulkActions = state.bulk
        state.service.before_leaving(self._shared.close)

    def routes(self) -> list[Route]:
        """Return the routes of all pages."""
        see, do = partial(self._route, "GET", "read"), partial(self._route, "POST", "write")
        return [
            see("/", overview),
            see("/type", type_page),
            see("/job", job_page),
            see("/download", download),
            see("/export", export),
            see("/failures", failures),
            see("/past", past),
            see("/periodic", small_pages.periodic),
            see("/system", lambda visit: small_pages.system(visit, self._sizes)),
            see("/search", search),
            see("/bulk/show", bulk_pages.bulk_show),
            see("/live", self._live, STREAM),
            self._route("GET", "write", "/bulk/new", bulk_pages.bulk_new),
            self._route("GET", "write", "/job/new", clone_page),
            do("/bulk", lambda visit: bulk_pages.bulk_start(visit, self._bulk)),
            do("/bulk/picked", bulk_pages.bulk_picked),
            do("/bulk/cancel", bulk_pages.bulk_cancel),
            do("/job/edit", actions.edit),
            do("/job/act", actions.act_on_job),
            do("/job/new", actions.add),
            do("/type/act", actions.act_on_type),
            do("/periodic/act", actions.tick),
            do("/schedule/act", actions.act_on_schedule),
            self._route("POST", "admin", "/processes/act", actions.act_on_process),
            self._route("POST", "nobody", "/preferences", actions.preferences),
            self._route("GET", "nobody", "/login", actions.login_page),
            self._route("POST", "nobody", "/login", actions.log_in),
            self._route("POST", "nobody", "/logout", actions.log_out),
            self._route("GET", "nobody", "/static/environment.css", _environment),
            self._route("GET", "nobody", "/static/{name}", _static),
        ]

    async def _live(self, visit: Visit) -> Response:
        """Return a stream of server-sent events: "changed" whenever the open page is out of date."""
        of, service, reads = visit.query.get("of", "types"), visit.service, visit.reads

        async def types() -> tuple[Any, float]:
            counts = await reads.counts(LEAST / 2)
            return (counts, reads.news), max(reads.counted_at, reads.news)

        async def of_type(type: JobType) -> tuple[Any, float]:
            (counts, news), at = await types()
            return (counts.get(type), await service.paused(type), news), at

        async def processes() -> tuple[Any, float]:
            at = time.monotonic()
            return (await reads.processes(), reads.news), at

        if of == "job":
            news = of_job(self._open, service, visit.type(), visit.id())
        elif of == "processes":
            news = changes(self._open, processes)
        elif of == "type":
            news = changes(self._open, partial(of_type, visit.type()))
        else:
            news = changes(self._open, types)
        who, address = visit.request.state.who, visit.request.state.client
        return EventStream(visit.state, visit.request, who, address, news)

    def _route(self, method: str, role: str, path: str, handle: Handle, name: str | None = None) -> Route:
        async def respond(request: Request) -> Response:
            visit = Visit(request, self._state, self._shared)
            try:
                if not visit.role.has(role):
                    if visit.role.role == "nobody" and method == "GET" and path != "/live":
                        return RedirectResponse(visit.url("/login", next=visit.here), 303)
                    raise Refusal("forbidden", f"this needs the role {role}; yours is {visit.role.role}")
                if not visit.may(role) and role not in ("nobody", "read"):
                    raise Refusal("read-only", "this server changes nothing: it was started with --read-only")
                if not self._state.options.read_only:
                    self._bulk.start()  # if they were not started with the server
                is_again = method == "GET" and "x-live" in request.headers
                answer = await (self._open.page(visit, handle) if is_again else handle(visit))
                if method == "POST":
                    self._shared.forget()
                    self._open.changed(time.monotonic())
                return answer
            except Refusal as refusal:
                if not refusal.is_denial:
                    return problem_page(visit, refusal.http_status, "That is not possible", str(refusal))
                address, name = request.state.client, visit.role.name
                self._state.audit.refused(name, address, refusal.slug, method, visit.path)
                return problem_page(visit, refusal.http_status, "That is not allowed", str(refusal))
            except BadAddress as error:
                return problem_page(visit, 400, "The address is not complete", str(error))
            except BadFilter as error:
                return problem_page(visit, 422, "That cannot be looked for", str(error))
            except JobsError as error:
                return error_page(visit, error)

        return Route(path, respond, methods=[method], name=name)


async def _static(visit: Visit) -> Response:
    name = visit.request.path_params["name"]
    if name not in _STATIC:
        return problem_page(visit, 404, "There is no such file", "The pages of this server need none of that name.")
    headers = {**SECURITY, "Cache-Control": "public, max-age=86400"}
    return FileResponse(HERE / "static" / name, media_type=_STATIC[name], headers=headers)


async def _environment(visit: Visit) -> Response:
    headers = {**SECURITY, "Cache-Control": "public, max-age=86400"}
    return Response(visit.environment.css(), media_type="text/css; charset=utf-8", headers=headers)


# Open pages


class OpenPages:
    """Pages as those that are open ask for them again: one after the other, and one for all that show the same.

    The more there are, and the longer they take, the rarer are the notifications of changes, all at the same moments.
    """

    def __init__(self) -> None:
        self._made: dict[tuple[Any, ...], tuple[float, Response]] = {}
        self._making = asyncio.Lock()
        self._cost = 0.0
        self._streams = 0
        self._changed_at = -math.inf

    async def page(self, visit: Visit, handle: Handle) -> Response:
        """Return a page that was begun at most LEAST seconds before it was asked for, and shows the last change."""
        least = time.monotonic() - LEAST
        key = (visit.here, visit.role, visit.theme, visit.zone, visit.request.state.base)
        async with self._making:
            began = time.monotonic()
            made = self._made.get(key)
            if made is None or made[0] < max(least, self._changed_at):
                self._made = {key: each for key, each in self._made.items() if each[0] > began - LEAST}
                made = began, await handle(visit)
                if isinstance(made[1], HTMLResponse):  # a stream can be sent once only
                    self._made[key] = made
            self._cost += (time.monotonic() - began - self._cost) / 10
            return made[1]

    def changed(self, at: float) -> None:
        """Make pages anew that were begun before this time."""
        self._changed_at = max(self._changed_at, at)

    @contextlib.contextmanager
    def stream(self) -> Iterator[None]:
        """Count a page that is open."""
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1

    def beat(self, took: float = 0.0) -> float:
        """Return the seconds between two looks of a page; one of few lengths, so that all look together.

        Args:
            took: seconds of its last look.
        """
        wanted = max(min(_SHARE * took, _MOST_OF_A_LOOK), min(_SHARE * self._streams * (self._cost + _REQUEST), _MOST))
        beat = LEAST
        while beat < wanted:
            beat *= 2
        return beat

    async def rest(self, took: float = 0.0) -> None:
        """Return when an open page may look again; argument as for `beat`."""
        beat = self.beat(took)
        await asyncio.sleep(beat - time.monotonic() % beat)


async def changes(pages: OpenPages, look: Callable[[], Awaitable[tuple[Any, float]]]) -> AsyncGenerator[bytes, None]:
    """Yield whenever something has changed, and first at once: the page may be out of date already.

    Args:
        pages: that are open.
        look: returns what the page shows, and when that was read.
    """
    known: Any = object()
    with pages.stream():
        while True:
            began = time.monotonic()
            now, at = known, began
            with contextlib.suppress(JobsError):  # a store that cannot be reached now: the page's own answer says so
                now, at = await look()
            took = time.monotonic() - began
            if now != known:
                known = now
                pages.changed(at)
                yield CHANGED
            await pages.rest(took)


async def of_job(pages: OpenPages, service: Any, type: Any, id: Any) -> AsyncGenerator[bytes, None]:
    """Yield after each change of a job; an ended job is checked from time to time, as it may be run again.

    Raises:
        JobsError: there is no such job, no supervisor tree, or no store now: the page polls instead.
    """
    known: JobEvent | None = None
    with pages.stream():
        while True:
            await service.get(type, id)  # a subscription to a missing job may leave rows in the store
            async with service.subscribe(type, id) as events:
                # The first event is the present state, which may be newer than the page.
                async for event in events:
                    if event != known:
                        known = event
                        pages.changed(time.monotonic())
                        yield CHANGED
                    if event.state is JobState.REMOVED:
                        return
                    await pages.rest()
            await asyncio.sleep(2 * LEAST)
