"""Actions behind the buttons, and the login: forms as doors to the changes of an endpoint, answered with pages."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.responses import RedirectResponse, Response

from jobs_service import durations, json_data
from jobs_service.dashboard.job_page import clone_page
from jobs_service.dashboard.jobs import one
from jobs_service.dashboard.rendering import page, problem_page
from jobs_service.dashboard.visit import THEME_COOKIE, THEMES, ZONE_COOKIE, ZONES, Visit, choice, refuse_commands
from jobs_service.errors import InvalidJob, JobChanged, JobExists, JobTooLarge, NoTypeTimeout
from jobs_service.http import bodies, gate
from jobs_service.http.problems import Refusal
from jobs_service.http.tokens import SESSION_TIME, Identity
from jobs_service.model import JobState, ProcessAction, Removal
from jobs_service.names import parsed, parsed_priority, shown
from jobs_service.redaction import is_marked
from jobs_service.service.bulk_actions import Seen

YEAR: Final = 366 * 86_400
_FORM: Final = "application/x-www-form-urlencoded"
_MOST_FIELDS: Final = 400
_SECRET: Final = "data: [redacted] stands for something secret; write what it is to be"


# Actions


async def preferences(visit: Visit) -> Response:
    """Store the user's choice of theme and time zone in cookies."""
    form = await form_of(visit)
    answer = go(visit, form.get("back", ""))
    for name, cookie, allowed in (("theme", THEME_COOKIE, THEMES), ("times", ZONE_COOKIE, ZONES)):
        if name in form:
            answer.set_cookie(
                cookie, choice(form[name], allowed), max_age=YEAR, path=visit.url("/"), httponly=True, samesite="lax"
            )
    return answer


async def act_on_job(visit: Visit) -> Response:
    """Resubmit, cancel or remove a job, or have it run now."""
    form = await form_of(visit)
    type, id, action = visit.type(form), visit.id(form), form.get("action", "")
    refuse_commands(visit, type)
    seen = Seen.of(form["seq"], form.get("started", "")) if form.get("seq") else None
    try:
        if action == "resubmit":
            await visit.changes.resubmit(type, id, seen, {}, {})
            said = "resubmitted"
        elif action == "now":
            said = "resubmitted" if await visit.changes.run_now(type, id, seen) else "meanwhile"
        elif action == "cancel":
            removal = await visit.changes.cancel(type, id, seen)
            said = "ended" if removal is None else removal.value
        elif action == "remove":
            said = (await visit.changes.remove(type, id, seen)).value
        else:
            return problem_page(
                visit, 422, "There is no such action", f"{action!r} is none of cancel, now, remove and resubmit."
            )
    except JobChanged:
        said = "meanwhile"
    if said == Removal.REMOVED:
        return go(visit, visit.url("/type", type_=type, said=said))
    return go(visit, visit.url("/job", type_=type, id_=id, said=said))


async def act_on_type(visit: Visit) -> Response:
    """Pause, resume or change a type."""
    form = await form_of(visit)
    type, action = visit.type(form), form.get("action", "")
    refuse_commands(visit, type)
    if action == "pause":
        await visit.changes.pause(type)
    elif action == "resume":
        await visit.changes.resume(type)
    elif action == "change":
        try:
            settings = {name: _seconds(form.get(name, "")) for name in ("timeout", "keep", "keep_failed")}
            if settings["timeout"] is None:
                raise ValueError("the activity timeout is missing")
        except ValueError as error:
            return problem_page(visit, 422, "That cannot be", str(error), "Go back, and correct it.")
        await visit.changes.set_type(type, settings)
    else:
        return problem_page(visit, 422, "There is no such action", f"{action!r} is none of pause, resume and change.")
    said = {"pause": "paused", "resume": "resumed", "change": "changed"}[action]
    where = (
        visit.url("/periodic", said=said)
        if form.get("from") == "periodic"
        else visit.url("/type", type_=type, said=said)
    )
    return go(visit, where)


