"""The pages that people look at jobs with: plain HTML that works without JavaScript, live where there is some."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.routing import Route


def routes(state: Any) -> list[Route]:
    """Return the routes of all pages.

    Args:
        state: what the handlers of requests share: service, options, audit, closing.
    """
    from jobs_service.http.dashboard.pages import Dashboard

    return Dashboard(state).routes()
