"""The operations on jobs inside one transaction, beside the application's own reads and writes.

They are there for functions without `await` as well, as plain methods.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeAlias, TypeVar, cast, overload

from jobs_service.arguments import (
    ADAPTIVE,
    IfExists,
    Spread,
    check_force,
    check_if_exists,
    check_iterable,
    check_keep,
    check_limit,
    check_positive,
    check_running,
    check_seconds,
    check_state,
    json_of,
    new_jobs,
    to_seconds,
)
from jobs_service.durations import Duration
from jobs_service.layer import creation, queue, reads, running_jobs, type_settings
from jobs_service.layer.creation import handler_of, new_job_spec, wanted
from jobs_service.layer.keyspace import Place, TypeKeys, place_of
from jobs_service.layer.queue import QueueReads, Spreading, terms
from jobs_service.layer.reads import Listing, list_page
from jobs_service.layer.record import Entry, NewSeq, enqueued_job, job_of, jobs_listed, naming_its_job, running_job
from jobs_service.layer.running_jobs import encoded_ending
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model import (
    UNSET,
    Ending,
    Job,
    JobError,
    JobId,
    JobState,
    JobType,
    NewJob,
    Outcome,
    Priority,
    Removal,
    RunAt,
    RunningJob,
    Worker,
)
from jobs_service.model.enqueueing import Enqueue, Enqueueable, EnqueueMany, How, as_enqueue, as_enqueue_many
from jobs_service.model.type_state import Retention
from jobs_service.store.base import Transaction, drive, transaction_ended
from jobs_service.store.sync_transaction import PlainTransaction

COUNT_PAGE = 10_000

# Inside a class that has a method `list`, the builtin goes by these names.
_Jobs: TypeAlias = list[Job]
_RunningJobs: TypeAlias = list[RunningJob]
_Ids: TypeAlias = list[JobId]
_Types: TypeAlias = list[JobType]
_Entries: TypeAlias = list[Entry]

_MOST_LOOKS: Final = 64
"""Looks at a queue in one transaction, as long as each only removes obstacles from it."""


class _Ended:
    """Stands for the unit of work of a transaction that has ended."""

    def __getattr__(self, name: str) -> Any:
        raise transaction_ended()


_ENDED: Final = _Ended()


class JobTransaction:
    """Operations on jobs that take effect together with each other and with the changes made through `kv`.

    They behave as if done one after the other, also on the same job. A transaction function gets one as its argument.

    Attributes:
        kv: the store's transaction, for the application's own keys and values, all bytes: `kv[key] = value`,
            `del kv[key]`, `await kv.get(key)`, `await kv.get_range(begin, end)`, and `kv.add(key, operand)` for a
            counter, little-endian.
    """

    def __init__(
        self, unit: UnitOfWork, worker: Worker | None, make_ready: int, looks: QueueReads | None = None
    ) -> None:
        self._unit = unit
        self._worker = worker
        self._make_ready = make_ready
        self._looks = looks
        self._accepted: _Entries = []

    def _end(self) -> _Entries:
        """Refuse everything from now on; return the accepted jobs that are still running."""
        self._unit = cast(UnitOfWork, _ENDED)
        taken, self._accepted = self._accepted, []
        return [entry for entry in taken if entry.record is not None and entry.record.lock is not None]

    def _block(self, whether: bool) -> Self:
        """Have reads block the thread, or not; see Transaction.block."""
        self._unit.transaction.block(whether)
        return self

    @property
    def kv(self) -> Transaction:
        """The store's transaction: your own keys, in FoundationDB's vocabulary."""
        self._unit.has_application = True
        return self._unit.transaction

    async def sql(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run a statement on your own tables in an `sqlite:` store's file: its rows and the jobs are one commit.

        It sees the rows that this transaction has written, and no other's before their commit. An error that leaves
        the transaction function, whichever it is, rolls back what the function has done, rows and jobs.

        Args:
            statement: one SQL statement.
            parameters: the values of its `?`; or one mapping, of its `:name`.

        Returns:
            The rows, as tuples; empty for a statement without any, so `insert ... returning id` has one.

        Raises:
            sqlite3.Error: SQLite refuses the statement, as for a violated constraint.
            TransactionTooOld: the function, with this statement, has run for 5 s, and is rolled back.
            StoreError: the store is no `sqlite:` store, or the statement would commit, attach a file, or change the
                table of the jobs.
        """
        self._unit.has_application = True
        return await self._unit.transaction.sql(statement, *parameters)

    # Types

    async def set_type_timeout(self, type: JobType, seconds: Duration) -> None:
        """Create a type, or change its activity timeout; see JobsService.set_type_timeout."""
        await type_settings.set_type_timeout(self._unit, self._keys(type), check_seconds(seconds))

    async def get_type_timeout(self, type: JobType) -> float:
        """Return a type's activity timeout in seconds; see JobsService.get_type_timeout."""
        return await type_settings.type_timeout(self._unit.transaction, self._keys(type))

    async def clear_type_timeout(self, type: JobType) -> None:
        """Remove a type; see JobsService.clear_type_timeout."""
        await type_settings.clear_type_timeout(self._unit, self._keys(type))

    async def types(self) -> _Types:
        """Return the types that exist."""
        return await type_settings.types(self._unit.transaction, self._unit.keyspace)

    async def pause(self, type: JobType) -> None:
        """Stop all accepts of a type's jobs; see JobsService.pause."""
        await type_settings.pause(self._unit, self._keys(type))

    async def resume(self, type: JobType) -> None:
        """Let jobs of a type be accepted again; see JobsService.resume."""
        await type_settings.resume(self._unit, self._keys(type))

    async def paused(self, type: JobType) -> bool:
        """Whether a type is paused; see JobsService.paused."""
        return await self._unit.is_paused(self._keys(type))

    async def set_retention(
        self, type: JobType, *, keep: Duration | None = None, keep_failed: Duration | None = None
    ) -> None:
        """Set the retention of a type's finished jobs; see JobsService.set_retention."""
        retention = Retention(check_keep("keep", keep), check_keep("keep_failed", keep_failed))
        await type_settings.set_retention(self._unit, self._keys(type), retention)

    # Creating and watching over jobs

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
        """Add a job; see JobsService.add."""
        spec = creation.spec_of(type, id, data, priority, run_at)
        return job_of(await creation.add(self._unit, self._place(type, id), spec, check_if_exists(if_exists)))

    async def add_many(self, type: JobType, jobs: Iterable[NewJob], *, if_exists: IfExists = "error") -> _Jobs:
        """Add jobs of one type, all in this transaction; see JobsService.add_many."""
        rule = check_if_exists(if_exists)
        keys = self._keys(type)
        specs = []
        places = []
        for job in new_jobs(jobs):
            specs.append(new_job_spec(keys.type, job))
            places.append(place_of(keys, job.id))
        with self._unit.all_or_nothing():
            return [job_of(entry) for entry in await creation.add_many(self._unit, keys, places, specs, rule)]

    async def remove(self, type: JobType, id: JobId, *, force: bool = False) -> Removal:
        """Remove a job; see JobsService.remove."""
        return await creation.remove(self._unit, self._place(type, id), check_force(force))

    async def get(self, type: JobType, id: JobId) -> Job:
        """Return a job as this transaction sees it; see JobsService.get."""
        entry = await self._unit.load(self._place(type, id))
        if entry.record is None:
            raise creation.not_found(entry)
        return job_of(entry)

    def list(
        self, type: JobType | None = None, *, state: JobState | str | None = None, page_size: int = 1000
    ) -> Listing:
        """List jobs as this transaction sees them: `await` gives a list, `async for` one after the other."""
        keys = None if type is None else self._keys(type)
        return Listing(self._list(keys, check_state(state, self._unit.now), check_positive("page_size", page_size)))

    async def active_ids(self, type: JobType) -> _Ids:
        """Return the ids of the type's running jobs, those silent for longest first."""
        keys = self._keys(type)
        found = await running_jobs.active_ids(self._unit.transaction, keys, None, 0)
        # The entries of those that this transaction has moved are not there any more, or not yet.
        own = [
            (entry.record.seq.order, entry.id)
            for entry in self._changed(keys)
            if entry.record is not None and entry.record.lock is not None and isinstance(entry.record.seq, NewSeq)
        ]
        return [id for _, id in found] + [id for _, id in sorted(own)]

    async def pending_count(self, type: JobType, *, due_by: RunAt | None = None, limit: int | None = None) -> int:
        """Return how many jobs of the type are pending; see JobsService.pending_count."""
        keys = self._keys(type)
        seconds = to_seconds(due_by, "due_by")
        most = check_limit(limit)
        counted = sum(
            1
            for entry in self._changed(keys)
            if entry.record is not None
            and entry.record.place
            and not isinstance(entry.record.seq, bytes)
            and (seconds is None or entry.record.run_at is None or entry.record.run_at <= seconds)
        )
        after: bytes | None = None
        while most is None or counted < most:
            found, after = await reads.count(self._unit.transaction, keys, seconds, COUNT_PAGE, after)
            counted += found
            if after is None:
                break
        return counted if most is None else min(counted, most)

    # Running jobs

    async def accept(
        self, type: JobType, *, max_priority: Priority | None = None, due_by: RunAt | None = None, spread: Spread = 1
    ) -> RunningJob | None:
        """Take the job at the front of the queue, None if there is none; see JobsService.accept."""
        jobs = await self.accept_many(type, 1, max_priority=max_priority, due_by=due_by, spread=spread)
        return jobs[0] if jobs else None

    async def accept_many(
        self,
        type: JobType,
        limit: int,
        *,
        max_priority: Priority | None = None,
        due_by: RunAt | None = None,
        spread: Spread = 1,
    ) -> _RunningJobs:
        """Take up to `limit` jobs from the front of the queue; see JobsService.accept_many."""
        keys = self._keys(type)
        wanted = terms(limit, max_priority, due_by, spread, self._make_ready, self._unit.sources.worker)
        for _ in range(_MOST_LOOKS):
            if wanted.spread == ADAPTIVE:
                taken, more = await self._accept_adaptively(keys, wanted)
            else:
                taken, more = await queue.accept(self._unit, keys, wanted)
            if taken or not more.at_once:
                break
        self._accepted += taken
        return [running_job(entry, self._worker) for entry in taken]

    async def _accept_adaptively(self, keys: TypeKeys, wanted: queue.AcceptTerms) -> tuple[_Entries, queue.More]:
        """Accept with the service's present spread, or in exact order if there is no service to learn."""
        looks = QueueReads(Spreading()) if self._looks is None else self._looks
        spread = looks.spread(keys, wanted.limit)
        taken, more = await queue.accept(self._unit, keys, wanted._replace(spread=spread))
        looks.took(keys, spread, [entry.id for entry in taken])
        return taken, more

    async def update(self, job: RunningJob, data: Any = UNSET) -> RunningJob:
        """Show that a running job is alive; see RunningJob.update."""
        check_running(job)
        json = json_of(job.type, job.id, data)
        place = self._place(job.type, job.id)
        return running_job(
            await naming_its_job(place, running_jobs.update(self._unit, place, job.lock, json)), self._worker
        )

    async def finish(
        self,
        job: RunningJob,
        data: Any = UNSET,
        *,
        outcome: Outcome = Outcome.SUCCEEDED,
        result: Any = UNSET,
        error: JobError | None = None,
    ) -> Job:
        """End a job's run; see RunningJob.finish."""
        check_running(job)
        json, ended, report = encoded_ending(job, Ending(data, outcome, result, error))
        place = self._place(job.type, job.id)
        self._ending(job)
        return job_of(
            await naming_its_job(place, running_jobs.finish(self._unit, place, job.lock, json, ended, report))
        )

    @overload
    async def resubmit(
        self, type: RunningJob, *, data: Any = UNSET, priority: Any = UNSET, run_at: Any = UNSET
    ) -> RunningJob: ...

    @overload
    async def resubmit(
        self, type: JobType, id: JobId, *, data: Any = UNSET, priority: Any = UNSET, run_at: Any = UNSET
    ) -> Job: ...

    async def resubmit(
        self, type: Any, id: Any = None, *, data: Any = UNSET, priority: Any = UNSET, run_at: Any = UNSET
    ) -> Job:
        """Have a job run again: `resubmit(type, id)` as a creator, `resubmit(job)` as the running job's worker.

        See JobsService.resubmit and RunningJob.resubmit for arguments, results and errors.
        """
        if isinstance(type, RunningJob):
            job: RunningJob = type
            spec = creation.spec_of(job.type, job.id, data, priority, run_at)
            place = self._place(job.type, job.id)
            return running_job(
                await naming_its_job(place, running_jobs.resubmit(self._unit, place, job.lock, spec)), self._worker
            )
        spec = creation.spec_of(type, id, data, priority, run_at)
        place = self._place(type, id)
        return job_of(await naming_its_job(place, creation.resubmit(self._unit, place, spec)))

    @as_enqueue
    async def enqueue(self, handler: Any, args: Any, arguments: dict[str, Any], how: How) -> Job:
        """Add a job for a handler; see JobsService.enqueue."""
        resolved = handler_of(handler, self._handlers())
        found = wanted(resolved, args, arguments, how, self._unit.sources)
        place = self._place(resolved.type, found.id)
        return enqueued_job(await creation.enqueue(self._unit, place, found.spec, found.rule, resolved.timeout))

    @as_enqueue_many
    async def enqueue_many(self, handler: Any, jobs: Iterable[Any], how: How) -> _Jobs:
        """Add a job for each of many arguments, all in this transaction; see JobsService.enqueue_many."""
        resolved = handler_of(handler, self._handlers())
        sources = self._unit.sources
        found = [wanted(resolved, args, {}, how, sources) for args in check_iterable("jobs", jobs)]
        places = [self._place(resolved.type, each.id) for each in found]
        specs = [(each.spec, each.rule) for each in found]
        with self._unit.all_or_nothing():
            entries = await creation.enqueue_many(self._unit, places, specs, resolved.timeout)
            return [enqueued_job(entry) for entry in entries]

    def _handlers(self) -> Mapping[bytes, Enqueueable[Any, Any]]:
        """Return the handlers of this program by packed type: none if there is no service."""
        return {}

    async def release(self, job: RunningJob) -> Job:
        """Give a running job back; see RunningJob.release."""
        check_running(job)
        place = self._place(job.type, job.id)
        self._ending(job)
        return job_of(await naming_its_job(place, running_jobs.release(self._unit, place, job.lock)))

    def _ending(self, job: RunningJob) -> None:
        """Tell a running job's worker that the job may be over once this transaction has taken effect."""
        if job._worker is not None:
            job._worker._ending(job, True)

    def _keys(self, type: JobType) -> TypeKeys:
        return self._unit.keyspace.of(type)

    def _place(self, type: JobType, id: JobId) -> Place:
        return place_of(self._keys(type), id)

    def _changed(self, keys: TypeKeys) -> _Entries:
        return [entry for entry in self._unit.entries.values() if entry.changed and entry.keys == keys]

    async def _list(
        self, keys: TypeKeys | None, state: Callable[[Job], bool] | None, page_size: int
    ) -> AsyncIterator[Job]:
        """Merge the stored jobs with this transaction's changed ones, in key order."""
        changed = {
            key: entry
            for key, entry in self._unit.entries.items()
            if entry.changed and (keys is None or entry.keys == keys)
        }
        own = sorted(changed)
        position = 0
        after: bytes | None = None
        while True:
            page, after = await list_page(self._unit.transaction, self._unit.keyspace, keys, after, page_size)
            for key, job in page:
                while position < len(own) and own[position] < key:
                    for found in jobs_listed(changed[own[position]], state):
                        yield found
                    position += 1
                if key not in changed and (state is None or state(job)):
                    yield job
            if after is None:
                break
        for key in own[position:]:
            for found in jobs_listed(changed[key], state):
                yield found


