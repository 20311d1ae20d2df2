"""Checkpoints: the progress of a replication, written to both databases so that a later run goes on from there.

Its counters, and the documents that the target has refused for good, are here as well.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any, Final

from jobs_service.replication.bodies import encoded
from jobs_service.replication.contract import DatabaseInfo, LocalConflict, ReplicationError, RevisionRefusal, Seq
from jobs_service.replication.database import HttpDatabase
from jobs_service.replication.options import VERSION

LOWEST_SEQ: Final = 0
"""The sequence before all changes, on every server."""

MOST_HISTORY: Final = 50
"""Most sessions in a checkpoint: CouchDB's number."""

_ANY_TIME: Final = "0"
"""The start time of servers without one; never compared."""


# Checkpoint documents


class CheckpointFailed(ReplicationError):
    """A checkpoint could not be written: the run ends, and the next one goes on from the previous checkpoint."""

    transient = True


class ServerRestarted(CheckpointFailed):
    """A database was made anew, or its server restarted, since the run began; it may have lost writes."""


@dataclass(frozen=True, slots=True)
class Ancestor:
    """The last point where two logs agree.

    Attributes:
        seq: the source's sequence up to which the target has all changes.
        history: the sessions up to there, newest first.
    """

    seq: Seq = LOWEST_SEQ
    history: tuple[Mapping[str, Any], ...] = ()

    @property
    def statistics(self) -> Statistics:
        """The counters at that point."""
        return Statistics.from_data(self.history[0]) if self.history else Statistics()


class Checkpoints:
    """The checkpoint documents of one run of a replication.

    Args:
        source, target: the databases.
        id: of the replication.
        started: the start of this run.
    """

    def __init__(self, source: HttpDatabase, target: HttpDatabase, id: str, started: datetime) -> None:
        self._source = source
        self._target = target
        self._id = id
        self._started = started
        self._ancestor = Ancestor()
        self._revisions: dict[str, str | None] = {}
        self._instances: tuple[str, str] = (_ANY_TIME, _ANY_TIME)

    async def find(self, source_info: DatabaseInfo, target_info: DatabaseInfo) -> Ancestor:
        """Read the logs of both databases, and return the last point where they agree.

        Args:
            source_info, target_info: the databases' descriptions of themselves; their instances must stay the same up
                to the last checkpoint: a killed server may have lost writes.
        """
        self._instances = (source_info.instance_start_time, target_info.instance_start_time)
        logs: dict[str, dict[str, Any] | None] = {}

        async def read(database: HttpDatabase, which: str) -> None:
            logs[which] = await self._read(database, which)

        await run_together(read(self._source, "source"), read(self._target, "target"))
        self._ancestor = common_ancestor(logs["source"], logs["target"])
        return self._ancestor

    async def write(self, session_id: str, start_seq: Seq, seq: Seq, statistics: Statistics) -> None:
        """Make the writes of both databases durable, then write the checkpoint to the source and to the target.

        Args:
            session_id: the id of this run.
            start_seq: the sequence where this run began.
            seq: the sequence up to which all changes have been copied.
            statistics: the counters up to now.

        Raises:
            ServerRestarted: a server was restarted since `find`; nothing was written.
            CheckpointFailed: a database cannot commit, or has the checkpoint of another run.
        """
        await self._commit()
        log = self._log(session_id, start_seq, seq, statistics)
        await self._put(self._source, "source", log)
        await self._put(self._target, "target", log)

    async def _read(self, database: HttpDatabase, which: str) -> dict[str, Any] | None:
        log = await database.local(self._id)
        self._revisions[which] = None if log is None else log.get("_rev")
        return log

    async def _commit(self) -> None:
        source, target = await asyncio.gather(
            self._source.ensure_full_commit(), self._target.ensure_full_commit(), return_exceptions=True
        )
        for which, answer in (("source", source), ("target", target)):
            if isinstance(answer, ReplicationError):
                raise CheckpointFailed(f"the {which} did not commit: {answer}") from answer
            if isinstance(answer, BaseException):
                raise answer
        changed = [
            which
            for which, before, now in zip(("source", "target"), self._instances, (source, target), strict=True)
            if _ANY_TIME not in (before, now) and before != now
        ]
        if changed:
            raise ServerRestarted(
                f"the {' and the '.join(changed)} was made anew, or its server started anew, since the run began"
            )

    def _log(self, session_id: str, start_seq: Seq, seq: Seq, statistics: Statistics) -> dict[str, Any]:
        session = {
            "session_id": session_id,
            "start_time": _http_time(self._started),
            "end_time": _http_time(datetime.now(UTC)),
            "start_last_seq": start_seq,
            "end_last_seq": seq,
            "recorded_seq": seq,
            **statistics.to_data(),
        }
        return {
            "session_id": session_id,
            "source_last_seq": seq,
            "replication_id_version": VERSION,
            "history": [session, *self._ancestor.history][:MOST_HISTORY],
        }

    async def _put(self, database: HttpDatabase, which: str, log: dict[str, Any]) -> None:
        revision = self._revisions[which]
        body = {**log, "_rev": revision} if revision else log
        try:
            self._revisions[which] = await database.put_local(self._id, body)
        except LocalConflict as conflict:
            # An earlier try of this run may have been written though its answer was lost.
            there = await database.local(self._id) or {}
            if there.get("session_id") != log["session_id"]:
                problem = f"the checkpoint on the {which} was written by somebody else: {conflict}"
                raise CheckpointFailed(problem) from conflict
            self._revisions[which] = await database.put_local(self._id, {**log, "_rev": there["_rev"]})
        except ReplicationError as error:
            problem = f"the checkpoint could not be written to the {which}: {error}"
            raise CheckpointFailed(problem, status=error.status, transient=error.transient) from error


