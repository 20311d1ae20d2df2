"""Logging in with a token, which a browser then shows as a cookie that no script can read."""

from __future__ import annotations

from starlette.responses import Response

from jobs_service.http.dashboard.actions import form_of, go
from jobs_service.http.dashboard.rendering import page
from jobs_service.http.dashboard.visit import Visit
from jobs_service.http.gate import COOKIE
from jobs_service.http.tokens import SESSION_TIME
from jobs_service.log import EventLog

log = EventLog("jobs_service.http")


async def login_page(visit: Visit, problem: str = "", status: int = 200) -> Response:
    """Return the page that asks for a token."""
    context = {
        "problem": problem,
        "next": visit.query.get("next", ""),
        "by_application": visit.state.options.authenticate is not None,
    }
    return page(visit, "login.html", context, status=status)


async def log_in(visit: Visit) -> Response:
    """Give a cookie to who shows a token, and lead them to where they wanted to go."""
    form = await form_of(visit)
    who = await visit.state.tokens.of_token(form.get("token", "").strip())
    if who is None:
        log.warning("login_refused", address=visit.request.state.client)
        return await login_page(visit, "There is no such token, or not any more.", 401)
    answer = go(visit, form.get("next", ""))
    answer.set_cookie(
        COOKIE,
        await visit.state.tokens.session(who.name),
        max_age=SESSION_TIME,
        path=visit.url("/"),
        httponly=True,
        samesite="strict",
        secure=visit.request.state.is_secure,
    )
    return answer


async def log_out(visit: Visit) -> Response:
    """End the login, and take the cookie away."""
    cookie = visit.request.cookies.get(COOKIE)
    if cookie is not None:
        await visit.state.tokens.end_session(cookie)
    answer = go(visit, visit.url("/login"))
    answer.delete_cookie(COOKIE, path=visit.url("/"), httponly=True, samesite="strict")
    return answer
