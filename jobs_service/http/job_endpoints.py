"""Endpoints of jobs: to add, list, read, change and remove them."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from jobs_service import json_types, names
from jobs_service.errors import InvalidJob, JobsError, TransactionTooLarge
from jobs_service.http import bodies, forms, problems, wire
from jobs_service.http.audit import chosen
from jobs_service.http.endpoint import Call, Flowing, Form, answer, endpoint, long_answer
from jobs_service.http.problems import Refusal
from jobs_service.http.tokens import Role
from jobs_service.model import UNSET, Job, JobId, JobType, NewJob
from jobs_service.model.enqueueing import How
from jobs_service.redaction import Redaction
from jobs_service.service import queries
from jobs_service.service.bulk_actions import act_on_some, asked
from jobs_service.service.failures import newest_failures
from jobs_service.service.remote import RepeatableRequest, Repeated
from jobs_service.uncancelable import outlast

AT_ONCE: Final = 500
"""Most jobs of a stream that are added at the same time; they share transactions."""
_LONGEST_KEY: Final = 200

_LINES = {bodies.NDJSON: "A line of JSON for each job"}
_REPLAYED = {"Idempotency-Replayed": "true"}
_BYTES_AT_ONCE: Final = 1 << 16
"""Bytes of records after which a list as lines is sent so far."""
_BESIDE_RECORD: Final = 200
"""Approximate bytes of a line beside the job's record."""


# Endpoints


@endpoint(
    "POST /v1/types/{type}/jobs",
    Role.WRITE,
    "Add a job, or several",
    {200: wire.JobForm, 201: wire.JobForm},
    media=_LINES,
)
async def create(call: Call, form: forms.CreateForm) -> Response:
    call.check_may_run(call.type)
    key = key_of(call.request)
    if bodies.kind_of(call.request) == bodies.NDJSON:
        return Flowing(add_stream(call, key), bodies.NDJSON)
    if form.jobs is None:
        job, was_there = await add(call, form, key, call.raw)
        found = await call.state.changed_form(job) if isinstance(job, Job) else job
        call.changed("add", type=call.type, id=json_types.name_of(found["id"]), jobs=int(not was_there), **_how(form))
        return answer(found, 200 if was_there else 201, _REPLAYED if key is not None and was_there else None)
    if form.model_fields_set - {"jobs", "if_exists"}:
        raise InvalidJob("`jobs` goes with if_exists alone").about(call.type)
    added, was_there = await add_together(call, form.jobs, form.if_exists or "error", key, call.raw)
    call.changed("add", type=call.type, jobs=0 if was_there else len(added), **_how(form))
    shown = await shown_jobs(call, added)
    return await long_answer("jobs", shown, 200 if was_there else 201, _REPLAYED if was_there else None)


@endpoint("GET /v1/types/{type}/jobs", Role.READ, "List jobs", wire.JobsPageForm, media=_LINES)
async def list_jobs(call: Call, query: forms.ListQuery) -> Response:
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


@endpoint("GET /v1/jobs", Role.READ, "List the jobs of all types, as NDJSON", media=_LINES)
async def list_all(call: Call, query: forms.AllJobsQuery) -> Response:
    if not _wants_lines(call):
        raise Refusal("not-acceptable", "send Accept: application/x-ndjson; the jobs of one type are listed in pages")
    return await _lines(call, None, query.state, None)


@endpoint(
    "GET /v1/failures",
    Role.READ,
    "Failed and retrying jobs of all types, grouped by what went wrong",
    wire.FailuresForm,
)
async def failures(call: Call) -> Response:
    found = await newest_failures(call.service, await call.service.counts())
    groups = [group.to_dict() for group in found.groups]
    return answer({"groups": groups, "failed": found.failed, "retrying": found.retrying, "read": found.read})


@endpoint("GET /v1/types/{type}/jobs/{id}", Role.READ, "Look at a job", wire.JobForm)
async def get(call: Call, query: forms.JobQuery) -> Response:
    job: Job = await call.service.get(call.type, call.id)
    if query.lock is not None:
        return answer(wire.running_job(call.remote.running(job, query.lock)))
    return answer((await call.service.get_redaction(call.type)).job(job).to_dict())


@endpoint(
    "DELETE /v1/types/{type}/jobs/{id}", Role.WRITE, "Remove a job; one that runs is asked to end", wire.RemovalForm
)
async def remove(call: Call, query: forms.RemoveQuery) -> Response:
    removal = await call.changes.remove(call.type, call.id, query.seq, force=query.force)
    return answer({"removal": removal.value})


