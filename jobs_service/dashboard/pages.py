"""The routes of all pages with their roles, and the error pages for exceptions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.routing import Route

from jobs_service.dashboard import actions, bulk_pages, login, small_pages
from jobs_service.dashboard.errors import error_page, problem_page
from jobs_service.dashboard.export import export
from jobs_service.dashboard.failures import failures
from jobs_service.dashboard.job_page import clone_page, download, job_page
from jobs_service.dashboard.live import live
from jobs_service.dashboard.overview import overview
from jobs_service.dashboard.processes import processes
from jobs_service.dashboard.rendering import HERE, SECURITY
from jobs_service.dashboard.shared_counts import SharedCounts
from jobs_service.dashboard.store_size import SizeWatch
from jobs_service.dashboard.type_page import type_page
from jobs_service.dashboard.visit import BadAddress, Visit
from jobs_service.errors import JobsError
from jobs_service.http.refusals import Refusal
from jobs_service.http.state import STREAM
from jobs_service.service.bulk_actions import BulkActions
from jobs_service.service.selection import BadFilter

Handle = Callable[[Visit], Awaitable[Response]]

_STATIC: Final = {
    "style.css": "text/css; charset=utf-8",
    "live.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


class Dashboard:
    """The pages of one server.

    Args:
        state: the shared state of all request handlers.
    """

    def __init__(self, state: Any) -> None:
        self._state = state
        self._counts = SharedCounts(state.service)
        self._sizes = SizeWatch()
        self._bulk: BulkActions = state.bulk
        state.service.before_leaving(self._bulk.close)

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
            see("/processes", processes),
            see("/periodic", small_pages.periodic),
            see("/supervision", small_pages.supervision),
            see("/health", lambda visit: small_pages.health(visit, self._sizes)),
            see("/bulk", bulk_pages.bulk_list),
            see("/bulk/show", bulk_pages.bulk_show),
            see("/live", live, STREAM),
            self._route("GET", "write", "/bulk/new", bulk_pages.bulk_new),
            self._route("GET", "write", "/job/new", clone_page),
            do("/bulk", lambda visit: bulk_pages.bulk_start(visit, self._bulk)),
            do("/bulk/cancel", bulk_pages.bulk_cancel),
            do("/job/act", actions.act_on_job),
            do("/job/new", actions.add),
            do("/type/act", actions.act_on_type),
            do("/periodic/act", actions.tick),
            self._route("POST", "admin", "/processes/act", actions.act_on_process),
            self._route("POST", "nobody", "/preferences", actions.preferences),
            self._route("GET", "nobody", "/login", login.login_page),
            self._route("POST", "nobody", "/login", login.log_in),
            self._route("POST", "nobody", "/logout", login.log_out),
            self._route("GET", "nobody", "/static/environment.css", _environment),
            self._route("GET", "nobody", "/static/{name}", _static),
        ]

    def _route(self, method: str, role: str, path: str, handle: Handle, name: str | None = None) -> Route:
        async def answer(request: Request) -> Response:
            visit = Visit(request, self._state, self._counts)
            try:
                if not visit.role.has(role):
                    if visit.role.role == "nobody" and method == "GET" and path != "/live":
                        return RedirectResponse(visit.url("/login", next=visit.here), 303)
                    raise Refusal("forbidden", f"this needs the role {role}; yours is {visit.role.role}")
                if not visit.may(role) and role not in ("nobody", "read"):
                    raise Refusal("read-only", "this server changes nothing: it was started with --read-only")
                if not self._state.options.read_only:
                    self._bulk.start()  # if they were not started with the server
                return await handle(visit)
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

        return Route(path, answer, methods=[method], name=name)


async def _static(visit: Visit) -> Response:
    name = visit.request.path_params["name"]
    if name not in _STATIC:
        return problem_page(visit, 404, "There is no such file", "The pages of this server need none of that name.")
    headers = {**SECURITY, "Cache-Control": "public, max-age=86400"}
    return FileResponse(HERE / "static" / name, media_type=_STATIC[name], headers=headers)


async def _environment(visit: Visit) -> Response:
    headers = {**SECURITY, "Cache-Control": "public, max-age=86400"}
    return Response(visit.environment.css(), media_type="text/css; charset=utf-8", headers=headers)
