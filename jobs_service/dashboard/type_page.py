"""The page of a type: charts, its jobs by state and by a filter, their waiting and run times, errors, settings."""

from __future__ import annotations

import asyncio
import shlex
from functools import partial
from typing import Any, Final

from starlette.responses import RedirectResponse, Response

from jobs_service import durations
from jobs_service.dashboard import figures, jobs, rendering, small_pages
from jobs_service.dashboard.rendering import page, problem_page
from jobs_service.dashboard.visit import Visit, choice
from jobs_service.errors import NoTypeTimeout
from jobs_service.model.job import COUNTED, MEANT, Status
from jobs_service.model.type_state import Retention, TypeCounts
from jobs_service.names import shown
from jobs_service.service.bulk_actions import ACTIONS, Moment, concerns
from jobs_service.service.failures import newest_failures
from jobs_service.service.selection import FIELDS, BadFilter, Filter

ORDERS: Final = {"newest": "Last event, newest first", "oldest": "Last event, oldest first", "id": "Id"}
TABS: Final = ("failed", "retrying", "running", "ready", "scheduled", "succeeded", "canceled")
_OF_ENDED: Final = (None, "finished", "succeeded", "canceled")
_ERRORS: Final = 5
_FAILURES: Final = 50
"""Failed and retrying jobs, as many of each, that are read for its errors."""
_CHIPS: Final = {
    "prefix": "id begins with",
    "error": "error is a",
    "text": "error says",
    "signature": "failed with",
    "worker": "worker contains",
    "older": "last event before",
    "younger": "last event within",
    "attempts": "attempts at least",
    "added_before": "added before",
    "added_after": "added from then on",
}


async def type_page(visit: Visit) -> Response:
    """Return the page."""
    type, service = visit.type(), visit.service
    if (found_by := visit.query.get("find", "").strip()) or "find" in visit.query:
        return _found_by(visit, found_by)
    window = choice(visit.query.get("window"), figures.WINDOWS)
    problem = ""
    try:
        wanted = Filter.of_address(visit.query, visit.request.query_params.getlist("data"))
    except BadFilter as error:
        wanted, problem = Filter(), str(error)
    try:
        timeout: float | None = await service.get_type_timeout(type)
    except NoTypeTimeout:
        timeout = None
    moment = await Moment.now(service, type)  # before the jobs are read
    hour = await visit.reads.last_hour()
    counted, [happened], queue, retention, processes = await asyncio.gather(
        service.counts(type),
        figures.lately(service, [type], window, visit.now),
        service.queue_state(type),
        service.get_retention(type),
        visit.reads.processes(),
    )
    counts = next(iter(counted.values()), TypeCounts())
    if timeout is None and not counts.jobs and not any(figures.numbers(counts.totals)):
        return problem_page(
            visit,
            404,
            "There is no such type",
            f"Nothing is known of a type {shown(type)}. It may have been removed, or its name is written another way.",
        )
    order = visit.query.get("order", "")
    if order not in ORDERS:
        order = _order(wanted, retention, counts)
    found, errors = await asyncio.gather(
        jobs.find(
            service,
            type,
            wanted,
            after=visit.query.get("after") or None,
            newest_first=order == "newest",
            by_time=order != "id",
        ),
        newest_failures(service, {type: counts}, most=_FAILURES),
    )
    # With large jobs this takes a while; the loop goes on meanwhile.
    most = jobs.most_attempts(service, type)
    rows = await asyncio.to_thread(lambda: [jobs.row(job, visit.now, most) for job in found.jobs])
    name, query = shown(type), wanted.to_dict()
    meant = COUNTED if wanted.state is None else MEANT[wanted.state]
    slots = [each for process in processes for each in process.handlers if each.type == type]
    problems = figures.complaints(hour, {type: queue}, {type: counts}, visit.now)
    context = {
        "type": type,
        "name": name,
        "shell_name": shlex.quote(name),
        "timeout": timeout,
        "paused": queue.paused,
        "complaint": problems.get(type),
        "slots": (sum(each.taken for each in slots), sum(each.slots for each in slots)),
        "retention": retention,
        "spans": figures.SPANS,
        "window": window,
        "span": figures.SPANS[window],
        "counts": counts,
        "tabs": [(state, getattr(counts, state)) for state in TABS],
        "lanes": [figures.runs_lane(happened), *(figures.time_lane(happened, of) for of in ("waited", "ran"))],
        "columns": figures.columns(happened, partial(small_pages.address, visit)),
        "axis": figures.axis(happened, 3),
        "times": _times(counts, happened),
        "queue": queue,
        "filter": wanted,
        "filters": {each: visit.query.get(each, "") for each in FIELDS if each != "data"},
        "data_tests": [*map(str, wanted.data), ""],
        "chips": _chips(visit, wanted),
        "problem": problem,
        "is_filtered": bool(query) and set(query) != {"state"},
        "rows": rows,
        "found": found,
        "matching": _matching(counts, wanted),
        "replications": jobs.replications(found.jobs, visit.now),
        "orders": ORDERS,
        "order": order,
        "lacks_ended": order != "id" and retention.keep is None and wanted.state in _OF_ENDED,
        "query": {"type_": type, **query},
        "fields": [
            ("type", name),
            *((key, value) for key, value in visit.request.query_params.multi_items() if key in FIELDS and value),
            ("asked", repr(moment.at)),
            ("bound", moment.seq.hex()),
        ],
        "errors": [(group, errors.about(group)) for group in errors.groups[:_ERRORS]],
        "now": visit.now,
        "state_names": list(dict.fromkeys([*COUNTED, *([wanted.state] if wanted.state else [])])),
        "possible": [action for action in ACTIONS if any(concerns(action, each) for each in meant)],
    }
    return page(visit, "type.html", context, live={"of": "type", "type_": type})


