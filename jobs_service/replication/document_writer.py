"""Writes documents to the target: in bulk requests, which are divided when the target refuses them, or alone."""

from __future__ import annotations

from typing import Final, NamedTuple

from jobs_service.replication.contract import Database, Document, Refusal
from jobs_service.replication.decoding import decoded_document
from jobs_service.replication.errors import BadBatch, DocumentNotWritten, RequestFailed, TooLarge
from jobs_service.replication.json_text import decoded, encoded
from jobs_service.replication.tally import Tally

MOST_BYTES: Final = 4 << 20
"""Bytes of documents at which a bulk request is sent: CouchDB's number."""

_REFUSED_FOR_GOOD: Final = frozenset(
    {
        "unauthorized",
        "forbidden",
        "illegal_docid",
        "doc_validation",
        "bad_attachment",
        "too_large",
        "document_too_large",
        "attachment_too_large",
        "request_entity_too_large",
        "unsupported_media_type",
    }
)
_REFUSING_STATUS: Final = frozenset({401, 403, 413, 415})
_FAILED_INSIDE: Final = 500
"""CouchDB's status for a validation function that breaks down at a document; other 5xx statuses are of proxies."""


class _Encoded(NamedTuple):
    """An encoded document without attachments. Decoded, a document with a long history takes five times the bytes."""

    id: str
    rev: str
    json: bytes

    @property
    def document(self) -> Document:
        return Document(self.id, self.rev, decoded(self.json))


class DocumentWriter:
    """Writes the documents of one batch of changes.

    Args:
        target: the database to write to.
        tally: counts written documents, and documents refused for good.
        takes_encoded: whether the target takes compressed attachments; otherwise they are decoded.
        leaves_failing: whether to skip a document at which the target fails while it takes others; otherwise that is
            an error.
        most_bytes: bytes of waiting documents at which they are written together.

    Attributes:
        bytes_added: bytes of all added documents.
    """

    def __init__(
        self,
        target: Database,
        tally: Tally,
        *,
        takes_encoded: bool = True,
        leaves_failing: bool = False,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._target = target
        self._leaves_failing = leaves_failing
        self._takes_encoded = takes_encoded
        self._tally = tally
        self._most_bytes = most_bytes
        self._waiting: list[_Encoded] = []
        self._bytes = 0
        self.bytes_added = 0

    async def add(self, document: Document) -> None:
        """Write a document without attachments, together with others."""
        json = encoded(document.body)
        self._waiting.append(_Encoded(document.id, document.rev, json))
        self._bytes += len(json)
        self.bytes_added += len(json)
        if self._bytes >= self._most_bytes:
            await self.flush()

    async def flush(self) -> None:
        """Write the waiting documents."""
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        if waiting:
            await self._write(waiting)

    async def put(self, document: Document) -> None:
        """Write a document alone: with its attachments, or because it is a design document.

        Raises:
            ReplicationError: the document was not written; to try again with attachments, read the source again first.
        """
        if not self._takes_encoded:
            document = decoded_document(document)
        try:
            refusal = await self._target.put(document)
            if refusal is not None and not document.attachments:
                # Once more before it is skipped: a proxy may have refused it, and not the target.
                refusal = await self._target.put(document)
        except RequestFailed as error:
            if error.status != _FAILED_INSIDE:
                raise
            refusal = Refusal(document.id, document.rev, "not_written", str(error), error.status)
            # A target that takes no writes at all, because of a full disk for instance, does not fail at this document.
            if self._leaves_failing and await self._target.takes_writes():
                self._tally.skip(refusal)
                return
        if refusal is None:
            self._tally.statistics.docs_written += 1
            self._tally.bytes_written += sum(each.bytes_to_come for each in document.attachments)
        elif is_for_good(refusal):
            self._tally.skip(refusal)
        else:
            raise _failed(refusal)

    async def _write(self, documents: list[_Encoded]) -> None:
        try:
            refusals = await self._target.bulk_docs([each.json for each in documents])
        except (TooLarge, BadBatch) as error:
            if len(documents) == 1:
                # Written alone, the document gets the target's own reason.
                await self._put_alone(documents[0].document, error)
                return
            half = len(documents) // 2
            await self._write(documents[:half])
            await self._write(documents[half:])
            return
        self._tally.statistics.docs_written += len(documents) - len(refusals)
        self._tally.bytes_written += sum(len(each.json) for each in documents)
        if refusals:
            await self._settle(refusals, documents)

    async def _settle(self, refusals: list[Refusal], documents: list[_Encoded]) -> None:
        """Skip documents that the target refuses for good, and write other refused documents alone."""
        by_revision = {(each.id, each.rev): each for each in documents}
        by_id = {each.id: each for each in documents}
        for refusal in refusals:
            refused = by_revision.get((refusal.id, refusal.rev or "")) or by_id.get(refusal.id)
            if is_for_good(refusal):
                rev = refusal.rev or (refused.rev if refused else None)
                self._tally.skip(Refusal(refusal.id, rev, refusal.error, refusal.reason, refusal.status))
            elif refused is None:
                raise _failed(refusal)
            else:
                await self.put(refused.document)

    async def _put_alone(self, document: Document, error: TooLarge | BadBatch) -> None:
        try:
            await self.put(document)
        except (TooLarge, BadBatch, RequestFailed) as again:
            if again.transient:
                raise
            what = "too_large" if isinstance(error, TooLarge) else "bad_request"
            self._tally.skip(Refusal(document.id, document.rev, what, str(again), error.status))


def is_for_good(refusal: Refusal) -> bool:
    """Return whether the refusal is permanent."""
    if refusal.error in _REFUSED_FOR_GOOD or refusal.status in _REFUSING_STATUS:
        return True
    return refusal.status in (400, None) and refusal.reason.startswith("Attachment name ")


def _failed(refusal: Refusal) -> DocumentNotWritten:
    return DocumentNotWritten(
        f"the target did not write document {refusal.id!r}, revision {refusal.rev}: "
        f"{refusal.error} {refusal.reason}".strip(),
        status=refusal.status,
    )
