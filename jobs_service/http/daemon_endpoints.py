"""Endpoints of the server itself: liveness, readiness, the caller's rights, the supervisor tree, metrics."""

from __future__ import annotations

import asyncio

from starlette.responses import Response

from jobs_service.errors import JobsError
from jobs_service.http import answer_forms, gate
from jobs_service.http.endpoint import Call, answer, endpoint
from jobs_service.http.refusals import Refusal
from jobs_service.http.roles import Identity, Role

_PROMETHEUS = "text/plain"
_READY_WITHIN = 1.0
"""Seconds in which the store must answer."""


@endpoint(
    "GET",
    "/livez",
    Role.NOBODY,
    "Whether the process answers",
    answers={200: answer_forms.HealthForm},
    is_health=True,
)
async def livez(call: Call) -> Response:
    return answer({"status": "alive"})


@endpoint(
    "GET",
    "/readyz",
    Role.NOBODY,
    "Whether the store answers",
    answers={200: answer_forms.HealthForm, 503: answer_forms.HealthForm},
    is_health=True,
)
async def readyz(call: Call) -> Response:
    try:
        async with asyncio.timeout(_READY_WITHIN):
            await call.service.last_ticks()
    except (JobsError, TimeoutError):
        return answer({"status": "not ready"}, 503)
    return answer({"status": "closing" if call.state.closing.is_set() else "ready"})


@endpoint("GET", "/v1/me", Role.NOBODY, "Who asks, and what may be done here", answers={200: answer_forms.MeForm})
async def me(call: Call) -> Response:
    scope = call.request.scope
    who = await gate.identify(call.state, scope, gate.Headers(scope)) or Identity("", Role.NOBODY)
    options = call.state.options
    return answer(
        {
            "name": who.name,
            "role": who.role.label,
            "read_only": options.read_only,
            "commands": options.commands and who.role is Role.ADMIN and who.proven,
        }
    )


@endpoint("GET", "/v1/supervision", Role.READ, "The supervisor tree", answers={200: answer_forms.TreeForm})
async def supervision(call: Call) -> Response:
    return answer(call.service.supervision())


@endpoint("GET", "/metrics", Role.READ, "Metrics for Prometheus", media={_PROMETHEUS: "Prometheus' text format"})
async def metrics(call: Call) -> Response:
    try:
        from jobs_service.metrics import CONTENT_TYPE, text
    except JobsError as error:  # the extra is not installed
        raise Refusal("not-found", str(error)) from None
    return Response(await text(call.service), media_type=CONTENT_TYPE)
