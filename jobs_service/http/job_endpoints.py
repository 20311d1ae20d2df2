"""Endpoints of jobs: to add, list, read, change and remove them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import Response, StreamingResponse

from jobs_service.errors import InvalidJob
from jobs_service.http import answer_forms, bodies, creation, forms, wire
from jobs_service.http.audit import chosen
from jobs_service.http.endpoint import Call, Flowing, Form, answer, endpoint, long_answer
from jobs_service.http.refusals import Refusal
from jobs_service.http.roles import Role
from jobs_service.model import Job, JobId, JobType
from jobs_service.service import queries
from jobs_service.service.bulk_actions import act_on_some, asked
from jobs_service.service.failures import newest_failures

_LINES = {bodies.NDJSON: "A line of JSON for each job"}
_REPLAYED = {"Idempotency-Replayed": "true"}
_CHUNK = 1 << 16
_LEAST = 200


@endpoint(
    "POST",
    "/v1/types/{type}/jobs",
    Role.WRITE,
    "Add a job, or several",
    takes=forms.CreateForm,
    answers={200: answer_forms.JobForm, 201: answer_forms.JobForm},
    media=_LINES,
)
async def create(call: Call) -> Response:
    call.check_may_run(call.type)
    key = creation.key_of(call.request)
    if bodies.kind_of(call.request) == bodies.NDJSON:
        return Flowing(creation.add_stream(call, key), bodies.NDJSON)
    form: forms.CreateForm = call.body
    if form.jobs is None:
        job, was_there = await creation.add(call, form, key, call.raw)
        found = await call.state.changed_form(job) if isinstance(job, Job) else job
        call.changed("add", type=call.type, id=wire.name_of(found["id"]), jobs=int(not was_there), **_how(form))
        return answer(found, 200 if was_there else 201, _REPLAYED if key is not None and was_there else None)
    if form.model_fields_set - {"jobs", "if_exists"}:
        raise InvalidJob("`jobs` goes with if_exists alone").about(call.type)
    added, was_there = await creation.add_together(call, form.jobs, form.if_exists or "error", key, call.raw)
    call.changed("add", type=call.type, jobs=0 if was_there else len(added), **_how(form))
    shown = await creation.shown_jobs(call, added)
    return await long_answer("jobs", shown, 200 if was_there else 201, _REPLAYED if was_there else None)


@endpoint(
    "GET",
    "/v1/types/{type}/jobs",
    Role.READ,
    "List jobs",
    query=forms.ListQuery,
    answers={200: answer_forms.JobsPageForm},
    media=_LINES,
)
async def list_jobs(call: Call) -> Response:
    query: forms.ListQuery = call.query
    if _wants_lines(call):
        if query.model_fields_set - {"state", "prefix"}:
            raise Refusal("invalid-request", "as NDJSON there are state and prefix alone: it has every job")
        return await _lines(call, call.type, query.state, query.prefix)
    page = await call.service.page(
        call.type,
        state=query.state,
        limit=query.limit,
        after=query.after,
        newest_first=query.newest_first,
        prefix=query.prefix,
    )
    return await long_answer("jobs", await call.state.job_forms(page.jobs), more={"next": page.next})


@endpoint(
    "GET",
    "/v1/jobs",
    Role.READ,
    "List the jobs of all types, as NDJSON",
    query=forms.AllJobsQuery,
    media=_LINES,
)
async def list_all(call: Call) -> Response:
    if not _wants_lines(call):
        raise Refusal("not-acceptable", "send Accept: application/x-ndjson; the jobs of one type are listed in pages")
    return await _lines(call, None, call.query.state, None)


@endpoint(
    "GET",
    "/v1/failures",
    Role.READ,
    "Failed and retrying jobs of all types, grouped by what went wrong",
    answers={200: answer_forms.FailuresForm},
)
async def failures(call: Call) -> Response:
    found = await newest_failures(call.service, await call.service.counts())
    groups = [group.to_dict() for group in found.groups]
    return answer({"groups": groups, "failed": found.failed, "retrying": found.retrying, "read": found.read})


@endpoint(
    "GET",
    "/v1/types/{type}/jobs/{id}",
    Role.READ,
    "Look at a job",
    query=forms.JobQuery,
    answers={200: answer_forms.JobForm},
)
async def get(call: Call) -> Response:
    job: Job = await call.service.get(call.type, call.id)
    lock: bytes | None = call.query.lock
    if lock is not None:
        return answer(call.state.running_form(call.remote.running(job, lock)))
    return answer((await call.service.get_redaction(call.type)).job(job).to_dict())


@endpoint(
    "DELETE",
    "/v1/types/{type}/jobs/{id}",
    Role.WRITE,
    "Remove a job; one that runs is asked to end",
    query=forms.RemoveQuery,
    answers={200: answer_forms.RemovalForm},
)
async def remove(call: Call) -> Response:
    query: forms.RemoveQuery = call.query
    removal = await call.changes.remove(call.type, call.id, query.seq, force=query.force)
    return answer({"removal": removal.value})


@endpoint(
    "POST",
    "/v1/types/{type}/jobs/{id}/cancel",
    Role.WRITE,
    "Ask a job that runs to end, remove one that waits; one that has ended is left alone",
    takes=forms.CancelForm,
    answers={200: answer_forms.CancellationForm},
)
async def cancel(call: Call) -> Response:
    form: forms.CancelForm = call.body
    removal = await call.changes.cancel(call.type, call.id, form.seq)
    return answer({"removal": "unchanged" if removal is None else removal.value})


@endpoint(
    "POST",
    "/v1/types/{type}/jobs/{id}/resubmit",
    Role.WORK,
    "Have a job run again; with a lock, a worker asks that of its own (otherwise the role write is needed)",
    takes=forms.ResubmitForm,
    answers={200: answer_forms.JobForm},
)
async def resubmit(call: Call) -> Response:
    form: forms.ResubmitForm = call.body
    call.check_may_run(call.type)
    if form.lock is not None:
        if form.seq is not None:
            raise InvalidJob("seq goes without a lock: who has the lock knows the job").about(call.type, call.id)
        running = await call.remote.held(call.type, call.id, form.lock).resubmit(**form.given())
        return answer(call.state.running_form(running))
    if call.who.role < Role.WRITE:
        raise Refusal("forbidden", f"this needs the role write, or a lock; {call.who.name} has {call.who.role.label}")
    job = await call.changes.resubmit(call.type, call.id, form.seq, form.given(), _how(form))
    return answer(await call.state.changed_form(job))


@endpoint(
    "POST",
    "/v1/types/{type}/bulk",
    Role.WRITE,
    "Do something with all jobs that match",
    takes=forms.BulkForm,
    answers={200: answer_forms.BulkAnswer},
)
async def bulk(call: Call) -> Response:
    form: forms.BulkForm = call.body
    if form.action == "resubmit":
        call.check_may_run(call.type)
    what = await asked(call.service, form.action, call.type, form.filter, who=call.who.name)
    done = await act_on_some(call.service, what, form.limit, after=form.after, dry_run=form.dry_run)
    if not form.dry_run:
        said = wire.loads(call.raw)
        noted = {"filter": chosen(said["filter"]), "limit": form.limit, "matched": done.matched}
        call.changed(f"bulk_{form.action}", type=call.type, jobs=done.changed, **noted)
    found = dataclasses.asdict(done)
    del found["read"]
    return answer({**found, "more": done.next is not None})


def _how(form: Form) -> dict[str, Any]:
    """Return the options of a request for the audit log; job contents are reduced to the fact that they were given."""
    said = {name: getattr(form, name) for name in sorted(form.model_fields_set - {"id", "jobs", "lock"})}
    return {name: True if name in ("data", "unique") else value for name, value in said.items()}


def _wants_lines(call: Call) -> bool:
    return bodies.NDJSON in call.request.headers.get("accept", "")


async def _lines(call: Call, type: JobType | None, state: str | None, prefix: JobId | None) -> Response:
    """Answer with every job, one per line, as jobs are read."""
    begins = None if prefix is None else queries.begins_with(prefix)
    found: Any = call.service.list(type, state=state)
    # An invalid name or an unavailable store makes a problem, not an answer that breaks off.
    first: Job | None = await anext(found, None)

    async def lines() -> AsyncIterator[bytes]:
        page: list[Job] = []
        size = told = 0
        job = first
        try:
            while job is not None:
                if begins is None or begins(job.id):
                    page.append(job)
                    size += queries.size_of(job) + _LEAST
                    told += 1
                if size > _CHUNK:
                    yield await packed(page)
                    page, size = [], 0
                    await asyncio.sleep(0)
                job = await anext(found, None)
            yield await packed(page)
        finally:
            what = {name: value for name, value in (("state", state), ("prefix", prefix)) if value is not None}
            call.state.audit.exported(call.who.name, call.client, type, jobs=told, what=what)

    async def packed(page: list[Job]) -> bytes:
        return b"".join(wire.dumps(form) + b"\n" for form in await call.state.job_forms(page))

    return StreamingResponse(lines(), media_type=bodies.NDJSON)