@endpoint(
    "POST /v1/types/{type}/jobs/{id}/cancel",
    Role.WRITE,
    "Ask a job that runs to end, remove one that waits; one that has ended is left alone",
    wire.CancellationForm,
)
async def cancel(call: Call, form: forms.CancelForm) -> Response:
    removal = await call.changes.cancel(call.type, call.id, form.seq)
    return answer({"removal": "unchanged" if removal is None else removal.value})


@endpoint(
    "POST /v1/types/{type}/jobs/{id}/resubmit",
    Role.WORK,
    "Have a job run again; with a lock, a worker asks that of its own (otherwise the role write is needed)",
    wire.JobForm,
)
async def resubmit(call: Call, form: forms.ResubmitForm) -> Response:
    if form.lock is not None:
        if form.seq is not None:
            raise InvalidJob("seq goes without a lock: who has the lock knows the job").about(call.type, call.id)
        running = await call.remote.held(call.type, call.id, form.lock).resubmit(**form.given())
        return answer(wire.running_job(running))
    if call.who.role < Role.WRITE:
        raise Refusal("forbidden", f"this needs the role write, or a lock; {call.who.name} has {call.who.role.label}")
    job = await call.changes.resubmit(call.type, call.id, form.seq, form.given(), _how(form))
    return answer(await call.state.changed_form(job))


@endpoint("POST /v1/types/{type}/bulk", Role.WRITE, "Do something with all jobs that match", wire.BulkAnswer)
async def bulk(call: Call, form: forms.BulkForm) -> Response:
    if form.action == "resubmit":
        call.check_may_run(call.type)
    what = await asked(call.service, form.action, call.type, form.filter, who=call.who.name)
    done = await act_on_some(call.service, what, form.limit, after=form.after, dry_run=form.dry_run)
    if not form.dry_run:
        said = json_types.loads(call.raw)
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
                    size += queries.size_of(job) + _BESIDE_RECORD
                    told += 1
                if size > _BYTES_AT_ONCE:
                    yield await packed(page)
                    page, size = [], 0
                    await asyncio.sleep(0)
                job = await anext(found, None)
            yield await packed(page)
        finally:
            what = {name: value for name, value in (("state", state), ("prefix", prefix)) if value is not None}
            call.state.audit.exported(call.who.name, call.client, type, jobs=told, what=what)

    async def packed(page: list[Job]) -> bytes:
        return b"".join(json_types.dumps(form) + b"\n" for form in await call.state.job_forms(page))

    return StreamingResponse(lines(), media_type=bodies.NDJSON)


# Adding


def key_of(request: Request) -> str | None:
    """Return the idempotency key of a request, None for none.

    Raises:
        Refusal: the key is malformed.
    """
    key = request.headers.get("idempotency-key")
    if key is None:
        return None
    if not 0 < len(key) <= _LONGEST_KEY or not (key.isascii() and key.isprintable()):
        raise Refusal("bad-request", f"an Idempotency-Key has 1 to {_LONGEST_KEY} printable characters of ASCII")
    return key


async def add(call: Call, form: forms.NewJobForm, key: str | None, raw: bytes) -> tuple[Job | dict[str, Any], bool]:
    """Add a job; return it, and whether it existed before: by the same request, or another one.

    A job that the same request added, and that is gone since, is returned as JSON.

    Args:
        call: the request.
        form: of the job.
        key: idempotency key of the request; None for none.
        raw: the form as it was sent.

    Raises:
        JobsError: as `JobsService.add` and `enqueue`.
        Refusal: another request has used the key before.
    """
    of_enqueue = (form.unique, form.unique_for, form.max_attempts, form.time_limit, form.redact)
    special = any(each is not None for each in of_enqueue)
    data = form.get("data")
    known = None if key is None else RepeatableRequest(key, hashlib.sha256(raw).digest())
    # Without an id, or with an option of `enqueue` alone, the job is enqueued: it gets an id, and its limits.
    if form.id is None or form.delay is not None or special:
        found = await _enqueued(call, form, data, known)
    else:
        found = await _added(call, form, None if data is UNSET else data, known)
    if not isinstance(found, Repeated):
        was_there = found.created is False or (found.created is None and form.if_exists not in (None, "error"))
        return found, was_there
    [now] = await _as_they_are(call, [_check_same(found)])
    return now, True


async def _enqueued(call: Call, form: forms.NewJobForm, data: Any, known: RepeatableRequest | None) -> Job | Repeated:
    how = How(**{name: getattr(form, name) for name in How._fields})
    handler = call.remote.handler(call.type, None if form.redact is None else Redaction(form.redact))
    if known is not None:
        return await call.remote.enqueue_once(known, handler, data, how)
    options = {name: value for name, value in how._asdict().items() if value is not None}
    arguments = () if data is UNSET else (data,)
    found: Job = await call.service.enqueue(handler, *arguments, **options)
    return found


