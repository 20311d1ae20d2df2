"""Endpoints of the processes that use the store: to list, quiet, resume and stop them."""

from __future__ import annotations

from starlette.responses import Response

from jobs_service.http import answer_forms
from jobs_service.http.endpoint import Call, answer, endpoint, long_answer
from jobs_service.http.roles import Role
from jobs_service.model import ProcessAction, ProcessInfo


@endpoint("GET", "/v1/processes", Role.READ, "List the processes", answers={200: answer_forms.ProcessesForm})
async def processes(call: Call) -> Response:
    return await long_answer("processes", map(ProcessInfo.to_dict, await call.service.processes()))


@endpoint(
    "POST",
    "/v1/processes/{process}/quiet",
    Role.ADMIN,
    "Have a process take no more jobs",
    answers={200: ProcessInfo},
)
async def quiet_process(call: Call) -> Response:
    return await _asked(call, ProcessAction.QUIET)


@endpoint(
    "POST",
    "/v1/processes/{process}/resume",
    Role.ADMIN,
    "Have a process take jobs again",
    answers={200: ProcessInfo},
)
async def resume_process(call: Call) -> Response:
    return await _asked(call, ProcessAction.RESUME)


@endpoint(
    "POST",
    "/v1/processes/{process}/stop",
    Role.ADMIN,
    "Have a process end, as on SIGTERM",
    answers={200: ProcessInfo},
)
async def stop_process(call: Call) -> Response:
    return await _asked(call, ProcessAction.STOP)


async def _asked(call: Call, action: ProcessAction) -> Response:
    return answer((await call.changes.ask_process(call.names["process"], action)).to_dict())
