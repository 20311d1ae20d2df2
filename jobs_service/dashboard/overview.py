"""The first page: what happened lately, what needs attention, and all types with their jobs by state."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from markupsafe import Markup
from starlette.responses import Response

from jobs_service.dashboard import figures, rendering, small_pages
from jobs_service.dashboard.figures import Complaint, Lately
from jobs_service.dashboard.rendering import page
from jobs_service.dashboard.visit import Visit, choice
from jobs_service.errors import RecordDamaged
from jobs_service.model import JobType, ProcessInfo
from jobs_service.model.job import Status
from jobs_service.model.type_state import QueueState, TypeCounts
from jobs_service.names import shown
from jobs_service.service import bulk_actions
from jobs_service.service.bulk_actions import ACTIONS
from jobs_service.service.failures import Outage
from jobs_service.service.presence import GONE, relayed

TYPES_ON_A_PAGE: Final = 25
MOST_ATTENTION: Final = 7
STATES: Final = ("failed", "retrying", "running", "ready", "scheduled")
"""Columns of the table of types."""


async def overview(visit: Visit) -> Response:
    """Return the page."""
    window = choice(visit.query.get("window"), figures.WINDOWS)
    sort = choice(visit.query.get("sort"), ("attention", "name", *STATES))
    reads = visit.reads
    counts = await reads.counts()
    hour, queues, processes, sums, earlier, usual = await asyncio.gather(
        reads.last_hour(),
        reads.queues(),
        reads.processes(),
        reads.sums(window),
        reads.sums_before(window),
        reads.usual(),
    )
    if not counts and not processes:
        return page(visit, "empty.html", {}, live={"of": "types"})
    problems = figures.complaints(hour, queues, counts, visit.now)
    wanted = visit.query.get("q", "").strip().lower()
    # There may be very many types: the loop goes on meanwhile.
    selected = await asyncio.to_thread(_selected, counts, wanted, sort, [*problems])
    number = _number(visit.query.get("page"))
    begin = min((number - 1) * TYPES_ON_A_PAGE, max(len(selected) - 1, 0) // TYPES_ON_A_PAGE * TYPES_ON_A_PAGE)
    some = selected[begin : begin + TYPES_ON_A_PAGE]
    known = await visit.service.queue_states([type for type in some if type not in queues])
    queues = {**queues, **dict(zip((type for type in some if type not in queues), known, strict=True))}
    recent = await reads.lately(some, window)
    every = None if sums is None else Lately.merged(figures.SPANS[window], sums)
    before = None if earlier is None else Lately.merged(figures.SPANS[window], earlier)
    then = partial(small_pages.address, visit)
    attention = [*_processes(visit, processes), *_outboxes(visit, processes)]
    attention += [_shown(visit, each) for each in problems.values()]
    attention += await _bulk(visit, counts)
    unwell = sum(each["is_bad"] for each in attention)
    context = {
        "spans": figures.SPANS,
        "window": window,
        "span": figures.SPANS[window],
        "sort": sort,
        "states": STATES,
        "total_types": len(counts),
        "totals": {state: sum(getattr(each, state) for each in counts.values()) for state in STATES},
        "every": every,
        "lanes": None if every is None else figures.overview_lanes(every, before),
        "columns": None if every is None else figures.columns(every, then),
        "table": None if every is None else figures.columns(every, then, 12),
        "usual": usual if window == "hour" else None,
        "axis": None if every is None else figures.axis(every),
        "spark": None if every is None else figures.spark(every, "All types"),
        "mark": None if every is None else _mark(hour.outages, every),
        "p95": figures.percentile,
        "slow": figures.SLOW,
        "slots": (sum(each.taken for each in processes), sum(each.slots for each in processes)),
        "unwell": unwell,
        "warnings": sum(each["is_warning"] for each in attention),
        "well": len(counts) - len(problems),
        "attention": attention[:MOST_ATTENTION],
        "more_attention": max(len(attention) - MOST_ATTENTION, 0),
        "rows": [
            _row(type, counts[type], queues[type], each, visit.now) for type, each in zip(some, recent, strict=True)
        ],
        "found": len(selected),
        "first": begin + 1,
        "last": begin + len(some),
        "page": begin // TYPES_ON_A_PAGE + 1,
        "more": begin + len(some) < len(selected),
    }
    return page(visit, "overview.html", context, live={"of": "types"})


def _selected(counts: Mapping[JobType, TypeCounts], wanted: str, sort: str, first: list[JobType]) -> list[JobType]:
    """Return the types whose names contain a text, sorted; `first` are those that need attention, the worst first."""
    found = [(shown(type), type) for type in counts]
    if wanted:
        found = [item for item in found if wanted in item[0].lower()]
    found.sort(key=lambda item: item[0])
    if sort == "attention":
        rank = {type: place for place, type in enumerate(first)}
        found.sort(key=lambda item: (rank.get(item[1], len(rank)), -counts[item[1]].failed))
    elif sort != "name":
        found.sort(key=lambda item: -getattr(counts[item[1]], sort))
    return [type for _, type in found]


def _row(type: JobType, counts: TypeCounts, queue: QueueState, lately: Lately, now: float) -> dict[str, Any]:
    name = shown(type)
    return {
        "type": type,
        "name": name,
        "paused": queue.paused,
        "counts": counts,
        "lately": lately,
        "spark": figures.spark(lately, name),
        "oldest": None if queue.ready_since is None else max(now - queue.ready_since, 0.0),
    }


def _shown(visit: Visit, found: Complaint) -> dict[str, Any]:
    return {
        **found._asdict(),
        "subject": shown(found.type),
        "href": visit.url("/type", type_=found.type, **found.query),
        "is_bad": found.rank < 4,
        "is_warning": found.rank == 4,
    }


def _processes(visit: Visit, processes: list[ProcessInfo]) -> list[dict[str, Any]]:
    return [
        {
            "state": "failed",
            "icon": "silent",
            "subject": rendering.brief(each.worker, 60),
            "href": visit.url("/system"),
            "says": f"is {each.state.value}",
            "more": "its jobs run elsewhere after their activity timeout",
            "since": rendering.roughly(max(visit.now - each.heard, 0.0)),
            "is_bad": True,
            "is_warning": False,
        }
        for each in processes
        if each.state in GONE
    ][:3]


def _outboxes(visit: Visit, processes: list[ProcessInfo]) -> list[dict[str, Any]]:
    return [
        {
            "state": "failed" if each.error else "retrying",
            "icon": "failed" if each.error else "growing",
            "subject": rendering.brief(each.name, 60),
            "href": visit.url("/system"),
            "says": problem,
            "more": figures.outbox_lag(each),
            "since": "",
            "is_bad": bool(each.error),
            "is_warning": not each.error,
        }
        for each in relayed(processes)
        if (problem := figures.outbox_problem(each))
    ][:3]


async def _bulk(visit: Visit, counts: Mapping[JobType, TypeCounts]) -> list[dict[str, Any]]:
    """Return the running bulk actions."""
    if bulk_actions.TYPE not in counts or not counts[bulk_actions.TYPE].running:
        return []
    found = await visit.service.page(bulk_actions.TYPE, state=Status.RUNNING.value, limit=3)
    items = []
    for job in found.jobs:
        try:
            data, progress = job.data if isinstance(job.data, dict) else {}, job.progress
            since = job.history[0].at if job.history else visit.now
        except RecordDamaged:
            continue
        verb, type = ACTIONS.get(str(data.get("action")), "?"), rendering.brief(str(data.get("type")), 60)
        items.append(
            {
                "state": "running",
                "icon": "running",
                "subject": bulk_actions.TYPE,
                "href": visit.url("/bulk/show", id_=job.id),
                "says": f"{verb} jobs of {type}",
                "more": "" if progress is None else rendering.progress_line(progress),
                "share": None if progress is None else rendering.share(progress),
                "since": rendering.roughly(max(visit.now - since, 0.0)),
                "is_bad": False,
                "is_warning": False,
            }
        )
    return items


def _mark(outages: tuple[Outage, ...], every: Lately) -> tuple[int, Markup] | None:
    """Return the column from which on the runs of the worst type crash, and a text; None if there is none to mark."""
    span = every.span
    if not outages or span.interval != 60.0 or not 0 < outages[0].since < span.intervals:
        return None
    place = span.intervals - outages[0].since
    at = rendering.clock(every.columns[place].begin, "%H:%M")
    return place, Markup("{} {} starts to crash").format(at, rendering.brief(shown(outages[0].type), 30))


def _number(text: str | None) -> int:
    return max(int(text), 1) if text and text.isdecimal() and text.isascii() and len(text) < 9 else 1
