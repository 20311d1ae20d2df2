"""A replication's job, run once: the run, its progress reports, and its end at new options."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import math
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Final

from jobs_service import Discard, HistoryKind, JobCanceled, JobsError, JobsService, RunningJob, Snooze, StoreError
from jobs_service.log import EventLog
from jobs_service.replication.bodies import takes_encoded
from jobs_service.replication.changes import ChangeQueue, ChangesReader, ThroughSequence
from jobs_service.replication.checkpoints import (
    LOWEST_SEQ,
    CheckpointFailed,
    Checkpoints,
    DocumentRefused,
    ReplicationTally,
    ServerRestarted,
    Statistics,
    run_together,
)
from jobs_service.replication.contract import (
    DatabaseInfo,
    DatabaseMissing,
    DocumentNotWritten,
    EndOfChanges,
    MaxBackoff,
    ReplicationError,
    RevisionMissing,
    Seq,
)
from jobs_service.replication.database import HttpDatabase, open_database
from jobs_service.replication.endpoint import SecretSource
from jobs_service.replication.http import HttpSettings
from jobs_service.replication.options import InvalidReplication, ReplicationOptions
from jobs_service.replication.pipeline import Pipeline
from jobs_service.replication.stored import (
    CredentialsMissing,
    Starts,
    is_wanted,
    progress_message,
    take_wanted,
    unmasked,
    version_of_wanted,
)

log = EventLog("jobs_service.replication")

LAST_CHECKPOINT: Final = 5.0
"""Seconds for the last checkpoint of a stopped run: less than the runner's grace."""

MOST_RESTARTS: Final = 5
"""Server restarts in a row, without a checkpoint in between, that a run tolerates."""

RESTART_PAUSE: Final = 0.25
"""Seconds before the run begins again after the second restart in a row; doubled with each further one."""

_QUEUED_BYTES: Final = 100 * 1024
"""Bytes of queued rows of the feed per worker."""

FAILING_RUNS: Final = 3
"""Runs in a row that end at a failing document; the next run skips such documents."""

LOOK_EVERY: Final = 1.0
"""Seconds between two checks for new options."""

_AT_A_DOCUMENT: Final = (RevisionMissing.__name__, DocumentNotWritten.__name__)


# The job


async def run_replication(
    jobs: JobsService, job: RunningJob, secrets: SecretSource | None, starts: Starts, watch: OptionsWatch
) -> dict[str, Any]:
    """Run a replication's job once.

    Args:
        jobs: the service.
        job: the job.
        secrets: see register_replication.
        starts: spreads runs that begin at the same time.
        watch: detects new options.

    Returns:
        A summary of the run, for the job's result.

    Raises:
        Discard: the replication will never succeed.
        ReplicationError: a later run may succeed.
    """
    try:
        data = await take_wanted(jobs, job)
        options = ReplicationOptions.from_data(
            await unmasked(jobs, str(job.type), str(job.id), data.get("options") or {})
        )
    except (InvalidReplication, CredentialsMissing) as error:
        raise Discard(str(error)) from None
    tally = ReplicationTally(
        Statistics.from_data(data.get("statistics") or {}), data.get("skipped"), strict=options.strict
    )
    if asked_too_much(job):
        options = options.gentler()
    await starts.wait()
    try:
        return await _replicate(jobs, job, data, options, tally, secrets, watch)
    except OptionsWanted:
        raise Snooze(0) from None  # the next run takes them, and goes on from the checkpoint of this one
    except DatabaseMissing as error:
        if options.on_missing == "fail":
            raise Discard(str(error)) from None
        raise
    except DocumentRefused as error:
        raise Discard(str(error)) from None


async def _replicate(
    jobs: JobsService,
    job: RunningJob,
    data: Mapping[str, Any],
    options: ReplicationOptions,
    tally: ReplicationTally,
    secrets: SecretSource | None,
    watch: OptionsWatch,
) -> dict[str, Any]:
    def id_of(filter_code: str | None) -> str:
        return options.id(str(data.get("installation")), filter_code)

    written = dict(data.get("checkpoint") or {"written": 0})

    async def hold(checkpoint: Mapping[str, Any]) -> None:
        # One commit shows that the lock is still this runner's, and keeps the counters for the next run.
        written.update(checkpoint, written=written["written"] + 1)
        with suppress(JobCanceled):  # the job is to be canceled: the lock is ours all the same
            await keep_counters()

    async def keep_counters() -> None:
        counted = {"statistics": tally.statistics.to_data(), "skipped": tally.skipped_data(), "checkpoint": written}
        await job.update(copy.deepcopy({**data, **counted}))

    async with AsyncExitStack() as stack:
        # A run that only repeats its requests may not last as long as a healthy one.
        budget = jobs.handlers[str(job.type)].options.health_threshold / 2
        settings = HttpSettings(
            retries=options.retries_per_request,
            budget=budget,
            connect_timeout=options.connection_timeout,
            read_timeout=options.connection_timeout,
            connections=max(2, options.http_connections),  # the feed of changes holds one
        )
        source = await stack.enter_async_context(_opened(options.source, "source", settings, secrets))
        target = await stack.enter_async_context(_opened(options.target, "target", settings, secrets))
        replicator = Replicator(source, target, options, id_of, tally, hold, leaves_failing=fails_at_a_document(job))
        summary: dict[str, Any] = {}

        async def replicate() -> None:
            summary.update(await replicator.run())

        beside = [ProgressReporter(job, replicator, tally).run()]
        if options.continuous:  # a one-shot replication takes new options when it runs again
            beside.append(watch.until_wanted(job))
        try:
            await run_together(replicate(), beside=beside)
        except ReplicationError:  # also without a checkpoint: copied documents are not copied again
            with suppress(JobsError):
                await keep_counters()
            raise
        return summary


