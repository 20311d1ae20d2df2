"""A service's operations for creators of jobs: add, enqueue, resubmit, remove."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from functools import partial
from sys import modules
from typing import Any, Final

from jobs_service import tracing
from jobs_service.actors.context import Context
from jobs_service.arguments import IfExists, check_force, check_if_exists, check_timeout
from jobs_service.batching.group_commit import GroupCommit
from jobs_service.durations import Duration
from jobs_service.errors import JobNotFound, StoreError, not_removed
from jobs_service.layer import creation
from jobs_service.layer.enqueueing import How, handler_of, wanted
from jobs_service.layer.entry import enqueued_job, job_of
from jobs_service.layer.keyspace import Place
from jobs_service.model import UNSET, Job, JobId, JobState, JobType, NewJob, Priority, Removal, RunAt
from jobs_service.model.signatures import as_enqueue, as_enqueue_many
from jobs_service.service.bulk import BulkCreation
from jobs_service.service.handler_registry import HandlerRegistry
from jobs_service.service.reader_operations import read_job
from jobs_service.service.store_access import StoreAccess
from jobs_service.service.tree import ServiceTree
from jobs_service.store.base import Transaction, Watch

_WATCH_HOLDOFF: Final = 0.02
"""Least seconds between two reads of a job while waiting for its end."""
_MOMENT: Final = 0.05
"""Seconds that a removal gets even with a timeout of zero."""


class CreatorOperations:
    """The part of JobsService for creators of jobs."""

    _access: StoreAccess
    _bulk: BulkCreation
    _context: Context
    _operations: GroupCommit
    _registry: HandlerRegistry
    _tree: ServiceTree

    async def add(
        self,
        type: JobType,
        id: JobId,
        data: Any = None,
        *,
        priority: Priority = 0,
        run_at: RunAt | None = None,
        if_exists: IfExists = "error",
    ) -> Job:
        """Add a job.

        Args:
            type: of the job; must have an activity timeout.
            id: names the job within its type.
            data: its JSON value.
            priority: lower runs first.
            run_at: the earliest time to run, an aware datetime or seconds since the epoch; None for at once.
            if_exists: "error": JobExists is raised; "ignore": the job stays as it is; "resubmit": a pending job gets
                the new data, priority and run_at, a running one runs again afterwards (its data is not touched), a
                finished one is pending again.

        Returns:
            The job as it is now.

        Raises:
            NoTypeTimeout: the job is new, and its type has no timeout.
            JobExists: the job exists, and if_exists is "error".
            InvalidJob: an invalid argument.
            JobTooLarge: the record or its key is over the store's limits.
            StoreError: the store failed.
        """
        place = self._access.place(type, id)
        if tracing.MODULE not in modules:  # even a no-op span would take a twentieth of the time
            return job_of(await self._begin_add(place, type, id, data, priority, run_at, if_exists))
        with tracing.sending("add", type, id):
            return job_of(await self._begin_add(place, type, id, data, priority, run_at, if_exists))

    def _begin_add(
        self, place: Place, type: Any, id: Any, data: Any, priority: Any, run_at: Any, if_exists: Any
    ) -> asyncio.Future[Any]:
        spec = creation.spec_of(type, id, data, priority, run_at)
        rule = check_if_exists(if_exists)
        reads = place[0].timeout
        return self._operations.operate(creation.add, place, spec, rule, size=spec.size(), reads=reads)

    async def add_many(self, type: JobType, jobs: Iterable[NewJob], *, if_exists: IfExists = "error") -> list[Job]:
        """Add jobs of one type, as many per transaction as the limits allow.

        Each transaction is all or nothing; when one fails, those before it have taken effect.

        Args:
            type: of the jobs.
            jobs: any iterable; read while the jobs are written.
            if_exists: as for `add`.

        Returns:
            The jobs in their order.

        Raises:
            JobExists: names the id; and as `add`.
        """
        with tracing.sending("add", type) as span:
            added = await self._bulk.add_many(self._access.keys(type), jobs, check_if_exists(if_exists))
            tracing.sent(span, added)
            return added

    @as_enqueue
    async def enqueue(self, handler: Any, args: Any, arguments: dict[str, Any], how: How) -> Job:
        """Add a job for a handler; makes the type if it is missing.

        Args:
            handler: a function decorated by `handler`; or its type, for programs without the function. Then the type
                must exist, and the arguments are the job's data.
            args: the function's argument; omitted for a function that takes nothing but the job.
            arguments: the same by keyword, for a function of several parameters.
            id: names the job within its type; None for a random one.
            priority: as for `add`.
            run_at: as for `add`, or a timedelta from now on.
            delay: a duration from now on. Instead of `run_at`.
            unique: True for at most one unfinished job with these arguments, a str for at most one with this key: an
                unfinished one is returned unchanged, a finished one runs again. Instead of `id`. An omitted argument
                equals its default, if the handler is known here.
            max_attempts, time_limit: of this job; None for its handler's.
            if_exists: rule for an existing job of this `id`, as for `add`; None for "error".
            unique_for: with `unique`, seconds or a timedelta after the end of a job during which it does not run again,
                as long as the job is kept.

        Returns:
            The job as it is now; its `enqueued` tells whether this call added it, had it run again, or found it. A
            finished job that runs again keeps nothing from earlier calls.

        Raises:
            InvalidJob: arguments that do not fit the handler, or are invalid for a job.
            NoTypeTimeout: the type was removed, or does not exist and its handler is not known here.
            JobExists, JobTooLarge, StoreError: as `add`.
        """
        self._access.check_open()
        resolved = handler_of(handler, self._registry.handlers)
        with tracing.sending("enqueue", resolved.type) as span:
            asked = wanted(resolved, args, arguments, how, self._context.sources)
            place = self._access.place(resolved.type, asked.id)
            work = self._operations.operate(
                creation.enqueue,
                place,
                asked.spec,
                asked.rule,
                resolved.timeout,
                size=asked.spec.size(),
                reads=place[0].timeout,
            )
            job = enqueued_job(await work)
            tracing.sent(span, job)
        self._tree.enqueued_for(place[0])
        return job

    @as_enqueue_many
    async def enqueue_many(self, handler: Any, jobs: Iterable[Any], how: How) -> list[Job]:
        """Add many jobs for a handler, as many per transaction as the limits allow.

        Each transaction is all or nothing; when one fails, those before it have taken effect.

        Args:
            handler: as for `enqueue`.
            jobs: the arguments of each, in any iterable; read while the jobs are written.
            unique: True for at most one unfinished job with the same arguments.
            priority, run_at, delay, max_attempts, time_limit, unique_for: of all jobs, as for `enqueue`.

        Returns:
            The jobs in their order.

        Raises:
            As `enqueue`.
        """
        self._access.check_open()
        resolved = handler_of(handler, self._registry.handlers)
        keys = self._access.keys(resolved.type)
        with tracing.sending("enqueue", resolved.type) as span:
            added = await self._bulk.enqueue_many(resolved, keys, jobs, how)
            tracing.sent(span, added)
        if added:
            self._tree.enqueued_for(keys)
        return added

    async def remove(self, type: JobType, id: JobId, *, force: bool = False) -> Removal:
        """Remove a job. A running job is canceled instead: its worker is told, and finishes the job.

        Args:
            type, id: the job.
            force: remove even a running or unreadable job; its worker gets WorkerConflict.

        Returns:
            REMOVED or CANCELED.

        Raises:
            JobNotFound: there is no such job.
            RecordDamaged: its record cannot be read, and force is not set.
        """
        checked = check_force(force)
        removal: Removal = await self._operations.operate(creation.remove, self._access.place(type, id), checked)
        return removal

    async def stop_and_remove(self, type: JobType, id: JobId, *, timeout: Duration) -> None:
        """Remove a job; if it runs, wait until its worker has finished it.

        Args:
            type, id: the job.
            timeout: a duration; None for ever.

        Raises:
            JobNotFound: there is no such job.
            TimeoutError: the job did not finish in time, and stays canceled; or the store did not answer in time, and
                the job may be canceled or not. The message tells them apart.
        """
        seconds = check_timeout(timeout)
        removal: Removal | None = None
        try:
            # Even without time to wait the removal itself gets a moment.
            async with asyncio.timeout(None if seconds is None else max(seconds, _MOMENT)):
                removal = await self.remove(type, id)
                while removal is Removal.CANCELED:
                    await self._not_running(type, id)
                    try:
                        removal = await self.remove(type, id)
                    except JobNotFound:
                        return
        except TimeoutError:
            raise not_removed(type, id, seconds, removal is not None) from None

    async def _not_running(self, type: JobType, id: JobId) -> None:
        """Wait until a job does not run.

        Reads it again at each change of its type's activity stamp, which works without a supervisor tree.
        """
        place = self._access.place(type, id)

        async def read(transaction: Transaction) -> tuple[bool, Watch]:
            watch = transaction.watch(place[0].watch_activity)
            try:
                job = await read_job(transaction, place)
            except JobNotFound:
                return False, watch
            return job.state is JobState.RUNNING, watch

        reading = partial(self._access.read, read)
        while True:
            running, watch = await self._context.retried(reading, type=type, id=id)
            try:
                if not running:
                    return
                with contextlib.suppress(StoreError):  # a watch that was lost: read again
                    await self._access.until_fired(watch)
                self._access.check_open()
            finally:
                watch.cancel()
            await asyncio.sleep(_WATCH_HOLDOFF)

    async def resubmit(
        self, type: JobType, id: JobId, *, data: Any = UNSET, priority: Any = UNSET, run_at: Any = UNSET
    ) -> Job:
        """Run a job again; a running one after its present run (its data is not touched).

        Args:
            type, id: the job.
            data, priority, run_at: as for `add`; omitted ones stay.

        Raises:
            JobNotFound: there is no such job.
            InvalidJob, JobTooLarge, StoreError: as `add`.
        """
        place = self._access.place(type, id)
        with tracing.sending("resubmit", type, id):
            spec = creation.spec_of(type, id, data, priority, run_at)
            return job_of(await self._operations.operate(creation.resubmit, place, spec, size=spec.size()))
