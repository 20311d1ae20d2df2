"""The workers of a replication: each takes a batch of changes, and copies the revisions that the target lacks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import aclosing
from typing import Final, NamedTuple

from jobs_service.replication.attempt_ratio import AttemptRatio
from jobs_service.replication.change_queue import ChangeQueue
from jobs_service.replication.contract import Change, Database, Document, Missing, Refusal
from jobs_service.replication.document_writer import MOST_BYTES, DocumentWriter
from jobs_service.replication.errors import (
    BadBatch,
    MaxBackoff,
    MissingStub,
    NotSupported,
    ReplicationError,
    RevisionMissing,
    TooLarge,
)
from jobs_service.replication.inline import SmallAttachments, portions, small_attachments
from jobs_service.replication.options import ReplicationOptions
from jobs_service.replication.sequences import ThroughSequence
from jobs_service.replication.tally import Tally
from jobs_service.replication.tasks import run_together

MISSING_PAUSE: Final = 2.0
"""Seconds before a document is read again after missing revisions or attachments."""

FIRST_PAUSE: Final = 0.25
"""Seconds before a document is read again after a failed copy; doubled with each try."""

WANTED_BYTES: Final = 2 << 20
"""Bytes of documents requested together, if their size is known: decoded they take much more."""

_DESIGN: Final = "_design/"
_SMALLEST_BULK: Final = 4
_SMALLEST_BATCH: Final = 10


class Wanted(NamedTuple):
    """A revision that the target lacks."""

    id: str
    rev: str
    ancestors: tuple[str, ...]


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
        source: Database,
        target: Database,
        queue: ChangeQueue,
        through: ThroughSequence,
        options: ReplicationOptions,
        tally: Tally,
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

    async def _missing(self, changes: Iterable[Change]) -> list[Wanted]:
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
        return [Wanted(id, rev, each.ancestors) for id, each in missing.items() for rev in each.revs]

    async def _diff(self, revs: dict[str, list[str]]) -> dict[str, Missing]:
        """Ask the target for missing revisions; skip documents with ids that it refuses (partitioned databases do)."""
        try:
            return await self._target.revs_diff(revs)
        except BadBatch as error:
            if len(revs) == 1:
                for id, each in revs.items():
                    for rev in each:
                        self._tally.skip(Refusal(id, rev, "bad_request", str(error), error.status))
                return {}
        items, half = [*revs.items()], len(revs) // 2
        return await self._diff(dict(items[:half])) | await self._diff(dict(items[half:]))

    async def _bulk_get(self, wanted: list[Wanted], writer: DocumentWriter) -> list[Wanted]:
        """Copy documents by bulk requests; return the revisions that are still to be read alone."""
        if not (wanted and self._uses_bulk_get and self._bulk_get_ratio.is_worth_it()):
            return wanted
        left: list[Wanted] = []
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
        self, asked: list[Wanted], answers: list[list[Document | Refusal]], writer: DocumentWriter
    ) -> list[Wanted]:
        left: list[Wanted] = []
        small: dict[Wanted, SmallAttachments] = {}
        seen: set[tuple[str, str]] = set()
        answers.reverse()  # each answer is freed as soon as it is handled
        for wanted in asked:
            answer = answers.pop()
            documents = [
                (each, attachments)
                for each in answer
                if isinstance(each, Document) and (attachments := small_attachments(each)) is not None
            ]
            if len(documents) < len(answer) or not any(_stands_for(each, wanted.rev) for each, _ in documents):
                left.append(wanted)
                continue
            for document, attachments in documents:
                # With `latest` two requested revisions can have become the same one.
                if (document.id, document.rev) in seen:
                    continue
                seen.add((document.id, document.rev))
                if attachments.stubs:
                    small[Wanted(document.id, document.rev, wanted.ancestors)] = attachments
                else:
                    self._tally.statistics.docs_read += 1
                    await writer.add(document)
        return left + await self._get_inline(small, writer)

    async def _get_inline(self, small: dict[Wanted, SmallAttachments], writer: DocumentWriter) -> list[Wanted]:
        """Copy documents with small attachments; return the revisions that are still to be read alone."""
        left: list[Wanted] = []
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

    async def _copy_alone(self, wanted: list[Wanted], writer: DocumentWriter) -> None:
        by_id: dict[str, list[Wanted]] = {}
        for each in wanted:
            by_id.setdefault(each.id, []).append(each)
        documents = iter(by_id.items())

        async def copy_some() -> None:
            for id, revisions in documents:
                async with self._alone:
                    await self._copy_document(id, revisions, writer)

        await run_together(*(copy_some() for _ in range(min(self._most_alone, len(by_id)))))

    async def _copy_document(self, id: str, wanted: list[Wanted], writer: DocumentWriter) -> None:
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
            self._tally.skip(Refusal(id, revs[0], "document_too_large", str(error)))
            return
        for rev in revs:
            await self._copy_document(id, [Wanted(id, rev, ())], writer)

    def _miss(self, id: str, revs: list[str]) -> None:
        if not self._leaves_failing:
            raise RevisionMissing(f"the source has no revision {revs[0]} of document {id!r}")
        for rev in revs:
            self._tally.skip(Refusal(id, rev, "not_found", "the source tells of it, and does not give it"))

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
                if isinstance(each, Refusal):
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
            rev for rev in left if rev not in said and not any(_stands_for(each, rev) for each in came.values())
        ]


def _stands_for(document: Document, rev: str) -> bool:
    """Return whether a document is a revision, or its descendant."""
    if document.rev == rev:
        return True
    revisions = document.body.get("_revisions") or {}
    generation, _, name = rev.partition("-")
    names, newest = revisions.get("ids") or [], revisions.get("start")
    if not generation.isdecimal() or not isinstance(newest, int):
        return False
    position = newest - int(generation)
    return 0 <= position < len(names) and names[position] == name
