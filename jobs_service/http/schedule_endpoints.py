"""Endpoints of the schedules that are made at runtime."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from starlette.responses import Response

from jobs_service.errors import ScheduleNotFound
from jobs_service.http import forms, wire
from jobs_service.http.endpoint import Call, answer, endpoint, long_answer
from jobs_service.http.tokens import Role
from jobs_service.model.schedule import StoredSchedule
from jobs_service.service.schedules import without_secrets


async def _form(call: Call, found: StoredSchedule) -> dict[str, Any]:
    """Return a schedule as JSON, without what is secret in its data."""
    return (await without_secrets(call.service, found)).to_dict()


@endpoint("GET /v1/schedules", Role.READ, "List the schedules in the store", wire.SchedulesForm)
async def list_schedules(call: Call) -> Response:
    shown = [await _form(call, each) for each in await call.service.schedules.list()]
    return await long_answer("schedules", shown)


@endpoint("GET /v1/schedules/{schedule}", Role.READ, "Look at a schedule", StoredSchedule)
async def get_schedule(call: Call) -> Response:
    return answer(await _form(call, await call.service.schedules.get(call.names["schedule"])))


@endpoint("PUT /v1/schedules/{schedule}", Role.WRITE, "Make a schedule, or change it", StoredSchedule)
async def put_schedule(call: Call, form: forms.ScheduleForm) -> Response:
    call.check_may_run(form.type)
    name, times = call.names["schedule"], {"every": form.every, "cron": form.cron, "timezone": form.timezone}
    with suppress(ScheduleNotFound):  # to change it ends what it was, as removing it would
        call.check_may_run((await call.service.schedules.get(name)).type)
    rules = {"missed": form.missed, "overlap": form.overlap}
    found = await call.service.schedules.set(name, form.type, form.get("data"), **times, **rules)
    call.changed("set_schedule", type=form.type, jobs=0, schedule=name, **times, **rules)
    return answer(await _form(call, found))


@endpoint("DELETE /v1/schedules/{schedule}", Role.WRITE, "Remove a schedule; its jobs stay", {204: None})
async def delete_schedule(call: Call) -> Response:
    await call.changes.change_schedule(call.names["schedule"], "remove")
    return Response(status_code=204)


@endpoint("POST /v1/schedules/{schedule}/pause", Role.WRITE, "Hold up a schedule's ticks", StoredSchedule)
async def pause_schedule(call: Call) -> Response:
    await call.changes.change_schedule(call.names["schedule"], "pause")
    return await get_schedule(call)


@endpoint("POST /v1/schedules/{schedule}/resume", Role.WRITE, "Let a schedule tick again", StoredSchedule)
async def resume_schedule(call: Call) -> Response:
    await call.changes.change_schedule(call.names["schedule"], "resume")
    return await get_schedule(call)
