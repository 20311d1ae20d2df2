"""The pages of bulk actions: what is about to be done and with how many jobs, what goes on, what came of it."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from jobs_service.errors import JobsError, RecordDamaged
from jobs_service.http.audit import chosen
from jobs_service.http.dashboard import bulk_actions, texts
from jobs_service.http.dashboard.access import note, refuse_commands, refuse_to_run
from jobs_service.http.dashboard.actions import fields_of, form_of, go
from jobs_service.http.dashboard.bulk_actions import ACTIONS, BulkActions, check_action
from jobs_service.http.dashboard.errors import problem_page
from jobs_service.http.dashboard.rendering import page
from jobs_service.http.dashboard.visit import Visit
from jobs_service.model import Job
from jobs_service.names import parsed, shown
from jobs_service.service.filters import FIELDS, BadFilter, Filter
from jobs_service.status import status_of

ON_A_PAGE: Final = 30

_DOES: Final = {
    "resubmit": "run again",
    "cancel": "end: those that run are asked to, those that wait are removed",
    "remove": "be removed: those that run are asked to end",
    "count": "be counted, and stay as they are",
}


_STATES: Final = {
    "ready": "is ready",
    "scheduled": "is scheduled",
    "retrying": "waits for another attempt after a crash",
    "running": "is running",
    "succeeded": "has succeeded",
    "failed": "has failed",
    "canceled": "was canceled",
}


async def bulk_list(visit: Visit) -> Response:
    """Return the page of all bulk actions, the newest first."""
    found = await visit.service.page(
        bulk_actions.TYPE, limit=ON_A_PAGE, newest_first=True, after=visit.query.get("after") or None
    )
    rows = [_shown(job, visit.now) for job in found.jobs]
    context = {"rows": rows, "next": found.next, "now": visit.now}
    return page(visit, "bulk.html", context, live={"of": "type", "type_": bulk_actions.TYPE})


async def bulk_new(visit: Visit) -> Response:
    """Return the page that counts what matches, and asks whether it is meant."""
    type, action = visit.type(), visit.query.get("action", "")
    try:
        check_action(action, type)
    except ValueError as error:
        return problem_page(visit, 422, "There is no such action", f"{error}.")
    wanted = Filter.of(visit.query, visit.request.query_params.getlist("data"))
    is_narrowed = action == "resubmit" and not wanted.state
    if is_narrowed:
        wanted = Filter.from_dict({**wanted.to_dict(), "state": "failed"})
    counted = await bulk_actions.count(visit.service, type, wanted)
    fields = [("type", shown(type)), *_fields(wanted)]
    context = {
        "type": type,
        "name": shown(type),
        "action": action,
        "verb": ACTIONS[action],
        "does": _DOES[action],
        "filter": wanted,
        "says": in_words(wanted),
        "is_narrowed": is_narrowed,
        "counted": counted,
        "fields": fields,
        "see": visit.url("/type", type_=type, **wanted.to_dict()),
    }
    return page(visit, "bulk_new.html", context)


async def bulk_start(visit: Visit, bulk: BulkActions) -> Response:
    """Start what was confirmed."""
    fields = await fields_of(visit)
    form = dict(fields)
    type, action = visit.type(form), form.get("action", "")
    refuse_commands(visit, type)
    if action == "resubmit":
        refuse_to_run(visit, type)
    try:
        check_action(action, type)
    except ValueError as error:
        return problem_page(visit, 422, "There is no such action", f"{error}.")
    wanted = Filter.of(form, [value for name, value in fields if name == "data"])
    id = await bulk.add(action, type, wanted, visit.role.name)
    # How many they are is noted at its end.
    note(visit, f"bulk {action}", type, id, jobs=0, filter=chosen(wanted.to_dict()))
    return go(visit, visit.url("/bulk/show", id_=id))


async def bulk_show(visit: Visit) -> Response:
    """Return the page of one bulk action: how far it is, or what came of it."""
    id = visit.id()
    job = await visit.service.get(bulk_actions.TYPE, id)
    row = _shown(job, visit.now)
    context = {"row": row, "job": job, "now": visit.now}
    return page(visit, "bulk_show.html", context, live={"of": "job", "type_": bulk_actions.TYPE, "id_": id})


async def bulk_cancel(visit: Visit) -> Response:
    """Ask a bulk action to end; what it has done stays done."""
    form = await form_of(visit)
    id = visit.id(form)
    await visit.service.remove(bulk_actions.TYPE, id)
    note(visit, "bulk cancel", bulk_actions.TYPE, id)
    try:
        await visit.service.get(bulk_actions.TYPE, id)
    except JobsError:  # it had not begun, and is gone
        return go(visit, visit.url("/bulk", said="stopping"))
    return go(visit, visit.url("/bulk/show", id_=id, said="stopping"))


def in_words(wanted: Filter) -> list[str]:
    """Return a filter in words, each of which has to hold."""
    told = [_STATES[wanted.state]] if wanted.state else []
    words = {
        "prefix": "has an id that begins with {}",
        "error": "failed with a {}",
        "text": "has an error that says “{}”",
        "worker": "had a worker whose name contains {}",
        "older": "had its last event more than {} ago",
        "younger": "had its last event within {}",
        "attempts": "had at least {} attempts",
    }
    for name, sentence in words.items():
        if value := getattr(wanted, name):
            told.append(sentence.format(texts.brief(value)))
    return told + [f"has data with {texts.brief(test)}" for test in wanted.data]


def _fields(wanted: Filter) -> list[tuple[str, str]]:
    fields = [(name, getattr(wanted, name)) for name in FIELDS if name != "data" and getattr(wanted, name)]
    return fields + [("data", test) for test in wanted.data]


def _shown(job: Job, now: float) -> dict[str, Any]:
    try:
        data = job.data if isinstance(job.data, dict) else {}
        result = job.result if isinstance(job.result, dict) else {}
        progress = job.progress
        type = parsed(str(data.get("type") or ""))
        state = status_of(job, now).value
    except (RecordDamaged, ValueError):
        data, result, progress, type, state = {}, {}, None, "", "unreadable"
    try:
        wanted = Filter.from_dict(data.get("filter") or {})
        says, query = in_words(wanted), wanted.to_dict()
    except BadFilter:  # the job's error says why
        says, query = ["matches a filter that cannot be read"], None
    figures = {name: _number(result.get(name, data.get(name))) for name in bulk_actions.FIGURES}
    return {
        "id": job.id,
        "state": state,
        "action": data.get("action", ""),
        "verb": ACTIONS.get(str(data.get("action")), "?"),
        "type": type,
        "says": says,
        "query": query,
        "who": texts.brief(str(data.get("who") or "")),
        "asked": data.get("asked") if isinstance(data.get("asked"), float | int) else None,
        "share": None if progress is None else texts.share(progress),
        "error": None if state == "unreadable" else job.error,
        **figures,
    }


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0
