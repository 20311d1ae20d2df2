"""A replication's job, run once."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from jobs_service import Discard, HistoryKind, JobCanceled, JobsService, RunningJob
from jobs_service.replication.database import HttpDatabase, open_database
from jobs_service.replication.endpoint import SecretSource
from jobs_service.replication.errors import DatabaseMissing, DocumentNotWritten, MaxBackoff, RevisionMissing
from jobs_service.replication.http import HttpSettings
from jobs_service.replication.options import InvalidReplication, ReplicationOptions
from jobs_service.replication.progress import ProgressReporter
from jobs_service.replication.replicator import Replicator
from jobs_service.replication.starts import Starts
from jobs_service.replication.statistics import Statistics
from jobs_service.replication.stored import CredentialsMissing, unmasked
from jobs_service.replication.tally import DocumentRefused, Tally
from jobs_service.replication.tasks import run_together

FAILING_RUNS: Final = 3
"""Runs in a row that end at a document which one side does not give or take; the next one goes past it."""

_AT_A_DOCUMENT: Final = (RevisionMissing.__name__, DocumentNotWritten.__name__)


async def run_replication(
    jobs: JobsService, job: RunningJob, secrets: SecretSource | None, starts: Starts
) -> dict[str, Any]:
    """Run a replication's job once.

    Args:
        jobs: the service.
        job: the job.
        secrets: see register_replication.
        starts: spreads those that begin at the same time.

    Returns:
        What has been done, for the job's result.

    Raises:
        Discard: it will never succeed.
        ReplicationError: it may succeed another time.
    """
    data = job.data if isinstance(job.data, dict) else {}
    try:
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
        return await _replicate(jobs, job, data, options, tally, secrets)
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
) -> dict[str, Any]:
    def ids(filter_code: str | None) -> list[str]:
        return options.ids(str(data.get("installation")), filter_code)

    async def hold() -> None:
        # One commit shows that the lock is still this runner's, and keeps what was counted for the next run.
        with contextlib.suppress(JobCanceled):  # somebody wants it to end: the lock is ours all the same
            counted = {"statistics": tally.statistics.to_data(), "skipped": tally.skipped_data()}
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

        await run_together(replicate(), beside=[ProgressReporter(job, replicator, tally).run()])
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
    """Return whether the runs before this one ended at a document, and not for another reason."""
    before = [event for event in job.history if event.kind is not HistoryKind.STARTED][:FAILING_RUNS]
    return len(before) == FAILING_RUNS and all(any(name in event.detail for name in _AT_A_DOCUMENT) for event in before)


def asked_too_much(job: RunningJob) -> bool:
    """Return whether the run before this one ended because a server had asked it to slow down."""
    before = [event.kind for event in job.history if event.kind is not HistoryKind.STARTED]
    return job.error is not None and job.error.type == MaxBackoff.__name__ and before[:1] == [HistoryKind.CRASHED]