async def _added(call: Call, form: forms.NewJobForm, data: Any, known: RepeatableRequest | None) -> Job | Repeated:
    options: dict[str, Any] = {"priority": form.priority, "run_at": form.run_at}
    options["if_exists"] = form.if_exists or "error"
    if known is not None:
        return await call.remote.add_once(known, call.type, form.id, data, **options)
    found: Job = await call.service.add(call.type, form.id, data, **options)
    return found


def _check_same(found: Repeated) -> JobId:
    """Return the id that the request added before; raise Refusal if the key is another request's."""
    if found.id is None:
        raise Refusal("idempotency-key-reused", "this key came with another request before; take a new one")
    return found.id


async def _as_they_are(call: Call, ids: list[JobId]) -> list[Job | dict[str, Any]]:
    """Return the present state of jobs that a request added before."""
    return [
        {"type": names.name(call.type), "id": names.name(id), "state": "removed"} if job is None else job
        for id, job in zip(ids, await call.remote.jobs(call.type, ids), strict=True)
    ]


async def add_together(
    call: Call, wanted: list[forms.JobOfSeveral], if_exists: Any, key: str | None, raw: bytes
) -> tuple[list[Job | dict[str, Any]], bool]:
    """Add several jobs; return them, and whether the same request added them before.

    Without a key, each transaction is all or nothing. With a key there is a single transaction. A repeated request
    returns the jobs as they are now; a job that is gone is returned as JSON.

    Args:
        call: the request.
        wanted: forms of the jobs.
        if_exists: as for `JobsService.add_many`.
        key: idempotency key of the request; None for none.
        raw: the form as it was sent.

    Raises:
        JobsError: as `JobsService.add_many`.
        Refusal: another request has used the key before; with a key, the jobs do not fit into one transaction.
    """
    jobs = [NewJob(form.id, form.data, form.priority, form.run_at) for form in wanted]
    if key is None or not jobs:
        return await call.service.add_many(call.type, jobs, if_exists=if_exists), False
    known = RepeatableRequest(key, hashlib.sha256(raw).digest())
    try:
        found = await call.remote.add_many_once(known, call.type, jobs, if_exists=if_exists)
    except TransactionTooLarge:
        why = "with an Idempotency-Key jobs are added in one transaction, which does not take so much; send fewer"
        raise Refusal("body-too-large", why) from None
    if not isinstance(found, Repeated):
        return [*found], False
    _check_same(found)
    return await _as_they_are(call, [job.id for job in jobs]), True


async def add_stream(call: Call, key: str | None) -> AsyncGenerator[bytes]:
    """Add the jobs of a request's lines as they come, and yield a line for each, in their order.

    The lines that have come meanwhile share transactions. A client that reads answers slowly is read slowly.
    """
    number = added = 0
    try:
        async for lines in bodies.lines(call.request, call.state.options.limits, AT_ONCE):
            keys = [None if key is None else f"{key}/{at}" for at in range(number + 1, number + len(lines) + 1)]
            adding = [asyncio.create_task(_line(call, line, own)) for line, own in zip(lines, keys, strict=True)]
            number += len(lines)
            # A canceled add would leave it unknown whether its job was added.
            canceled = await outlast(adding)
            done = [task.result() for task in adding]
            added += sum(isinstance(each, Job) for each in done)
            if canceled is not None:
                raise canceled
            yield await _answers(call, done)
    except Refusal as refusal:
        # The answer has begun: its last line says why it ends.
        yield await _answers(call, [{"problem": problems.problem(refusal)}])
    finally:
        if number:
            call.changed("add", type=call.type, jobs=added)


async def _line(call: Call, line: bytes, key: str | None) -> Job | dict[str, Any]:
    """Add the job of one line; return it, or the problem that answers the line instead."""
    try:
        form = bodies.checked(forms.NewJobForm, bodies.decoded(line, "the line"), "the line")
        found, _ = await add(call, form, key, line)
        return found
    except JobsError as error:
        return {"problem": problems.problem(error)}


async def _answers(call: Call, done: list[Job | dict[str, Any]]) -> bytes:
    """Return the answer lines for some results."""
    return b"".join(json_types.dumps(form) + b"\n" for form in await shown_jobs(call, done))


async def shown_jobs(call: Call, done: list[Job | dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Return jobs as JSON; redaction rules are read for all jobs together, and dictionaries stay as they are."""
    forms = await call.state.changed_forms([each for each in done if isinstance(each, Job)])
    return (next(forms) if isinstance(each, Job) else each for each in done)
