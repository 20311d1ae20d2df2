"""Endpoints for runners of handlers elsewhere, beside the workers' ones: `runner.service_access` as JSON."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from jobs_service.errors import JobsError, StoreError
from jobs_service.http import answer_forms, forms, problems, wire
from jobs_service.http.endpoint import Call, answer, endpoint
from jobs_service.http.roles import Role
from jobs_service.http.waiting import Gone, Presence
from jobs_service.model import UNSET, JobError, Outcome
from jobs_service.service.remote_runs import RunEnd


@endpoint(
    "POST",
    "/v1/types/{type}/declare",
    Role.WORK,
    "Make a type where it is missing, with what its handler says",
    takes=forms.DeclaredForm,
    answers={200: answer_forms.DeclaredAnswer},
)
async def declare(call: Call) -> Response:
    form: forms.DeclaredForm = call.body
    call.check_may_run(call.type)
    # An operator needs the same roles for these settings.
    may: dict[str, bool] = {"may_change": call.who.role >= Role.WRITE, "may_show": call.who.role >= Role.ADMIN}
    kept = form.keep, form.keep_failed
    found, hidden = await call.remote.runs.declare(call.type, form.timeout, *kept, form.redact, **may)
    call.changed("declare", type=call.type, jobs=0)
    redact = None if hidden is None else [*hidden.paths]
    return answer({"timeout": found.timeout, **wire.plain(found.retention), "redact": redact})


@endpoint(
    "POST",
    "/v1/types/{type}/alive",
    Role.WORK,
    "Say that several jobs are alive, and learn whether they are still the worker's",
    takes=forms.AliveForm,
    answers={200: answer_forms.LocksAnswer},
)
async def alive(call: Call) -> Response:
    form: forms.AliveForm = call.body
    call.check_may_run(call.type)
    held = [(each.id, each.lock) for each in form.jobs]
    return answer({"locks": await call.remote.runs.alive(call.type, held, renew=form.renew)})


@endpoint(
    "POST",
    "/v1/types/{type}/ends",
    Role.WORK,
    "End several runs of a handler, each as if alone, or have them tried again",
    takes=forms.RunEndForms,
    answers={200: answer_forms.RunEndsAnswer},
)
async def ends(call: Call) -> Response:
    form: forms.RunEndForms = call.body
    call.check_may_run(call.type)
    errors = await call.remote.runs.end_all(call.type, [*map(_end, form.jobs)], len(call.raw))
    return answer({"ends": [*map(_problem, errors)]})


def _problem(error: Exception | None) -> dict[str, Any] | None:
    if error is None or isinstance(error, JobsError):
        return None if error is None else problems.problem(error)
    raise error


def _end(form: forms.RunEndForm) -> RunEnd:
    error = form.error
    return RunEnd(
        form.id,
        form.lock,
        form.end,
        outcome=Outcome(form.outcome),
        result=form.result if "result" in form.model_fields_set else UNSET,
        error=None if error is None else JobError(error.type, error.message, error.traceback),
        reason=form.reason,
        run_at=form.run_at,
        asked=None if form.asked is None else (form.asked.priority, form.asked.run_at),
        max_history=form.max_history,
        crashes=form.crashes,
        attempts=form.attempts,
        anew=form.anew,
    )


@endpoint(
    "GET",
    "/v1/types/{type}/due",
    Role.READ,
    "How many jobs could run now",
    query=forms.DueQuery,
    answers={200: answer_forms.CountForm},
)
async def due(call: Call) -> Response:
    query: forms.DueQuery = call.query
    return answer({"count": await call.remote.runs.count_due(call.type, query.limit, query.max_priority)})


@endpoint(
    "POST",
    "/v1/types/{type}/watch",
    Role.READ,
    "Wait until something of a type has changed",
    takes=forms.WatchForm,
    answers={200: answer_forms.WatchAnswer},
    changes=False,
    is_long=True,
)
async def watch(call: Call) -> Response:
    return _Watching(call)


class _Watching(Response):
    """Waits for a change while its client is connected."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self._call = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = self._call.state
        with state.polls.taken_by(self._call.who.name or self._call.client):
            async with Presence(self._call.request) as presence:
                try:
                    found = await presence.unless_gone(self._changed(), state.closing, _nothing)
                except Gone:
                    return
            await answer(found or {"stamp": self._call.body.stamp or ""})(scope, receive, send)

    async def _changed(self) -> dict[str, Any]:
        """Return the answer after a change, or at the end of the time."""
        call, form = self._call, self._call.body
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(form.timeout, call.state.options.limits.poll_time)
        stamp, known, due_in = await call.remote.stamp(call.type, form.of, form.stamp)
        if known is not None:
            until = deadline if due_in is None else min(deadline, loop.time() + due_in)
            try:
                async with asyncio.timeout_at(until):
                    await call.remote.until_fired(known)
            except (TimeoutError, StoreError):
                pass  # a job is due, the time is over, or the watch was lost: the client reads again
            finally:
                known.cancel()
            stamp = (await call.remote.stamp(call.type, form.of, None))[0]
        return {"stamp": stamp, **await self._value()}

    async def _value(self) -> dict[str, Any]:
        """Return the value of a setting, as old as its stamp or newer."""
        service, type = self._call.service, self._call.type
        match self._call.body.of:
            case "timeout":
                [settings] = await service.type_settings([type])
                return {"timeout": settings.timeout}
            case "redaction":
                return {"redact": [*(await service.get_redaction(type)).paths]}
        return {}


async def _nothing(_: object) -> None:
    """Give nothing back: nothing was taken."""


@endpoint(
    "POST",
    "/v1/types/{type}/tick",
    Role.WRITE,
    "Add the jobs of a periodic handler that are due",
    takes=forms.TickForm,
    answers={200: answer_forms.TickAnswer},
)
async def tick(call: Call) -> Response:
    form: forms.TickForm = call.body
    call.check_may_run(call.type)
    schedule = form.every if form.every is not None else (form.cron or "", form.timezone)
    done = await call.remote.runs.tick(
        *(call.type, form.data, schedule, form.missed, form.overlap, form.timeout, form.most, form.seen)
    )
    if done.ids:
        call.changed("tick", type=call.type, jobs=len(done.ids))
    return answer({**done._asdict(), "in_the_way": done.in_the_way is not None})
