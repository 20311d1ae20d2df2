"""Endpoints of types, and of the schedules that are made at runtime."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from starlette.responses import Response

from jobs_service import json_types, names
from jobs_service.errors import ScheduleNotFound
from jobs_service.http import forms, wire
from jobs_service.http.endpoint import Call, answer, endpoint, long_answer
from jobs_service.http.tokens import Role
from jobs_service.model import JobType
from jobs_service.model.type_state import QueueState, Retention, StoredSchedule, TypeCounts
from jobs_service.redaction import Redaction
from jobs_service.service.schedules import without_secrets


async def type_forms(call: Call, types: Sequence[JobType]) -> list[dict[str, Any]]:
    """Return types as JSON, with one read for many of them; the timeout of a missing type is None."""
    return [
        {"type": names.name(type), "timeout": timeout, "paused": paused, **json_types.plain(kept)}
        for type, (timeout, paused, kept) in zip(types, await call.service.type_settings(types), strict=True)
    ]


async def type_form(call: Call, type: JobType) -> dict[str, Any]:
    """Return a type as JSON.

    Raises:
        NoTypeTimeout: the type does not exist.
    """
    [form] = await type_forms(call, [type])
    if form["timeout"] is None:
        await call.service.get_type_timeout(type)  # raises, unless the type exists by now
        return await type_form(call, type)
    return form


@endpoint("GET /v1/types", Role.READ, "List the types", wire.TypesForm)
async def list_types(call: Call) -> Response:
    found = await type_forms(call, await call.service.types())
    # One may have been removed meanwhile.
    return await long_answer("types", (form for form in found if form["timeout"] is not None))


@endpoint("GET /v1/types/{type}", Role.READ, "Look at a type", wire.TypeForm)
async def get_type(call: Call) -> Response:
    return answer(await type_form(call, call.type))


@endpoint(
    "PUT /v1/types/{type}",
    Role.WRITE,
    "Make a type, or change its timeout and how long its finished jobs are kept",
    wire.TypeForm,
)
async def put_type(call: Call, form: forms.TypeSettings) -> Response:
    given = form.model_fields_set
    await call.changes.set_type(call.type, {name: getattr(form, name) for name in sorted(given)})
    if form.timeout is None and given & {"keep", "keep_failed"}:
        # Retention can be set before the type exists.
        return answer(await _perhaps_missing(call))
    return answer(await type_form(call, call.type))


async def _perhaps_missing(call: Call) -> dict[str, Any]:
    [form] = await type_forms(call, [call.type])
    return form


@endpoint("DELETE /v1/types/{type}", Role.ADMIN, "Take a type away; its jobs stay", {204: None})
async def delete_type(call: Call) -> Response:
    await call.service.clear_type_timeout(call.type)
    call.changed("clear_type", type=call.type, jobs=0)
    return Response(status_code=204)


@endpoint("POST /v1/types/{type}/pause", Role.WRITE, "Have nobody accept jobs", wire.TypeForm)
async def pause(call: Call) -> Response:
    await call.changes.pause(call.type)
    return answer(await _perhaps_missing(call))


@endpoint("POST /v1/types/{type}/resume", Role.WRITE, "Have jobs accepted again", wire.TypeForm)
async def resume(call: Call) -> Response:
    await call.changes.resume(call.type)
    return answer(await _perhaps_missing(call))


@endpoint("GET /v1/types/{type}/queue", Role.READ, "Where the queue stands", QueueState)
async def queue_state(call: Call) -> Response:
    return answer(json_types.plain(await call.service.queue_state(call.type)))


@endpoint("GET /v1/types/{type}/retention", Role.READ, "How long jobs are kept", Retention)
async def retention(call: Call) -> Response:
    return answer(json_types.plain(await call.service.get_retention(call.type)))


@endpoint("GET /v1/types/{type}/redaction", Role.READ, "Which fields of jobs are secret", wire.RedactionForm)
async def redaction(call: Call) -> Response:
    return answer({"paths": [*(await call.service.get_redaction(call.type)).paths]})


@endpoint("PUT /v1/types/{type}/redaction", Role.ADMIN, "Say which fields of jobs are secret", wire.RedactionForm)
async def put_redaction(call: Call, form: forms.SecretFields) -> Response:
    paths = Redaction(form.paths).paths
    await call.service.set_redaction(call.type, paths)
    call.changed("set_redaction", type=call.type, jobs=0, paths=paths)
    return answer({"paths": [*paths]})


@endpoint("GET /v1/redactions", Role.READ, "Types with secret fields", wire.RedactionsForm)
async def redactions(call: Call) -> Response:
    found = await call.service.redactions()
    shown = ({"type": names.name(type), "paths": [*each.paths]} for type, each in found.items())
    return await long_answer("types", shown)


@endpoint("GET /v1/types/{type}/pending", Role.READ, "Count pending jobs", wire.CountForm)
async def pending(call: Call, query: forms.PendingQuery) -> Response:
    count = await call.service.pending_count(call.type, due_by=query.due_by, limit=query.limit)
    return answer({"count": count})


@endpoint("GET /v1/types/{type}/active", Role.READ, "The running jobs, those silent for longest first", wire.IdsForm)
async def active(call: Call) -> Response:
    return answer({"ids": [names.name(id) for id in await call.service.active_ids(call.type)]})


@endpoint("GET /v1/types/{type}/oldest", Role.READ, "The job that has been ready for longest", wire.JobOrNone)
async def oldest(call: Call) -> Response:
    job = await call.service.oldest_ready(call.type)
    return answer({"job": None if job is None else await call.state.job_form(job)})


def _counts_form(type: JobType, counts: TypeCounts) -> dict[str, Any]:
    return {"type": names.name(type), **json_types.plain(counts)}


@endpoint("GET /v1/types/{type}/counts", Role.READ, "The counts of a type", wire.CountsForm)
async def counts(call: Call) -> Response:
    found = await call.service.counts(call.type)
    return answer(_counts_form(call.type, next(iter(found.values()), TypeCounts())))


@endpoint("GET /v1/counts", Role.READ, "The counts of all types", wire.AllCountsForm)
async def all_counts(call: Call, query: forms.CountsQuery) -> Response:
    found = await call.service.counts(query.type)
    return await long_answer("types", (_counts_form(type, each) for type, each in found.items()))


@endpoint(
    "GET /v1/types/{type}/throughput", Role.READ, "What happened, minute by minute or hour by hour", wire.ThroughputForm
)
async def throughput(call: Call, query: forms.ThroughputQuery) -> Response:
    found = await call.service.throughput(call.type, since=query.since, until=query.until, resolution=query.resolution)
    return await long_answer("intervals", map(json_types.plain, found))


@endpoint("GET /v1/ticks", Role.READ, "When periodic types ticked last", wire.TicksForm)
async def ticks(call: Call) -> Response:
    found = await call.service.last_ticks()
    ticks = ({"type": names.name(type), "last": json_types.time(at)} for type, at in found.items())
    return await long_answer("ticks", ticks)


# Schedules that are made at runtime


async def _form(call: Call, found: StoredSchedule) -> dict[str, Any]:
    """Return a schedule as JSON, without the secrets of its data."""
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
    with suppress(ScheduleNotFound):  # a change ends the present schedule, as a removal would
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