# The same operations as plain methods


P = ParamSpec("P")
T = TypeVar("T")


def _plain(
    operation: Callable[Concatenate[JobTransaction, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[PlainJobTransaction, P], T]:
    """Turn a coroutine method into a plain one with the same result."""
    name = operation.__name__

    @functools.wraps(operation)
    def method(plain: PlainJobTransaction, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = drive(getattr(plain._operations(), name)(*args, **kwargs))
        return result

    return method


class PlainJobTransaction:
    """The operations of JobTransaction as plain methods, with the same arguments, results and errors.

    Every read blocks the calling thread.

    Attributes:
        kv: the store's transaction, for the application's own keys.
    """

    def __init__(self, jobs: JobTransaction) -> None:
        self._jobs: JobTransaction | None = jobs

    @property
    def kv(self) -> PlainTransaction:
        """The store's transaction: your own keys, in FoundationDB's vocabulary."""
        return PlainTransaction(lambda: self._operations().kv)

    sql = _plain(JobTransaction.sql)

    # Types

    set_type_timeout = _plain(JobTransaction.set_type_timeout)
    get_type_timeout = _plain(JobTransaction.get_type_timeout)
    clear_type_timeout = _plain(JobTransaction.clear_type_timeout)
    types = _plain(JobTransaction.types)
    pause = _plain(JobTransaction.pause)
    resume = _plain(JobTransaction.resume)
    paused = _plain(JobTransaction.paused)
    set_retention = _plain(JobTransaction.set_retention)

    # Creating and watching over jobs

    add = _plain(JobTransaction.add)
    add_many = _plain(JobTransaction.add_many)
    enqueue = cast(Enqueue[Job], _plain(cast(Any, JobTransaction.enqueue)))
    enqueue_many = cast(EnqueueMany[_Jobs], _plain(cast(Any, JobTransaction.enqueue_many)))
    remove = _plain(JobTransaction.remove)
    get = _plain(JobTransaction.get)
    active_ids = _plain(JobTransaction.active_ids)
    pending_count = _plain(JobTransaction.pending_count)

    def list(self, type: JobType | None = None, *, state: JobState | str | None = None, page_size: int = 1000) -> _Jobs:
        """Return jobs as this transaction sees them, in key order; see JobsService.list."""
        return drive(_all(self._operations().list(type, state=state, page_size=page_size)))

    # Running jobs

    accept = _plain(JobTransaction.accept)
    accept_many = _plain(JobTransaction.accept_many)
    update = _plain(JobTransaction.update)
    finish = _plain(JobTransaction.finish)
    release = _plain(JobTransaction.release)

    @overload
    def resubmit(
        self, type: RunningJob, *, data: Any = UNSET, priority: Any = UNSET, run_at: Any = UNSET
    ) -> RunningJob: ...

    @overload
    def resubmit(
        self, type: JobType, id: JobId, *, data: Any = UNSET, priority: Any = UNSET, run_at: Any = UNSET
    ) -> Job: ...

    def resubmit(
        self, type: Any, id: Any = None, *, data: Any = UNSET, priority: Any = UNSET, run_at: Any = UNSET
    ) -> Job:
        """Have a job run again: `resubmit(type, id)` as a creator, `resubmit(job)` as the running job's worker.

        See JobsService.resubmit and RunningJob.resubmit for arguments, results and errors.
        """
        return drive(self._operations().resubmit(type, id, data=data, priority=priority, run_at=run_at))

    def _operations(self) -> JobTransaction:
        assert self._jobs is not None
        return self._jobs


async def _all(listing: Listing) -> list[Job]:
    return await listing


def either(function: Callable[[Any], Any]) -> Callable[[JobTransaction], Awaitable[Any]]:
    """Return the coroutine function of a transaction function that may be a plain one.

    Every function is first called with a PlainJobTransaction. One that returns an awaitable is no plain function: it is
    called again, with the JobTransaction.
    """

    async def run(tx: JobTransaction) -> Any:
        result = function(PlainJobTransaction(tx._block(True)))
        if not hasattr(result, "__await__"):
            return result
        if isinstance(result, Coroutine):
            result.close()  # it has not begun
        return await function(tx._block(False))

    return run
