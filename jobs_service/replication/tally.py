"""What one run of a replication has counted, and which documents the target has refused for good."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from jobs_service.replication.contract import Refusal
from jobs_service.replication.errors import ReplicationError
from jobs_service.replication.json_text import encoded
from jobs_service.replication.statistics import Statistics

MOST_SKIPPED: Final = 50
"""Skipped documents that are listed; more are only counted. The newest are kept."""

_MOST_OF_A_TEXT: Final = 200

_MOST_BYTES: Final = 20_000
"""Bytes of the list, which a job's record may hold twice: in its data and in its result."""


class DocumentRefused(ReplicationError):
    """The target refuses a document for good, and the replication is strict."""


class Tally:
    """Counters, and a list of what was skipped.

    Args:
        statistics: what earlier runs have counted.
        skipped: what earlier runs have skipped, as `skipped_data` returned it.
        strict: whether a document that is refused for good is an error.

    Attributes:
        statistics: over all runs.
        bytes_written: of documents and attachments, by this run.
        rows: of the feed, by this run.
        copied: of these, the ones that have been dealt with.
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

    def skip(self, refusal: Refusal) -> None:
        """Count a document that the target does not take, and never will.

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
        # Both go into the job's record, which may not grow over what a store takes.
        short = {name: text[:_MOST_OF_A_TEXT] if isinstance(text, str) else text for name, text in entry.items()}
        known = [each for each in self._skipped if (each["id"], each["rev"]) == (short["id"], short["rev"])]
        if known:  # it was counted before, and comes again because no checkpoint had been written
            self._skipped.remove(known[0])
        else:
            self.statistics.doc_write_failures += 1
        self._skipped.append(short)

    def skipped_data(self) -> list[dict[str, Any]]:
        """Return documents that were skipped last, oldest first: id, rev, error, reason; as many as fit in a record."""
        kept: deque[dict[str, Any]] = deque()
        left = _MOST_BYTES
        for each in reversed(self._skipped):
            left -= len(encoded(each))
            if left < 0:
                break
            kept.appendleft(each)
        return list(kept)