@asynccontextmanager
async def _opened(
    given: str | Mapping[str, Any], what: str, settings: HttpSettings, secrets: SecretSource | None
) -> AsyncIterator[HttpDatabase]:
    database = await open_database(given, what=what, secrets=secrets, settings=settings)
    try:
        yield database
    finally:
        await database.close()


def fails_at_a_document(job: RunningJob) -> bool:
    """Return whether the previous runs all ended at a document, and for no other reason."""
    before = [event for event in job.history if event.kind is not HistoryKind.STARTED][:FAILING_RUNS]
    return len(before) == FAILING_RUNS and all(any(name in event.detail for name in _AT_A_DOCUMENT) for event in before)


def asked_too_much(job: RunningJob) -> bool:
    """Return whether the previous run ended because a server had asked it to slow down."""
    before = [event.kind for event in job.history if event.kind is not HistoryKind.STARTED]
    return job.error is not None and job.error.type == MaxBackoff.__name__ and before[:1] == [HistoryKind.CRASHED]


class OptionsWanted(ReplicationError):
    """A continuous replication has got new options during its run."""


class OptionsWatch:
    """Detects new options of running replications, with one check for all of them.

    Args:
        jobs: the service.
    """

    def __init__(self, jobs: JobsService) -> None:
        self._jobs = jobs
        self._looking = asyncio.Lock()
        self._looked_at = -math.inf
        self._version: bytes | None = None

    async def until_wanted(self, job: RunningJob) -> None:
        """Run until the job gets new options.

        Raises:
            OptionsWanted: the job has got new options.
        """
        seen: object = self
        while True:
            with suppress(StoreError):  # the next check follows
                if (version := await self._look()) != seen:
                    if await is_wanted(self._jobs, job):
                        raise OptionsWanted("other options are wanted")
                    seen = version
            await asyncio.sleep(LOOK_EVERY)

    async def _look(self) -> bytes | None:
        async with self._looking:
            now = asyncio.get_running_loop().time()
            if now - self._looked_at >= LOOK_EVERY:
                self._version = await version_of_wanted(self._jobs)
                self._looked_at = now
            return self._version


# One run


class FilterMissing(ReplicationError):
    """The source lacks the filter; it may be added later."""

    transient = True


class Replicator:
    """Copies a source to a target.

    Args:
        source, target: the databases; the caller closes them.
        options: the options of the replication.
        id_of: returns the id of the checkpoints for the code of the filter.
        tally: the counters of earlier runs; this run adds to them.
        hold: awaited right before each checkpoint, with its data for display; raises when another runner has the job:
            then no checkpoint is written.
        leaves_failing: see Pipeline.

    Attributes:
        through: the progress of the run; None before the checkpoint has been found.
    """

    def __init__(
        self,
        source: HttpDatabase,
        target: HttpDatabase,
        options: ReplicationOptions,
        id_of: Callable[[str | None], str],
        tally: ReplicationTally,
        hold: Callable[[dict[str, Any]], Awaitable[object]],
        *,
        leaves_failing: bool = False,
    ) -> None:
        self._source = source
        self._target = target
        self._options = options
        self._id_of = id_of
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
            with suppress(JobsError, TimeoutError):
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
        with suppress(ReplicationError):
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
        id = self._id_of(await self._filter_code())
        self._checkpoints = Checkpoints(self._source, self._target, id, self._started)
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


# Progress


INTERVAL: Final = 2.0
"""Seconds between two reports; a job without progress reports nothing."""

ASK_PENDING: Final = 30.0
"""Seconds between two requests to the source for the number of remaining changes."""


class ProgressReporter:
    """Reports the progress of one run.

    Args:
        job: the job of the run.
        replicator: the replicator of the run.
        tally: the counters of the run.
    """

    def __init__(self, job: RunningJob, replicator: Replicator, tally: ReplicationTally) -> None:
        self._job = job
        self._replicator = replicator
        self._tally = tally
        self._before = self._figures()
        self._bytes, self._written = 0, tally.statistics.docs_written
        self._total: int | None = None
        self._asked_at: float | None = None

    async def run(self) -> None:
        """Report until canceled."""
        clock = asyncio.get_running_loop()
        last, was_moving = clock.time(), False
        while True:
            await asyncio.sleep(INTERVAL)
            has_moved = self._figures() != self._before
            if has_moved or was_moving:  # once more when it stands still: with a rate of 0
                now = clock.time()
                await self._report(now, now - last)
                last = now
            was_moving = has_moved

    async def _report(self, now: float, seconds: float) -> None:
        self._before = self._figures()
        if self._asked_at is None or now - self._asked_at >= ASK_PENDING:
            self._asked_at = now
            copied = self._tally.copied  # workers go on until the answer comes
            pending = await self._replicator.pending()
            self._total = None if pending is None else copied + pending
        done, total = self._tally.copied, self._total
        if total is not None or self._tally.rows > done:
            total = max(total or 0, self._tally.rows)  # newer rows of the feed are pending as well
        with suppress(JobCanceled, StoreError):  # the runner cancels it soon; the next report comes later
            await self._job.progress(done, None if total is None else max(total, done), self._message(seconds))

    def _message(self, seconds: float) -> str:
        written, size = self._tally.statistics.docs_written, self._tally.bytes_written
        documents, bytes = (written - self._written) / seconds, (size - self._bytes) / seconds
        self._written, self._bytes = written, size
        return progress_message(documents, bytes, self._tally.statistics.doc_write_failures)

    def _figures(self) -> tuple[int, ...]:
        return (
            self._tally.rows,
            self._tally.copied,
            self._tally.statistics.docs_written,
            self._tally.statistics.doc_write_failures,
        )
