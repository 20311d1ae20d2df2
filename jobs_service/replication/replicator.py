"""One run of a replication: from the last checkpoint to the end, or until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, Final

from jobs_service import JobsError
from jobs_service.log import EventLog
from jobs_service.replication.change_queue import ChangeQueue
from jobs_service.replication.changes_reader import ChangesReader
from jobs_service.replication.checkpoints import LOWEST_SEQ, CheckpointFailed, Checkpoints, ServerRestarted
from jobs_service.replication.contract import Database, DatabaseInfo, EndOfChanges, Seq
from jobs_service.replication.decoding import takes_encoded
from jobs_service.replication.errors import ReplicationError
from jobs_service.replication.options import ReplicationOptions
from jobs_service.replication.pipeline import Pipeline
from jobs_service.replication.sequences import ThroughSequence
from jobs_service.replication.tally import Tally
from jobs_service.replication.tasks import run_together

log = EventLog("jobs_service.replication")

LAST_CHECKPOINT: Final = 5.0
"""Seconds for the last checkpoint of a stopped run: less than the runner's grace."""

MOST_RESTARTS: Final = 5
"""Server restarts in a row, without a checkpoint in between, that a run tolerates."""

RESTART_PAUSE: Final = 0.25
"""Seconds before the run begins again after the second restart in a row; doubled with each further one."""

_QUEUED_BYTES: Final = 100 * 1024
"""Bytes of queued rows of the feed per worker."""


class FilterMissing(ReplicationError):
    """The source lacks the filter; it may be added later."""

    transient = True


