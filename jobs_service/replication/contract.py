"""What the pipeline knows of a database: the records it reads and writes, and `Database`, which `HttpDatabase` is."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

Seq: TypeAlias = Any
"""A position in a source's feed of changes: opaque JSON, to be handed back and never compared by size."""


@dataclass(frozen=True, slots=True)
class DatabaseInfo:
    """What a database says of itself. `instance_start_time` is "0" where a server has none."""

    name: str
    update_seq: Seq
    instance_start_time: str = "0"
    doc_count: int = 0
    raw: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChangesFeed:
    """What is asked of a feed of changes.

    `filter`, `doc_ids` and `selector` exclude each other; `view` goes with `filter="_view"`. A normal feed ends after
    `limit` rows, or once it has come to `until`, the sequence that a source that numbers its changes has told before;
    without both it ends where the source was when it was asked. `longpoll` waits for a change, and ends. `heartbeat`
    is in seconds.
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
    seq_interval: int | None = None
    heartbeat: float = 10.0


@dataclass(frozen=True, slots=True)
class Change:
    """A row of the feed: the leaf revisions of one document. `seq` is None between those that `seq_interval` shows."""

    seq: Seq | None
    id: str
    revs: tuple[str, ...]
    deleted: bool
    size: int
    """Bytes of the row as it came."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A continuous feed is alive and has nothing new."""


@dataclass(frozen=True, slots=True)
class EndOfChanges:
    """The feed ended as it should. A feed that ends without this was cut off and raises."""

    last_seq: Seq
    pending: int | None = None


@dataclass(frozen=True, slots=True)
class Missing:
    """Revisions of a document that a target lacks, and those that it has and that may be their ancestors."""

    revs: tuple[str, ...]
    ancestors: tuple[str, ...] = ()


class Attachment(Protocol):
    """An attachment whose bytes are still to come, as the source stores them (`encoding` "gzip": compressed)."""

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
        """How many bytes `chunks` yields: `encoded_length` where there is an encoding, else `length`."""

    def chunks(self) -> AsyncGenerator[bytes, None]:
        """The bytes, once, and in the order of the document's attachments."""


@dataclass(slots=True)
class Document:
    """One revision of a document: a JSON object with `_id`, `_rev`, `_revisions`, perhaps `_deleted`, `_attachments`.

    Of its attachments those in `attachments` are marked `"follows": true` in the body and come as bytes, in this
    order; the others are stubs, or inline as `data`.
    """

    id: str
    rev: str
    body: dict[str, Any]
    attachments: Sequence[Attachment] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a server did not give or take: one revision of a document, and why."""

    id: str
    rev: str | None
    error: str
    """The server's own word, such as "forbidden", "not_found", "illegal_docid"."""
    reason: str = ""
    status: int | None = None


class Database(Protocol):
    """One end of a replication. Each method repeats what may be repeated, and raises a `ReplicationError` in the end.

    A method that raises with `transient` set may succeed at another time.
    """

    @property
    def masked(self) -> str:
        """The address, fit to be shown: without credentials."""

    async def info(self) -> DatabaseInfo:
        """What the database says of itself. Raises `DatabaseMissing`."""

    async def create(self, parameters: Mapping[str, Any] | None = None) -> bool:
        """Create the database, with `parameters` in the query (q, n, partitioned). False: it was there."""

    def changes(self, since: Seq, feed: ChangesFeed) -> AsyncGenerator[Change | EndOfChanges | Heartbeat, None]:
        """The rows after `since`; a normal feed ends with `EndOfChanges`.

        Close the iterator (`aclosing`). Not repeated here: after an error begin again from the last sequence.
        """

    async def revs_diff(self, revs: Mapping[str, Sequence[str]]) -> dict[str, Missing]:
        """Which of these revisions, by the id of their document, the database lacks.

        Raises `BadBatch` when the names of some documents cannot be: divide them.
        """

    async def bulk_get(
        self, wanted: Sequence[tuple[str, str, Sequence[str]]], *, inline: bool = False
    ) -> list[list[Document | Refusal]]:
        """Documents by (id, revision, ancestors at the target), in order.

        Attachments are stubs; if `inline`, those that are in none of the ancestors have their bytes as `data`.

        Raises `NotSupported` where the server has no such request, `TooLarge` when the answer is beyond the bound in
        bytes that this database was made with: ask for fewer.
        """

    def open_revs(
        self, id: str, revs: Sequence[str], ancestors: Sequence[str] = ()
    ) -> AsyncGenerator[Document | Refusal, None]:
        """These revisions of one document, attachments that are not in one of `ancestors` streamed.

        Each document's attachments must be read, or left, before the next is asked for. Close the iterator
        (`aclosing`). What fails in the middle raises: begin again with the revisions that have not come.
        """

    async def bulk_docs(self, documents: Sequence[bytes]) -> list[Refusal]:
        """Write documents, each encoded as JSON, with the revisions that they have; what was refused comes back.

        Raises `TooLarge` or `BadBatch` when nothing was written because of the whole: divide it.
        """

    async def put(self, document: Document) -> Refusal | None:
        """Write one document with its attachments, streamed.

        Attachments can be read once: where `attachments` is not empty a failure raises with `transient` set, and the
        caller opens the revision again. Raises `MissingStub`: open it again, without ancestors.
        """

    async def document(self, id: str) -> dict[str, Any] | None:
        """The winning revision of a document, such as the design document of a filter, without attachments; or None."""

    async def local(self, id: str) -> dict[str, Any] | None:
        """The document `_local/ID` (give the id without the prefix), or None."""

    async def put_local(self, id: str, body: Mapping[str, Any]) -> str:
        """Write `_local/ID` (with `_rev` of what was read, where there was one) and return its new revision.

        Raises `LocalConflict`.
        """

    async def ensure_full_commit(self) -> str:
        """Have all that was written be durable; returns the instance's start time ("0" where there is none)."""

    async def takes_writes(self) -> bool:
        """Whether the database takes a write now; finding out writes a document `_local/jobs_service-probe`."""

    async def close(self) -> None:
        """Close the connections."""
