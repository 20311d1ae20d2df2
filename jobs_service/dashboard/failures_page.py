"""The page of failures: failed and retrying jobs by error, and what the jobs of each error have in common."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from starlette.responses import Response

from jobs_service.dashboard import figures, jobs, rendering
from jobs_service.dashboard.figures import Lately
from jobs_service.dashboard.rendering import page
from jobs_service.dashboard.visit import Visit, choice
from jobs_service.errors import RecordDamaged
from jobs_service.model import Job
from jobs_service.names import shown
from jobs_service.service.failures import STATES, Failures, Group

SORTS: Final = {"newest": "Newest first", "most": "Most jobs first", "first": "First seen"}
_WINDOWS: Final = ("day", "hour", "week")
_NEW: Final = 3600.0
_MOST_GROUPS: Final = 50
_MOST_TYPES: Final = 5
_SAMPLES: Final = 4
_MOST_DIFFERENT: Final = 4


async def failures(visit: Visit) -> Response:
    """Return the page."""
    window = choice(visit.query.get("window"), _WINDOWS)
    sort = choice(visit.query.get("sort"), tuple(SORTS))
    state, wanted = visit.query.get("state"), visit.query.get("q", "").strip().lower()
    found = await visit.reads.failures()
    sums = await visit.reads.sums(window)
    groups = [each for each in found.groups if state not in STATES or each.state == state]
    if wanted:
        groups = [each for each in groups if wanted in _text(each)]
    if sort == "most":
        groups.sort(key=lambda group: -found.about(group))
    elif sort == "first":
        groups.sort(key=lambda group: -(group.first or 0.0))
    every = None if sums is None else Lately.merged(figures.SPANS[window], sums)
    context = {
        "spans": {name: figures.SPANS[name] for name in ("hour", "day", "week")},
        "window": window,
        "span": figures.SPANS[window],
        "lanes": None if every is None else figures.failure_lanes(every),
        "axis": None if every is None else figures.axis(every, 4),
        "hour": (await visit.reads.last_hour()).totals,
        "failed": found.failed,
        "retrying": found.retrying,
        "state": state,
        "sorts": SORTS,
        "sort": sort,
        "groups": [_shown(visit, found, group) for group in groups[:_MOST_GROUPS]],
        "found": len(groups),
        "read": found.read,
        "is_cut": found.is_cut,
        "now": visit.now,
    }
    return page(visit, "failures.html", context, live={"of": "types"})


def _text(group: Group) -> str:
    return " ".join([group.error, group.message, *map(shown, group.jobs)]).lower()


def _shown(visit: Visit, found: Failures, group: Group) -> dict[str, Any]:
    types, every = [], [job for some in group.jobs.values() for job in some]
    for type in [*group.jobs][:_MOST_TYPES]:
        query = {"type_": type, **group.filter}
        types.append(
            {
                "type": type,
                "name": shown(type),
                "count": found.about(group, type),
                "see": visit.url("/type", **query),
                "retry": visit.url("/bulk/new", action="resubmit", **query),
                "remove": visit.url("/bulk/new", action="remove", **query),
            }
        )
    common, name, values = _compared(every)
    return {
        "state": group.state,
        "error": rendering.brief(group.error, 120) or "no error was kept",
        "message": group.message,
        "whole": "" if every[0].error is None else rendering.lines(every[0].error.message)[:2000],
        "count": found.about(group),
        "is_about": found.about(group) > group.count,
        "looked_at": group.count,
        "attempts": group.attempts,
        "first": group.first,
        "last": group.last,
        "is_new": not found.is_cut and group.first is not None and visit.now - group.first < _NEW,
        "types": types,
        "more_types": len(group.jobs) - len(types),
        "common": common,
        "differs_by": name,
        "values": values,
        "samples": [
            {"type": job.type, "id": job.id, "attempts": jobs.attempts_text(job, None), "at": _next(job)}
            for job in every[:_SAMPLES]
        ],
    }


def _next(job: Job) -> float | None:
    if job.retrying and job.run_at is not None:
        return job.run_at.timestamp()
    return job.history[0].at if job.history else None


def _compared(every: list[Job]) -> tuple[list[tuple[str, str]], str, list[tuple[str, int]]]:
    """Return the arguments that all of these jobs share, and that with the fewest values otherwise, with its values."""
    values: dict[str, Counter[str]] = {}
    for job in every:
        try:
            data = job.data if isinstance(job.data, dict) else {}
        except RecordDamaged:
            continue
        for name, value in data.items():
            if isinstance(value, str | int | float | bool):
                values.setdefault(name, Counter())[rendering.brief(str(value), 60)] += 1
    whole = {name: each for name, each in values.items() if each.total() == len(every)}
    common = [(rendering.brief(name, 40), next(iter(each))) for name, each in whole.items() if len(each) == 1]
    varied = [(name, each) for name, each in whole.items() if 1 < len(each) <= len(every) // 2]
    if len(every) < 2 or not varied:
        return (common[:3] if len(every) > 1 else []), "", []
    name, counted = min(varied, key=lambda item: len(item[1]))
    return common[:3], rendering.brief(name, 40), counted.most_common(_MOST_DIFFERENT)
