"""Endpoints for workers elsewhere: to take jobs, send heartbeats, and end runs. A job's lock is the right to do so."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from jobs_service.errors import JobsError, WorkerConflict
from jobs_service.http import answer_forms, forms, problems
from jobs_service.http.accepts import Accept
from jobs_service.http.endpoint import Call, answer, endpoint, long_answer, pieces
from jobs_service.http.refusals import Refusal
from jobs_service.http.roles import Role
from jobs_service.http.waiting import Gone, Presence
from jobs_service.log import EventLog
from jobs_service.model import UNSET, Job, Outcome, RunningJob
from jobs_service.model.terms import exact_type

log = EventLog("jobs_service.http")


@endpoint(
    "POST",
    "/v1/types/{type}/accept",
    Role.WORK,
    "Take jobs, and wait for them",
    takes=forms.AcceptForm,
    answers={200: answer_forms.JobsForm},
    is_long=True,
)
async def accept(call: Call) -> Response:
    call.check_may_run(call.type)
    if call.state.closing.is_set():
        # Not an empty answer: a client would repeat the request at once.
        raise Refusal("busy", "the server is about to end; ask the next one", headers={"Retry-After": "1"})
    return _Accepting(call)


@endpoint(
    "POST",
    "/v1/types/{type}/give_back",
    Role.WORK,
    "Give back what an accept has taken, or will take",
    takes=forms.AcceptKeyForm,
    answers={200: answer_forms.CountForm},
)
async def give_back(call: Call) -> Response:
    jobs = call.state.accepts.cancel(_key(call))
    await _give_back(jobs)
    return answer({"count": len(jobs)})


def _key(call: Call) -> tuple[str, Any, str]:
    """Return the key under which an accept is remembered: only its own caller finds it again."""
    return call.who.name, exact_type(call.type), call.body.key


class _Accepting(Response):
    """Waits for jobs while its client is connected, and gives back jobs that the client did not get."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self._call = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = self._call.body.key
        if key is None:
            return await self._accept(Accept(0.0), scope, receive, send)
        known = await self._call.state.accepts.begin(_key(self._call))
        if known.jobs or known.canceled:
            return await answer({"jobs": await self._still_held(known.jobs)})(scope, receive, send)
        try:
            await self._accept(known, scope, receive, send)
        finally:
            known.answered.set()

    async def _still_held(self, jobs: Sequence[RunningJob]) -> list[Any]:
        """Return the jobs of an earlier accept that are still held by its locks."""
        return [self._call.state.running_form(job) for job in await self._call.remote.still_held(jobs)]

    async def _accept(self, accept: Accept, scope: Scope, receive: Receive, send: Send) -> None:
        """Take jobs, note them in `accept`, and send them."""
        call, form = self._call, self._call.body
        state = call.state
        timeout = min(form.timeout, state.options.limits.poll_time)
        with state.polls.taken_by(call.who.name or call.client):
            async with Presence(call.request) as presence:
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
                    body = b"".join([piece async for piece in pieces("jobs", map(state.running_form, found))])
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


def _held(call: Call) -> RunningJob:
    found: RunningJob = call.remote.held(call.type, call.id, call.body.lock)
    return found


def _data(form: Any) -> Any:
    return form.data if "data" in form.model_fields_set else UNSET


@endpoint(
    "POST",
    "/v1/types/{type}/jobs/{id}/update",
    Role.WORK,
    "Say that a job is alive, and perhaps what its data is now",
    takes=forms.UpdateForm,
    answers={200: answer_forms.JobForm},
)
async def update(call: Call) -> Response:
    call.check_may_run(call.type)
    if not call.body.healthy:
        return answer(call.state.running_form(await _held(call).update(_data(call.body))))
    job = await call.remote.runs.healthy(call.type, call.id, call.body.lock)
    if isinstance(job, Exception):
        raise job
    return answer(call.state.running_form(job))


@endpoint(
    "POST",
    "/v1/types/{type}/jobs/{id}/progress",
    Role.WORK,
    "Say how far a job has come; it is alive as well",
    takes=forms.SaidProgress,
    answers={200: answer_forms.JobForm},
)
async def progress(call: Call) -> Response:
    form: forms.SaidProgress = call.body
    call.check_may_run(call.type)
    # The record has the number of the attempt.
    running = call.remote.running(await call.service.get(call.type, call.id), form.lock)
    found = await running.progress(form.done, form.total, form.message)
    return answer(call.state.running_form(found))


@endpoint(
    "POST",
    "/v1/types/{type}/jobs/{id}/finish",
    Role.WORK,
    "End a run",
    takes=forms.FinishForm,
    answers={200: answer_forms.JobForm},
)
async def finish(call: Call) -> Response:
    call.check_may_run(call.type)
    return answer(await call.state.changed_form(await _finished(call, call.id, call.body)))


async def _finished(call: Call, id: Any, form: forms.FinishForm) -> Job:
    error = None if form.error is None else form.error.error
    result = form.result if "result" in form.model_fields_set else UNSET
    job: RunningJob = call.remote.held(call.type, id, form.lock)
    return await job.finish(_data(form), outcome=Outcome(form.outcome), result=result, error=error)


@endpoint(
    "POST",
    "/v1/types/{type}/finish",
    Role.WORK,
    "End several runs, each as if alone",
    takes=forms.EndedForms,
    answers={200: answer_forms.EndedAnswer},
)
async def finish_several(call: Call) -> Response:
    call.check_may_run(call.type)

    async def one(form: forms.EndedForm) -> Job | dict[str, Any]:
        try:
            return await _finished(call, form.id, form)
        except JobsError as error:
            return {"problem": problems.problem(error)}

    ended = await asyncio.gather(*map(one, call.body.jobs))
    shown = await call.state.changed_forms(each for each in ended if isinstance(each, Job))
    return await long_answer("jobs", (next(shown) if isinstance(each, Job) else each for each in ended))


@endpoint(
    "POST",
    "/v1/types/{type}/jobs/{id}/fail",
    Role.WORK,
    "End a run as failed; it is not tried again by itself",
    takes=forms.FailForm,
    answers={200: answer_forms.JobForm},
)
async def fail(call: Call) -> Response:
    form: forms.FailForm = call.body
    call.check_may_run(call.type)
    found = await _held(call).finish(_data(form), outcome=Outcome.FAILED, error=form.error.error)
    return answer(await call.state.changed_form(found))


@endpoint(
    "POST",
    "/v1/types/{type}/jobs/{id}/release",
    Role.WORK,
    "Give a job back: it is pending again",
    takes=forms.LockForm,
    answers={200: answer_forms.JobForm},
)
async def release(call: Call) -> Response:
    call.check_may_run(call.type)
    return answer(await call.state.changed_form(await _held(call).release()))
