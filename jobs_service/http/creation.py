"""Adding jobs over HTTP: one, several together, or a stream of them."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Iterator
from typing import Any, Final

from starlette.requests import Request

from jobs_service import json_forms
from jobs_service.errors import JobsError, TransactionTooLarge
from jobs_service.http import bodies, forms, problems, wire
from jobs_service.http.endpoint import Call
from jobs_service.http.refusals import Refusal
from jobs_service.model import UNSET, Job, JobId, NewJob
from jobs_service.model.enqueueing import How
from jobs_service.redaction import Redaction
from jobs_service.service.remote import Repeated
from jobs_service.service.remote import Request as Known
from jobs_service.uncancelable import outlast

AT_ONCE: Final = 500
"""Most jobs of a stream that are added at the same time; they share transactions."""
_LONGEST_KEY: Final = 200


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
    data = form.data if "data" in form.model_fields_set else UNSET
    known = None if key is None else Known(key, hashlib.sha256(raw).digest())
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


async def _enqueued(call: Call, form: forms.NewJobForm, data: Any, known: Known | None) -> Job | Repeated:
    how = How(
        form.id,
        form.priority,
        form.run_at,
        form.delay,
        form.unique,
        form.max_attempts,
        form.time_limit,
        form.if_exists,
        form.unique_for,
    )
    handler = call.remote.handler(call.type, None if form.redact is None else Redaction(form.redact))
    if known is not None:
        return await call.remote.enqueue_once(known, handler, data, how)
    options = {name: value for name, value in how._asdict().items() if value is not None}
    arguments = () if data is UNSET else (data,)
    found: Job = await call.service.enqueue(handler, *arguments, **options)
    return found


async def _added(call: Call, form: forms.NewJobForm, data: Any, known: Known | None) -> Job | Repeated:
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
        {"type": json_forms.name(call.type), "id": json_forms.name(id), "state": "removed"} if job is None else job
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
    known = Known(key, hashlib.sha256(raw).digest())
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
    return b"".join(wire.dumps(form) + b"\n" for form in await shown_jobs(call, done))


async def shown_jobs(call: Call, done: list[Job | dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Return jobs as JSON; redaction rules are read for all jobs together, and dictionaries stay as they are."""
    forms = await call.state.changed_forms([each for each in done if isinstance(each, Job)])
    return (next(forms) if isinstance(each, Job) else each for each in done)
