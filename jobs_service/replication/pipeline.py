"""The workers of a replication: each takes a batch of changes, and copies the revisions that the target lacks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import aclosing
from typing import Final, NamedTuple

from jobs_service.replication.bodies import decoded, decoded_document, encoded
from jobs_service.replication.changes import ChangeQueue, ThroughSequence
from jobs_service.replication.checkpoints import ReplicationTally, run_together
from jobs_service.replication.contract import (
    BadBatch,
    Change,
    Document,
    DocumentNotWritten,
    MaxBackoff,
    Missing,
    MissingStub,
    NotSupported,
    ReplicationError,
    RequestFailed,
    RevisionMissing,
    RevisionRefusal,
    TooLarge,
)
from jobs_service.replication.database import HttpDatabase
from jobs_service.replication.options import ReplicationOptions
from jobs_service.replication.revisions import SmallAttachments, portions, small_attachments, stands_for

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

MISSING_PAUSE: Final = 2.0
"""Seconds before a document is read again after missing revisions or attachments."""

FIRST_PAUSE: Final = 0.25
"""Seconds before a document is read again after a failed copy; doubled with each try."""

WANTED_BYTES: Final = 2 << 20
"""Bytes of documents requested together, if their size is known: decoded they take much more."""

_DESIGN: Final = "_design/"
_SMALLEST_BULK: Final = 4
_SMALLEST_BATCH: Final = 10


# The workers


class Pipeline:
    """Copies the changes of a queue.

    Args:
        source, target: the databases.
        queue: the queue of changes.
        through: records ended batches.
        options: the options of the replication.
        tally: the counters of the run.
        takes_encoded: whether the target takes compressed attachments.
        leaves_failing: whether to skip a document that the source lists and does not deliver, or at which the target
            fails; otherwise that is an error, so that a later run tries the document again.
    """

    def __init__(
        self,
        source: HttpDatabase,
        target: HttpDatabase,
        queue: ChangeQueue,
        through: ThroughSequence,
        options: ReplicationOptions,
        tally: ReplicationTally,
        *,
        takes_encoded: bool = True,
        leaves_failing: bool = False,
    ) -> None:
        self._source = source
        self._target = target
        self._takes_encoded = takes_encoded
        self._leaves_failing = leaves_failing
        self._queue = queue
        self._through = through
        self._options = options
        self._tally = tally
        self._bulk_get_ratio = AttemptRatio(limit=0.5, decay=0.25)
        self._revs_diff_ratio = AttemptRatio(limit=0.95, decay=0.4)
        self._uses_bulk_get = options.use_bulk_get
        self._bulk_size = options.worker_batch_size
        self._average = 0.0  # bytes of one change
        # The feed and the workers have connections as well: the rest is for documents that are read alone.
        alone = max(1, options.http_connections - options.worker_processes - 1)
        self._alone = asyncio.Semaphore(alone)
        self._most_alone = alone  # one worker may have all of them while the others copy small documents

    async def run(self) -> None:
        """Copy batches until the queue is closed and empty.

        Raises:
            ReplicationError: a batch could not be copied.
        """
        await run_together(*(self._work() for _ in range(self._options.worker_processes)))

    async def _work(self) -> None:
        while (batch := await self._queue.take(self._batch_size())) is not None:
            if batch.changes:
                size = await self.copy(batch.changes)
                self._average += (size / len(batch.changes) - self._average) / 4
                self._tally.copied += len(batch.changes)
            self._through.end(batch.place)

    def _batch_size(self) -> int:
        """Return the number of changes for one worker: fewer if documents are large, so that all workers have some."""
        fitting = int(MOST_BYTES / max(self._average, 1.0))
        return min(self._options.worker_batch_size, max(_SMALLEST_BATCH, fitting))

    async def copy(self, changes: Iterable[Change]) -> int:
        """Copy the revisions of changes that the target lacks: on return all are written, or were refused for good.

        Returns:
            Bytes of the documents written in bulk.
        """
        wanted = await self._missing(changes)
        writer = DocumentWriter(
            self._target, self._tally, takes_encoded=self._takes_encoded, leaves_failing=self._leaves_failing
        )
        left = await self._bulk_get([each for each in wanted if not each.id.startswith(_DESIGN)], writer)
        left += [each for each in wanted if each.id.startswith(_DESIGN)]
        await self._copy_alone(left, writer)
        await writer.flush()
        return writer.bytes_added

    async def _missing(self, changes: Iterable[Change]) -> list[WantedRevision]:
        revs: dict[str, dict[str, None]] = {}
        for change in changes:
            revs.setdefault(change.id, {}).update(dict.fromkeys(change.revs))
        checked = sum(map(len, revs.values()))
        if self._revs_diff_ratio.is_worth_it():
            missing = await self._diff({id: [*each] for id, each in revs.items()})
            found = sum(len(each.revs) for each in missing.values())
            self._revs_diff_ratio.update(checked - found, checked)
        else:  # nearly everything is missing: asking costs more than writing a few again
            missing = {id: Missing(tuple(each)) for id, each in revs.items()}
            found = checked
        self._tally.statistics.missing_checked += checked
        self._tally.statistics.missing_found += found
        return [WantedRevision(id, rev, each.ancestors) for id, each in missing.items() for rev in each.revs]

    async def _diff(self, revs: dict[str, list[str]]) -> dict[str, Missing]:
        """Ask the target for missing revisions; skip documents with ids that it refuses (partitioned databases do)."""
        try:
            return await self._target.revs_diff(revs)
        except BadBatch as error:
            if len(revs) == 1:
                for id, each in revs.items():
                    for rev in each:
                        self._tally.skip(RevisionRefusal(id, rev, "bad_request", str(error), error.status))
                return {}
        items, half = [*revs.items()], len(revs) // 2
        return await self._diff(dict(items[:half])) | await self._diff(dict(items[half:]))

    async def _bulk_get(self, wanted: list[WantedRevision], writer: DocumentWriter) -> list[WantedRevision]:
        """Copy documents by bulk requests; return the revisions that are still to be read alone."""
        if not (wanted and self._uses_bulk_get and self._bulk_get_ratio.is_worth_it()):
            return wanted
        left: list[WantedRevision] = []
        position = 0
        while position < len(wanted):
            some = wanted[position : position + self._bulk_size]
            try:
                answers = await self._source.bulk_get(some)
            except NotSupported:
                self._uses_bulk_get = False
                return left + wanted[position:]
            except TooLarge:
                if len(some) <= _SMALLEST_BULK:  # such large documents are read alone, in parts
                    left += some
                    position += len(some)
                self._bulk_size = max(_SMALLEST_BULK, len(some) // 2)
                continue
            position += len(some)
            before = writer.bytes_added
            refused = await self._take_answers(some, answers, writer)
            if (came := len(some) - len(refused)) > 0:
                self._choose_bulk_size((writer.bytes_added - before) / came)
            left += refused
            self._bulk_get_ratio.update(len(some) - len(refused), len(some))
            self._tally.statistics.bulk_get_attempts += len(some)
            self._tally.statistics.bulk_get_docs += len(some) - len(refused)
        return left

    def _choose_bulk_size(self, average: float) -> None:
        """Ask for fewer documents at a time if they are large: memory follows bytes, not documents."""
        fitting = int(WANTED_BYTES / max(average, 1.0))
        self._bulk_size = min(self._options.worker_batch_size, max(_SMALLEST_BULK, fitting))

    async def _take_answers(
        self, asked: list[WantedRevision], answers: list[list[Document | RevisionRefusal]], writer: DocumentWriter
    ) -> list[WantedRevision]:
        left: list[WantedRevision] = []
        small: dict[WantedRevision, SmallAttachments] = {}
        seen: set[tuple[str, str]] = set()
        answers.reverse()  # each answer is freed as soon as it is handled
        for wanted in asked:
            answer = answers.pop()
            documents = [
                (each, attachments)
                for each in answer
                if isinstance(each, Document) and (attachments := small_attachments(each)) is not None
            ]
            if len(documents) < len(answer) or not any(stands_for(each, wanted.rev) for each, _ in documents):
                left.append(wanted)
                continue
            for document, attachments in documents:
                # With `latest` two requested revisions can have become the same one.
                if (document.id, document.rev) in seen:
                    continue
                seen.add((document.id, document.rev))
                if attachments.stubs:
                    small[WantedRevision(document.id, document.rev, wanted.ancestors)] = attachments
                else:
                    self._tally.statistics.docs_read += 1
                    await writer.add(document)
        return left + await self._get_inline(small, writer)

    async def _get_inline(
        self, small: dict[WantedRevision, SmallAttachments], writer: DocumentWriter
    ) -> list[WantedRevision]:
        """Copy documents with small attachments; return the revisions that are still to be read alone."""
        left: list[WantedRevision] = []
        for some in portions(small.items(), WANTED_BYTES):
            try:
                # Without ancestors: a document with all its attachments inline needs none at the target.
                answers = await self._source.bulk_get([(each.id, each.rev, ()) for each in some], inline=True)
            except (NotSupported, TooLarge):
                left += some
                continue
            answers.reverse()
            for wanted in some:
                answer = answers.pop()
                document = next((each for each in answer if each.rev == wanted.rev), None)
                if len(answer) == 1 and isinstance(document, Document) and small[wanted].are_in(document):
                    self._tally.statistics.docs_read += 1
                    await writer.add(document)
                else:
                    left.append(wanted)
        return left

    async def _copy_alone(self, wanted: list[WantedRevision], writer: DocumentWriter) -> None:
        by_id: dict[str, list[WantedRevision]] = {}
        for each in wanted:
            by_id.setdefault(each.id, []).append(each)
        documents = iter(by_id.items())

        async def copy_some() -> None:
            for id, revisions in documents:
                async with self._alone:
                    await self._copy_document(id, revisions, writer)

        await run_together(*(copy_some() for _ in range(min(self._most_alone, len(by_id)))))

    async def _copy_document(self, id: str, wanted: list[WantedRevision], writer: DocumentWriter) -> None:
        """Copy revisions of one document, with retries."""
        ancestors = wanted[0].ancestors
        left = {each.rev for each in wanted}
        pause, tries = FIRST_PAUSE, self._options.retries_per_request
        was_missing = False
        while True:
            try:
                missing = await self._read_document(id, left, ancestors, writer)
                if not missing:
                    return
                if was_missing:
                    self._miss(id, missing)
                    return
                was_missing, ancestors = True, ()
                await asyncio.sleep(MISSING_PAUSE)
            except MissingStub:
                if not ancestors:
                    raise
                ancestors = ()
                await asyncio.sleep(MISSING_PAUSE)
            except TooLarge as error:
                await self._copy_apart(id, sorted(left), error, writer)
                return
            except ReplicationError as error:
                if not error.transient or not tries or isinstance(error, RevisionMissing | MaxBackoff):
                    raise
                tries -= 1
                await asyncio.sleep(pause)
                pause *= 2

    async def _copy_apart(self, id: str, revs: list[str], error: TooLarge, writer: DocumentWriter) -> None:
        """Copy each revision of a too large document alone, to find the ones that are too large."""
        if len(revs) == 1:
            self._tally.skip(RevisionRefusal(id, revs[0], "document_too_large", str(error)))
            return
        for rev in revs:
            await self._copy_document(id, [WantedRevision(id, rev, ())], writer)

    def _miss(self, id: str, revs: list[str]) -> None:
        if not self._leaves_failing:
            raise RevisionMissing(f"the source has no revision {revs[0]} of document {id!r}")
        for rev in revs:
            self._tally.skip(RevisionRefusal(id, rev, "not_found", "the source tells of it, and does not give it"))

    async def _read_document(
        self, id: str, left: set[str], ancestors: tuple[str, ...], writer: DocumentWriter
    ) -> list[str]:
        """Read revisions of one document and write each; return the revisions that the source did not give.

        Args:
            left: the revisions; written ones are removed from it.
        """
        missing: list[str] = []
        came: dict[str, Document] = {}
        async with aclosing(self._source.open_revs(id, sorted(left), ancestors)) as documents:
            async for each in documents:
                if isinstance(each, RevisionRefusal):
                    missing.append(each.rev or "")
                elif each.rev not in came:
                    came[each.rev] = each
                    if each.attachments or each.body.get("_attachments") or id.startswith(_DESIGN):
                        await writer.put(each)
                    else:
                        await writer.add(each)
                    self._tally.statistics.docs_read += 1
                    left.discard(each.rev)
        # A revision neither delivered nor reported missing would be an unnoticed gap.
        said = {*missing}
        return missing + [
            rev for rev in left if rev not in said and not any(stands_for(each, rev) for each in came.values())
        ]


class WantedRevision(NamedTuple):
    """A revision that the target lacks."""

    id: str
    rev: str
    ancestors: tuple[str, ...]


# The writer


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
        target: HttpDatabase,
        tally: ReplicationTally,
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
            refusal = RevisionRefusal(document.id, document.rev, "not_written", str(error), error.status)
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

    async def _settle(self, refusals: list[RevisionRefusal], documents: list[_Encoded]) -> None:
        """Skip documents that the target refuses for good, and write other refused documents alone."""
        by_revision = {(each.id, each.rev): each for each in documents}
        by_id = {each.id: each for each in documents}
        for refusal in refusals:
            refused = by_revision.get((refusal.id, refusal.rev or "")) or by_id.get(refusal.id)
            if is_for_good(refusal):
                rev = refusal.rev or (refused.rev if refused else None)
                self._tally.skip(RevisionRefusal(refusal.id, rev, refusal.error, refusal.reason, refusal.status))
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
            self._tally.skip(RevisionRefusal(document.id, document.rev, what, str(again), error.status))


class _Encoded(NamedTuple):
    """An encoded document without attachments. Decoded, a document with a long history takes five times the bytes."""

    id: str
    rev: str
    json: bytes

    @property
    def document(self) -> Document:
        return Document(self.id, self.rev, decoded(self.json))


def is_for_good(refusal: RevisionRefusal) -> bool:
    """Return whether the refusal is permanent."""
    if refusal.error in _REFUSED_FOR_GOOD or refusal.status in _REFUSING_STATUS:
        return True
    return refusal.status in (400, None) and refusal.reason.startswith("Attachment name ")


def _failed(refusal: RevisionRefusal) -> DocumentNotWritten:
    return DocumentNotWritten(
        f"the target did not write document {refusal.id!r}, revision {refusal.rev}: "
        f"{refusal.error} {refusal.reason}".strip(),
        status=refusal.status,
    )


# Attempts that may be useless


TRY_AGAIN: Final = 37.0
"""Seconds after which a skipped request is sent once more: a bit longer than a checkpoint interval."""


class AttemptRatio:
    """The share of useless attempts of one kind of request.

    Args:
        limit: the share above which the request is skipped.
        decay: the weight of the last request, 0 to 1.
    """

    def __init__(self, limit: float, decay: float) -> None:
        self._limit = limit
        self._decay = decay
        self._last_try: float | None = None
        self.ratio = 0.0

    def is_worth_it(self) -> bool:
        """Return whether to send the request."""
        if self.ratio <= self._limit or self._last_try is None:
            return True
        return asyncio.get_running_loop().time() - self._last_try > TRY_AGAIN

    def update(self, successes: int, attempts: int) -> None:
        """Count the result of a request."""
        share = (attempts - successes) / attempts if attempts else 0.0
        self.ratio += self._decay * (share - self.ratio)
        self._last_try = asyncio.get_running_loop().time()
