"""The status of a replication, read from its job for display; works without the extra `replication`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from jobs_service import HistoryKind, Job, JobState, Outcome
from jobs_service.replication.stored import CONTINUOUS, ONE_SHOT

_DOCUMENTS: Final = "documents/s"
_RATE: Final = re.compile(rf"([\d,]+) {_DOCUMENTS}, ([\d,.]+) MB/s", re.ASCII)


@dataclass(frozen=True, slots=True)
class ReplicationStatus:
    """The status of a replication.

    Attributes:
        continuous: whether the replication goes on for ever.
        source, target: addresses without credentials.
        docs_read, docs_written, doc_write_failures: counters over all runs, as of the last checkpoint.
        pending: remaining changes, as far as the source has said; None if unknown, or without a run.
        rate: documents and bytes that the run copies per second, in words; "" if unknown.
        lag: seconds to copy the pending changes at this rate; None if unknown, and while the run stands still.
        is_failing: whether the last run ended with an error, and no other has begun.
        name: the `_id` of the original `_replicator` document; "" without one.
        missing_checked, missing_found: revisions listed by the source, and revisions of these that the target lacked.
        checkpoint: data of the last checkpoint: `start_time` of its run, `update_time`, `source_seq` at its begin,
            `checkpointed_source_seq`, and the number `written` so far; empty before the first.
    """

    continuous: bool
    source: str
    target: str
    docs_read: int
    docs_written: int
    doc_write_failures: int
    pending: int | None
    rate: str
    lag: float | None
    is_failing: bool
    name: str
    missing_checked: int
    missing_found: int
    checkpoint: Mapping[str, Any]

    @classmethod
    def of(cls, job: Job) -> ReplicationStatus | None:
        """Return the status of a replication's job, also with redacted parts; None for a job of another kind.

        Raises:
            RecordDamaged: the job cannot be read.
        """
        data = _fields(job.data)
        if job.type not in (ONE_SHOT, CONTINUOUS) or "options" not in data:
            return None
        options, counted = _fields(data["options"]), _fields(data.get("statistics"))
        if job.state is JobState.FINISHED and isinstance(job.result, dict):
            counted = job.result
        newest = (event.kind for event in job.history[:1])
        said = job.progress if job.state is JobState.RUNNING else None
        pending = None if said is None or said.total is None else max(round(said.total - said.done), 0)
        found = None if said is None else _RATE.match(said.message)
        return cls(
            continuous=bool(options.get("continuous")),
            source=_address(options.get("source")),
            target=_address(options.get("target")),
            docs_read=_count(counted, "docs_read"),
            docs_written=_count(counted, "docs_written"),
            doc_write_failures=_count(counted, "doc_write_failures"),
            pending=pending,
            rate="" if found is None else found[0],
            lag=None if pending is None else _lag(pending, found),
            name=str(data.get("name") or ""),
            missing_checked=_count(counted, "missing_checked"),
            missing_found=_count(counted, "missing_found"),
            checkpoint=_fields(data.get("checkpoint")),
            is_failing=job.outcome is Outcome.FAILED or [*newest] == [HistoryKind.CRASHED],
        )


def progress_message(documents: float, size: float, skipped: int) -> str:
    """Return the message of a run: documents and bytes written per second, and skipped documents."""
    text = f"{documents:,.0f} {_DOCUMENTS}, {size / 1e6:,.1f} MB/s"
    return f"{text}, {skipped:,} skipped" if skipped else text


def _lag(pending: int, found: re.Match[str] | None) -> float | None:
    if pending == 0:
        return 0.0
    rate = 0 if found is None else int(found[1].replace(",", ""))
    return pending / rate if rate else None


def _fields(value: Any) -> dict[str, Any]:
    """Return an object of a job's data; an empty one for a missing or redacted value."""
    return value if isinstance(value, dict) else {}


def _count(counted: dict[str, Any], name: str) -> int:
    value = counted.get(name)
    return value if type(value) is int else 0


def _address(endpoint: Any) -> str:
    return str(endpoint.get("url", "")) if isinstance(endpoint, dict) else str(endpoint or "")
