"""The pages of bulk actions: the preview with its count of jobs, the progress, and the results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from starlette.responses import Response

from jobs_service import durations
from jobs_service.dashboard import rendering
from jobs_service.dashboard.actions import fields_of, form_of, go
from jobs_service.dashboard.rendering import page, problem_page
from jobs_service.dashboard.visit import Visit, refuse_commands
from jobs_service.errors import InvalidJob, JobsError, RecordDamaged
from jobs_service.http.audit import chosen
from jobs_service.http.problems import Refusal
from jobs_service.model import Job, JobId
from jobs_service.model.job import status_of
from jobs_service.names import parsed, shown
from jobs_service.service import bulk_actions, queries
from jobs_service.service.bulk_actions import (
    ACTIONS,
    Asked,
    BulkActions,
    Counted,
    Done,
    Moment,
    asked,
    change_all,
    count,
)
from jobs_service.service.selection import FIELDS, BadFilter, Filter

MOST_PICKED: Final = 100
"""Most jobs that are checked in a list."""

_DOES: Final = {
    "resubmit": "run again",
    "cancel": "end: those that run are asked to, those that wait are removed, those that have ended stay as they are",
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
    "unreadable": "cannot be read",
    "pending": "waits",
    "finished": "has ended",
}


async def bulk_new(visit: Visit) -> Response:
    """Return the page that counts the matching jobs and asks for confirmation."""
    type, action = visit.type(), visit.query.get("action", "")
    given = Filter.of_address(visit.query, visit.request.query_params.getlist("data"))
    try:
        what = await asked(visit.service, action, type, given)
    except InvalidJob as error:
        return problem_page(visit, 422, "There is no such action", f"{error}.")
    counted = await count(visit.service, what)
    # The confirmation covers the counted jobs only, as they were at that moment.
    moment = [("asked", repr(what.moment.at)), ("bound", what.moment.seq.hex())]
    if counted.is_all:
        moment.append(("counted", str(counted.matching)))
    context = {
        "type": type,
        "name": shown(type),
        "action": action,
        "verb": ACTIONS[action],
        "does": _DOES[action],
        "filter": what.wanted,
        "says": in_words(what.wanted),
        "is_narrowed": what.wanted != given,
        "counted": counted,
        "fields": [("type", shown(type)), *_fields(what.wanted), *moment],
        "see": visit.url("/type", type_=type, **what.wanted.to_dict()),
        "picked": None,
    }
    return page(visit, "bulk_new.html", context)


async def bulk_picked(visit: Visit) -> Response:
    """Ask for confirmation of an action on the checked jobs; if none is checked, on all that match the filter."""
    fields = await fields_of(visit)
    form = dict(fields)
    type, action = visit.type(form), form.get("action", "")
    filter_fields = [(name, value) for name, value in fields if name in FIELDS and value]
    if not any(name == "pick" for name, _ in fields):
        query: dict[str, Any] = {name: value for name, value in filter_fields if name != "data"}
        tests = [value for name, value in filter_fields if name == "data"]
        return go(visit, visit.url("/bulk/new", type_=type, action=action, data=tests, **query))
    what, ids = await _picked(visit, fields)
    rules = await visit.service.get_redaction(type)
    found = await queries.jobs(visit.service._access, type, ids)
    picked = [job.id for job in found if job is not None and what.is_meant(rules, job)]
    context = {
        "type": type,
        "name": shown(type),
        "action": action,
        "verb": ACTIONS[action],
        "does": _DOES[action],
        "counted": Counted(len(picked), 0, True),
        "fields": [(name, form[name]) for name in ("type", "asked", "bound")] + [("pick", shown(id)) for id in picked],
        "see": visit.url("/type", type_=type, **Filter.of_form(filter_fields).to_dict()),
        "picked": picked,
        "left": len(ids) - len(picked),
    }
    return page(visit, "bulk_new.html", context)


async def _picked(visit: Visit, fields: list[tuple[str, str]]) -> tuple[Asked, list[JobId]]:
    """Return the action on checked jobs, and their ids.

    Raises:
        Refusal: the form does not say which action on which jobs, and when they were listed.
    """
    form = dict(fields)
    type, action = visit.type(form), form.get("action", "")
    refuse_commands(visit, type)
    if action == "resubmit":
        visit.changes.check_may_run(type)
    try:
        ids = [parsed(value) for name, value in fields if name == "pick"]
        if action not in ("resubmit", "cancel", "remove") or len(ids) > MOST_PICKED:
            raise ValueError
        moment = Moment.of(form["asked"], form["bound"])
    except (KeyError, ValueError, OverflowError):
        raise Refusal("bad-request", "the form lacks the action, the jobs or the time") from None
    return Asked(action, type, Filter(), moment, visit.role.name), ids


async def bulk_start(visit: Visit, bulk: BulkActions) -> Response:
    """Start the confirmed bulk action."""
    fields = await fields_of(visit)
    form = dict(fields)
    type, action = visit.type(form), form.get("action", "")
    if "pick" in form:
        what, ids = await _picked(visit, fields)
        done = Done()
        await change_all(visit.service, what, ids, await visit.service.get_redaction(type), done)
        visit.changes.noted(f"bulk {action}", type, jobs=done.changed)
        return go(visit, visit.url("/type", type_=type, said="picked"))
    refuse_commands(visit, type)
    if action == "resubmit":
        visit.changes.check_may_run(type)
    wanted = Filter.of_form(fields)
    try:
        moment = Moment.of(form["asked"], form["bound"]) if "asked" in form or "bound" in form else None
        counted = int(form["counted"]) if "counted" in form else None
    except (KeyError, ValueError, OverflowError):
        return problem_page(
            visit,
            422,
            "That cannot be",
            "The form lacks the counted jobs, or the time.",
            "Go back, and have it counted.",
        )
    try:
        id = await bulk.add(action, type, wanted, visit.role.name, moment=moment, counted=counted)
    except InvalidJob as error:
        return problem_page(visit, 422, "There is no such action", f"{error}.")
    # The number of jobs is recorded at its end.
    visit.changes.noted(f"bulk {action}", type, id, jobs=0, filter=chosen(wanted.to_dict()))
    return go(visit, visit.url("/bulk/show", id_=id))


async def bulk_show(visit: Visit) -> Response:
    """Return the page of one bulk action: its progress or its result."""
    id = visit.id()
    job = await visit.service.get(bulk_actions.TYPE, id)
    row = _shown(job, visit.now)
    context = {"row": row, "job": job, "now": visit.now}
    return page(visit, "bulk_show.html", context, live={"of": "job", "type_": bulk_actions.TYPE, "id_": id})


async def bulk_cancel(visit: Visit) -> Response:
    """Ask a bulk action to end; its changes until then stay."""
    form = await form_of(visit)
    id = visit.id(form)
    await visit.changes.cancel(bulk_actions.TYPE, id, None, "bulk cancel")
    try:
        await visit.service.get(bulk_actions.TYPE, id)
    except JobsError:  # it had not begun, and is gone
        return go(visit, visit.url("/type", type=bulk_actions.TYPE, said="stopping"))
    return go(visit, visit.url("/bulk/show", id_=id, said="stopping"))


def in_words(wanted: Filter) -> list[str]:
    """Return the conditions of a filter in words; a job must meet all of them."""
    told = [_STATES.get(wanted.state, f"is {wanted.state}")] if wanted.state else []
    words: dict[str, tuple[str, Callable[[Any], str]]] = {
        "prefix": ("has an id that begins with {}", rendering.brief),
        "error": ("failed with a {}", rendering.brief),
        "text": ("has an error that says “{}”", rendering.brief),
        "signature": ("failed with “{}”", lambda value: rendering.brief(value, 200)),
        "worker": ("had a worker whose name contains {}", rendering.brief),
        "older": ("had its last event more than {} ago", durations.typed),
        "younger": ("had its last event within {}", durations.typed),
        "attempts": ("had at least {} attempts", str),
        "added_before": ("was added before {}", _time),
        "added_after": ("was added at {} or later", _time),
    }
    for name, (sentence, written) in words.items():
        if (value := getattr(wanted, name)) is not None:
            told.append(sentence.format(written(value)))
    return told + [f"has data with {rendering.brief(str(test))}" for test in wanted.data]


def _time(seconds: float) -> str:
    at = rendering.at(seconds)
    return f"{seconds:g}" if at is None else at.isoformat(timespec="seconds").replace("+00:00", "Z")


def _fields(wanted: Filter) -> list[tuple[str, str]]:
    fields = wanted.to_dict()
    tests = fields.pop("data", ())
    return [*((name, str(value)) for name, value in fields.items()), *(("data", test) for test in tests)]


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
        wanted = Filter.of(data.get("filter", {}))
        says, query = in_words(wanted), None if wanted.has_values else wanted.to_dict()
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
        "who": rendering.brief(str(data.get("who") or "")),
        "asked": data.get("asked") if isinstance(data.get("asked"), float | int) else None,
        "counted": data.get("counted") if isinstance(data.get("counted"), int) else None,
        "share": None if progress is None else rendering.share(progress),
        "error": None if state == "unreadable" else job.error,
        **figures,
    }


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0
