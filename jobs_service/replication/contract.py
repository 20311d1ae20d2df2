"""Errors of a replication, and the records that go between the pipeline and a database."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from jobs_service import JobsError

Seq: TypeAlias = Any
"""A position in a source's feed of changes: opaque JSON, to be handed back and never compared by size."""


# Errors


class ReplicationError(JobsError):
    """The base of all errors of a replication.

    `transient` tells whether the same request may succeed later; `status` is the HTTP status, if any.
    """

    transient = False

    def __init__(self, message: str, *, status: int | None = None, transient: bool | None = None) -> None:
        super().__init__(message)
        self.status = status
        if transient is not None:
            self.transient = transient


class InvalidEndpoint(ReplicationError):
    """The description of an endpoint is invalid."""


class DatabaseMissing(ReplicationError):
    """The server has no such database."""


class Unauthorized(ReplicationError):
    """The server does not accept the credentials (401)."""


class Forbidden(ReplicationError):
    """The server refuses a request with valid credentials (403)."""


class RequestFailed(ReplicationError):
    """A request failed after all its retries."""


class ServerSilent(RequestFailed):
    """The server was reached, and sent nothing within the time limit."""

    transient = True


class UploadBroken(RequestFailed):
    """The connection ended or stalled while a body was being sent."""

    transient = True


class DocumentFailed(ReplicationError):
    """One document stops a run. After some such runs in a row, the next run skips such documents."""

    transient = True


class RevisionMissing(DocumentFailed):
    """The source lists a revision in its feed, and does not deliver it, not even later."""


class DocumentNotWritten(DocumentFailed):
    """The target fails at a document without refusing it, as CouchDB does when a validation function breaks down."""


class MaxBackoff(ReplicationError):
    """The server asked to slow down until the longest pause was reached."""

    transient = True


class ProtocolError(ReplicationError):
    """An answer violates the protocol: cut off, not JSON, a field missing."""

    transient = True


class NotSupported(ReplicationError):
    """The server does not know this kind of request; the caller uses another one."""


class TooLarge(ReplicationError):
    """A request is too large for the server (413, nothing of it was written), or an answer exceeds its bound."""


class BadBatch(ReplicationError):
    """The server refuses a whole batch of documents because of one in it (400): nothing of it was written."""


class MissingStub(ReplicationError):
    """The target lacks an attachment that was sent as a stub (412)."""


class LocalConflict(ReplicationError):
    """Another writer has changed a `_local` document since it was read (409)."""


# Records


@dataclass(frozen=True, slots=True)
class DatabaseInfo:
    """A database's description of itself. `instance_start_time` is "0" if the server has none."""

    name: str
    update_seq: Seq
    instance_start_time: str = "0"
    doc_count: int = 0
    raw: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChangesFeed:
    """A request for a feed of changes.

    `filter`, `doc_ids` and `selector` exclude each other; `view` goes with `filter="_view"`. A normal feed ends after
    `limit` rows, or at the sequence `until` of a source with numeric sequences; without both it ends at the sequence
    of the source at the time of the request. `longpoll` waits for a change, and ends. `heartbeat` is in seconds.
    """

    continuous: bool = False
    longpoll: bool = False
    style: Literal["all_docs", "main_only"] = "all_docs"
    limit: int | None = None
    until: int | None = None
    filter: str | None = None
    query_params: Mapping[str, Any] = field(default_factory=dict)
    doc_ids: Sequence[str] | None = None
    selector: Mapping[str, Any] | None = None
    view: str | None = None
    heartbeat: float = 10.0


@dataclass(frozen=True, slots=True)
class Change:
    """A row of the feed: the leaf revisions of one document. `seq` is None where a server leaves it out."""

    seq: Seq | None
    id: str
    revs: tuple[str, ...]
    deleted: bool
    size: int
    """Bytes of the row, about."""


@dataclass(frozen=True, slots=True)
class FeedHeartbeat:
    """A continuous feed is alive and has nothing new."""


@dataclass(frozen=True, slots=True)
class EndOfChanges:
    """The regular end of a feed. A feed that is cut off raises an error instead."""

    last_seq: Seq
    pending: int | None = None


@dataclass(frozen=True, slots=True)
class Missing:
    """Revisions of a document that a target lacks, and the target's revisions that may be their ancestors."""

    revs: tuple[str, ...]
    ancestors: tuple[str, ...] = ()


class Attachment(Protocol):
    """An attachment with bytes still to be read, as stored by the source (`encoding` "gzip": compressed)."""

    name: str
    content_type: str
    length: int
    """Bytes of the content, decoded."""
    encoding: str | None
    encoded_length: int | None
    digest: str | None
    revpos: int | None

    @property
    def bytes_to_come(self) -> int:
        """The number of bytes that `chunks` yields: `encoded_length` with an encoding, else `length`."""

    def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the bytes, once, in the order of the document's attachments."""


@dataclass(slots=True)
class Document:
    """One revision of a document: a JSON object with `_id`, `_rev`, `_revisions`, perhaps `_deleted`, `_attachments`.

    Attachments in `attachments` are marked `"follows": true` in the body and come as bytes, in this order; others are
    stubs, or inline as `data`.
    """

    id: str
    rev: str
    body: dict[str, Any]
    attachments: Sequence[Attachment] = ()


@dataclass(frozen=True, slots=True)
class RevisionRefusal:
    """A revision of a document that a server did not give or take, and the reason."""

    id: str
    rev: str | None
    error: str
    """The server's own error code, such as "forbidden", "not_found", "illegal_docid"."""
    reason: str = ""
    status: int | None = None
