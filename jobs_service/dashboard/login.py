"""Login with a token; the browser gets a session cookie that no script can read."""

from __future__ import annotations

from starlette.responses import Response

from jobs_service.dashboard.actions import form_of, go
from jobs_service.dashboard.rendering import page
from jobs_service.dashboard.visit import Visit
from jobs_service.http import gate
from jobs_service.http.roles import Identity
from jobs_service.http.tokens import SESSION_TIME


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
