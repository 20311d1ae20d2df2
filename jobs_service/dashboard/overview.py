"""The first page: all types with their jobs by state, their recent events, and problems that need attention."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from operator import itemgetter
from typing import Any, Final

from starlette.responses import Response

from jobs_service.dashboard import figures
from jobs_service.dashboard.rendering import page
from jobs_service.dashboard.visit import Visit, choice
from jobs_service.model import JobType
from jobs_service.model.job import COUNTED
from jobs_service.model.type_state import TypeCounts
from jobs_service.names import shown

TYPES_ON_A_PAGE: Final = 25


async def overview(visit: Visit) -> Response:
    """Return the page."""
    window = choice(visit.query.get("window"), figures.WINDOWS)
    sort = choice(visit.query.get("sort"), ("name", *COUNTED))
    counts = await visit.counts()
    wanted = visit.query.get("q", "").strip().lower()
    # There may be very many types: the loop goes on meanwhile.
    selected, sums = await asyncio.to_thread(_selected, counts, wanted, sort)
    number = _number(visit.query.get("page"))
    begin = min((number - 1) * TYPES_ON_A_PAGE, max(len(selected) - 1, 0) // TYPES_ON_A_PAGE * TYPES_ON_A_PAGE)
    some = selected[begin : begin + TYPES_ON_A_PAGE]
    rows = await asyncio.gather(*(_row(visit, type, each, window) for type, each in some))
    span = figures.SPANS[window]
    outages = {outage.type: outage for outage in (await visit.last_hour()).outages}
    # Outages of types on other pages of the list are shown as well.
    shown_here = {type for type, _ in some}
    complaints = [(type, figures.outage(outage)) for type, outage in outages.items() if type not in shown_here]
    for row in rows:
        if (found := figures.complaint(row, outages.get(row["type"]), span)) is not None:
            complaints.append((row["type"], found))
    attention = [
        {**found._asdict(), "type": shown(type), "href": visit.url("/type", type_=type, **found.query)}
        for type, found in sorted(complaints, key=lambda item: item[1].rank)
    ]
    context = {
        "window": window,
        "span": span,
        "sort": sort,
        "total_types": len(counts),
        "figures": sums,
        "figure_words": COUNTED,
        "attention": attention[:12],
        "rows": rows,
        "found": len(selected),
        "first": begin + 1,
        "last": begin + len(some),
        "page": begin // TYPES_ON_A_PAGE + 1,
        "more": begin + len(some) < len(selected),
    }
    return page(visit, "overview.html", context, live={"of": "types"})


def _selected(
    counts: Mapping[JobType, TypeCounts], wanted: str, sort: str
) -> tuple[list[tuple[JobType, TypeCounts]], list[tuple[str, int]]]:
    """Return the types whose names contain a text, sorted, and the sums of jobs by state over all types."""
    found = [(shown(type), type, each) for type, each in counts.items()]
    if wanted:
        found = [item for item in found if wanted in item[0].lower()]
    found.sort(key=itemgetter(0))
    if sort != "name":
        found.sort(key=lambda item: -getattr(item[2], sort))
    sums = [(state.value, sum(getattr(each, state) for each in counts.values())) for state in COUNTED]
    return [(type, each) for _, type, each in found], sums


async def _row(visit: Visit, type: JobType, counts: TypeCounts, window: str) -> dict[str, Any]:
    service, name, span = visit.service, shown(type), figures.SPANS[window]
    happened = await figures.lately(service, type, window, visit.now)
    queue = await service.queue_state(type)
    oldest = None
    if queue.id is not None:
        age = None if queue.ready_since is None else max(visit.now - queue.ready_since, 0.0)
        oldest = {"id": queue.id, "age": age}
    return {
        "type": type,
        "name": name,
        "paused": queue.paused,
        "counts": [(state, getattr(counts, state)) for state in COUNTED],
        "of_states": counts,
        "lately": happened,
        "ended": figures.ended_chart(happened, name, span),
        "waited": figures.waited_chart(happened, name, span),
        "waited_text": figures.within(happened.waited, 95),
        "oldest": oldest,
        "oldest_age": None if oldest is None else oldest["age"],
    }


def _number(text: str | None) -> int:
    return max(int(text), 1) if text and text.isdecimal() and text.isascii() and len(text) < 9 else 1
