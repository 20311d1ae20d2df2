"""Errors between two databases: a flat hierarchy, one clear line each, without credentials."""

from jobs_service import JobsError


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
