"""The dashboard: plain HTML pages that work without JavaScript, and update live with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.routing import Route


def routes(state: Any) -> list[Route]:
    """Return the routes of all pages.

    Args:
        state: the shared state of all request handlers: service, options, audit, closing.
    """
    from jobs_service.dashboard.pages import Dashboard

    return Dashboard(state).routes()
