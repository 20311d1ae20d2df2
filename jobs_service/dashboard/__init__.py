"""The dashboard: plain HTML pages that work without JavaScript, and update live with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route


def routes(state: Any) -> list[Route]:
    """Return the routes of all pages.

    Args:
        state: the shared state of all request handlers: service, options, audit, closing.
    """
    from jobs_service.dashboard.pages import Dashboard

    return Dashboard(state).routes()


def problem(request: Request, state: Any, problem: Mapping[str, Any]) -> Response:
    """Return a problem as a page.

    Args:
        request: the request, in whose state is the caller.
        state: as for `routes`.
        problem: the problem details.
    """
    from jobs_service.dashboard.rendering import problem_page
    from jobs_service.dashboard.visit import Visit

    return problem_page(Visit(request, state), problem["status"], problem["title"], problem["detail"])