async def add(visit: Visit) -> Response:
    """Add the job that a form describes; an error is shown above the same form."""
    form = await form_of(visit)
    type = visit.type(form)
    visit.changes.check_may_run(type)
    try:
        id, data, priority, delay = _new_job(form)
        run_at = None if delay is None else time.time() + delay
        job = await visit.service.add(type, id, data, priority=priority, run_at=run_at)
    except (ValueError, InvalidJob, JobExists, JobTooLarge, NoTypeTimeout) as error:
        return await clone_page(visit, str(error), form)
    visit.changes.noted("add", type, job.id, priority=priority, run_at=run_at)
    return go(visit, visit.url("/job", type_=type, id_=job.id, said="added"))


async def edit(visit: Visit) -> Response:
    """Change the arguments, the priority or the time of a waiting job, as it was seen."""
    form = await form_of(visit)
    type, id = visit.type(form), visit.id(form)
    refuse_commands(visit, type)
    visit.changes.check_may_run(type)
    seen = Seen.of(form.get("seq", ""))
    here = visit.url("/job", type_=type, id_=id)
    try:
        _, data, priority, delay = _new_job(form, refuses_marks=False)
        job = await one(visit.service, type, id)
        changes: dict[str, Any] = {"priority": priority} if priority != job.priority else {}
        if not json_data.same(data, job.data):
            if is_marked(data):
                raise ValueError(_SECRET)
            changes["data"] = data
        if delay is not None:
            changes["run_at"] = time.time() + delay
        if job.state is not JobState.PENDING:
            return go(visit, f"{here}&said=meanwhile")
        if changes:
            await visit.changes.resubmit(type, id, seen, changes, {"changed": [*changes]})
    except JobChanged:
        return go(visit, f"{here}&said=meanwhile")
    except (ValueError, InvalidJob, JobTooLarge) as error:
        return problem_page(visit, 422, "That cannot be", str(error), "Go back, and correct it.")
    return go(visit, f"{here}&said=edited")


def _new_job(form: Mapping[str, str], refuses_marks: bool = True) -> tuple[Any, Any, Any, float | None]:
    """Return the id, data, priority and delay in a form.

    Args:
        form: its fields.
        refuses_marks: whether data with a mark in place of a secret are refused.

    Raises:
        ValueError: one of them is invalid; the message says which.
    """
    id = parsed(form["id"]) if form.get("id") else secrets.token_hex(16)
    text = form.get("data", "").strip()
    try:
        data = json_data.parsed(text) if text else None
    except ValueError as error:
        raise ValueError(f"data: {error}") from None
    if refuses_marks and is_marked(data):
        raise ValueError(_SECRET)
    json_data.encode(data)
    priority = form.get("priority", "").strip() or "0"
    try:
        chosen = parsed_priority(priority)
    except ValueError as error:
        raise ValueError(f"priority: {error}") from None
    return id, data, chosen, _seconds(form.get("delay", ""))


def _seconds(text: str) -> float | None:
    return durations.parsed(text.strip()) if text.strip() else None


async def act_on_process(visit: Visit) -> Response:
    """Have a process accept no more jobs, accept them again, or end."""
    form = await form_of(visit)
    action, id = form.get("action", ""), form.get("id", "")
    if action not in [each.value for each in ProcessAction]:
        return problem_page(visit, 422, "There is no such action", f"{action!r} is none of quiet, resume and stop.")
    await visit.changes.ask_process(id, ProcessAction(action))
    if action == "stop" and id == visit.service.process_id:
        return problem_page(
            visit,
            202,
            "This process ends",
            "Running jobs get their grace; those that do not end go to other processes.",
        )
    return go(visit, visit.url("/system", said=f"process-{action}"))


async def tick(visit: Visit) -> Response:
    """Add a job of a periodic type now, in addition to its schedule."""
    form = await form_of(visit)
    type = visit.type(form)
    visit.changes.check_may_run(type)
    periodic = visit.service.periodic.get(type)
    if periodic is None:
        return problem_page(
            visit,
            404,
            "This server does not know the schedule",
            f"Type {shown(type)} is no periodic type of the application that this server runs.",
            "Start the server with the application: jobs-service serve MODULE:ATTR --http ADDRESS.",
        )
    job = await visit.service.enqueue(type, id=f"by-hand-{secrets.token_hex(6)}")
    visit.changes.noted("tick", type, job.id)
    return go(visit, visit.url("/periodic", said="ticked"))


