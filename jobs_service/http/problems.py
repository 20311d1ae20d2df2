"""Errors as problem details (RFC 9457), and back to the same errors.

The `type` of a problem is stable: `/problems/` and the name of the error's class, as in `/problems/job-not-found`. Its
`detail` is the error's text; `job_type` and `job_id` name its job.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from jobs_service import errors, json_forms
from jobs_service.errors import JobsError
from jobs_service.http import wire
from jobs_service.model import JobError
from jobs_service.model.command_result import CommandFailed, CommandResult

MEDIA_TYPE: Final = "application/problem+json"
PREFIX: Final = "/problems/"


class Kind(NamedTuple):
    """One kind of problem.

    Attributes:
        error: the class of its errors.
        type: its relative URI, which never changes.
        title: its summary, the same for all problems of the kind.
        status: of the HTTP answer.
    """

    error: type[JobsError]
    type: str
    title: str
    status: int


_STATUS: Final[Mapping[type[JobsError], int]] = {
    JobsError: 400,
    errors.AccessDenied: 403,
    CommandFailed: 409,
    errors.CommitUnknown: 503,
    errors.DirectoryMoved: 503,
    errors.Discard: 409,
    errors.InvalidAddress: 422,
    errors.InvalidJob: 422,
    errors.InvalidSettings: 422,
    errors.JobCanceled: 409,
    errors.JobChanged: 409,
    errors.JobExists: 409,
    errors.JobFailed: 409,
    errors.JobNotFound: 404,
    errors.JobTooLarge: 413,
    errors.NoTypeTimeout: 404,
    errors.ProcessGone: 404,
    errors.RecordDamaged: 500,
    errors.Retry: 409,
    errors.ServiceClosed: 503,
    errors.Snooze: 409,
    errors.StoreDamaged: 500,
    errors.StoreError: 500,
    errors.StoreFull: 507,
    errors.StoreLost: 503,
    errors.StoreUnavailable: 503,
    errors.SupervisorFailed: 503,
    errors.TransactionConflict: 503,
    errors.TransactionTooLarge: 413,
    errors.TransactionTooOld: 503,
    errors.WorkerConflict: 409,
}


_NAMES: Final[Mapping[type[JobsError], str]] = {errors.AccessDenied: "forbidden"}
"""Names of kinds that are not named after their class."""


def _kind(error: type[JobsError], status: int) -> Kind:
    name = _NAMES.get(error) or re.sub(r"(?<!^)(?=[A-Z])", "-", error.__name__).lower()
    title = (error.__doc__ or "").partition("\n")[0]
    return Kind(error, PREFIX + name, title, status)


KINDS: Final[Mapping[type[JobsError], Kind]] = {error: _kind(error, status) for error, status in _STATUS.items()}
"""The kinds of problems, by the class of the error."""

_ANSWERS: Final[Mapping[str, type[JobsError]]] = {
    "bad-request": errors.InvalidJob,
    "body-too-large": errors.JobTooLarge,
    "busy": errors.StoreUnavailable,
    "commands-forbidden": errors.AccessDenied,
    "cross-site": errors.AccessDenied,
    "host-not-allowed": errors.AccessDenied,
    "internal-type": errors.AccessDenied,
    "invalid-request": errors.InvalidJob,
    "read-only": errors.AccessDenied,
    "too-many-requests": errors.StoreUnavailable,
    "too-slow": errors.StoreUnavailable,
    "unauthorized": errors.AccessDenied,
}
"""Problems that only a server raises, and their errors in JobsClient."""
_BY_TYPE: Final = {kind.type: kind.error for kind in KINDS.values()} | {
    PREFIX + name: error for name, error in _ANSWERS.items()
}
_PLAIN: Final = ("outcome", "after", "reason", "seconds")
"""Extra attributes of some errors; their values are JSON already."""


def problem(error: JobsError) -> dict[str, Any]:
    """Return an error as a problem; its `status` is the answer's."""
    kind = next(KINDS[each] for each in type(error).__mro__ if each in KINDS)
    found: dict[str, Any] = {"type": kind.type, "title": kind.title, "status": kind.status, "detail": str(error)}
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
    cls = _BY_TYPE.get(found.get("type", ""), JobsError)
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
