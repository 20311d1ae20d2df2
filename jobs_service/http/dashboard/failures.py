"""Failed jobs of all types, grouped by what went wrong: since when, how often, and a way to retry a group."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from jobs_service.errors import StoreDamaged
from jobs_service.http.dashboard import figures, texts
from jobs_service.http.dashboard.rendering import page
from jobs_service.http.dashboard.visit import Visit
from jobs_service.names import shown
from jobs_service.service.failures import Group, newest_failures

if TYPE_CHECKING:
    from jobs_service import JobType


async def failures(visit: Visit) -> Response:
    """Return the page."""
    found = await newest_failures(visit.service, await visit.counts())

    async def hour(type: JobType) -> figures.Lately:
        try:
            return await figures.lately(visit.service, type, "hour", visit.now)
        except StoreDamaged:  # concerns no other type
            return figures.summed(())

    happened = await asyncio.gather(*(hour(type) for type, _ in found.types))
    lately = figures.summed([each for one in happened for each in one.intervals])
    context = {
        "total": found.failed,
        "types": [(type, shown(type), number) for type, number in found.types],
        "groups": [_shown(visit, group) for group in found.groups],
        "read": found.read,
        "is_cut": found.read < found.failed,
        "failed": lately.totals.failed,
        "crashed": lately.totals.crashed,
        "lost": lately.totals.lost,
        "damaged": found.damaged,
        "now": visit.now,
    }
    return page(visit, "failures.html", context, live={"of": "types"})


def _shown(visit: Visit, group: Group) -> dict[str, Any]:
    types = []
    for type, jobs in group.jobs.items():
        query = {"type_": type, **group.filter}
        types.append(
            {
                "type": type,
                "name": shown(type),
                "count": len(jobs),
                "newest": jobs[0].id,
                "see": visit.url("/type", **query),
                "retry": visit.url("/bulk/new", action="resubmit", **query),
            }
        )
    return {
        "error": texts.brief(group.error, 120) or "no error was kept",
        "message": group.message,
        "count": group.count,
        "attempts": group.attempts,
        "first": group.first,
        "last": group.last,
        "types": types,
    }