async def act_on_schedule(visit: Visit) -> Response:
    """Pause, resume or remove a schedule in the store."""
    form = await form_of(visit)
    action: Any = form.get("action", "")
    if action not in ("pause", "resume", "remove"):
        return problem_page(visit, 422, "There is no such action", f"{action!r} is none of pause, resume and remove.")
    await visit.changes.change_schedule(form.get("name", ""), action)
    return go(visit, visit.url("/periodic", said=f"schedule-{action}"))


# Login


async def login_page(visit: Visit) -> Response:
    """Return the login page; an address with the code that the server prints at its start logs in at once."""
    code = visit.query.get("code")
    if not code or visit.request.method != "GET":
        return _asking(visit)
    who = visit.state.tokens.of_code(code)
    if who is None:
        return _refused(visit, "This address was used before, or the server was started anew since.")
    return await _logged_in(visit, who, "")


async def log_in(visit: Visit) -> Response:
    """Give the owner of a token a session cookie, and redirect to the requested page."""
    form = await form_of(visit)
    who = await visit.state.tokens.of_token(form.get("token", "").strip())
    if who is None:
        return _refused(visit, "There is no such token, or not any more.")
    return await _logged_in(visit, who, form.get("next", ""))


async def log_out(visit: Visit) -> Response:
    """End the session, and delete the cookie."""
    for cookie in gate.cookies(gate.Headers(visit.request.scope)):
        await visit.state.log_out(cookie)
    if visit.role.can_log_out:
        visit.state.audit.logged_out(visit.role.name, visit.request.state.client)
    answer = go(visit, visit.url("/login"))
    answer.delete_cookie(gate.COOKIE, path=visit.url("/"), httponly=True, samesite="lax")
    return answer


def _asking(visit: Visit, problem: str = "", status: int = 200) -> Response:
    context = {
        "problem": problem,
        "next": visit.query.get("next", ""),
        "by_application": visit.state.options.authenticate is not None,
    }
    return page(visit, "login.html", context, status=status)


async def _logged_in(visit: Visit, who: Identity, where: str) -> Response:
    answer = go(visit, where)
    visit.state.audit.logged_in(who.name, visit.request.state.client)
    answer.set_cookie(
        gate.COOKIE,
        await visit.state.tokens.session(who.name),
        max_age=SESSION_TIME,
        path=visit.url("/"),
        httponly=True,
        samesite="lax",  # a link elsewhere, as in a chat, leads to a page and not to the login
        secure=visit.request.state.is_secure,
    )
    return answer


def _refused(visit: Visit, why: str) -> Response:
    visit.state.audit.login_refused(visit.request.state.client)
    return _asking(visit, why, 401)


# Forms and redirects


async def form_of(visit: Visit) -> dict[str, str]:
    """Return the fields of a submitted form; of several fields with one name, the last."""
    return dict(await fields_of(visit))


async def fields_of(visit: Visit) -> list[tuple[str, str]]:
    """Return the fields of a submitted form, in their order.

    Raises:
        Refusal: the body is too large, does not arrive in time, or is no form.
    """
    if visit.request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
        raise Refusal("unsupported-media-type", f"this takes a form, {_FORM}")
    body = await bodies.whole(visit.request, visit.state.options.limits)
    try:
        text = body.decode("ascii")
        return parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS)
    except ValueError:  # of UTF-8 as well
        raise Refusal("bad-request", "the form is not UTF-8, percent-encoded, or has very many fields") from None


def go(visit: Visit, where: str) -> Response:
    """Return a redirect to a page of this server; any other address is replaced by the overview."""
    # Browsers leave tabs and ends of lines out, and take a backslash for a slash.
    ours = where.startswith("/") and not where.startswith("//") and where.isprintable() and "\\" not in where
    safe = where if ours else visit.url("/")
    return RedirectResponse(safe, 303, headers={"Cache-Control": "no-store"})
