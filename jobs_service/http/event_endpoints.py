"""Streams of server-sent events: of one job, of several jobs, and of all changes of a type's jobs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import unquote

from starlette.responses import Response

from jobs_service import names
from jobs_service.http import forms
from jobs_service.http.endpoint import Call, endpoint
from jobs_service.http.problems import Refusal
from jobs_service.http.streams import EventStream, TypeFeed, job_parts
from jobs_service.http.tokens import Role
from jobs_service.model import JobId, JobType

_MEDIA: Final = {"text/event-stream": "Server-sent events"}
_LONGEST_ID: Final = 9_000
"""Characters: enough for the digests of a thousand jobs."""
_JOBS_OF_A_TYPE: Final = 10
"""Jobs for which a stream of a type counts."""


@endpoint(
    "GET",
    "/v1/types/{type}/jobs/{id}/events",
    Role.READ,
    "The events of a job",
    answers={204: None},
    media=_MEDIA,
    is_long=True,
)
async def job_events(call: Call) -> Response:
    return _of_jobs(call, [(call.type, call.id)], is_alone=True)


@endpoint(
    "GET",
    "/v1/events",
    Role.READ,
    "The events of several jobs",
    query=forms.EventsQuery,
    answers={204: None},
    media=_MEDIA,
    is_long=True,
)
async def events(call: Call) -> Response:
    return _of_jobs(call, [_pair(each) for each in call.query.job])


@endpoint(
    "POST",
    "/v1/events",
    Role.READ,
    "The events of several jobs",
    takes=forms.EventsForm,
    answers={204: None},
    media=_MEDIA,
    changes=False,
    is_long=True,
)
async def events_of_body(call: Call) -> Response:
    return _of_jobs(call, call.body.jobs)


@endpoint(
    "GET",
    "/v1/types/{type}/events",
    Role.READ,
    "What changes among the jobs of a type",
    media=_MEDIA,
    is_long=True,
)
async def type_events(call: Call) -> Response:
    parts = TypeFeed(call.state, call.remote.access.keys(call.type)).parts(_last_id(call))
    return EventStream(call.state, call.request, call.who, call.client, parts, _JOBS_OF_A_TYPE)


def _of_jobs(call: Call, jobs: Iterable[tuple[JobType, JobId]], *, is_alone: bool = False) -> Response:
    """Answer with the events of jobs.

    Raises:
        JobsError: a type or an id is invalid, or there is no supervisor tree.
    """
    call.service.subscribe_many([])  # raises without a supervisor tree
    wanted = dict.fromkeys(call.remote.access.place(type, id)[:2] for type, id in jobs)
    if len(wanted) > (most := call.state.options.limits.jobs_of_stream):
        raise Refusal("too-many-requests", f"a stream tells of {most} jobs at most")
    parts = job_parts(call.state, [*wanted], _last_id(call), alone=is_alone)
    return EventStream(call.state, call.request, call.who, call.client, parts, len(wanted))


def _last_id(call: Call) -> str:
    found = call.request.headers.get("last-event-id", "")
    return found if len(found) <= _LONGEST_ID else ""


def _pair(text: str) -> tuple[Any, Any]:
    """Return the type and id of a job in a query: each is percent-encoded within it."""
    type, slash, id = text.partition("/")
    try:
        if not slash:
            raise ValueError("type and id with a slash between them are needed")
        return names.parsed(unquote(type, errors="strict")), names.parsed(unquote(id, errors="strict"))
    except (ValueError, RecursionError) as error:
        raise Refusal("bad-request", f"job={text[:100]!r}: {str(error)[:200]}") from None
