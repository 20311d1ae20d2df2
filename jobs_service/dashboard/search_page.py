"""The search, as a page and in the palette: jobs by the beginning of their ids or by an argument, types, pages."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import Response

from jobs_service.dashboard import jobs, rendering
from jobs_service.dashboard.rendering import MENU, page
from jobs_service.dashboard.visit import Visit
from jobs_service.errors import InvalidJob, JobNotFound, JobTooLarge
from jobs_service.model import JobId, JobType
from jobs_service.model.job import ENDED
from jobs_service.model.type_state import TypeCounts
from jobs_service.names import shown
from jobs_service.service import queries
from jobs_service.service.selection import BadFilter, Filter

MOST_JOBS: Final = 12
MOST_TYPES: Final = 8
_LONGEST: Final = 200
_SECONDS: Final = 0.08
"""Seconds after which no further types are looked at."""
_NEWEST: Final = 100
"""Jobs of each type in which an argument is looked for; the page of the type looks on."""
_NAMED: Final = {"is_mono": True, "form": None, "more": "", "at": "", "state": ""}


async def search(visit: Visit) -> Response:
    """Return the page."""
    wanted = visit.query.get("q", "").strip()[:_LONGEST]
    counts = await visit.reads.counts(1.0)
    test = _argument(wanted)
    if test is not None:
        rows, unread = await _with_argument(visit, test, counts), 0
    else:
        rows, unread = await _jobs(visit, wanted, [*counts]) if wanted else ([], 0)
    lowered = wanted.lower()
    types = [(shown(type), type) for type in counts if lowered in shown(type).lower()] if wanted else []
    types.sort(key=lambda item: (not item[0].lower().startswith(lowered), item[0]))
    sections = [
        ("Jobs", [_job(visit, row) for row in rows]),
        (f"All jobs with {wanted}, by type" if test else "", _types(visit, test, counts) if test else []),
        ("More that begin so", [] if test else _more(visit, wanted, rows)),
        ("Actions for " + shown(rows[0].id) if rows else "", _actions(visit, rows)),
        (
            "Types",
            [
                {
                    **_NAMED,
                    "name": name,
                    "icon": "list",
                    "href": visit.url("/type", type_=type),
                    "more": _counts_in_words(counts[type]),
                }
                for name, type in types[:MOST_TYPES]
            ],
        ),
        (
            "Pages",
            [
                {**_NAMED, "name": name, "icon": "page", "href": visit.url(path), "is_mono": False}
                for path, name in MENU
                if lowered in name.lower()
            ],
        ),
    ]
    context = {"q": wanted, "sections": [each for each in sections if each[1]], "unread": unread}
    return page(visit, "search.html", context)


async def _jobs(visit: Visit, wanted: str, types: list[JobType]) -> tuple[list[jobs.Row], int]:
    """Return jobs whose ids begin with a text, and the number of types that were not looked at."""
    try:
        found, looked_at = await queries.beginning_with(visit.service._access, types, wanted, MOST_JOBS, _SECONDS)
    except (InvalidJob, JobTooLarge):
        return [], 0
    rows = [row for row in await asyncio.gather(*(_row(visit, *each) for each in found)) if row is not None]
    rows.sort(key=lambda row: (shown(row.id) != wanted, -(row.last.at if row.last else 0.0)))
    return rows, len(types) - looked_at if len(found) < MOST_JOBS else 0


def _argument(text: str) -> Filter | None:
    """Return the filter for jobs with an argument, account=acme; None if the text is none."""
    try:
        return Filter.of({"data": [text]}) if "=" in text or "~" in text else None
    except BadFilter:
        return None


async def _with_argument(visit: Visit, wanted: Filter, counts: Mapping[JobType, TypeCounts]) -> list[jobs.Row]:
    """Return some of the newest jobs with an argument, of the types with the most jobs."""
    rows: list[jobs.Row] = []
    until = time.monotonic() + _SECONDS
    for type in _most_first(counts):
        found = await jobs.find(visit.service, type, wanted, newest_first=True, by_time=True, most_read=_NEWEST)
        rows += [jobs.row(job, visit.now) for job in found.jobs]
        if len(rows) >= MOST_JOBS or time.monotonic() > until:
            break
    return rows[:MOST_JOBS]


def _types(visit: Visit, wanted: Filter, counts: Mapping[JobType, TypeCounts]) -> list[dict[str, Any]]:
    """Return the pages of the types with the most jobs, with the filter."""
    return [
        {
            **_NAMED,
            "name": shown(type),
            "icon": "filter",
            "href": visit.url("/type", type_=type, data=[str(test) for test in wanted.data]),
            "more": rendering.many(counts[type].jobs, "job"),
        }
        for type in _most_first(counts)[:MOST_TYPES]
    ]


def _most_first(counts: Mapping[JobType, TypeCounts]) -> list[JobType]:
    return sorted((type for type, each in counts.items() if each.jobs), key=lambda type: -counts[type].jobs)


def _more(visit: Visit, wanted: str, rows: list[jobs.Row]) -> list[dict[str, Any]]:
    """Return the pages of the types of which not all jobs may be shown."""
    shown_of = Counter(row.type for row in rows)
    return [
        {
            **_NAMED,
            "name": shown(type),
            "icon": "list",
            "href": visit.url("/type", type_=type, prefix=wanted),
            "more": f"its jobs whose ids begin with {rendering.brief(wanted, 40)}",
        }
        for type, number in shown_of.items()
        if number >= MOST_JOBS // 4
    ]


async def _row(visit: Visit, type: JobType, id: JobId) -> jobs.Row | None:
    try:
        return jobs.row(await jobs.one(visit.service, type, id), visit.now)
    except JobNotFound:
        return None


def _job(visit: Visit, row: jobs.Row) -> dict[str, Any]:
    return {
        **_NAMED,
        "name": rendering.brief(shown(row.id), 80),
        "state": row.state,
        "icon": row.state if row.state != "unreadable" else "failed",
        "href": visit.url("/job", type_=row.type, id_=row.id),
        "more": f"{shown(row.type)}, {row.state}",
        "at": rendering.when(row.last.at, visit.now) if row.last else "",
    }


def _actions(visit: Visit, rows: list[jobs.Row]) -> list[dict[str, Any]]:
    """Return what can be done with the first job that was found."""
    if not rows or not visit.may_run(rows[0].type):
        return []
    row = rows[0]
    clone = visit.url("/job/new", type_=row.type, **{"from": shown(row.id)})
    actions: list[dict[str, Any]] = [
        {**_NAMED, "name": "Clone and edit", "icon": "copy", "href": clone, "is_mono": False}
    ]
    if row.state in ENDED:
        form = [("type", shown(row.type)), ("id", shown(row.id)), ("action", "resubmit"), ("seq", row.seq)]
        actions.insert(0, {**_NAMED, "name": "Run again", "icon": "retrying", "form": form})
    return actions


def _counts_in_words(counts: Any) -> str:
    told = [
        (counts.failed, "failed"),
        (counts.retrying, "retrying"),
        (counts.running, "running"),
        (counts.ready, "ready"),
    ]
    return ", ".join(f"{rendering.count(number)} {word}" for number, word in told if number)