class Replicator:
    """Copies a source to a target.

    Args:
        source, target: the databases; the caller closes them.
        options: the options of the replication.
        ids: returns the checkpoint ids, newest version first, for the code of the filter.
        tally: the counters of earlier runs; this run adds to them.
        hold: awaited right before each checkpoint, with its data for display; raises when another runner has the job:
            then no checkpoint is written.
        leaves_failing: see Pipeline.

    Attributes:
        through: the progress of the run; None before the checkpoint has been found.
    """

    def __init__(
        self,
        source: Database,
        target: Database,
        options: ReplicationOptions,
        ids: Callable[[str | None], Sequence[str]],
        tally: Tally,
        hold: Callable[[dict[str, Any]], Awaitable[object]],
        *,
        leaves_failing: bool = False,
    ) -> None:
        self._source = source
        self._target = target
        self._options = options
        self._ids = ids
        self._tally = tally
        self._hold = hold
        self._leaves_failing = leaves_failing
        self._session: str
        self._started: datetime
        self._start_seq: Seq = LOWEST_SEQ
        self._committed: Seq = LOWEST_SEQ
        self._source_info: DatabaseInfo | None = None
        self._target_info: DatabaseInfo | None = None
        self._told_of = 0
        self._writing = asyncio.Lock()
        self._checkpoints: Checkpoints
        self.through: ThroughSequence | None = None

    async def run(self) -> dict[str, Any]:
        """Replicate until the feed ends; a continuous feed has no end. A canceled run writes a checkpoint.

        A restarted server may have lost changes after the last checkpoint: the run begins there again.

        Returns:
            A summary of the run, as plain data.

        Raises:
            ReplicationError: the run cannot go on; `transient` tells whether a later run may.
        """
        restarts = 0
        while True:
            try:
                return await self._run_session()
            except ServerRestarted as error:
                restarts = 1 if self._committed != self._start_seq else restarts + 1
                # Several servers behind one address look like one server that restarts all the time.
                if restarts > MOST_RESTARTS:
                    raise
                log.info("server_restarted", source=self._source.masked, target=self._target.masked, error=str(error))
            if restarts > 1:
                await asyncio.sleep(RESTART_PAUSE * 2 ** (restarts - 2))

    async def _run_session(self) -> dict[str, Any]:
        """Replicate from the last checkpoint on, for as long as both servers stay the same."""
        self._session, self._started = uuid.uuid4().hex, datetime.now(UTC)
        through = self.through = await self._find_start()
        options = self._options
        queue = ChangeQueue(
            through,
            2 * options.worker_batch_size * options.worker_processes,
            _QUEUED_BYTES * options.worker_processes,
            fills_batches=not options.continuous,
        )
        assert self._source_info is not None
        assert self._target_info is not None
        newest = self._source_info.update_seq
        reader = ChangesReader(self._source, queue, options, self._tally, through.seq, newest)
        pipeline = Pipeline(
            self._source,
            self._target,
            queue,
            through,
            options,
            self._tally,
            takes_encoded=takes_encoded(self._target_info),
            leaves_failing=self._leaves_failing,
        )
        try:
            await run_together(reader.run(), pipeline.run(), beside=[self._keep_checkpoints()])
        except CheckpointFailed:
            raise
        except (asyncio.CancelledError, ReplicationError):
            # Copied documents need not be copied again; the error is raised all the same.
            with contextlib.suppress(JobsError, TimeoutError):
                async with asyncio.timeout(LAST_CHECKPOINT):
                    await self.checkpoint()
            raise
        if self._tally.rows or options.is_filtered:
            await self.checkpoint()
        return self._summary()

    async def checkpoint(self) -> None:
        """Write the progress of the run to both databases, if there is any since the last checkpoint."""
        self._tell_of_skipped()
        async with self._writing:
            through = self.through
            if not self._options.use_checkpoints or through is None or through.seq == self._committed:
                return
            seq, statistics = through.seq, dataclasses.replace(self._tally.statistics)
            info = self._source_info
            await self._hold(
                {
                    "start_time": self._started.isoformat(timespec="seconds"),
                    "update_time": datetime.now(UTC).isoformat(timespec="seconds"),
                    "source_seq": None if info is None else info.update_seq,
                    "checkpointed_source_seq": seq,
                }
            )
            await self._checkpoints.write(self._session, self._start_seq, seq, statistics)
            self._committed = seq
            log.debug("checkpoint_written", target=self._target.masked, seq=seq)

    def _tell_of_skipped(self) -> None:
        skipped = self._tally.statistics.doc_write_failures
        if skipped > self._told_of:
            log.warning("documents_skipped", target=self._target.masked, count=skipped - self._told_of)
            self._told_of = skipped

    async def pending(self) -> int | None:
        """Ask the source for the number of remaining changes; None if it does not tell."""
        through = self.through
        if through is None or self._source_info is None:
            return None
        passed_over, done = through.passed_over, through.highest  # workers go on while the source answers
        feed = dataclasses.replace(self._options.feed(), continuous=False, limit=0)
        with contextlib.suppress(ReplicationError):
            async with aclosing(self._source.changes(done, feed)) as rows:
                async for row in rows:
                    if isinstance(row, EndOfChanges) and row.pending is not None:
                        return passed_over + row.pending
        newest = self._source_info.update_seq
        return passed_over + max(0, newest - done) if isinstance(newest, int) and isinstance(done, int) else None

    async def _find_start(self) -> ThroughSequence:
        self._source_info = await self._source.info()
        if self._options.create_target:
            await self._target.create(self._options.create_target_params)
        self._target_info = await self._target.info()
        ids = self._ids(await self._filter_code())
        self._checkpoints = Checkpoints(self._source, self._target, ids, self._started)
        ancestor = await self._checkpoints.find(self._source_info, self._target_info)
        seq = ancestor.seq
        if seq in (None, LOWEST_SEQ, str(LOWEST_SEQ)):
            since = self._options.since_seq
            seq = LOWEST_SEQ if since is None else since
        self._tally.statistics = self._tally.statistics.at_least(ancestor.statistics)
        self._start_seq = self._committed = seq
        self._told_of = self._tally.statistics.doc_write_failures
        log.debug("replication_started", source=self._source.masked, target=self._target.masked, since=seq)
        return ThroughSequence(seq)

    async def _filter_code(self) -> str | None:
        """Return the filter as part of the id: its code if it is in a design document, else its name."""
        place = self._options.filter_place
        if place is None:
            return self._options.filter
        id, name = place
        design = await self._source.document(id)
        filters = (design or {}).get("filters")
        code = filters.get(name) if isinstance(filters, dict) else None
        if not isinstance(code, str):
            raise FilterMissing(f"the source has no filter {name!r} in document {id!r}")
        return code

    async def _keep_checkpoints(self) -> None:
        while True:
            await asyncio.sleep(self._options.checkpoint_interval)
            await self.checkpoint()

    def _summary(self) -> dict[str, Any]:
        assert self.through is not None
        return {
            "no_changes": self._tally.rows == 0,
            "session_id": self._session,
            "source_last_seq": self.through.seq,
            "start_time": self._started.isoformat(timespec="seconds"),
            **self._tally.statistics.to_data(),
            "skipped": self._tally.skipped_data(),
        }
