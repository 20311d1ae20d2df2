"""JobsService, the class that applications embed: all its operations, and the place that wires the floors together.

The module has more than 600 lines because it is the page to read first: every public method, with its arguments,
results and errors; those of `Handlers` are in `handler_registry`. The work of a method is in a module that it calls:
`creating`, `queries`, `acceptor`, `transactions`, `schedules`, `presence`, `remote` and `lifecycle` beside this one,
`type_settings` and `reads` of the layer, and `actors/subscriptions.py`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from functools import cached_property, partial
from importlib import import_module
from importlib.util import find_spec
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, Unpack, overload

from jobs_service.actors import subscriptions
from jobs_service.actors.context import Context, StoreAccess
from jobs_service.actors.subscriptions import Hub, Subscription, checked_pairs, stop_and_remove
from jobs_service.arguments import IfExists, Spread, check_keep, check_seconds, check_timeout
from jobs_service.batching import GroupCommit
from jobs_service.durations import Duration
from jobs_service.errors import InvalidSettings, JobsError, StoreError, a_kind_of, shown
from jobs_service.layer import reads, type_settings
from jobs_service.layer.queue import Spreading, terms
from jobs_service.layer.record import job_of
from jobs_service.layer.transaction import JobTransaction
from jobs_service.model import (
    UNSET,
    EndedJob,
    Job,
    JobEvent,
    JobId,
    JobState,
    JobType,
    NewJob,
    Priority,
    ProcessAction,
    ProcessInfo,
    Removal,
    RunAt,
    RunningJob,
)
from jobs_service.model.enqueueing import Enqueueable, How, ResultT, as_enqueue, as_enqueue_many
from jobs_service.model.type_state import Interval, JobsPage, QueueState, Retention, TypeCounts, TypeSettings
from jobs_service.redaction import Redaction
from jobs_service.runner.commands import command_handler
from jobs_service.runner.options import ChangeableOptions, HandlerKeywords, handler_options
from jobs_service.runner.runner import SlotUse
from jobs_service.service import presence, queries
from jobs_service.service.acceptor import AbandonedJobs, Acceptor, WaitingWorkers
from jobs_service.service.creating import Creator
from jobs_service.service.handler_registry import HandlerRegistry, Handlers, check_settings
from jobs_service.service.lifecycle import Lifecycle
from jobs_service.service.local_access import LocalAccess, RunningJobCalls
from jobs_service.service.presence import HandlerRuns, Presence, handlers_to_run, run_processes
from jobs_service.service.remote import Remote
from jobs_service.service.schedules import Schedules, ScheduleServer
from jobs_service.service.transactions import Blocks, Transactions, WithinTransaction
from jobs_service.settings import STORE_VARIABLE, Settings
from jobs_service.sources import Sources
from jobs_service.store import Store, open_address

if TYPE_CHECKING:
    from jobs_service.service.bulk_actions import BulkActions

T = TypeVar("T")

DEFAULT_STORE: Final = "lmdb:jobs-data"


class JobsService(Handlers):
    """Durable background jobs: an async context manager with every operation on jobs.

    Args:
        store: an address (`lmdb:PATH`, `sqlite:PATH`, `memory:`, `fdb:[CLUSTER_FILE]`), a Store, or None for the
            address in JOBS_SERVICE_STORE, else `lmdb:jobs-data`. Services of one process may share a Store: the last
            service to close also closes the Store, unless the application itself has opened it.
        settings: None for those of the environment.
        supervise: whether to run the supervisor tree. Without it this service does not notice lost jobs, and
            subscribing raises; meant for short-lived callers that only add jobs or look them up.
        sources: wall-clock time and randomness; None for the machine's.

    Raises:
        InvalidAddress: the address names no store.
        InvalidSettings: the environment has a setting out of range.
    """

    def __init__(
        self,
        store: str | Store | None = None,
        *,
        settings: Settings | None = None,
        supervise: bool = True,
        sources: Sources | None = None,
    ) -> None:
        _check_kinds(store, settings, supervise, sources)
        self.settings = settings if settings is not None else Settings()
        self._given = store, supervise, sources
        self._registry = HandlerRegistry()  # in place of that of a module
        self._wire()

    def _wire(self) -> None:
        """Make all parts of the service: at first, and in a process that was forked while it was open."""
        store, supervise, sources = self._given
        sources = sources if sources is not None else Sources()
        if store is None:
            store = os.environ.get(STORE_VARIABLE) or DEFAULT_STORE
        self._store = store if isinstance(store, Store) else open_address(store, self.settings, sources)
        context = self._context = Context(self._store, self.settings, sources)
        access = self._access = StoreAccess(context)

        # Simultaneous operations of several callers share transactions.
        spreading = Spreading()
        abandoned = self._abandoned = AbandonedJobs(context)
        operations = self._operations = GroupCommit(
            context.transact, abandoned.give_back, spreading, overlaps=self._store.overlaps
        )
        lines = self._waiting = WaitingWorkers[list[RunningJob]]()
        hub = self._hub = Hub()
        self._lifecycle = Lifecycle(context, access, hub, operations, lines, abandoned, supervised=supervise)
        tree = self._tree = self._lifecycle.tree

        registry = self._registry
        registry.runner = None
        self._transactions = Transactions(context, access, tree, abandoned, spreading, registry.handlers)
        worker = self._worker = RunningJobCalls(access, operations, self._transactions)
        self._blocks = Blocks(sources, worker, self.settings.pending_batch, access.check_open)
        self._creator = Creator(context, access, operations, registry, tree)
        acceptor = self._acceptor = Acceptor(context, access, operations, lines, abandoned, worker)
        for_runner = LocalAccess(context, operations, worker, acceptor)
        self._remote = Remote(context, access, operations, acceptor, worker, registry, tree, hub, for_runner)
        self._presence = Presence(context, registry)
        self._runs = HandlerRuns(context, registry, self._lifecycle, self._presence, for_runner)
        self._schedules = Schedules(context, access, registry)
        tree.make_schedules = lambda: ScheduleServer(context, for_runner)

    async def __aenter__(self) -> Self:
        await self._lifecycle.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._lifecycle.leave(kind)

    # Types

    async def set_type_timeout(self, type: JobType, seconds: Duration) -> None:
        """Create a type, or change its activity timeout: how long its running jobs may stay silent.

        Args:
            type: str, bytes, int, or a tuple of these.
            seconds: a duration > 0.

        Raises:
            InvalidJob: an invalid type or duration.
            StoreError: the store failed.
        """
        keys, checked = self._access.keys(type), check_seconds(seconds)
        await self._access.transact(lambda unit: type_settings.set_type_timeout(unit, keys, checked))
        self._tree.timeout_changed(keys)

    async def get_type_timeout(self, type: JobType) -> float:
        """Return a type's activity timeout in seconds.

        Raises:
            NoTypeTimeout: the type does not exist.
        """
        keys = self._access.keys(type)
        return await self._access.read(lambda transaction: type_settings.type_timeout(transaction, keys))

    async def clear_type_timeout(self, type: JobType) -> None:
        """Remove a type: its jobs stay, but no new ones can be added. A missing type is no error."""
        keys = self._access.keys(type)
        await self._access.transact(lambda unit: type_settings.clear_type_timeout(unit, keys))
        self._tree.timeout_set_or_cleared(keys)

    async def types(self) -> list[JobType]:
        """Return the types that exist, in the tuple layer's order; many types are read in several transactions."""
        return await queries.types(self._access)

    async def type_settings(self, types: Iterable[JobType]) -> list[TypeSettings]:
        """Return the settings of types: timeout, whether paused, retention; one read serves 200 types.

        Args:
            types: any types; the timeout of one that does not exist is None.
        """
        return await queries.settings_of_types(self._access, types)

    async def pause(self, type: JobType) -> None:
        """Stop accepting jobs of a type, in all processes, until `resume`; running jobs go on.

        Raises:
            InvalidJob: an invalid type.
            StoreError: the store failed.
        """
        keys = self._access.keys(type)
        await self._access.transact(lambda unit: type_settings.pause(unit, keys))

    async def resume(self, type: JobType) -> None:
        """Accept jobs of a type again; a type that is not paused is no error. Raises like `pause`."""
        keys = self._access.keys(type)
        await self._access.transact(lambda unit: type_settings.resume(unit, keys))

    async def paused(self, type: JobType) -> bool:
        """Return whether a type is paused."""
        keys = self._access.keys(type)
        return await self._access.read(lambda transaction: type_settings.is_paused(transaction, keys))

    async def set_retention(
        self, type: JobType, *, keep: Duration | None = None, keep_failed: Duration | None = None
    ) -> None:
        """Set the time after which finished jobs of a type are removed; it applies to jobs that finish from now on.

        Each call sets both times: an omitted one becomes "for ever", whatever its earlier value.

        Args:
            type: of the jobs.
            keep: how long to keep jobs that succeeded or were canceled; None for ever.
            keep_failed: how long to keep jobs that failed; None for ever.

        Raises:
            InvalidJob: an invalid type or duration.
            StoreError: the store failed.
        """
        keys = self._access.keys(type)
        retention = Retention(check_keep("keep", keep), check_keep("keep_failed", keep_failed))
        await self._access.transact(lambda unit: type_settings.set_retention(unit, keys, retention))

    async def get_retention(self, type: JobType) -> Retention:
        """Return how long finished jobs of a type are kept: `keep` and `keep_failed`, seconds; None for ever."""
        keys = self._access.keys(type)
        return await self._access.read(lambda transaction: reads.retention(transaction, keys))

    async def set_redaction(self, type: JobType, paths: Iterable[str]) -> None:
        """Set the secret fields of a type's jobs, which all displays for people hide.

        Programs that read jobs with this class see them unredacted.

        Args:
            type: of the jobs.
            paths: such as "card.number", "*.token", "error:message"; none for no secrets. See Redaction.

        Raises:
            InvalidSettings: an invalid path.
            InvalidJob: an invalid type.
            StoreError: the store failed.
        """
        keys, rules = self._access.keys(type), Redaction(paths)
        await self._access.transact(lambda unit: type_settings.set_redaction(unit, keys, rules))

    async def get_redaction(self, type: JobType) -> Redaction:
        """Return the secret fields of a type's jobs; read them after the jobs that are to be shown."""
        keys = self._access.keys(type)
        return await self._access.read(lambda transaction: type_settings.redaction(transaction, keys))

    async def redactions(self) -> dict[JobType, Redaction]:
        """Return the types whose jobs have secret fields, with these fields."""
        return await queries.rules(self._access)

    async def queue_state(self, type: JobType) -> QueueState:
        """Return the state of a type's queue, at a cost independent of the number of jobs.

        Returns:
            The job that has been ready for longest (`id`, `ready_since`), when the first scheduled job is due
            (`next_scheduled`), and whether the type is `paused`; times in seconds since the epoch, None if there is no
            such job. A job whose record does not tell when it became ready (no room, or a damaged history) is named
            only if no record does.
        """
        keys = self._access.keys(type)
        return await self._access.read(lambda transaction: reads.queue_state(transaction, keys))

    async def queue_states(self, types: Iterable[JobType]) -> list[QueueState]:
        """Return the states of several types' queues, in the order of the types; see `queue_state`."""
        return await queries.queue_states(self._access, types)

    async def last_ticks(self) -> dict[JobType, float]:
        """Return the time of each periodic type's last tick, seconds since the epoch.

        For a type without a tick it is the time of its handler's first run.
        """
        return await queries.last_ticks(self._access)

    # Creating jobs

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
        return job_of(await self._creator.add(type, id, data, priority, run_at, if_exists))

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
        return await self._creator.add_many(type, jobs, if_exists)

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
        return await self._creator.enqueue(handler, args, arguments, how)

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
        return await self._creator.enqueue_many(handler, jobs, how)

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
        return await self._creator.resubmit(type, id, data, priority, run_at)

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
        return await self._creator.remove(type, id, force)

    async def stop_and_remove(self, type: JobType, id: JobId, *, timeout: Duration | None) -> None:
        """Remove a job; if it runs, wait until its worker has finished it.

        Args:
            type, id: the job.
            timeout: a duration; None for ever.

        Raises:
            JobNotFound: there is no such job.
            TimeoutError: the job did not finish in time, and stays canceled; or the store did not answer in time, and
                the job may be canceled or not. The message tells them apart.
        """
        not_running = partial(queries.until_not_running, self._access, self._context)
        await stop_and_remove(self.remove, not_running, type, id, timeout)

    # Reading jobs

    async def get(self, type: JobType, id: JobId) -> Job:
        """Return a job.

        Raises:
            JobNotFound: there is no such job.
            RecordDamaged: its record cannot be read.
        """
        place = self._access.place(type, id)
        return await self._access.read(lambda transaction: queries.read_job(transaction, place))

    async def page(
        self,
        type: JobType,
        *,
        state: JobState | str | None = None,
        limit: int = 100,
        after: str | None = None,
        newest_first: bool = False,
        prefix: JobId | None = None,
        by_time: bool = False,
    ) -> JobsPage:
        """Return a page of a type's jobs, read by bounded transactions, however many jobs there are.

        Failed jobs are ordered by the time of their failure, ready jobs by the queue, scheduled jobs by their times,
        running jobs by their last heartbeat, retrying jobs by their ids: to find jobs of these states, at most retrying
        jobs are read in addition. Jobs of all other states are ordered by their ids, and jobs in other states are read
        and skipped.

        Args:
            type: of the jobs.
            state: only jobs in this state, as for `list`; None for all.
            limit: jobs per page; a page may have fewer, even none, although its `next` leads to more.
            after: `next` of the previous page with otherwise the same arguments; None to begin.
            newest_first: whether to read in reverse order: the latest failures, the highest ids.
            prefix: only jobs whose ids begin with it, a str or bytes.
            by_time: whether jobs of other states, and of all together, are ordered by their last events, not by their
                ids. The indexes of ready, scheduled, running, failed and expiring jobs are merged for that: scheduled
                jobs come as they become due, and unreadable jobs and ended ones that are kept for ever are left out.
                Without effect with a prefix.

        Raises:
            InvalidJob: an invalid state, number, prefix or `after`.
        """
        return await queries.page(
            self._access, type, state, limit, after, newest_first, prefix, by_time, self.wall_time()
        )

    async def active_ids(self, type: JobType) -> list[JobId]:
        """Return the ids of the type's running jobs, the longest silent first."""
        return await queries.active_ids(self._access, type)

    async def pending_count(self, type: JobType, *, due_by: RunAt | None = None, limit: int | None = None) -> int:
        """Return how many jobs of the type are pending.

        Without a bound this reads the type's counters; otherwise it counts jobs in the queue, 10,000 per transaction.
        Jobs that move between two transactions may be counted twice, or not at all.

        Args:
            type: of the jobs.
            due_by: only jobs due by then (an aware datetime or seconds since the epoch); None for all.
            limit: the number at which counting stops; None to count all.
        """
        return await queries.pending_count(self._access, type, due_by, limit)

    async def oldest_ready(self, type: JobType) -> Job | None:
        """Return the job of a type that has been ready for longest; None if none is ready."""
        return await queries.oldest_ready(self._access, type)

    async def counts(self, type: JobType | None = None) -> dict[JobType, TypeCounts]:
        """Return the counts of types: jobs by state, totals and histograms.

        The cost is one read per type, independent of the number of jobs.

        Args:
            type: None for all types that exist or have jobs.

        Returns:
            The counts by type; none for a type that neither exists nor has jobs.
        """
        return await queries.counts(self._access, type)

    async def throughput(
        self, type: JobType, *, since: RunAt, until: RunAt | None = None, resolution: queries.Resolution = "minute"
    ) -> list[Interval]:
        """Return counts of events of a type's jobs per minute or hour, the oldest first.

        Args:
            type: of the jobs.
            since: an aware datetime, or seconds since the epoch, within the first interval.
            until: a time within the last interval; None for now.
            resolution: "minute", kept for 25 hours, or "hour", kept for 35 days.

        Raises:
            InvalidJob: invalid times or an invalid resolution.
        """
        return await queries.throughput(self._access, type, since, until, resolution, self.wall_time())

    # Waiting for jobs

    def subscribe(self, type: JobType, id: JobId) -> Subscription:
        """Return the events of a job: an async iterator, which `async with` closes at its end.

        Raises:
            InvalidJob: an invalid type or id.
            JobsError: the service has no supervisor tree.
        """
        return self.subscribe_many([(type, id)])

    def subscribe_many(self, jobs: Iterable[tuple[JobType, JobId]]) -> Subscription:
        """Return the events of several jobs as one iterator; it ends when every one of them has ended.

        Raises:
            InvalidJob: an invalid type or id.
            JobsError: the service has no supervisor tree.
        """
        if not self._lifecycle.supervised:
            raise JobsError("subscribing needs the supervisor tree: open the service without supervise=False")
        places = [self._access.place(type, id) for type, id in checked_pairs(jobs)]
        return Subscription(self._hub, [*dict.fromkeys((keys, id) for keys, id, _ in places)])

    async def wait(
        self, type: JobType, id: JobId, *states: JobState | str, timeout: Duration | None = None
    ) -> JobEvent:
        """Wait until a job is in one of these states.

        Args:
            type, id: the job.
            states: states to wait for; none to wait for the job's next change (returns at once for a finished job,
                which does not change by itself).
            timeout: a duration; None for ever.

        Returns:
            The event with the state.

        Raises:
            TimeoutError: the job did not reach a state in time.
            JobNotFound: there is no such job.
            RecordDamaged: its record is unreadable.
            JobsError: the job ended without reaching any of the states.
        """
        return await subscriptions.wait(self.subscribe, type, id, states, timeout)

    @overload
    async def result(
        self, type: Enqueueable[Any, EndedJob[ResultT]], id: JobId, *, timeout: Duration | None = None
    ) -> ResultT: ...

    @overload
    async def result(
        self, type: Enqueueable[Any, ResultT | EndedJob[ResultT]], id: JobId, *, timeout: Duration | None = None
    ) -> ResultT: ...

    @overload
    async def result(self, type: JobType, id: JobId, *, timeout: Duration | None = None) -> Any: ...

    async def result(self, type: Any, id: JobId, *, timeout: Duration | None = None) -> Any:
        """Wait until a job has finished, and return its result.

        Args:
            type: of the job, or its handler.
            id: of the job.
            timeout: a duration; None for ever.

        Returns:
            The result: decoded by the handler's annotation, or JSON data if `type` is a type.

        Raises:
            InvalidJob: the result does not match the handler's annotation.
            JobFailed: the job failed or was canceled; carries the stored error.
            JobNotFound: there is no such job, or it was removed meanwhile.
            TimeoutError: the job did not finish in time.
        """
        return await subscriptions.result(self.subscribe, type, id, timeout)

    # Working

    async def accept(
        self,
        type: JobType,
        *,
        max_priority: Priority | None = None,
        due_by: RunAt | None = None,
        timeout: Duration | None = None,
        spread: Spread = 1,
    ) -> RunningJob | None:
        """Take the due job at the front of the queue: the caller is its only legitimate worker from then on.

        Args:
            type: of the job.
            max_priority: only jobs up to and including this priority.
            due_by: only jobs due by then (an aware datetime or seconds since the epoch); None for now. Of the jobs due
                later than now, the first 16,000 by time are considered. Ready jobs stand in the order in which they
                became ready: an accept skips up to 16,000 jobs that are due after `due_by`, and a later accept finds
                the jobs behind them.
            timeout: how long to wait for a job; None for ever, 0 not at all. Scheduled jobs that come due meanwhile are
                put into the queue by their times, 100 at once (`pending_batch`). A caller that does not wait gets None
                after ten such batches without a job on its terms, and finds more the next time.
            spread: begin at random among so many jobs at the front, so that many workers rarely collide. 1 keeps the
                order; "adaptive" gives up the order only as far as this service's workers collide with others on the
                queue.

        Returns:
            The running job, None if none came in time.

        Raises:
            InvalidJob: an invalid argument.
            StoreError: the store failed.
        """
        jobs = await self.accept_many(type, 1, max_priority=max_priority, due_by=due_by, timeout=timeout, spread=spread)
        return jobs[0] if jobs else None

    async def accept_many(
        self,
        type: JobType,
        limit: int,
        *,
        max_priority: Priority | None = None,
        due_by: RunAt | None = None,
        timeout: Duration | None = None,
        spread: Spread = 1,
    ) -> list[RunningJob]:
        """Take up to `limit` jobs from the front of the queue in one transaction, at least one unless time runs out.

        Arguments and errors are those of `accept`; an empty list means that none came in time.
        """
        keys, settings, worker = self._access.keys(type), self._context.settings, self._context.sources.worker
        wanted = terms(limit, max_priority, due_by, spread, settings.pending_batch, worker)
        return await self._acceptor.accept(keys, wanted, check_timeout(timeout))

    async def transact(self, function: Callable[[JobTransaction], Awaitable[T]]) -> T:
        """Run a function in one transaction: its reads and writes, of jobs and other keys, take effect together or not
        at all.

        Args:
            function: takes a JobTransaction; may be run more than once, must have no other effects, and awaits nothing
                else.

        Returns:
            The function's return value in the run that committed.

        Raises:
            Exception: any error of the function; nothing was written.
            StoreError: the function awaited something else, or the store failed.
        """
        return await self._transactions.transact(self._worker, function)

    def within(self, transaction: object) -> WithinTransaction:
        """Return a block over a transaction that the application drives itself, in plain code:

            @fdb.transactional
            def place_order(tr, order):
                tr[b"orders/42"] = order
                with jobs.within(tr) as tx:
                    tx.add("email", "receipt-42", {"order": 42})

        `tx` has the operations of JobTransaction as plain methods. They behave as if done one after the other; their
        writes are handed to the transaction at the end of the block, none of them if the block raises, and take effect
        when the application commits. `tx.kv`, like the transaction itself, is written at once. A job that one block has
        changed cannot be read by a later block on the same transaction (accessed_unreadable), so keep related
        operations in one block; blocks are not nested.

        Every read blocks the calling thread. Any thread will do, but on the loop's own thread a read blocks the whole
        loop.

        A running job from `tx.accept` belongs to the caller once the application has committed. Its own methods are
        coroutines of this service, for its loop; plain code passes it to another block: `tx.update(job)`,
        `tx.finish(job)`, `tx.release(job)`. The `seq` of jobs from a block may stay None. The service supervises a type
        that is made in a block after `type_check_period` at the latest.

        Unlike `transact`, a block does not handle commits of unknown outcome. The application's retry loop runs the
        block again, with new ids and locks, and the block does not recognize its earlier effects: `add` may raise
        JobExists for its own job (`if_exists="ignore"` accepts that), `enqueue` without an id may add a second job,
        `finish` may raise WorkerConflict for a job that it has finished, and a job that was accepted twice may stay
        locked until its type's timeout. Where that matters, use `transact`.

        Args:
            transaction: an fdb.Transaction of the store's cluster; on a memory: store the result of its begin().

        Raises:
            ServiceClosed: the service is not open, at this call or at the entry of the block.
            StoreError: the transaction is not one of this store, or a function of `transact` called this.
        """
        self._access.check_open()
        adopted = self._context.store.adopt(transaction)
        return WithinTransaction(self._blocks, transaction, adopted, self._context.keyspace)

    # Handlers

    def include(self, handlers: Handlers, *, prefix: str = "") -> None:
        """Take over the handlers of another module, with their schedules, middleware and resources.

        Args:
            handlers: the module's; nothing more can be registered there afterwards.
            prefix: is put before the types of its handlers, which must then be strings.

        Raises:
            InvalidSettings: a type that has a handler here already, a class that another function provides, a handler
                that needs a resource which nobody provides, or an invalid prefix. Then nothing is taken over.
        """
        if not isinstance(handlers, Handlers) or isinstance(handlers, JobsService):
            raise InvalidSettings(f"include({shown(handlers)}): {a_kind_of(handlers)}; allowed are Handlers")
        self._registry.include(handlers._registry, prefix)

    def commands(self, **options: Unpack[HandlerKeywords]) -> None:
        """Run command jobs in this service: every program that can add jobs to the store can then run any command here.

        Args:
            options: see HandlerOptions; commands have one attempt unless max_attempts says otherwise.

        Raises:
            InvalidSettings: as `handler`.
        """
        options.setdefault("max_attempts", 1)
        self._registry.register(command_handler(handler_options(options)))

    def configure(self, type: JobType, **changes: Unpack[ChangeableOptions]) -> None:
        """Change options of a handler, also while it runs.

        Args:
            type: of the handler's jobs.
            changes: slots, max_churn, interval, max_history.

        Raises:
            InvalidSettings: there is no such handler, an option is unknown, or a value is out of range.
        """
        self._registry.configure(type, changes)

    def reload(self, settings: Settings) -> None:
        """Take handlers' options from other settings, also while they run. Nothing else of the settings changes.

        An option that the settings no longer name returns to its registered value, or to the value set by `configure`.

        Args:
            settings: their `handlers` holds slots, max_churn, interval and max_history by type.

        Raises:
            InvalidSettings: not a Settings object.
        """
        check_settings(settings)
        self.settings = self.settings.model_copy(update={"handlers": settings.handlers})
        self._registry.apply(settings)

    async def run(
        self,
        *,
        types: Iterable[JobType] | None = None,
        max_jobs: int | None = None,
        processes: int | None = None,
        started: Callable[[], object] | None = None,
        setup: Callable[[], object] | None = None,
    ) -> None:
        """Run the jobs of handlers until the caller is canceled, or this process is asked to stop.

        Then it accepts no more jobs, and running handlers get their grace period. Handlers that do not end in time are
        canceled and their jobs released, so that another process takes them at once; after `stop_process`, this method
        returns. It opens the service if it is not open. Options in the settings take precedence over the options in a
        handler's registration.

        Args:
            types: types to run the handlers of; None for all.
            max_jobs: limit of simultaneous jobs over all types; None for the sum of the handlers' slots.
            processes: number of worker processes that run the handlers, each with its own slots and `max_jobs`; those
                that end are restarted. They import the module that has this service. None to run the handlers here.
            started: called once, when all types exist and accepting has begun.
            setup: called first in the processes of isolated handlers, to configure logging for instance; a function of
                a module, or a functools.partial of one. Worker processes have their own.

        Raises:
            InvalidSettings: there is no handler, or none for one of the types, max_jobs or processes is out of range,
                or other processes can neither find this service nor share its store.
            SupervisorFailed: a handler's worker pool cannot be started at all. A pool that fails later is restarted
                without limit and affects no other pool. If another task has entered the service, the error is raised
                out of the body of its `async with` as well.
            JobsError: the handlers run already, or the service was opened on another event loop.
        """
        handlers = handlers_to_run(self._registry, types, max_jobs)
        if processes is not None:
            return await run_processes(self, handlers, max_jobs, processes, started)
        if not self._lifecycle.is_entered:
            async with self:
                types = [handler.type for handler in handlers]
                return await self.run(types=types, max_jobs=max_jobs, started=started, setup=setup)
        self._lifecycle.check_can_run()
        self.reload(self.settings)
        await self._runs.run(handlers, max_jobs, started, setup)

    def slot_uses(self) -> dict[JobType, SlotUse]:
        """Return the slots, and the busy ones among them, of the handlers that `run` runs in this process, by type."""
        runner = self._registry.runner
        return {} if runner is None else runner.slot_uses()

    # Processes

    async def processes(self) -> list[ProcessInfo]:
        """Return the processes that run handlers or are daemons, in the order of their hosts and starts.

        Programs that only add or read jobs, or accept them without handlers, are not listed. A process that has ended
        without removing itself is listed as dead, or silent, for a day.
        """
        return await presence.processes(self._access, self._context)

    @property
    def process_id(self) -> str:
        """The id of this process in the list of `processes`; empty while it is not listed."""
        return self._presence.id

    def listed(self, stop: Callable[[], object]) -> AbstractAsyncContextManager[None]:
        """Return a block in which `processes` lists this process as a daemon, unless the settings forbid it.

        Args:
            stop: called once, when another process asks this one to stop.
        """
        return self._presence.listed(presence.DAEMON, stop)

    async def quiet_process(self, id: str) -> ProcessInfo:
        """Have a process take no more jobs for its handlers; running jobs go on, and the process stays.

        The request arrives at once, at this process before the return; a disconnected process gets it when it reads its
        row again.

        Args:
            id: of the process, as `processes` has it.

        Returns:
            The process, as it was before.

        Raises:
            ProcessGone: there is no such process, or it has died, or was asked to stop.
        """
        return await self.ask_process(id, ProcessAction.QUIET)

    async def resume_process(self, id: str) -> ProcessInfo:
        """Have a quiet process take jobs again; see `quiet_process`."""
        return await self.ask_process(id, ProcessAction.RESUME)

    async def stop_process(self, id: str) -> ProcessInfo:
        """Have a process end, as on SIGTERM: running handlers get their grace period, then their jobs are released.

        A daemon ends. In a program that runs handlers itself, `run` returns, and the program goes on. See
        `quiet_process`.
        """
        return await self.ask_process(id, ProcessAction.STOP)

    async def ask_process(self, id: str, action: ProcessAction, who: str = "") -> ProcessInfo:
        """Send a request to a process; see `quiet_process`.

        Args:
            id: of the process.
            action: the request.
            who: the requester, for the log of the process; empty for this process.
        """
        return await presence.ask(self._access, self._context, self._presence, id, action, who)

    # Interfaces to this service

    def asgi(self, **options: Any) -> Any:
        """Return the HTTP interface of this service as an ASGI application, to be mounted in another one.

        The service is opened by the other application, in its lifespan.

        Args:
            allowed_hosts: names that requests may call this host, beside IP addresses and localhost; "*" for all.
            authenticate: takes the ASGI scope and returns a role ("read", "work", "write", "admin"), (name, role), or
                None to refuse; may be a coroutine function. By default the store's tokens count.
            proxies: addresses whose forwarded headers are believed.
            read_only: whether to refuse all changes.
            commands: whether admins may run commands.
            environment, colour: name and color of this environment on the pages.
            audit_log: path of a file that gets one line per change.
            is_open: whether every program of this machine has every role as long as the store has no tokens, for
                development: a proxy that sends no forwarded headers counts as such a program.

        Raises:
            InvalidSettings: starlette is not installed, or an option is invalid.
        """
        if find_spec("starlette") is None:
            raise InvalidSettings("HTTP needs starlette: pip install 'jobs-service[http]'")
        # Imported by name because the HTTP interface is a floor above.
        return import_module("jobs_service.http.application").mounted(self, options)

    @property
    def schedules(self) -> Schedules:
        """The schedules in the store, which programs and operators change at runtime."""
        return self._schedules

    @property
    def remote(self) -> Remote:
        """The operations that a server for other programs needs beside those of this class."""
        return self._remote

    @cached_property
    def bulk_actions(self) -> BulkActions:
        """The engine that changes all jobs that match a filter. It stops when the service is left."""
        from jobs_service.service.bulk_actions import BulkActions

        engine = BulkActions(self)
        self.before_leaving(engine.close)
        return engine

    def supervision(self) -> dict[str, Any]:
        """Return the supervisor tree as plain data.

        Returns:
            For every node name, kind ("supervisor", "dynamic" or "actor"), state, restarts, seconds (since its start)
            and children; the runner with its worker pools is one of them while `run` runs. Without supervision the
            runner alone, and empty while nothing runs.
        """
        return self._tree.as_dict(self._registry.runner)

    def wall_time(self) -> float:
        """Return the time by the clock of this service, seconds since the epoch."""
        return self._context.sources.wall_time()

    def before_leaving(self, prepare: Callable[[], Awaitable[None]]) -> None:
        """Have a function called first whenever the service is left: servers end their waiting requests."""
        self._lifecycle.before_leaving.append(prepare)

    @property
    def store(self) -> Store:
        """The store; open while the service is."""
        return self._store

    # The last one hides the builtin `list`

    def list(
        self, type: JobType | None = None, *, state: JobState | str | None = None, page_size: int = 1000
    ) -> AsyncGenerator[Job, None]:
        """Yield any number of jobs in key order; each page is read in a transaction of its own.

        A job whose record cannot be read is in the state "unreadable"; its error says why.

        Args:
            type: of the jobs; None for all types.
            state: only jobs in this state: a JobState, or a state for people: "ready", "scheduled", "retrying",
                "running", "succeeded", "failed" or "canceled". Jobs in other states are read and skipped.
            page_size: jobs read per transaction at most; fewer where they are large.
        """
        return queries.listed(self._access, self._context, type, state, page_size)


def _check_kinds(store: Any, settings: Any, supervise: Any, sources: Any) -> None:
    """Raise for constructor arguments of a wrong type."""
    if store is not None and not isinstance(store, str | Store):
        raise StoreError(f"store {shown(store)}: {a_kind_of(store)}; allowed are an address, a Store and None")
    if settings is not None and not isinstance(settings, Settings):
        raise InvalidSettings(f"settings {shown(settings)}: {a_kind_of(settings)}; allowed are Settings and None")
    if supervise is not True and supervise is not False:
        raise InvalidSettings(f"supervise={shown(supervise)}: allowed are True and False")
    if sources is not None and not isinstance(sources, Sources):
        raise InvalidSettings(f"sources {shown(sources)}: {a_kind_of(sources)}; allowed are Sources and None")
