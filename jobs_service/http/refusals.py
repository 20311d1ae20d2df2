"""Refusals of the HTTP interface itself, before any operation of the service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from jobs_service.errors import AccessDenied, InvalidJob, JobsError, JobTooLarge, StoreUnavailable


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
