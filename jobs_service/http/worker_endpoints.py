"""Endpoints for workers and runners elsewhere: to take jobs, send heartbeats, and end runs.

A job's lock is the right to do so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from jobs_service import json_types
from jobs_service.errors import JobsError, StoreError, WorkerConflict
from jobs_service.http import forms, problems, wire
from jobs_service.http.endpoint import Call, answer, endpoint, pieces
from jobs_service.http.problems import Refusal
from jobs_service.http.state import Accept
from jobs_service.http.streams import ClientPresence, Gone
from jobs_service.http.tokens import Role
from jobs_service.log import EventLog
from jobs_service.model import Outcome, RunningJob
from jobs_service.service.remote import RunEnd

log = EventLog("jobs_service.http")


# Accepting


@endpoint("POST /v1/types/{type}/accept", Role.WORK, "Take jobs, and wait for them", wire.JobsForm, is_long=True)
async def accept(call: Call, form: forms.AcceptForm) -> Response:
    if call.state.closing.is_set():
        # Not an empty answer: a client would repeat the request at once.
        raise Refusal("busy", "the server is about to end; ask the next one", headers={"Retry-After": "1"})
    return _Accepting(call, form)


@endpoint(
    "POST /v1/types/{type}/give_back", Role.WORK, "Give back what an accept has taken, or will take", wire.CountForm
)
async def give_back(call: Call, form: forms.AcceptKeyForm) -> Response:
    jobs = call.state.accepts.cancel(_key(call, form))
    await _give_back(jobs)
    return answer({"count": len(jobs)})


def _key(call: Call, form: Any) -> tuple[str, Any, str]:
    """Return the key under which an accept is remembered: only its own caller finds it again."""
    return call.who.name, call.type, form.key


class _Accepting(Response):
    """Waits for jobs while its client is connected, and gives back jobs that the client did not get."""

    def __init__(self, call: Call, form: forms.AcceptForm) -> None:
        super().__init__()
        self._call = call
        self._form = form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._form.key is None:
            return await self._accept(Accept(0.0), scope, receive, send)
        known = await self._call.state.accepts.begin(_key(self._call, self._form))
        if known.jobs or known.canceled:
            return await answer({"jobs": await self._still_held(known.jobs)})(scope, receive, send)
        try:
            await self._accept(known, scope, receive, send)
        finally:
            known.answered.set()

    async def _still_held(self, jobs: Sequence[RunningJob]) -> list[Any]:
        """Return the jobs of an earlier accept that are still held by its locks."""
        return [wire.running_job(job) for job in await self._call.remote.still_held(jobs)]

    async def _accept(self, accept: Accept, scope: Scope, receive: Receive, send: Send) -> None:
        """Take jobs, note them in `accept`, and send them."""
        call, form = self._call, self._form
        state = call.state
        timeout = min(form.timeout, state.options.limits.poll_time)
        with state.polls.taken_by(call.who.name or call.client):
            async with ClientPresence(call.request) as presence:
                work = call.remote.accept(
                    call.type,
                    form.limit,
                    max_priority=form.max_priority,
                    due_by=form.due_by,
                    timeout=timeout,
                    spread=form.spread,
                    worker=form.worker or call.who.name or f"http {call.client}",
                    max_history=form.max_history,
                )
                try:
                    found: list[RunningJob] = await presence.unless_gone(work, state.closing, _give_back) or []
                except Gone:
                    return
                try:
                    body = b"".join([piece async for piece in pieces("jobs", map(wire.running_job, found))])
                except JobsError:
                    await _give_back(found)
                    raise
                if accept.canceled:
                    await _give_back(found)
                    return await answer({"jobs": []})(scope, receive, send)
                accept.jobs = found
                headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                if presence.is_gone:
                    accept.jobs = ()
                    await _give_back(found)
                    return
                await send({"type": "http.response.body", "body": body})


async def _give_back(jobs: Sequence[RunningJob]) -> None:
    """Give back jobs of a client that has gone."""
    for job in jobs:
        try:
            await job.release()
        except WorkerConflict:
            continue  # the run has ended, or was lost since
        except JobsError as error:
            log.warning("release_failed", type=job.type, id=job.id, error=str(error))


# Running jobs


@endpoint(
    "POST /v1/types/{type}/jobs/{id}/update",
    Role.WORK,
    "Say that a job is alive, and perhaps what its data is now",
    wire.JobForm,
)
async def update(call: Call, form: forms.UpdateForm) -> Response:
    if not form.healthy:
        held = call.remote.held(call.type, call.id, form.lock)
        return answer(wire.running_job(await held.update(form.get("data"))))
    job = await call.remote.runs.healthy(call.type, call.id, form.lock)
    if isinstance(job, Exception):
        raise job
    return answer(wire.running_job(job))


@endpoint(
    "POST /v1/types/{type}/jobs/{id}/progress",
    Role.WORK,
    "Say how far a job has come; it is alive as well",
    wire.JobForm,
)
async def progress(call: Call, form: forms.SaidProgress) -> Response:
    # The record has the number of the attempt.
    running = call.remote.running(await call.service.get(call.type, call.id), form.lock)
    found = await running.progress(form.done, form.total, form.message)
    return answer(wire.running_job(found))


@endpoint("POST /v1/types/{type}/jobs/{id}/finish", Role.WORK, "End a run", wire.JobForm)
async def finish(call: Call, form: forms.FinishForm) -> Response:
    error = None if form.error is None else form.error.error
    job = await call.remote.held(call.type, call.id, form.lock).finish(
        form.get("data"), outcome=Outcome(form.outcome), result=form.get("result"), error=error
    )
    return answer(await call.state.changed_form(job))


@endpoint("POST /v1/types/{type}/jobs/{id}/release", Role.WORK, "Give a job back: it is pending again", wire.JobForm)
async def release(call: Call, form: forms.LockForm) -> Response:
    job = await call.remote.held(call.type, call.id, form.lock).release()
    return answer(await call.state.changed_form(job))


# Runners


@endpoint(
    "POST /v1/types/{type}/declare",
    Role.WORK,
    "Make a type where it is missing, with what its handler says",
    wire.DeclaredAnswer,
)
async def declare(call: Call, form: forms.DeclaredForm) -> Response:
    # An operator needs the same roles for these settings.
    may: dict[str, bool] = {"may_change": call.who.role >= Role.WRITE, "may_show": call.who.role >= Role.ADMIN}
    kept = form.keep, form.keep_failed
    found, hidden = await call.remote.runs.declare(call.type, form.timeout, *kept, form.redact, **may)
    call.changed("declare", type=call.type, jobs=0)
    redact = None if hidden is None else [*hidden.paths]
    return answer({"timeout": found.timeout, **json_types.plain(found.retention), "redact": redact})


@endpoint(
    "POST /v1/types/{type}/alive",
    Role.WORK,
    "Say that several jobs are alive, and learn whether they are still the worker's",
    wire.LocksAnswer,
)
async def alive(call: Call, form: forms.AliveForm) -> Response:
    held = [(each.id, each.lock) for each in form.jobs]
    return answer({"locks": await call.remote.runs.alive(call.type, held, renew=form.renew)})


@endpoint(
    "POST /v1/types/{type}/ends",
    Role.WORK,
    "End several runs of a handler, each as if alone, or have them tried again",
    wire.RunEndsAnswer,
)
async def ends(call: Call, form: forms.RunEndForms) -> Response:
    errors = await call.remote.runs.end_all(call.type, [*map(_end, form.jobs)], len(call.raw))
    return answer({"ends": [*map(_problem, errors)]})


def _problem(error: Exception | None) -> dict[str, Any] | None:
    if error is None or isinstance(error, JobsError):
        return None if error is None else problems.problem(error)
    raise error


def _end(form: forms.RunEndForm) -> RunEnd:
    values = {field.name: getattr(form, field.name) for field in fields(RunEnd)}
    values |= {"outcome": Outcome(form.outcome), "result": form.get("result")}
    values["error"] = None if form.error is None else form.error.error
    values["asked"] = None if form.asked is None else (form.asked.priority, form.asked.run_at)
    return RunEnd(**values)


@endpoint("GET /v1/types/{type}/due", Role.READ, "How many jobs could run now", wire.CountForm)
async def due(call: Call, query: forms.DueQuery) -> Response:
    return answer({"count": await call.remote.runs.count_due(call.type, query.limit, query.max_priority)})


@endpoint(
    "POST /v1/types/{type}/watch",
    Role.READ,
    "Wait until something of a type has changed",
    wire.WatchAnswer,
    changes=False,
    is_long=True,
)
async def watch(call: Call, form: forms.WatchForm) -> Response:
    return _Watching(call, form)


class _Watching(Response):
    """Waits for a change while its client is connected."""

    def __init__(self, call: Call, form: forms.WatchForm) -> None:
        super().__init__()
        self._call = call
        self._form = form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = self._call.state
        with state.polls.taken_by(self._call.who.name or self._call.client):
            async with ClientPresence(self._call.request) as presence:
                try:
                    found = await presence.unless_gone(self._changed(), state.closing, _nothing)
                except Gone:
                    return
            await answer(found or {"stamp": self._form.stamp or ""})(scope, receive, send)

    async def _changed(self) -> dict[str, Any]:
        """Return the answer after a change, or at the end of the time."""
        call, form = self._call, self._form
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
        match self._form.of:
            case "timeout":
                [settings] = await service.type_settings([type])
                return {"timeout": settings.timeout}
            case "redaction":
                return {"redact": [*(await service.get_redaction(type)).paths]}
        return {}


async def _nothing(_: object) -> None:
    """Give nothing back: nothing was taken."""


@endpoint("POST /v1/types/{type}/tick", Role.WRITE, "Add the jobs of a periodic handler that are due", wire.TickAnswer)
async def tick(call: Call, form: forms.TickForm) -> Response:
    call.check_may_run(call.type)
    schedule = form.every if form.every is not None else (form.cron or "", form.timezone)
    done = await call.remote.runs.tick(
        *(call.type, form.data, schedule, form.missed, form.overlap, form.timeout, form.most, form.seen)
    )
    if done.ids:
        call.changed("tick", type=call.type, jobs=len(done.ids))
    return answer({**done._asdict(), "in_the_way": done.in_the_way is not None})
