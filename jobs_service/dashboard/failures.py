"""Failed and retrying jobs of all types, grouped by error: first and last time, count, and a link to retry a group."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from jobs_service.dashboard import texts
from jobs_service.dashboard.rendering import page
from jobs_service.dashboard.visit import Visit
from jobs_service.names import shown
from jobs_service.service.failures import Group, newest_failures


async def failures(visit: Visit) -> Response:
    """Return the page."""
    found = await newest_failures(visit.service, await visit.counts())
    hour = (await visit.last_hour()).totals
    context = {
        "total": found.failed,
        "retrying": found.retrying,
        "groups": [_shown(visit, group) for group in found.groups],
        "read": found.read,
        "is_cut": found.is_cut,
        "hour": hour,
        "now": visit.now,
    }
    return page(visit, "failures.html", context, live={"of": "types"})


def _shown(visit: Visit, group: Group) -> dict[str, Any]:
    types = []
    for type, found in group.jobs.items():
        query = {"type_": type, **group.filter}
        types.append(
            {
                "type": type,
                "name": shown(type),
                "count": len(found),
                "newest": found[0].id,
                "see": visit.url("/type", **query),
                "retry": visit.url("/bulk/new", action="resubmit", **query),
            }
        )
    return {
        "state": group.state,
        "error": texts.brief(group.error, 120) or "no error was kept",
        "message": group.message,
        "count": group.count,
        "attempts": group.attempts,
        "first": group.first,
        "last": group.last,
        "types": types,
    }