def _found_by(visit: Visit, text: str) -> Response:
    """Lead to the filter that was typed into the one field: the beginning of an id, or a test of an argument."""
    tests = visit.request.query_params.getlist("data")
    is_test = "=" in text or "~" in text
    more: dict[str, Any] = {"data": [*tests, text]} if is_test else {"prefix": text or visit.query.get("prefix")}
    return RedirectResponse(visit.same(find=None, after=None, said=None, **more), 303)


def _order(wanted: Filter, retention: Retention, counts: TypeCounts) -> str:
    """Return the order that finds all jobs: ended jobs that are kept for ever are not in that of times."""
    if wanted.state in _OF_ENDED and retention.keep is None and (counts.succeeded or counts.canceled):
        return "id"
    return "id" if wanted.prefix or wanted.state == Status.UNREADABLE else "newest"


def _matching(counts: TypeCounts, wanted: Filter) -> int | None:
    """Return the number of matching jobs if the counts say it."""
    if wanted.to_dict().keys() <= {"state"} and wanted.state != Status.UNREADABLE:
        states = COUNTED if wanted.state is None else MEANT[wanted.state]
        return sum(int(getattr(counts, each)) for each in states)
    return None


def _chips(visit: Visit, wanted: Filter) -> list[tuple[str, str]]:
    """Return what the filter asks for beside the state, and the address of the page without it."""
    chips = []
    for name, words in _CHIPS.items():
        value = getattr(wanted, name)
        if value is not None:
            told = durations.typed(value) if name in ("older", "younger") else str(value)
            chips.append((f"{words} {rendering.brief(told, 60)}", visit.same(**{name: None}, after=None)))
    tests = [*map(str, wanted.data)]
    for place, test in enumerate(tests):
        others = [each for at, each in enumerate(tests) if at != place]
        chips.append((rendering.brief(test, 60), visit.same(data=others, after=None)))
    return chips


def _times(counts: TypeCounts, happened: figures.Lately) -> list[tuple[str, str, list[str]]]:
    """Return percentiles of waiting and run times, in the window and since the type was made."""
    rows = []
    for what, recent, ever in (("Waited", happened.waited, counts.waited), ("Ran", happened.ran, counts.ran)):
        for when, histogram in ((happened.span.words, recent), ("ever", ever)):
            rows.append((what, when, [figures.percentile(histogram, percent) for percent in (50, 95, 99)]))
    return rows
