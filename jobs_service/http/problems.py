"""Errors as problem details (RFC 9457), and back to the same errors.

The `type` of a problem is stable: `/problems/` and the slug of the error's class, as in `/problems/job-not-found`. Its
`detail` is the error's text; `job_type` and `job_id` name its job.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from jobs_service import errors, json_forms
from jobs_service.errors import JobsError
from jobs_service.http import wire
from jobs_service.http.refusals import KINDS, Refusal
from jobs_service.model import JobError
from jobs_service.model.command_result import CommandFailed, CommandResult

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
        found["error"] = json_forms.error(own["error"])
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
            setattr(error, name, wire.name_of(found[key]))
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
        return json_forms.name(value)
    except Exception:  # any error of the tuple layer for values that it cannot encode
        return None
