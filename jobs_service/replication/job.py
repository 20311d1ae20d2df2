"""A replication's job, run once."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import math
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from jobs_service import Discard, HistoryKind, JobCanceled, JobsError, JobsService, RunningJob, Snooze, StoreError
from jobs_service.replication.database import HttpDatabase, open_database
from jobs_service.replication.endpoint import SecretSource
from jobs_service.replication.errors import (
    DatabaseMissing,
    DocumentNotWritten,
    MaxBackoff,
    ReplicationError,
    RevisionMissing,
)
from jobs_service.replication.http import HttpSettings
from jobs_service.replication.options import InvalidReplication, ReplicationOptions
from jobs_service.replication.progress import ProgressReporter
from jobs_service.replication.replicator import Replicator
from jobs_service.replication.starts import Starts
from jobs_service.replication.statistics import Statistics
from jobs_service.replication.stored import (
    CredentialsMissing,
    is_wanted,
    take_wanted,
    unmasked,
    version_of_wanted,
)
from jobs_service.replication.tally import DocumentRefused, Tally
from jobs_service.replication.tasks import run_together

FAILING_RUNS: Final = 3
"""Runs in a row that end at a failing document; the next run skips such documents."""

LOOK_EVERY: Final = 1.0
"""Seconds between two checks for new options."""

_AT_A_DOCUMENT: Final = (RevisionMissing.__name__, DocumentNotWritten.__name__)


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
            with contextlib.suppress(StoreError):  # the next check follows
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
    tally = Tally(Statistics.from_data(data.get("statistics") or {}), data.get("skipped"), strict=options.strict)
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
    tally: Tally,
    secrets: SecretSource | None,
    watch: OptionsWatch,
) -> dict[str, Any]:
    def ids(filter_code: str | None) -> list[str]:
        return options.ids(str(data.get("installation")), filter_code)

    written = dict(data.get("checkpoint") or {"written": 0})

    async def hold(checkpoint: Mapping[str, Any]) -> None:
        # One commit shows that the lock is still this runner's, and keeps the counters for the next run.
        written.update(checkpoint, written=written["written"] + 1)
        with contextlib.suppress(JobCanceled):  # the job is to be canceled: the lock is ours all the same
            await keep_counters()

    async def keep_counters() -> None:
        counted = {"statistics": tally.statistics.to_data(), "skipped": tally.skipped_data(), "checkpoint": written}
        await job.update(copy.deepcopy({**data, **counted}))

    async with contextlib.AsyncExitStack() as stack:
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
        replicator = Replicator(source, target, options, ids, tally, hold, leaves_failing=fails_at_a_document(job))
        summary: dict[str, Any] = {}

        async def replicate() -> None:
            summary.update(await replicator.run())

        beside = [ProgressReporter(job, replicator, tally).run()]
        if options.continuous:  # a one-shot replication takes new options when it runs again
            beside.append(watch.until_wanted(job))
        try:
            await run_together(replicate(), beside=beside)
        except ReplicationError:  # also without a checkpoint: copied documents are not copied again
            with contextlib.suppress(JobsError):
                await keep_counters()
            raise
        return summary


@contextlib.asynccontextmanager
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
