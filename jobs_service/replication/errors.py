"""What can go wrong between two databases: a flat hierarchy, one clear line each, without credentials."""

from jobs_service import JobsError


class ReplicationError(JobsError):
    """The base of all errors of a replication.

    `transient` tells whether the same request may succeed later; `status` is the HTTP status, where there was one.
    """

    transient = False

    def __init__(self, message: str, *, status: int | None = None, transient: bool | None = None) -> None:
        super().__init__(message)
        self.status = status
        if transient is not None:
            self.transient = transient


class InvalidEndpoint(ReplicationError):
    """An endpoint was described in a way that cannot be used."""


class DatabaseMissing(ReplicationError):
    """The server has no such database."""


class Unauthorized(ReplicationError):
    """The server does not accept the credentials (401)."""


class Forbidden(ReplicationError):
    """The server knows who asks and refuses (403)."""


class RequestFailed(ReplicationError):
    """A request failed, after the repetitions that its kind allows."""


class ServerSilent(RequestFailed):
    """The server was reached, and said nothing for as long as it may."""

    transient = True


class UploadBroken(RequestFailed):
    """The connection ended, or stood still, while a body was being sent."""

    transient = True


class DocumentFailed(ReplicationError):
    """One document keeps a run from going on. After some runs in a row that ended so, the next goes past such ones."""

    transient = True


class RevisionMissing(DocumentFailed):
    """The source has told of a revision that it does not give, not even later."""


class DocumentNotWritten(DocumentFailed):
    """The target fails at a document without refusing it, as CouchDB does when a validation function breaks down."""


class MaxBackoff(ReplicationError):
    """The server asked to slow down until the longest pause was reached."""

    transient = True


class ProtocolError(ReplicationError):
    """An answer is not what the protocol says: cut off, not JSON, a field missing."""

    transient = True


class NotSupported(ReplicationError):
    """The server does not know this kind of request, so another way must be taken."""


class TooLarge(ReplicationError):
    """The server refuses a request because of its size (413): nothing of it was written."""


class BadBatch(ReplicationError):
    """The server refuses a whole batch of documents because of one in it (400): nothing of it was written."""


class MissingStub(ReplicationError):
    """The target lacks an attachment that was left out because it should have been there (412)."""


class LocalConflict(ReplicationError):
    """A `_local` document was written by another since it was read (409)."""
