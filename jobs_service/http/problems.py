"""Errors as problem details (RFC 9457), and back to the same errors.

The `type` of a problem is stable: `/problems/` and the slug of the error's class, as in `/problems/job-not-found`. Its
`detail` is the error's text; `job_type` and `job_id` name its job.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from jobs_service import errors, json_types, names
from jobs_service.errors import AccessDenied, InvalidJob, JobsError, JobTooLarge, StoreUnavailable
from jobs_service.http import wire
from jobs_service.model import JobError
from jobs_service.model.process import CommandFailed, CommandResult

MEDIA_TYPE: Final = "application/problem+json"
PREFIX: Final = "/problems/"
ERRORS: Final[Mapping[str, type[JobsError]]] = {
    kind.slug: kind
    for kind in (*vars(errors).values(), CommandFailed)
    if isinstance(kind, type) and issubclass(kind, JobsError)
}
"""The errors that applications meet, by slug."""
_PLAIN: Final = ("outcome", "after", "reason", "seconds")
"""Extra attributes of some errors; their values are JSON already."""


class Kind(NamedTuple):
    """One kind of refusal.

    Attributes:
        status: of the answer.
        title: its summary, the same for all refusals of the kind.
        error: the error that JobsClient raises for it.
    """

    status: int
    title: str
    error: type[JobsError] = JobsError


KINDS: Final[Mapping[str, Kind]] = {
    "bad-request": Kind(400, "The request cannot be read", InvalidJob),
    "unauthorized": Kind(401, "A token is needed", AccessDenied),
    "forbidden": Kind(403, "The role is not enough", AccessDenied),
    "read-only": Kind(403, "The server changes nothing", AccessDenied),
    "commands-forbidden": Kind(403, "Commands are not reachable", AccessDenied),
    "internal-type": Kind(403, "The type is the service's own", AccessDenied),
    "host-not-allowed": Kind(403, "The host is not one of this server", AccessDenied),
    "cross-site": Kind(403, "The request comes from another site", AccessDenied),
    "not-found": Kind(404, "There is no such address"),
    "method-not-allowed": Kind(405, "The address does not take this method"),
    "not-acceptable": Kind(406, "The address does not answer in this form"),
    "too-slow": Kind(408, "The request did not come in time", StoreUnavailable),
    "body-too-large": Kind(413, "The body is too large", JobTooLarge),
    "unsupported-media-type": Kind(415, "The body is of another kind than the address takes"),
    "invalid-request": Kind(422, "The request says what cannot be", InvalidJob),
    "idempotency-key-reused": Kind(422, "The idempotency key came with another request before"),
    "too-many-requests": Kind(429, "The client has too much open", StoreUnavailable),
    "headers-too-large": Kind(431, "The headers are too large"),
    "internal": Kind(500, "The server failed"),
    "busy": Kind(503, "The server has too much to do", StoreUnavailable),
}
"""The kinds, by slug: the last segment of a problem's `type`."""

CLOSING: Final = frozenset({"too-slow", "body-too-large", "headers-too-large", "busy"})
"""Kinds after which the connection is closed, without waiting for the rest of the request."""


class Refusal(JobsError):
    """A request is answered with a problem.

    Args:
        slug: one of KINDS.
        detail: one line: the fault, and its remedy.
        headers: of the answer.
        fields: further members of the problem.

    Attributes:
        slug, http_status, title: of its kind.
        is_denial: whether it is due to the caller or the origin of the request; the audit log notes these.
        headers, fields: as the arguments.
    """

    def __init__(self, slug: str, detail: str, *, headers: Mapping[str, str] | None = None, **fields: Any) -> None:
        super().__init__(detail)
        kind = KINDS[slug]
        self.slug, self.http_status, self.title = slug, kind.status, kind.title
        self.is_denial = kind.error is AccessDenied
        self.headers = {**(headers or {}), **({"Connection": "close"} if slug in CLOSING else {})}
        self.fields = fields


def title_of(kind: type[JobsError]) -> str:
    """Return the summary of a kind of error, the same for all problems of the kind."""
    return (ERRORS[kind.slug].__doc__ or "").partition("\n")[0]


def problem(error: JobsError) -> dict[str, Any]:
    """Return an error as a problem; its `status` is the answer's."""
    title = error.title if isinstance(error, Refusal) else title_of(type(error))
    found = {"type": PREFIX + error.slug, "title": title, "status": error.http_status, "detail": str(error)}
    if isinstance(error, Refusal):
        return {**found, **error.fields}
    for name, value in (("job_type", error.type), ("job_id", error.id)):
        if value is not None and (form := _name(value)) is not None:
            found[name] = form
    if isinstance(error, errors.StoreError):
        found["retryable"] = error.retryable
    own = vars(error)
    found.update({name: own[name] for name in _PLAIN if name in own})
    if isinstance(own.get("error"), JobError):
        found["error"] = names.error(own["error"])
    if isinstance(own.get("result"), CommandResult):
        found["result"] = dataclasses.asdict(own["result"])
    return found


def error_of(found: Mapping[str, Any]) -> JobsError:
    """Return the error of a problem, with the same class, text and attributes; the inverse of `problem`.

    A problem that only a server raises becomes the nearest error, with its text.
    """
    slug = str(found.get("type", "")).removeprefix(PREFIX)
    cls = ERRORS.get(slug) or (KINDS[slug].error if slug in KINDS else JobsError)
    error = cls.__new__(cls)  # the problem has the error's text, not the arguments of its class
    JobsError.__init__(
        error, str(found.get("detail") or found.get("title") or "the server refused, and does not say why")
    )
    for name, key in (("type", "job_type"), ("id", "job_id")):
        if key in found:
            setattr(error, name, json_types.name_of(found[key]))
    for name in _PLAIN:
        if name in found:
            setattr(error, name, found[name])
    if cls is errors.JobFailed:
        error.error = wire.error_of(found.get("error"))  # type: ignore[attr-defined]
    if cls is CommandFailed:
        result = found.get("result")
        error.result = None if result is None else CommandResult(**result)  # type: ignore[attr-defined]
    return error


def _name(value: Any) -> Any:
    """Return a type or id as JSON; None for an invalid one, which an error may name."""
    try:
        names.check_name("type", value)
    except JobsError:
        return None
    return names.name(value)
