"""Replications as jobs: added, listed, and run by a service."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, Unpack

from jobs_service import Job, JobNotFound, JobsService, JobState, JobTransaction, NoTypeTimeout, RunningJob
from jobs_service.replication.contract import ReplicationError
from jobs_service.replication.endpoint import SecretSource
from jobs_service.replication.options import InvalidReplication, ReplicationOptions
from jobs_service.replication.stored import CONTINUOUS, ONE_SHOT, installation_id, keep_beside, masked, sweep, want
from jobs_service.runner.options import HandlerKeywords
from jobs_service.sources import raised_file_limit

CONTINUOUS_SLOTS: Final = 500
"""Continuous replications that one process runs at the same time: CouchDB's number. Most of them wait for changes."""

_TYPE_TIMEOUT: Final = 60.0
"""Activity timeout of new types before a runner sets one: the handlers' default."""


# Adding


async def replicate(
    jobs: JobsService, source: str | Mapping[str, Any], target: str | Mapping[str, Any], **options: Any
) -> Job:
    """Add a replication as a job. The same replication is one job, however often it is added.

    The new options apply: a running continuous replication is stopped within seconds, and goes on with them from its
    checkpoint. A finished replication, or a running one that has an end, runs once more, from its checkpoint.
    `await jobs.result(job.type, job.id)` waits for the end of a replication that is not continuous.

    Args:
        jobs: the service; it need not run replications itself.
        source, target: URLs, or objects as in `_replicator`. Credentials in them are kept in the store and shown
            nowhere; the program that runs the job resolves `env:NAME`, `file:PATH` and `secret:NAME` in the place of a
            password.
        options: see ReplicationOptions.

    Returns:
        The job.

    Raises:
        InvalidReplication, InvalidEndpoint: an option or an endpoint is invalid.
        StoreError: the store failed.
    """
    return await replicate_as(jobs, ReplicationOptions.from_data({"source": source, "target": target, **options}))


async def replicate_document(jobs: JobsService, document: Any) -> Job:
    """Add the replication in a document of CouchDB's `_replicator`, as `replicate` does.

    Args:
        jobs: the service.
        document: the JSON object.
    """
    return await replicate_as(jobs, ReplicationOptions.from_document(document), str(document.get("_id", "")))


async def replicate_database(
    jobs: JobsService, database: str | Mapping[str, Any]
) -> AsyncIterator[tuple[str, Job | ReplicationError | InvalidReplication]]:
    """Add a replication for each document of a `_replicator` database, except documents that CouchDB has completed.

    Args:
        jobs: the service.
        database: its URL, or an object as in `replicate`.

    Yields:
        The `_id` of each document, with its job, or with the error if it is no valid replication here.

    Raises:
        ReplicationError: the database cannot be read.
    """
    from jobs_service.replication.database import open_database  # needs aiohttp

    opened = await open_database(database, what="database")
    try:
        async for document in opened.all_documents():
            name = str(document["_id"])
            if name.startswith("_design/") or document.get("_replication_state") == "completed":
                continue
            try:
                yield name, await replicate_document(jobs, document)
            except (ReplicationError, InvalidReplication) as error:
                yield name, error
    finally:
        await opened.close()


async def replicate_as(jobs: JobsService, options: ReplicationOptions, name: str = "") -> Job:
    """Add a replication as a job, with a name for display; see `replicate`."""
    type, new = CONTINUOUS if options.continuous else ONE_SHOT, uuid.uuid4().hex

    async def add(tx: JobTransaction) -> Job:
        installation = await installation_id(tx, new)
        # The code of a filter is at the source, which may be away now: the name stands for it in the job's id.
        id = options.id(installation, options.filter)
        await _make_type(tx, type)
        data = {"installation": installation, "options": masked(options), **({"name": name} if name else {})}
        try:
            there = await tx.get(type, id)
        except JobNotFound:
            keep_beside(tx, type, id, options)
            return await tx.add(type, id, data)
        if there.state is JobState.RUNNING:
            await want(tx, there, options)  # its data stays as it is while it runs
            return there if options.continuous else await tx.resubmit(type, id)
        keep_beside(tx, type, id, options)
        return await tx.add(type, id, {**(there.data or {}), **data}, if_exists="resubmit")

    job = await jobs.transact(add)
    await sweep(jobs)
    return job


async def _make_type(tx: JobTransaction, type: str) -> None:
    try:
        await tx.get_type_timeout(type)
    except NoTypeTimeout:
        await tx.set_type_timeout(type, _TYPE_TIMEOUT)


async def replications(jobs: JobsService) -> AsyncIterator[Job]:
    """Yield the jobs of all replications."""
    for type in (ONE_SHOT, CONTINUOUS):
        async for job in jobs.list(type):
            yield job


# Running


def register_replication(
    jobs: JobsService, *, secrets: SecretSource | None = None, **options: Unpack[HandlerKeywords]
) -> None:
    """Let a service's `run` run replications.

    Args:
        jobs: the service.
        secrets: returns the value of `secret:NAME`, given the name; plain or a coroutine function.
        options: options of both handlers, see HandlerOptions; a replication is tried for ever unless `max_attempts` is
            given.

    Raises:
        InvalidSettings: an option outside its range, or a service that runs replications already.
    """
    from jobs_service.replication.job import OptionsWatch, run_replication  # needs aiohttp; adding jobs does not

    given: HandlerKeywords = {"max_attempts": None, **options}
    starts, watch = Starts(), OptionsWatch(jobs)
    takes_turns: HandlerKeywords = {"slots": CONTINUOUS_SLOTS, **given, "continuous": True}
    raised_file_limit()  # each has a connection to its source, and more while documents come

    @jobs.handler(ONE_SHOT, **given)
    async def replicate_once(job: RunningJob) -> dict[str, Any]:
        return await run_replication(jobs, job, secrets, starts, watch)

    @jobs.handler(CONTINUOUS, **takes_turns)
    async def replicate_for_ever(job: RunningJob) -> dict[str, Any]:
        return await run_replication(jobs, job, secrets, starts, watch)


LONGEST: Final = 5.0
"""Longest delay of a run before it begins, in seconds: CouchDB's number."""

FOR_EACH: Final = 0.025
"""Seconds that each other waiting run adds to the longest delay."""


class Starts:
    """The runs of a service that are about to begin."""

    def __init__(self) -> None:
        self._waiting = 0

    def longest_wait(self) -> float:
        """Return the longest delay of the next run in seconds: 0 when it is alone."""
        return min(LONGEST, FOR_EACH * self._waiting)

    async def wait(self) -> None:
        """Wait until a run may begin."""
        seconds = random.uniform(0, self.longest_wait())
        self._waiting += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            self._waiting -= 1
