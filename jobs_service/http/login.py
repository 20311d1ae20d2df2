"""How people log in: with a token, once, for a cookie that no script can read and no other site can have sent."""

from __future__ import annotations

from urllib.parse import parse_qsl

from starlette.responses import RedirectResponse, Response

from jobs_service.http import bodies
from jobs_service.http.endpoint import Call, endpoint
from jobs_service.http.gate import COOKIE
from jobs_service.http.refusals import Refusal
from jobs_service.http.roles import Role
from jobs_service.http.tokens import SESSION_TIME

_FORM = "application/x-www-form-urlencoded"
_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Log in – jobs_service</title>
<meta name="viewport" content="width=device-width"></head><body><main><h1>Log in</h1>
<form method="post" action="login"><label for="token">Token</label>
<input id="token" name="token" type="password" autocomplete="current-password" required>
<button>Log in</button></form></main></body></html>"""


@endpoint("GET", "/login", Role.NOBODY, "The form for a token", media={"text/html": "A page"})
async def login_page(call: Call) -> Response:
    return Response(_PAGE, media_type="text/html")


@endpoint(
    "POST",
    "/login",
    Role.NOBODY,
    "Log in: takes a form with `token`, answers with a cookie",
    answers={303: None},
    changes=False,
)
async def login(call: Call) -> Response:
    if bodies.kind_of(call.request) != _FORM:
        raise Refusal("unsupported-media-type", f"send a form: Content-Type: {_FORM}")
    raw = await bodies.whole(call.request, call.state.options.limits)
    try:
        form = dict(parse_qsl(raw.decode("ascii"), errors="strict", max_num_fields=10))
    except ValueError:
        raise Refusal("bad-request", "the form cannot be read") from None
    who = await call.state.tokens.of_token(form.get("token", "").strip())
    if who is None:
        raise Refusal("unauthorized", "the token is not known here, or not any more")
    response = RedirectResponse(_home(call), 303)
    response.set_cookie(
        COOKIE,
        await call.state.tokens.session(who.name),
        max_age=SESSION_TIME,
        path=_home(call),
        secure=call.is_secure,
        httponly=True,
        samesite="strict",
    )
    return response


@endpoint("POST", "/logout", Role.NOBODY, "Give the cookie back", answers={303: None}, changes=False)
async def logout(call: Call) -> Response:
    response = RedirectResponse(_home(call), 303)
    response.delete_cookie(COOKIE, path=_home(call), secure=call.is_secure, httponly=True, samesite="strict")
    return response


def _home(call: Call) -> str:
    return f"{call.request.scope.get('root_path', '')}/"
