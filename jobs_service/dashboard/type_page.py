"""The page of a type: its jobs by state, the jobs that match a filter, its waiting and run times, its settings."""

from __future__ import annotations

import asyncio
import shlex
from typing import Any, Final

from starlette.responses import Response

from jobs_service.dashboard import figures, jobs
from jobs_service.dashboard.rendering import page, problem_page
from jobs_service.dashboard.visit import Visit, choice
from jobs_service.errors import NoTypeTimeout
from jobs_service.model.job import COUNTED, MEANT
from jobs_service.model.type_state import TypeCounts
from jobs_service.names import shown
from jobs_service.service.actions import ACTIONS, concerns
from jobs_service.service.selection import FIELDS, BadFilter, Filter

CHART: Final = {"width": 720.0, "height": 148.0}


async def type_page(visit: Visit) -> Response:
    """Return the page."""
    type, service = visit.type(), visit.service
    window = choice(visit.query.get("window"), figures.WINDOWS)
    newest_first = visit.query.get("order", "newest") == "newest"
    problem = ""
    try:
        wanted = Filter.of_address(visit.query, visit.request.query_params.getlist("data"))
    except BadFilter as error:
        wanted, problem = Filter(), str(error)
    try:
        timeout: float | None = await service.get_type_timeout(type)
    except NoTypeTimeout:
        timeout = None
    counted, happened, queue, retention, found = await asyncio.gather(
        service.counts(type),
        figures.lately(service, type, window, visit.now),
        service.queue_state(type),
        service.get_retention(type),
        jobs.find(service, type, wanted, after=visit.query.get("after") or None, newest_first=newest_first),
    )
    counts = next(iter(counted.values()), TypeCounts())
    if timeout is None and not counts.jobs and not any(_values(counts)):
        return problem_page(
            visit,
            404,
            "There is no such type",
            f"Nothing is known of a type {shown(type)}. It may have been removed, or its name is written another way.",
        )
    # With large jobs this takes a while; the loop goes on meanwhile.
    rows = await asyncio.to_thread(lambda: [jobs.row(job, visit.now) for job in found.jobs])
    name, span = shown(type), figures.SPANS[window]
    query = wanted.to_dict()
    meant = COUNTED if wanted.state is None else MEANT[wanted.state]
    context = {
        "type": type,
        "name": name,
        "shell_name": shlex.quote(name),
        "timeout": timeout,
        "paused": queue.paused,
        "retention": retention,
        "window": window,
        "span": span,
        "figures": [(state, getattr(counts, state)) for state in COUNTED],
        "counts": counts,
        "lately": happened,
        "retried": figures.retried(happened.totals),
        "ended": figures.ended_chart(happened, name, span, **CHART),
        "waited": figures.waited_chart(happened, name, span, **CHART),
        "added": figures.added_chart(happened, name, span, **CHART),
        "times": _times(counts, happened),
        "queue": queue,
        "filter": wanted,
        "filters": {each: visit.query.get(each, "") for each in FIELDS if each != "data"},
        "data_tests": [*map(str, wanted.data), ""],
        "problem": problem,
        "is_filtered": bool(query) and set(query) != {"state"},
        "rows": rows,
        "found": found,
        "replications": jobs.replications(found.jobs, visit.now),
        "newest_first": newest_first,
        "matching": {"type_": type, **query},
        "now": visit.now,
        "state_names": list(dict.fromkeys([*COUNTED, *([wanted.state] if wanted.state else [])])),
        "possible": [action for action in ACTIONS if any(concerns(action, each) for each in meant)],
    }
    return page(visit, "type.html", context, live={"of": "type", "type_": type})


def _values(counts: TypeCounts) -> list[int]:
    return [getattr(counts.totals, name) for name in counts.totals.__slots__]


def _times(counts: TypeCounts, happened: figures.Lately) -> list[dict[str, Any]]:
    """Return percentiles of waiting and run times, in the window and since the type was made."""
    rows = []
    for what, recent, ever in (
        ("Waited for a slot", happened.waited, counts.waited),
        ("Ran", happened.ran, counts.ran),
    ):
        rows.append(
            {"what": what, "recent": dict(figures.percentiles(recent)), "ever": dict(figures.percentiles(ever))}
        )
    return rows
