"""Refusals of the HTTP interface itself, before any operation of the service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

KINDS: Final[Mapping[str, tuple[int, str]]] = {
    "bad-request": (400, "The request cannot be read"),
    "unauthorized": (401, "A token is needed"),
    "forbidden": (403, "The role is not enough"),
    "read-only": (403, "The server changes nothing"),
    "commands-forbidden": (403, "Commands are not reachable"),
    "internal-type": (403, "The type is the service's own"),
    "host-not-allowed": (403, "The host is not one of this server"),
    "cross-site": (403, "The request comes from another site"),
    "not-found": (404, "There is no such address"),
    "method-not-allowed": (405, "The address does not take this method"),
    "not-acceptable": (406, "The address does not answer in this form"),
    "too-slow": (408, "The request did not come in time"),
    "body-too-large": (413, "The body is too large"),
    "unsupported-media-type": (415, "The body is of another kind than the address takes"),
    "invalid-request": (422, "The request says what cannot be"),
    "idempotency-key-reused": (422, "The idempotency key came with another request before"),
    "too-many-requests": (429, "The client has too much open"),
    "headers-too-large": (431, "The headers are too large"),
    "internal": (500, "The server failed"),
    "busy": (503, "The server has too much to do"),
}
"""Status and title of each kind, by the last segment of its `type`."""

CLOSING: Final = frozenset({"too-slow", "body-too-large", "headers-too-large", "busy"})
"""Kinds after which the connection is closed, without waiting for the rest of the request."""


OF_PEOPLE: Final = frozenset(
    ("unauthorized", "forbidden", "read-only", "commands-forbidden", "internal-type", "host-not-allowed", "cross-site")
)
"""Kinds that are due to the caller or the origin of a request; the audit log notes them."""


class Refusal(Exception):
    """A request is answered with a problem.

    Args:
        kind: one of KINDS.
        detail: one line: the fault, and its remedy.
        headers: of the answer.
        fields: further members of the problem.
    """

    def __init__(self, kind: str, detail: str, *, headers: Mapping[str, str] | None = None, **fields: Any) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.headers = dict(headers or {})
        self.fields = fields
        if kind in CLOSING:
            self.headers["Connection"] = "close"

    @property
    def status(self) -> int:
        """The status of the answer."""
        return KINDS[self.kind][0]

    def problem(self) -> dict[str, Any]:
        """Return the refusal as problem details (RFC 9457)."""
        status, title = KINDS[self.kind]
        return {
            "type": f"/problems/{self.kind}",
            "title": title,
            "status": status,
            "detail": self.detail,
            **self.fields,
        }
