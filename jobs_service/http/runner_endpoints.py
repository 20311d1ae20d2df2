"""Endpoints for runners of handlers elsewhere, beside the workers' ones: `runner.service_access` as JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, cast

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from jobs_service import run_data
from jobs_service.arguments import check_keep, check_seconds, json_of
from jobs_service.errors import JobsError, RecordDamaged, StoreError
from jobs_service.http import answer_forms, forms, problems, wire
from jobs_service.http.endpoint import Call, answer, endpoint
from jobs_service.http.roles import Role
from jobs_service.http.waiting import Gone, Presence
from jobs_service.layer import running_jobs
from jobs_service.layer.declared_settings import Declared
from jobs_service.layer.enqueueing import Enqueueable
from jobs_service.layer.key_parts import pack_priority
from jobs_service.layer.running_jobs import RunReport
from jobs_service.model import JobType, Outcome
from jobs_service.model.type_state import Retention
from jobs_service.redaction import Redaction
from jobs_service.runner.handler import Handler
from jobs_service.runner.schedule import Cron, Every, Missed
from jobs_service.runner.service_access import EndCall, Held
from jobs_service.runner.ticker import Periodic

_HEAD: Final = 500
"""Approximate bytes of a job's record beside its worker's data."""


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
    kept = Retention(check_keep("keep", form.keep), check_keep("keep_failed", form.keep_failed))
    secret = None if form.redact is None else Redaction(form.redact)
    keys = call.remote.access.keys(call.type)
    # An operator needs the same roles for these settings.
    may: dict[str, bool] = {"may_change": call.who.role >= Role.WRITE, "may_show": call.who.role >= Role.ADMIN}
    found, hidden = await call.remote.runs.declare(keys, Declared(check_seconds(form.timeout), kept), secret, **may)
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
    held: list[Held] = [(call.remote.access.place(call.type, each.id), each.lock) for each in form.jobs]
    runs = call.remote.runs
    if form.renew:
        return answer({"locks": await runs.beat(held)})
    found, _ = await runs.look(call.remote.access.keys(call.type), held, watched=True)
    return answer({"locks": found})


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
    asked = [_end_or_error(call, each) for each in form.jobs]
    calls = [each for each in asked if not isinstance(each, JobsError)]
    errors = iter(await _end_all(call, calls) if calls else ())
    return answer({"ends": [_problem(each if isinstance(each, JobsError) else next(errors)) for each in asked]})


async def _end_all(call: Call, calls: Sequence[EndCall]) -> Sequence[Exception | None]:
    done: asyncio.Future[Sequence[Exception | None]] = asyncio.get_running_loop().create_future()

    def ended(errors: Sequence[Exception | None]) -> None:
        if not done.done():
            done.set_result(errors)

    call.remote.access.check_open()
    call.remote.runs.end_all(calls, ended, len(call.raw) + _HEAD * len(calls))
    return await done


def _problem(error: Exception | None) -> dict[str, Any] | None:
    if error is None or isinstance(error, JobsError):
        return None if error is None else problems.problem(error)
    raise error


def _end_or_error(call: Call, form: forms.RunEndForm) -> EndCall | JobsError:
    try:
        return _end(call, form)
    except JobsError as error:  # an invalid result or error concerns its own run alone
        return error


def _end(call: Call, form: forms.RunEndForm) -> EndCall:
    """Return the operation by which a runner in this process would end the run.

    Raises:
        JobsError: the store cannot hold the result or the error.
    """
    place = call.remote.access.place(call.type, form.id)
    most = form.max_history
    if form.end == "set_aside":
        return running_jobs.set_aside, place, (form.lock, RecordDamaged(form.reason).of(call.type, form.id))
    if form.end == "stop":
        return running_jobs.stop, place, (form.lock, form.run_at, most, form.reason, form.anew)
    result = json_of(call.type, form.id, form.result) if "result" in form.model_fields_set else None
    encoded = None if form.error is None else run_data.error_json(form.error.error)
    report = RunReport(result, encoded, form.reason, most, form.crashes, form.attempts)
    if form.end == "crash":
        asked = None if form.asked is None else (pack_priority(form.asked.priority), form.asked.run_at)
        return running_jobs.crash, place, (form.lock, report, form.run_at, asked)
    return running_jobs.finish, place, (form.lock, None, Outcome(form.outcome), report)


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
    most = None if query.max_priority is None else pack_priority(query.max_priority)
    keys = call.remote.access.keys(call.type)
    return answer({"count": await call.remote.runs.count_due(keys, query.limit, most)})


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
                    await call.remote.access.until_fired(known)
            except (TimeoutError, StoreError):
                pass  # a job is due, the time is over, or the watch was lost: the client reads again
            finally:
                known.cancel()
            stamp = (await call.remote.stamp(call.type, form.of, None))[0]
        return {"stamp": stamp, **await self._value()}

    async def _value(self) -> dict[str, Any]:
        """Return the value of a setting, as old as its stamp or newer."""
        runs, keys = self._call.remote.runs, self._call.remote.access.keys(self._call.type)
        match self._call.body.of:
            case "timeout":
                seconds, at = await runs.timeout(keys)
                at.cancel()
                return {"timeout": seconds}
            case "redaction":
                redaction, at = await runs.redaction(keys)
                at.cancel()
                return {"redact": [*redaction.paths]}
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
    schedule = Every(form.every) if form.every is not None else Cron(form.cron or "", form.timezone)
    handler = cast(Handler[Any, Any], _Elsewhere(call.type, check_seconds(form.timeout), form.data))
    periodic = Periodic(handler, schedule, Missed(form.missed), form.overlap)
    done = await call.remote.runs.tick(periodic, form.most, form.seen)
    if done.ids:
        call.changed("tick", type=call.type, jobs=len(done.ids))
    return answer({**done._asdict(), "in_the_way": done.in_the_way is not None})


class _Elsewhere(Enqueueable[Any, Any]):
    """A handler of another process."""

    def __init__(self, type: JobType, timeout: float, data: Any) -> None:
        self.type = type
        self._timeout = timeout
        self._data = data

    @property
    def timeout(self) -> float:
        """The activity timeout of the type when it is made, in seconds."""
        return self._timeout

    def data(self, args: Any) -> Any:
        """Return the data of its jobs."""
        return self._data
