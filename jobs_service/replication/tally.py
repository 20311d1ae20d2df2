"""Counters of one run of a replication, and the documents that the target has refused for good."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from jobs_service.replication.bodies import encoded
from jobs_service.replication.contract import ReplicationError, RevisionRefusal

MOST_SKIPPED: Final = 50
"""Most skipped documents in the list: the newest are kept, all are counted."""

_MOST_OF_A_TEXT: Final = 200

_MOST_BYTES: Final = 20_000
"""Most bytes of the list: a job's record may hold it twice, in its data and in its result."""


@dataclass(slots=True)
class Statistics:
    """Counters of a replication since it was first added, with CouchDB's names.

    Attributes:
        missing_checked: revisions listed by the source.
        missing_found: revisions of these that the target lacked.
        docs_read: revisions read from the source.
        docs_written: revisions of these that the target has taken.
        doc_write_failures: revisions of these that the target has refused for good.
        bulk_get_docs: revisions received by `_bulk_get`.
        bulk_get_attempts: revisions requested by `_bulk_get`.
    """

    missing_checked: int = 0
    missing_found: int = 0
    docs_read: int = 0
    docs_written: int = 0
    doc_write_failures: int = 0
    bulk_get_docs: int = 0
    bulk_get_attempts: int = 0

    def at_least(self, other: Statistics) -> Statistics:
        """Return the larger of each counter: one of two records of the same work may be out of date."""
        return Statistics(**{name: max(getattr(self, name), getattr(other, name)) for name in COUNTERS})

    def to_data(self) -> dict[str, int]:
        """Return the counters as plain data, as in a checkpoint."""
        return {name: getattr(self, name) for name in COUNTERS}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Statistics:
        """Return the counters of a checkpoint or of a job; missing and invalid values count as 0."""
        values = {name: data.get(name) for name in COUNTERS}
        return cls(**{name: value for name, value in values.items() if type(value) is int and value >= 0})


COUNTERS = tuple(field.name for field in fields(Statistics))
"""The names of the counters."""


class DocumentRefused(ReplicationError):
    """The target refuses a document for good, and the replication is strict."""


class ReplicationTally:
    """Counters, and a list of skipped documents.

    Args:
        statistics: the counters of earlier runs.
        skipped: the documents skipped by earlier runs, as returned by `skipped_data`.
        strict: whether a document refused for good is an error.

    Attributes:
        statistics: counters over all runs.
        bytes_written: bytes of documents and attachments, by this run.
        rows: rows of the feed, by this run.
        copied: rows of these that are done.
    """

    def __init__(
        self, statistics: Statistics | None = None, skipped: list[dict[str, Any]] | None = None, *, strict: bool = False
    ) -> None:
        self.statistics = statistics or Statistics()
        self.bytes_written = 0
        self.rows = 0
        self.copied = 0
        self._skipped: deque[dict[str, Any]] = deque(skipped or (), maxlen=MOST_SKIPPED)
        self._strict = strict

    def skip(self, refusal: RevisionRefusal) -> None:
        """Count a document that cannot be copied.

        Raises:
            DocumentRefused: the replication is strict.
        """
        if self._strict:
            why = refusal.reason or refusal.error
            raise DocumentRefused(
                f"the target refuses document {refusal.id!r}, revision {refusal.rev}: {why}"[: 2 * _MOST_OF_A_TEXT],
                status=refusal.status,
            )
        entry = {"id": refusal.id, "rev": refusal.rev, "error": refusal.error, "reason": refusal.reason}
        # Both texts go into the job's record, whose size is bounded.
        short = {name: text[:_MOST_OF_A_TEXT] if isinstance(text, str) else text for name, text in entry.items()}
        known = [each for each in self._skipped if (each["id"], each["rev"]) == (short["id"], short["rev"])]
        if known:  # it was counted before, and comes again because no checkpoint had been written
            self._skipped.remove(known[0])
        else:
            self.statistics.doc_write_failures += 1
        self._skipped.append(short)

    def skipped_data(self) -> list[dict[str, Any]]:
        """Return the last skipped documents, oldest first: id, rev, error, reason; as many as fit in a record."""
        kept: deque[dict[str, Any]] = deque()
        left = _MOST_BYTES
        for each in reversed(self._skipped):
            left -= len(encoded(each))
            if left < 0:
                break
            kept.appendleft(each)
        return list(kept)