# What two logs agree on


def common_ancestor(source_log: Mapping[str, Any] | None, target_log: Mapping[str, Any] | None) -> Ancestor:
    """Find the last checkpoint that both databases know.

    The databases may have different records of one session: a killed run has written the source's alone, and a
    database restored from a backup has an old one. Then the earlier record counts, on either side: the target may lack
    changes after it.

    Args:
        source_log, target_log: the checkpoint documents of the databases, None for a missing one.
    """
    source, target = source_log or {}, target_log or {}
    session = source.get("session_id")
    if session is not None and session == target.get("session_id"):
        log = _earlier(_with_counters(source), _with_counters(target))
        return Ancestor(log.get("source_last_seq", LOWEST_SEQ), _history_of(log))
    return _ancestor_in_histories(_history_of(source), _history_of(target))


def _ancestor_in_histories(source: tuple[Mapping[str, Any], ...], target: tuple[Mapping[str, Any], ...]) -> Ancestor:
    """Walk both histories in step, newest first, and look each session up in the rest of the other."""
    for position, (ours, theirs) in enumerate(zip(source, target, strict=False)):
        if (same := _same_session(ours, target[position:])) is not None:
            return Ancestor(_earlier(ours, same).get("recorded_seq", LOWEST_SEQ), source[position + 1 :])
        if (same := _same_session(theirs, source[position + 1 :])) is not None:
            return Ancestor(_earlier(same, theirs).get("recorded_seq", LOWEST_SEQ), target[position + 1 :])
    return Ancestor()


def _with_counters(log: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a log with the counters of its last session."""
    history = _history_of(log)
    return {**history[0], **log} if history else log


def _same_session(session: Mapping[str, Any], history: tuple[Mapping[str, Any], ...]) -> Mapping[str, Any] | None:
    id = session.get("session_id")
    return None if id is None else next((each for each in history if id == each.get("session_id")), None)


def _earlier(source: Mapping[str, Any], target: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the earlier of two records of the same session, by the counters: they only grow."""
    ours, theirs = Statistics.from_data(source), Statistics.from_data(target)
    return target if theirs.missing_checked < ours.missing_checked else source


def _history_of(log: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    history = log.get("history")
    return tuple(each for each in history if isinstance(each, dict)) if isinstance(history, list) else ()


def _http_time(time: datetime) -> str:
    return format_datetime(time, usegmt=True)


# Tasks


async def run_together(*coroutines: Coroutine[Any, Any, Any], beside: Iterable[Coroutine[Any, Any, Any]] = ()) -> None:
    """Run coroutines until all have ended; the first error cancels the others and is raised itself, not in a group.

    Args:
        coroutines: the coroutines to wait for.
        beside: coroutines that run as long as the others do, and are canceled then.
    """
    try:
        async with asyncio.TaskGroup() as group:
            others = [group.create_task(each) for each in beside]
            await asyncio.gather(*(group.create_task(each) for each in coroutines))
            for other in others:
                other.cancel()
    except BaseExceptionGroup as failed:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            # An error during cancellation is no failure of its own.
            raise asyncio.CancelledError from None
        raise _first(failed) from None


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the most telling error: an unexpected one before one of the replication's own."""
    leaves: list[BaseException] = []
    pending: list[BaseException] = [group]
    while pending:
        each = pending.pop(0)
        if isinstance(each, BaseExceptionGroup):
            pending += each.exceptions
        else:
            leaves.append(each)
    unexpected = [each for each in leaves if not isinstance(each, ReplicationError)]
    return (unexpected or leaves)[0]


# Counters, and the documents that the target has refused for good


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
