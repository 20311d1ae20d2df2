"""JobsService: what an application embeds. The only place that wires the floors together."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import threading
from collections import defaultdict
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import replace
from datetime import timedelta
from itertools import chain
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar, Unpack, overload

from jobs_service import json_data, run_data
from jobs_service.accepting import Waiting
from jobs_service.actors.context import Context
from jobs_service.actors.keyspace_keeper import KeyspaceKeeper
from jobs_service.actors.process_monitor import ProcessMonitor
from jobs_service.actors.subscriptions import FINAL, Hub, Subscription, other_loop
from jobs_service.actors.type_server import TypeServer
from jobs_service.batching.group_commit import GroupCommit
from jobs_service.batching.operations import Accepted
from jobs_service.batching.pipelined import in_order, in_parts
from jobs_service.errors import (
    CommitUnknown,
    InvalidJob,
    InvalidSettings,
    JobFailed,
    JobNotFound,
    JobsError,
    JobTooLarge,
    RecordDamaged,
    ServiceClosed,
    StoreError,
    StoreUnavailable,
    SupervisorFailed,
    WorkerConflict,
    a_kind_of,
    in_one_line,
    job_name,
    shown,
)
from jobs_service.layer import activity, creation, inspection, queue, queue_counts, running_jobs
from jobs_service.layer.adaptive_spread import QueueReads, Spreading
from jobs_service.layer.batch_bounds import KEYS_OF_A_JOB
from jobs_service.layer.creation import IfExists, Spec, check_if_exists
from jobs_service.layer.enqueueing import Enqueueable, How, ResultT, Wanted, batches, handler_of, wanted
from jobs_service.layer.entry import Entry
from jobs_service.layer.inspection import QueueState
from jobs_service.layer.key_parts import exact_seconds, pack_id, pack_type, to_seconds
from jobs_service.layer.keyspace import Keyspace, TypeKeys, place_of
from jobs_service.layer.listing import JobPage, list_page
from jobs_service.layer.queue import EmptyQueue
from jobs_service.layer.record import Record
from jobs_service.layer.retention import Retention
from jobs_service.layer.signatures import as_enqueue, as_enqueue_many
from jobs_service.layer.transaction import (
    COUNT_PAGE,
    JobTransaction,
    Spread,
    check_iterable,
    check_limit,
    check_outcome,
    check_page_size,
    check_state,
    enqueued_job,
    job_of,
    member,
    new_job_spec,
    new_jobs,
    running_job,
    terms,
    told,
)
from jobs_service.layer.unit_of_work import Place, UnitOfWork
from jobs_service.log import EventLog
from jobs_service.model import (
    UNSET,
    EndedJob,
    Job,
    JobError,
    JobEvent,
    JobId,
    JobState,
    JobType,
    NewJob,
    Outcome,
    Priority,
    Progress,
    Removal,
    RunAt,
    RunningJob,
)
from jobs_service.runner.commands import command_handler
from jobs_service.runner.handler import Handler
from jobs_service.runner.options import KEEP_TICKS, Changes, HandlerOptions, Options, handler_options
from jobs_service.runner.registration import Registration, registration
from jobs_service.runner.retention_notice import tell_of_retention
from jobs_service.runner.runner import Runner
from jobs_service.runner.schedule import Cron, Every, Missed, Schedule, parse_every
from jobs_service.runner.service_access import ServiceAccess
from jobs_service.runner.stats import Gauges, exact_type
from jobs_service.runner.ticker import Periodic
from jobs_service.settings import STORE_VARIABLE, HandlerSettings, Settings, tell_of_unknown_variables
from jobs_service.sources import Sources
from jobs_service.store import Store, open_address
from jobs_service.store.base import Transaction, Watch
from jobs_service.store.driving import foreign_await, no_coroutine
from jobs_service.supervision import ChildSpec, DynamicSupervisor, Restart, Strategy, Supervisor, run_tree
from jobs_service.within import Blocks, WithinTransaction

T = TypeVar("T")

DEFAULT_STORE = "lmdb:jobs-data"

# Inside a class that has a method `list`, the builtin goes by these names.
_Jobs: TypeAlias = list[Job]
_RunningJobs: TypeAlias = list[RunningJob]
_Ids: TypeAlias = list[JobId]
_Types: TypeAlias = list[JobType]
_Handlers: TypeAlias = list[Handler[Any, Any]]
_Ticks: TypeAlias = dict[JobType, float]
_Specs: TypeAlias = list[Spec]
_Places: TypeAlias = list[Place]
_Stats: TypeAlias = dict[JobType, dict[str, Any]]
_Batch: TypeAlias = list[tuple[Place, Wanted]]
_IdPage: TypeAlias = list[tuple[bytes, JobId]]
_Supervisors: TypeAlias = list[DynamicSupervisor]
_Periodics: TypeAlias = list[Periodic]
_Touched: TypeAlias = dict[TypeKeys, bool]
"""Types that a transaction concerns: True when it has changed the timeout, False when it may have made the type."""

_WATCH_HOLDOFF = 0.02
_MOMENT = 0.05
_MOST_LOOKS = 10
"""Times that an accept which does not wait makes due jobs ready, none of which it may take."""
_MOST_OF_AN_ERROR = 200

log = EventLog("jobs_service")


class JobsService:
    """Durable background jobs: an async context manager with every operation on jobs.

    Args:
        store: an address (`lmdb:PATH`, `memory:`, `fdb:[CLUSTER_FILE]`), a Store, or None for what JOBS_SERVICE_STORE
            says, else `lmdb:jobs-data`. A Store that is open already stays open when the service is left.
        settings: None for those of the environment.
        supervise: whether to run the supervisor tree. Without it lost jobs are not noticed by this service, and
            subscribing raises; for short-lived callers that only add or look up.
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
        self._sources = sources if sources is not None else Sources()
        if store is None:
            store = os.environ.get(STORE_VARIABLE) or DEFAULT_STORE
        # A subclass may say of itself what it is not.
        self._store = (
            store if isinstance(store, Store) else open_address(str.__str__(store), self.settings, self._sources)
        )
        self._supervise = supervise
        self._context = Context(self._store, self.settings, self._sources)
        self._hub = Hub()
        self._spreading = Spreading()
        self._operations = GroupCommit(
            self._context.transact, self._give_back, self._spreading, overlaps=self._store.overlaps
        )
        self._waiting: Waiting[_RunningJobs] = Waiting()
        self._blocks = Blocks(self._sources, self, self.settings.pending_batch, self._check_open)
        self._owns_store = False
        self._entered = False
        self._usable = False
        self._leaving = False
        # Where transaction functions are running just now: tasks of this loop, or threads of the store.
        self._inside: set[asyncio.Task[Any] | int | None] = set()
        self._failure: SupervisorFailed | None = None
        self._tree: Supervisor | None = None
        self._tree_task: asyncio.Task[None] | None = None
        self._host: asyncio.Task[Any] | None = None
        self._host_canceled = False
        self._afterthoughts: set[asyncio.Task[None]] = set()
        self._handlers: dict[bytes, Handler[Any, Any]] = {}
        self._periodic: _Periodics = []
        # What the settings have replaced of a handler's options, as it was before.
        self._replaced: dict[bytes, dict[str, Any]] = {}
        # Types of which was said how long their finished jobs are kept.
        self._told_of: set[bytes] = set()
        self._runner: Runner | None = None
        # Who has called `run`, to be canceled when the service is left; and what tells when the run itself is over.
        self._running: tuple[asyncio.Task[Any] | None, asyncio.Event] | None = None
        # Types that jobs were enqueued for: the first one may have made the type.
        self._enqueued: set[JobType] = set()

    # Opening

    async def __aenter__(self) -> Self:
        if self._entered:
            raise JobsError("this service is open already; make another JobsService for a second one")
        self._entered = True
        self._owns_store = not self._store.is_open
        tell_of_unknown_variables()
        try:
            if self._owns_store:
                await self._store.open()
            await self._context.open_keyspace()
            self._usable = True
            self._host = asyncio.current_task()
            if self._supervise:
                await self._start_tree()
        except BaseException:
            await self._shielded(self._leave())
            raise
        log.debug("service_opened", store=self._store.location, supervise=self._supervise)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        canceled: asyncio.CancelledError | None = None
        try:
            await self._shielded(self._leave())
        except asyncio.CancelledError as shielded:
            canceled = shielded
        log.debug("service_closed", store=self._store.location)
        failure, self._failure = self._failure, None
        # The service's failure canceled the body; if nobody else did as well, that cancellation ends here.
        own = self._host_canceled and self._host is not None and self._host.uncancel() == 0
        stranger = self._host_canceled and not own
        self._host_canceled = False
        if failure is not None and not stranger and (kind is None or issubclass(kind, asyncio.CancelledError)):
            raise failure
        if canceled is not None and not own:
            raise canceled

    @property
    def store(self) -> Store:
        """The store; open while the service is."""
        return self._store

    def supervision(self) -> dict[str, Any]:
        """Return the supervisor tree as plain data.

        Returns:
            For every node name, kind ("supervisor", "dynamic" or "actor"), state, restarts, seconds (since its start)
            and children; the runner with its lanes is one of them while `run` runs. Empty without supervision, but for
            the runner.
        """
        nodes = [] if self._runner is None else [self._runner.tree.tree()]
        if self._tree is not None:
            tree = self._tree.tree()
            return replace(tree, children=[*tree.children, *nodes]).as_dict()
        return nodes[0].as_dict() if nodes else {}

    # Types

    async def set_type_timeout(self, type: JobType, seconds: float) -> None:
        """Create a type, or change how long its running jobs may stay silent.

        Args:
            type: str, bytes, int, or a tuple of these.
            seconds: > 0.

        Raises:
            InvalidJob: a type or a number of seconds that cannot be.
            StoreError: the store failed.
        """
        keys = self._keys(type)
        checked = activity.check_seconds(seconds)
        await self._transact(lambda unit: activity.set_type_timeout(unit, keys, checked))
        self._timeout_changed(keys)

    async def get_type_timeout(self, type: JobType) -> float:
        """Return a type's activity timeout in seconds.

        Raises:
            NoTypeTimeout: the type does not exist.
        """
        keys = self._keys(type)
        return await self._read(lambda transaction: activity.type_timeout(transaction, keys))

    async def clear_type_timeout(self, type: JobType) -> None:
        """Remove a type: its jobs stay, nothing new can be added. A type that does not exist is no error."""
        keys = self._keys(type)
        await self._transact(lambda unit: activity.clear_type_timeout(unit, keys))
        self._enqueued.discard(keys.type)
        self._timeout_changed(keys)

    async def pause(self, type: JobType) -> None:
        """Have nobody accept jobs of a type, in any process, until `resume`; those that run go on.

        Raises:
            InvalidJob: a type that cannot be.
            StoreError: the store failed.
        """
        keys = self._keys(type)
        await self._transact(lambda unit: activity.pause(unit, keys))

    async def resume(self, type: JobType) -> None:
        """Have jobs of a type accepted again; one that is not paused is no error. Raises like `pause`."""
        keys = self._keys(type)
        await self._transact(lambda unit: activity.resume(unit, keys))

    async def paused(self, type: JobType) -> bool:
        """Return whether jobs of a type are not accepted for the time being."""
        keys = self._keys(type)
        return await self._read(lambda transaction: activity.is_paused(transaction, keys))

    async def set_retention(
        self, type: JobType, *, keep: float | None = None, keep_failed: float | None = None
    ) -> None:
        """Say how long jobs of a type are kept that finish from now on; then they are removed.

        Both are set: what is left out is for ever, whatever was said before.

        Args:
            type: of the jobs.
            keep: seconds, of those that succeeded or were canceled; None for ever.
            keep_failed: seconds, of those that failed; None for ever.

        Raises:
            InvalidJob: a type or a number of seconds that cannot be.
            StoreError: the store failed.
        """
        keys = self._keys(type)
        retention = Retention(activity.check_keep("keep", keep), activity.check_keep("keep_failed", keep_failed))
        await self._transact(lambda unit: activity.set_retention(unit, keys, retention))

    async def get_retention(self, type: JobType) -> Retention:
        """Return how long finished jobs of a type are kept: `keep` and `keep_failed`, seconds; None for ever."""
        keys = self._keys(type)
        return await self._read(lambda transaction: inspection.retention(transaction, keys))

    async def queue_state(self, type: JobType) -> QueueState:
        """Return where the queue of a type stands; costs the same however many jobs there are.

        Returns:
            The job that has been ready for longest (`id`, `ready_since`), when the first scheduled job is due
            (`next_scheduled`), and whether the type is `paused`; times in seconds since the epoch, None for nothing. A
            job whose record does not tell since when (no room, or a damaged history) is named only where no other one
            tells.
        """
        keys = self._keys(type)
        return await self._read(lambda transaction: inspection.queue_state(transaction, keys))

    async def last_ticks(self) -> _Ticks:
        """Return when each periodic type in the store ticked last, seconds since the epoch.

        Of one that has not ticked yet it is when its handler was first run.
        """
        keyspace = self._keyspace()
        found = await self._read(lambda transaction: inspection.last_ticks(transaction, keyspace))
        return dict(found)

    async def types(self) -> _Types:
        """Return the types that exist, in the tuple layer's order; many of them by several transactions."""
        keyspace = self._keyspace()
        found: _Types = []
        after: bytes | None = None
        while True:

            async def read(transaction: Transaction, after: bytes | None = after) -> tuple[_Types, bytes | None]:
                return await activity.types_page(transaction, keyspace, after)

            page, after = await self._read(read)
            found += page
            if after is None:
                return found

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
        """Add a job.

        Args:
            type: of the job; must have an activity timeout.
            id: names the job within its type.
            data: its JSON value.
            priority: lower runs first.
            run_at: the earliest time to run, an aware datetime or seconds since the epoch; None for at once.
            if_exists: "error"; "resubmit": a pending job gets the new data, priority and run_at, a running one runs
                again afterwards (its data is not touched), a finished one is pending again; "ignore".

        Returns:
            The job as it is now.

        Raises:
            NoTypeTimeout: the job is new, and its type has no timeout.
            JobExists: the job exists, and if_exists is "error".
            InvalidJob: an argument that no job can have.
            JobTooLarge: the record or its key is over the store's limits.
            StoreError: the store failed.
        """
        place = self._place(type, id)
        spec = creation.spec_of(type, id, data, priority, run_at)
        rule = check_if_exists(if_exists)
        reads = place[0].timeout
        return job_of(await self._operations.operate(creation.add, place, spec, rule, size=spec.size(), reads=reads))

    async def add_many(self, type: JobType, jobs: Iterable[NewJob], *, if_exists: IfExists = "error") -> _Jobs:
        """Add jobs of one type, as many per transaction as the limits allow.

        Each transaction is all or nothing; when one fails, those before it have taken effect.

        Args:
            type: of the jobs.
            jobs: any iterable; it is read as the jobs are written.
            if_exists: as for `add`.

        Returns:
            The jobs in their order.

        Raises:
            JobExists: names the id; and as `add`.
        """
        keys = self._keys(type)
        rule = check_if_exists(if_exists)

        async def write(unit: UnitOfWork, places: _Places, specs: _Specs) -> _Jobs:
            entries = await creation.add_many(unit, keys, places, specs, rule)
            return [Job(keys.type, entry.id, entry.record) for entry in entries if entry.record]

        def writing(batch: tuple[_Places, _Specs]) -> Callable[[UnitOfWork], Awaitable[_Jobs]]:
            self._check_open()
            return lambda unit: write(unit, *batch)

        async def write_front(unit: UnitOfWork, batch: Sequence[tuple[Place, Spec]]) -> _Jobs:
            count = len(await unit.load_fitting(keys, [place[2] for place, _ in batch]))
            places, specs = zip(*batch[:count], strict=True)
            return await write(unit, [*places], [*specs])

        self._check_open()
        if rule == "resubmit":  # jobs that exist are written anew, however large they are
            pairs = ([*zip(*batch, strict=True)] for batch in self._batches(keys, jobs))
            return await in_parts(pairs, write_front, self._transact, self.settings.add_batch)
        added = await in_order(map(writing, self._batches(keys, jobs)), self._transact, self._transact_after)
        return [*chain.from_iterable(added)]

    @as_enqueue
    async def enqueue(self, handler: Any, args: Any, arguments: dict[str, Any], how: How) -> Job:
        """Add a job for a handler; its type is made where it is missing.

        Args:
            handler: what `handler` made of a function; or its type, for programs that do not have the function. Then
                the type must be there, and the arguments are the job's data.
            args: what the function takes; left out for one that takes nothing but the job.
            arguments: the same by keyword, for a function of several parameters.
            id: names the job within its type; None for a random one.
            priority: as for `add`.
            run_at: as for `add`, or a timedelta from now on.
            delay: seconds from now on, or a timedelta. Instead of `run_at`.
            unique: True for at most one unfinished job with these arguments, a str for at most one with this key: while
                there is one, it is returned as it is; one that has finished runs again. Instead of `id`.
            max_attempts, time_limit: for this job instead of its handler's; None for the handler's.

        Returns:
            The job as it is now; its `created` tells whether this call has added it.

        Raises:
            InvalidJob: arguments that are not the handler's, or that no job can have.
            NoTypeTimeout: the type was removed, or is not there and its handler is not known here.
            JobExists, JobTooLarge, StoreError: as `add`.
        """
        self._check_open()
        resolved = handler_of(handler, self._handlers)
        found = wanted(resolved, args, arguments, how, self._sources)
        place = self._place(resolved.type, found.id)
        work = self._operations.operate(
            creation.enqueue,
            place,
            found.spec,
            found.unique,
            resolved.timeout,
            size=found.spec.size(),
            reads=place[0].timeout,
        )
        job = enqueued_job(await work)
        self._look_at_type_of(place[0])
        return job

    @as_enqueue_many
    async def enqueue_many(self, handler: Any, jobs: Iterable[Any], how: How) -> _Jobs:
        """Add a job for a handler for each of many arguments, as many per transaction as the limits allow.

        Each transaction is all or nothing; when one fails, those before it have taken effect.

        Args:
            handler: as for `enqueue`.
            jobs: the arguments of each, in any iterable; it is read as the jobs are written.
            unique: True for at most one unfinished job with the same arguments.
            priority, run_at, delay, max_attempts, time_limit: of all of them, as for `enqueue`.

        Returns:
            The jobs in their order.

        Raises:
            As `enqueue`.
        """
        self._check_open()
        resolved = handler_of(handler, self._handlers)
        keys = self._keys(resolved.type)
        wants = (wanted(resolved, args, {}, how, self._sources) for args in check_iterable("jobs", jobs))

        async def write(unit: UnitOfWork, batch: Sequence[tuple[Place, Wanted]]) -> _Jobs:
            await unit.prefetch([place for place, _ in batch])
            return [
                enqueued_job(await creation.enqueue(unit, place, each.spec, each.unique, resolved.timeout))
                for place, each in batch
            ]

        def writing(batch: _Batch) -> Callable[[UnitOfWork], Awaitable[_Jobs]]:
            return lambda unit: write(unit, batch)

        async def write_front(unit: UnitOfWork, batch: Sequence[tuple[Place, Wanted]]) -> _Jobs:
            return await write(unit, batch[: len(await unit.load_fitting(keys, [place[2] for place, _ in batch]))])

        most, budget = self.settings.add_batch, self._store.limits.transaction // 2
        found = batches(wants, lambda id: place_of(keys, id), most, budget)
        if how.unique:  # those that have finished are written anew, however large they are
            added = await in_parts(found, write_front, self._transact, most)
        else:
            written = await in_order(map(writing, found), self._transact, self._transact_after)
            added = [*chain.from_iterable(written)]
        if added:
            self._look_at_type_of(keys)
        return added

    def _look_at_type_of(self, keys: TypeKeys) -> None:
        """Have the timeout counted with of a type that an enqueued job may have made."""
        if keys.type not in self._enqueued:
            self._enqueued.add(keys.type)
            self._timeout_changed(keys)

    @overload
    async def result(
        self, type: Enqueueable[Any, EndedJob[ResultT]], id: JobId, *, timeout: float | None = None
    ) -> ResultT: ...

    @overload
    async def result(
        self, type: Enqueueable[Any, ResultT | EndedJob[ResultT]], id: JobId, *, timeout: float | None = None
    ) -> ResultT: ...

    @overload
    async def result(self, type: JobType, id: JobId, *, timeout: float | None = None) -> Any: ...

    async def result(self, type: Any, id: JobId, *, timeout: float | None = None) -> Any:
        """Wait until a job has finished, and return its result.

        Args:
            type: of the job, or its handler.
            id: of the job.
            timeout: seconds; None for ever.

        Raises:
            JobFailed: it failed or was canceled; carries the stored error.
            JobNotFound: there is no such job, or it was removed meanwhile.
            TimeoutError: it did not finish in time.
        """
        if isinstance(type, Enqueueable):
            type = type.type
        event = await self.wait(type, id, JobState.FINISHED, JobState.REMOVED, timeout=timeout)
        if event.state is JobState.REMOVED:
            raise JobNotFound(f"job {job_name(type, id)} was removed", type=type, id=id)
        if event.outcome is Outcome.SUCCEEDED:
            return event.result
        raise _failed(event)

    async def remove(self, type: JobType, id: JobId, *, force: bool = False) -> Removal:
        """Remove a job. A running one is canceled instead: its worker is told, and finishes it.

        Args:
            type, id: the job.
            force: remove it even while it runs, and even if its record cannot be read; its worker gets WorkerConflict.

        Returns:
            REMOVED or CANCELED.

        Raises:
            JobNotFound: there is no such job.
            RecordDamaged: its record cannot be read, and force is not set.
        """
        checked = creation.check_force(force)
        removal: Removal = await self._operations.operate(creation.remove, self._place(type, id), checked)
        return removal

    async def stop_and_remove(self, type: JobType, id: JobId, *, timeout: float) -> None:
        """Remove a job, waiting until its worker has finished it if it runs.

        Args:
            type, id: the job.
            timeout: seconds.

        Raises:
            JobNotFound: there is no such job.
            TimeoutError: it did not finish in time; it stays canceled.
        """
        seconds = check_timeout(timeout)
        try:
            # Even without time to wait the removal itself gets a moment.
            async with asyncio.timeout(None if seconds is None else max(seconds, _MOMENT)):
                await self._stop_and_remove(type, id)
        except TimeoutError:
            raise TimeoutError(
                f"job {job_name(type, id)} did not finish within {seconds} s; it stays canceled"
            ) from None

    async def _stop_and_remove(self, type: JobType, id: JobId) -> None:
        removal = await self.remove(type, id)
        while removal is Removal.CANCELED:
            await self._not_running(type, id)
            try:
                removal = await self.remove(type, id)
            except JobNotFound:
                return

    async def resubmit(
        self, type: JobType, id: JobId, *, data: Any = UNSET, priority: Any = UNSET, run_at: Any = UNSET
    ) -> Job:
        """Have a job run again; a running one after its present run (its data is not touched).

        Args:
            type, id: the job.
            data, priority, run_at: as for `add`; what is left out stays.

        Raises:
            JobNotFound: there is no such job.
            InvalidJob, JobTooLarge, StoreError: as `add`.
        """
        place = self._place(type, id)
        spec = creation.spec_of(type, id, data, priority, run_at)
        return job_of(await self._operations.operate(creation.resubmit, place, spec, size=spec.size()))

    async def get(self, type: JobType, id: JobId) -> Job:
        """Return a job.

        Raises:
            JobNotFound: there is no such job.
            RecordDamaged: its record cannot be read.
        """
        place = self._place(type, id)

        async def load(transaction: Transaction) -> Job:
            return await _get(transaction, place)

        return await self._read(load)

    async def list(
        self, type: JobType | None = None, *, state: JobState | str | None = None, page_size: int = 1000
    ) -> AsyncGenerator[Job, None]:
        """Yield jobs in key order, page by page: each page is one transaction, all together have no time limit.

        A job whose record cannot be read is in the state "unreadable"; its error tells why.

        Args:
            type: of the jobs; None for all types.
            state: only jobs in this state: a JobState, or in one word what a job does: "ready", "scheduled",
                "running", "succeeded", "failed" or "canceled". Jobs in other states are read, and passed over.
            page_size: jobs read per transaction at most; fewer where they are large.
        """
        keys = None if type is None else self._keys(type)
        wanted = check_state(state, self._sources.wall_time())
        size = check_page_size(page_size)
        keyspace = self._keyspace()
        limits = self._store.limits
        after: bytes | None = None
        while True:

            async def read(transaction: Transaction, after: bytes | None = after) -> JobPage:
                return await list_page(transaction, keyspace, keys, after, size, limits)

            page, after = await self._read(read)
            for _, job in page:
                if wanted is None or wanted(job):
                    yield job
            if after is None:
                return

    async def active_ids(self, type: JobType) -> _Ids:
        """Return the ids of the type's running jobs, those silent for longest first."""
        keys = self._keys(type)
        ids: _Ids = []
        after: bytes | None = None
        while True:

            async def read(transaction: Transaction, after: bytes | None = after) -> _IdPage:
                return await activity.active_ids(transaction, keys, after, COUNT_PAGE)

            page = await self._read(read)
            ids += [id for _, id in page]
            if len(page) < COUNT_PAGE:
                # A job that was updated between two pages is in both of its places: the last one counts.
                return [*dict.fromkeys(reversed(ids))][::-1]
            after = page[-1][0]

    async def pending_count(self, type: JobType, *, due_by: RunAt | None = None, limit: int | None = None) -> int:
        """Return how many jobs of the type are pending.

        Args:
            type: of the jobs.
            due_by: only those due by then (an aware datetime or seconds since the epoch); None for all.
            limit: stop counting there.
        """
        keys = self._keys(type)
        seconds = to_seconds(due_by, "due_by")
        most = check_limit(limit)
        counted = 0
        after: bytes | None = None
        while most is None or counted < most:
            page = COUNT_PAGE if most is None else min(COUNT_PAGE, most)

            async def read(
                transaction: Transaction, page: int = page, after: bytes | None = after
            ) -> tuple[int, bytes | None]:
                return await queue_counts.count(transaction, keys, seconds, page, after)

            found, after = await self._read(read)
            counted += found
            if after is None:
                break
        return counted if most is None else min(counted, most)

    # Running jobs

    async def accept(
        self,
        type: JobType,
        *,
        max_priority: Priority | None = None,
        due_by: RunAt | None = None,
        timeout: float | None = None,
        spread: Spread = 1,
    ) -> RunningJob | None:
        """Take the due job at the front of the queue: the caller is its only legitimate worker from then on.

        Args:
            type: of the job.
            max_priority: only jobs up to and including this priority.
            due_by: take jobs due by then (an aware datetime or seconds since the epoch); None for now. Of the jobs due
                later than now, the first 16,000 by time are looked at.
            timeout: seconds to wait for a job; None for ever, 0 not at all. Jobs that have come due while nobody
                looked are put into the queue by their times, 100 at once (`pending_batch`): who does not wait gets None
                after ten times as many of which it may take none, and finds more the next time.
            spread: begin at random among so many at the front, so that many workers rarely collide. 1 keeps the order;
                "adaptive" gives it up only as far as this service's workers collide with others on the type's queue.

        Returns:
            The running job, None when none came in time.

        Raises:
            InvalidJob: an argument that cannot be.
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
        timeout: float | None = None,
        spread: Spread = 1,
    ) -> _RunningJobs:
        """Take up to `limit` jobs from the front of the queue in one transaction, at least one unless time runs out.

        Arguments and errors are those of `accept`; an empty list means that none came in time.
        """
        keys = self._keys(type)
        wanted = terms(limit, max_priority, due_by, spread, self.settings.pending_batch, self._sources.worker)
        seconds = check_timeout(timeout)

        if seconds == 0:
            looks = 0
            while isinstance(found := await self._accept_once(keys, wanted, watch=False), EmptyQueue):
                looks += found.due_in == 0
                if looks == _MOST_LOOKS:
                    return []
            return found

        async def attempt() -> _RunningJobs | EmptyQueue:
            return await self._accept_once(keys, wanted, watch=True)

        try:
            async with asyncio.timeout(seconds):
                return await self._waiting.get((keys, wanted), attempt)
        except TimeoutError:
            return []

    # Handlers

    def handler(self, type: JobType, **options: Unpack[Options]) -> Registration:
        """Return a decorator that makes a function the handler of a type: `run` has it run the type's jobs.

        The function is a coroutine function, or a plain function, which runs in a thread of its own. It is called as
        `f(job)`, `f(args)`, `f(job, args)` or `f()`: the parameter named `job` gets the RunningJob (of a plain function
        a BlockingJob), the other one the job's data, decoded as its annotation says: a dataclass, TypedDict,
        msgspec.Struct, pydantic model or JSON type. What it returns is the job's result. What it raises is the job's
        error: it runs again later, unless its attempts are used up; Retry, Snooze and Discard say otherwise.

        Args:
            type: whose jobs it runs.
            options: see HandlerOptions.

        Raises:
            InvalidSettings: an option outside its range, a function that cannot be a handler, or a second handler.
        """
        return registration(type, handler_options(options), self._register)

    def every(
        self,
        period: str | float | timedelta,
        *,
        type: JobType | None = None,
        missed: Missed | str = Missed.ONCE,
        overlap: bool = False,
        **options: Unpack[Options],
    ) -> Registration:
        """Return a decorator that makes a function the handler of jobs that come by themselves, one per period.

        However many processes run it, there is one job per tick; its id is the tick's time in UTC. The ticks of a
        period are its multiples since the epoch.

        Args:
            period: seconds, a timedelta, or a text such as "90s", "5m", "1h30m", "2d".
            type: of the jobs; None for the function's name.
            missed: what becomes of the ticks at which no process was there, the type was paused, or the job of the tick
                before had not finished: "skip", "once" (one job for the newest of them) or "all" (of the newest 100).
            overlap: whether a tick's job may run while that of the tick before it has not finished.
            options: see HandlerOptions.

        Raises:
            InvalidJob: no period.
            InvalidSettings: as `handler`.
        """
        return self._ticking(
            Every(parse_every(period)), type, missed, overlap, handler_options(options, keep=KEEP_TICKS)
        )

    def cron(
        self,
        expression: str,
        *,
        timezone: str = "UTC",
        type: JobType | None = None,
        missed: Missed | str = Missed.ONCE,
        overlap: bool = False,
        **options: Unpack[Options],
    ) -> Registration:
        """Return a decorator that makes a function the handler of jobs that come at the times of a cron expression.

        Args:
            expression: minute, hour, day of month, month, day of week.
            timezone: whose clocks it means, by IANA name.
            type, missed, overlap, options: as for `every`.

        Raises:
            InvalidJob: no cron expression, or no time zone.
            InvalidSettings: as `handler`.
        """
        return self._ticking(
            Cron(expression, timezone), type, missed, overlap, handler_options(options, keep=KEEP_TICKS)
        )

    def commands(self, **options: Unpack[Options]) -> None:
        """Have this service run command jobs: whoever can add jobs to the store can then run any command here.

        Args:
            options: see HandlerOptions; commands have one attempt unless max_attempts says otherwise.

        Raises:
            InvalidSettings: as `handler`.
        """
        options.setdefault("max_attempts", 1)
        self._register(command_handler(handler_options(options)))

    @property
    def periodic(self) -> dict[JobType, Periodic]:
        """What is known of the handlers whose jobs come by themselves, by type: schedule, and what becomes of ticks
        that were missed."""
        return {exact_type(each.handler.type): each for each in self._periodic}

    @property
    def handlers(self) -> dict[JobType, Handler[Any, Any]]:
        """The handlers by type."""
        return {exact_type(handler.type): handler for handler in self._handlers.values()}

    async def run(
        self,
        *,
        types: Iterable[JobType] | None = None,
        max_jobs: int | None = None,
        started: Callable[[], object] | None = None,
    ) -> None:
        """Run the jobs of handlers until the caller is canceled.

        Then nothing more is accepted, running handlers get their grace to end, those that do not are canceled, and
        their jobs are given back, so that another process takes them at once. Opens the service if it is not open.
        What the settings say of a handler's options holds before what it was registered with.

        Args:
            types: whose handlers run; None for all.
            max_jobs: of all types that run here at the same time; None for as many as the handlers have slots.
            started: called once, when all types are there and their jobs are accepted.

        Raises:
            InvalidSettings: there is no handler, for one of the types perhaps, or max_jobs is no number.
            SupervisorFailed: a handler's lane cannot be started at all. One that fails later is started again, for as
                long as it takes, and ends nobody else. Where this was called in a task beside the one that has entered
                the service, the error is raised out of the body of its `async with` as well.
            JobsError: it runs already, or the service was opened on another event loop.
        """
        if max_jobs is not None and (type(max_jobs) is not int or max_jobs < 1):
            raise InvalidSettings(f"max_jobs={shown(max_jobs)}: allowed are None and integers from 1 up")
        if not self._handlers:
            raise InvalidSettings("there is nothing to run: make a function a handler with @jobs.handler(type)")
        handlers = [*self._handlers.values()] if types is None else self._handlers_of(types)
        if self._runner is not None:
            raise JobsError("this service's handlers run already")
        if not self._entered:
            async with self:
                return await self.run(types=[handler.type for handler in handlers], max_jobs=max_jobs, started=started)
        self._check_open()
        if self._host is not None and self._host.get_loop() is not asyncio.get_running_loop():
            raise other_loop()
        if self._leaving:
            raise _being_left()
        self.reload(self.settings)
        access = ServiceAccess(self._context, self._operations, self, self._accept_or_watch, self._count_due)

        def begun() -> None:
            for packed in self._handlers:
                self._timeout_changed(self._context.keyspace.of_packed(packed))
            self._tell_of_retention(handlers)
            if started is not None:
                started()

        self._runner = Runner(
            access, handlers, [each for each in self._periodic if each.handler in handlers], max_jobs, begun
        )
        over = asyncio.Event()
        self._running = asyncio.current_task(), over
        try:
            await self._runner.run()
        except Exception as error:
            self._runner_failed(error)
            raise
        finally:
            self._runner = self._running = None
            over.set()

    def _tell_of_retention(self, handlers: _Handlers) -> None:
        """Say once how long finished jobs of these handlers are kept, however often they are run."""
        fresh = [each for each in handlers if each.packed not in self._told_of]
        self._told_of.update(each.packed for each in fresh)
        tell_of_retention(fresh, [each.handler for each in self._periodic])

    def configure(self, type: JobType, **changes: Unpack[Changes]) -> None:
        """Change options of a handler, also while it runs.

        Args:
            type: whose handler.
            changes: slots, max_churn, interval, max_history.

        Raises:
            InvalidSettings: there is no such handler, another option, or a value outside its range.
        """
        handler = self._handler_of(type)
        self._change(handler, changes)
        # What was registered is no more what it goes back to.
        for name in changes:
            self._replaced.get(handler.packed, {}).pop(name, None)

    def reload(self, settings: Settings) -> None:
        """Take handlers' options from other settings, also while they run; nothing else of the settings changes.

        What the settings do not name any more is again as it was registered, or as `configure` has said.

        Args:
            settings: their `handlers` holds slots, max_churn, interval and max_history by type.

        Raises:
            InvalidSettings: no Settings.
        """
        if not issubclass(type(settings), Settings):
            raise InvalidSettings(f"settings {shown(settings)}: {a_kind_of(settings)}; allowed are Settings")
        self.settings = self.settings.model_copy(update={"handlers": settings.handlers})
        for each, handler in self._handlers.items():
            wanted = settings.handlers.get(_called(handler.type), HandlerSettings()).model_dump(exclude_none=True)
            before = self._replaced.get(each, {})
            self._replaced[each] = {name: before.get(name, getattr(handler.options, name)) for name in wanted}
            self._change(handler, {**before, **wanted})
        unknown = {*settings.handlers} - {_called(each.type) for each in self._handlers.values()}
        if unknown:
            log.warning("settings_without_handler", types=sorted(unknown))

    def _handlers_of(self, types: Iterable[JobType]) -> _Handlers:
        wanted = {handler.packed: handler for handler in map(self._handler_of, check_iterable("types", types))}
        if not wanted:
            raise InvalidSettings("types: no type is named; None is for all that have handlers")
        return [*wanted.values()]

    def _handler_of(self, type: JobType) -> Handler[Any, Any]:
        handler = self._handlers.get(pack_type(type))
        if handler is None:
            raise InvalidSettings(f"type {shown(type)} has no handler; there are {shown([*self.handlers])}")
        return handler

    def _change(self, handler: Handler[Any, Any], changes: Mapping[str, Any]) -> None:
        if not changes:
            return
        handler.options = handler.options.with_changes(**changes)
        if self._runner is not None:
            self._runner.options_changed(handler)

    async def stats(self, type: JobType | None = None, *, jobs: int = 0) -> _Stats:
        """Return how many jobs of each type are in which state, and for how long, whoever runs them.

        Reads the unfinished jobs and counts the finished ones: page by page, not in one state.

        Args:
            type: None for all types.
            jobs: summaries of so many unfinished jobs of each type are wanted, in key order.

        Returns:
            For each type that has jobs: how many are pending, scheduled, running, crashed (waiting to be tried again)
            and finished, and the average seconds that they have been so (average_pending_seconds, ...). With summaries:
            jobs, a list of what each does (id, state, attempts, error, error_count, added, last_updated, history).

        Raises:
            InvalidJob: a type or a number that cannot be.
        """
        wanted = check_limit(jobs) or 0
        counted: dict[JobType, Gauges] = defaultdict(lambda: Gauges(wanted))
        async for job in self.list(type):
            counted[exact_type(job.type)].add(job, self._sources.wall_time())
        return {each: gauges.as_dict() for each, gauges in counted.items()}

    def _register(self, handler: Handler[Any, Any]) -> None:
        if self._runner is not None:
            raise InvalidSettings(f"{handler.name}: handlers are registered before they run")
        known = self._handlers.setdefault(handler.packed, handler)
        if known is not handler:
            raise InvalidSettings(f"type {shown(handler.type)} has a handler already: {known.name}")

    def _ticking(
        self, schedule: Schedule, type: JobType | None, missed: Missed | str, overlap: bool, options: HandlerOptions
    ) -> Registration:
        policy = member(Missed, missed)
        if policy is None:
            raise InvalidSettings(
                f"missed={shown(missed)}: allowed are {', '.join(repr(str(each)) for each in Missed)}"
            )

        if overlap is not True and overlap is not False:
            raise InvalidSettings(f"overlap={shown(overlap)}: allowed are True and False")

        def keep(handler: Handler[Any, Any]) -> None:
            if handler.required:
                raise InvalidSettings(
                    f"{handler.name} cannot be a periodic handler: nobody gives it {', '.join(handler.required)}; "
                    "give these parameters defaults, or let it take nothing but the job"
                )
            try:
                json_data.encode(handler.data(UNSET))
            except JobsError as error:
                raise InvalidSettings(
                    f"{handler.name} cannot be a periodic handler: its default is no argument: {error}"
                ) from None
            self._register(handler)
            self._periodic.append(Periodic(handler, schedule, policy, overlap))

        return registration(type, options, keep)

    async def _accept_or_watch(self, keys: TypeKeys, wanted: queue.AcceptTerms) -> _RunningJobs | EmptyQueue:
        return await self._accept_once(keys, wanted, watch=True)

    async def _count_due(self, keys: TypeKeys, limit: int, max_priority: bytes | None) -> int:
        """Return how many jobs of a type are due, none while it is paused; counted up to a limit and a priority."""
        now = self._sources.wall_time()

        async def count(transaction: Transaction) -> int:
            if await activity.is_paused(transaction, keys):
                return 0
            return await queue_counts.count_due(transaction, keys, now, limit, max_priority)

        return await self._read(count)

    # One transaction over the application's data and its jobs

    async def transact(self, function: Callable[[JobTransaction], Awaitable[T]]) -> T:
        """Run a function whose reads and writes, of jobs and of other keys, take effect together or not at all.

        Args:
            function: takes a JobTransaction; may be run more than once, must have no effect but through it, and awaits
                nothing but it.

        Returns:
            What the function returned in the run that committed.

        Raises:
            Exception: what the function raised; nothing was written.
            StoreError: the function awaited something else, or the store failed.
        """
        if not callable(function):
            raise JobsError(f"{shown(function)}: {a_kind_of(function)}; transact takes a function of a transaction")

        looks = QueueReads(self._spreading)
        accepted: list[Entry] = []
        touched: _Touched = {}
        ending: list[RunningJob] = []

        async def work(unit: UnitOfWork) -> T:
            here = _here()
            self._inside.add(here)
            looks.begin()
            touched.clear()
            tx = _ServiceTransaction(unit, self, looks, touched, ending)
            try:
                run = function(tx)
                if getattr(type(run), "__await__", None) is None:
                    raise no_coroutine(run)
                return await run
            finally:
                accepted[:] = tx._end()
                self._inside.discard(here)

        def committed() -> None:
            for keys, changed in touched.items():
                if changed:
                    self._enqueued.discard(keys.type)
                    self._timeout_changed(keys)
                else:
                    self._look_at_type_of(keys)

        def abandoned(_: T) -> None:
            committed()
            for entry in accepted:
                self._give_back(entry)

        self._check_open()
        try:
            result = await self._context.transact(work, abandoned)
        except (StoreUnavailable, CommitUnknown, WorkerConflict):  # a job's end may be in the store
            raise
        except Exception:
            for job in ending:
                assert job._worker is not None
                job._worker._ending(job, False)
            raise
        looks.end()
        committed()
        return result

    def within(self, transaction: object) -> WithinTransaction:
        """Return a block over a transaction that the application drives itself, in plain code:

            @fdb.transactional
            def place_order(tr, order):
                tr[b"orders/42"] = order
                with jobs.within(tr) as tx:
                    tx.add("email", "receipt-42", {"order": 42})

        `tx` has the operations of JobTransaction as plain methods. They behave as if done one after the other; what
        they write is handed to the transaction at the end of the block, nothing of it if the block raises, and takes
        effect when the application commits. `tx.kv`, like the transaction itself, is written at once. A job that one
        block has changed cannot be read by a later block on the same transaction (accessed_unreadable), so what
        belongs together goes into one block; blocks are not nested.

        Every read blocks the calling thread, which may be any: on the loop's own thread it holds up everybody there.

        A running job that `tx.accept` returns is the caller's once the application has committed. Its own methods are
        coroutines of this service, for its loop; plain code gives it to another block: `tx.update(job)`,
        `tx.finish(job)`, `tx.release(job)`. Its `seq`, like that of all that a block returns, may stay None. A type
        that is made in a block is watched over after `type_check_period` at the latest.

        What `transact` promises about commits of unknown outcome is not promised here. The application's retry loop
        runs the block again, with new ids and locks, and what has happened already is not recognised: `add` may raise
        JobExists for the job that it has added (`if_exists="ignore"` accepts that), `enqueue` without an id may add a
        second job, `finish` may raise WorkerConflict for what it has finished, and a job whose accept was run twice
        may stay locked until its type's timeout. Where that matters, use `transact`.

        Args:
            transaction: an fdb.Transaction of the store's cluster; on a memory: store what its begin() returned.

        Raises:
            ServiceClosed: the service is not open, here or as the block is entered.
            StoreError: no transaction of this store, or called by a function that `transact` runs.
        """
        self._check_open()
        return WithinTransaction(self._blocks, transaction, self._store.adopt(transaction), self._context.keyspace)

    # Subscribing

    def subscribe(self, type: JobType, id: JobId) -> Subscription:
        """Return the events of a job: iterate over it, or enter it with `async with` to end it at once on leaving.

        Raises:
            InvalidJob: a type or an id that cannot be.
            JobsError: the service has no supervisor tree.
        """
        return self.subscribe_many([(type, id)])

    def subscribe_many(self, jobs: Iterable[tuple[JobType, JobId]]) -> Subscription:
        """Return the events of several jobs as one iterator; it ends when every one of them has ended.

        Raises:
            InvalidJob: a type or an id that cannot be.
            JobsError: the service has no supervisor tree.
        """
        if not self._supervise:
            raise JobsError("subscribing needs the supervisor tree: open the service without supervise=False")
        wanted: dict[tuple[TypeKeys, JobId], None] = {}
        for type, id in _pairs(jobs):
            keys = self._keys(type)
            wanted[keys, creation.check_id(keys, id)] = None
        return Subscription(self._hub, [*wanted])

    async def wait(self, type: JobType, id: JobId, *states: JobState | str, timeout: float | None = None) -> JobEvent:
        """Wait until a job is in one of these states.

        Args:
            type, id: the job.
            states: none for the job's next change (a finished job, which will not change by itself, returns at once).
            timeout: seconds; None for ever.

        Returns:
            The event with that state.

        Raises:
            TimeoutError: not in time.
            JobNotFound: there is no such job.
            RecordDamaged: its record cannot be read, or not any more.
            JobsError: the job ended without reaching any of the states.
        """
        wanted = {_event_state(state) for state in states}
        event: JobEvent | None = None
        try:
            async with asyncio.timeout(check_timeout(timeout)), self.subscribe(type, id) as events:
                async for now in events:
                    if now.state in wanted or (not wanted and (event is not None or now.state in FINAL)):
                        return now
                    event = now
        except TimeoutError:
            raise _not_in_time(type, id, wanted, timeout, event) from None
        assert event is not None
        raise JobsError(
            f"job {job_name(type, id)} ended as {event.state.value}, without being {' or '.join(sorted(wanted))}",
            type=type,
            id=id,
        )

    # What running jobs call

    async def _update(self, job: RunningJob, data: Any) -> RunningJob:
        place = self._place(job.type, job.id)
        json = creation.json_of(job.type, job.id, data)
        size = len(json or b"") + job._record.size()
        return running_job(await self._operations.operate(running_jobs.update, place, job.lock, json, size=size), self)

    async def _progress(self, job: RunningJob, progress: Progress) -> RunningJob:
        place = self._place(job.type, job.id)
        try:
            json = run_data.progress_json(progress)
        except (InvalidJob, JobTooLarge) as error:
            raise error.about(job.type, job.id) from None
        size = len(json) + job._record.size()
        work = self._operations.operate(running_jobs.update, place, job.lock, None, json, size=size)
        return running_job(await work, self)

    async def _finish(
        self, job: RunningJob, data: Any, outcome: Outcome, result: Any = UNSET, error: JobError | None = None
    ) -> Job:
        place = self._place(job.type, job.id)
        json = creation.json_of(job.type, job.id, data)
        ended = check_outcome(outcome, job)
        said = told(job, result, error)
        size = len(json or b"") + len(said.result or b"") + job._record.size()
        reads = place[0].retention
        work = self._operations.operate(running_jobs.finish, place, job.lock, json, ended, said, size=size, reads=reads)
        return job_of(await work)

    async def _finish_with(self, job: RunningJob, function: Callable[[JobTransaction], Any]) -> EndedJob[Any]:
        """Run a function and finish the job in the same transaction; what the function returns is the result."""
        if not callable(function):
            raise JobsError(f"{shown(function)}: {a_kind_of(function)}; finish_with takes a function of a transaction")

        async def work(tx: JobTransaction) -> Job:
            result = function(tx)
            if getattr(type(result), "__await__", None) is not None:
                result = await result
            # What operations on other jobs return is no result of this one.
            return await tx.finish(job, result=UNSET if isinstance(result, Job) else result)

        ended = await self.transact(work)
        return EndedJob(ended.type, ended.id, ended._record)

    async def _resubmit(self, job: RunningJob, data: Any, priority: Any, run_at: Any) -> RunningJob:
        place = self._place(job.type, job.id)
        spec = creation.spec_of(job.type, job.id, data, priority, run_at)
        size = spec.size() + job._record.size()
        return running_job(
            await self._operations.operate(running_jobs.resubmit, place, job.lock, spec, size=size), self
        )

    async def _release(self, job: RunningJob) -> Job:
        place = self._place(job.type, job.id)
        size = job._record.size()
        return job_of(await self._operations.operate(running_jobs.release, place, job.lock, size=size))

    def _ending(self, job: RunningJob, whether: bool) -> None:
        """A running job is ended in its worker's own transaction: nobody keeps account of it here."""

    # Floors below

    def _keyspace(self) -> Keyspace:
        self._check_open()
        return self._context.keyspace

    def _keys(self, type: JobType) -> TypeKeys:
        self._check_open()
        return self._context.keyspace.of(type)

    def _check_open(self) -> None:
        if self._usable and not self._inside:
            return
        if self._failure is not None:
            raise self._failure
        if self._leaving:
            raise _being_left()
        if not self._usable:
            raise ServiceClosed("the service is not open: enter it with `async with`")
        # It is a transaction function that calls.
        if _here() in self._inside:
            raise foreign_await("the service itself instead of the transaction that it was given")

    def _place(self, type: JobType, id: JobId) -> Place:
        return place_of(self._keys(type), id)

    async def _transact(self, operation: Callable[[UnitOfWork], Awaitable[T]]) -> T:
        self._check_open()
        return await self._context.transact(operation)

    async def _transact_after(self, before: asyncio.Future[Any], operation: Callable[[UnitOfWork], Awaitable[T]]) -> T:
        self._check_open()
        return await self._context.transact_after(before, operation)

    async def _read(self, function: Callable[[Transaction], Coroutine[Any, Any, T]]) -> T:
        self._check_open()
        return await self._context.read(function)

    def _batches(self, keys: TypeKeys, jobs: Iterable[NewJob]) -> Iterable[tuple[_Places, _Specs]]:
        """Yield places and specs for one transaction after the other, each well within the store's limits."""
        most = self.settings.add_batch
        budget = self._store.limits.transaction // 2
        overhead = KEYS_OF_A_JOB * (len(keys.ready) + 64)
        places: _Places = []
        specs: _Specs = []
        size = 0
        for job in new_jobs(jobs):
            spec = new_job_spec(keys.type, job)
            place = place_of(keys, job.id)
            packed_id = place[2]
            takes = spec.size() + KEYS_OF_A_JOB * len(packed_id) + overhead
            if places and (len(places) == most or size + takes > budget):
                yield places, specs
                places, specs, size = [], [], 0
            places.append(place)
            specs.append(spec)
            size += takes
        if places:
            yield places, specs

    async def _accept_once(
        self, keys: TypeKeys, wanted: queue.AcceptTerms, *, watch: bool
    ) -> _RunningJobs | EmptyQueue:
        self._check_open()
        answer = self._operations.accept(keys, wanted, watch=watch)
        try:
            found = await answer
        except asyncio.CancelledError:
            # The answer may have come in the very turn of the loop in which the caller was canceled.
            if not answer.cancelled() and answer.exception() is None:
                self._return(answer.result())
            raise
        return found if isinstance(found, EmptyQueue) else [running_job(entry, self) for entry in found]

    def _return(self, found: Accepted) -> None:
        """Give back what came for a caller who has gone."""
        if not isinstance(found, EmptyQueue):
            for entry in found:
                self._give_back(entry)
        elif found.watch is not None:
            found.watch.cancel()

    def _give_back(self, entry: Entry) -> None:
        """Release a job that was accepted for a caller who had gone when the commit was answered."""
        self._later(self._release_abandoned(running_job(entry, self)))

    async def _release_abandoned(self, job: RunningJob) -> None:
        place = (self._context.keyspace.of(job.type), job.id, pack_id(job.id))
        try:
            await self._context.transact(lambda unit: running_jobs.release(unit, place, job.lock))
        except (WorkerConflict, StoreError) as error:
            log.warning("release_failed", type=job.type, id=job.id, error=str(error))

    async def _end_afterthoughts(self) -> None:
        while self._afterthoughts:
            await asyncio.wait(self._afterthoughts)

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that nobody waits for, before the service is left at the latest."""
        task = asyncio.get_running_loop().create_task(work)
        self._afterthoughts.add(task)
        task.add_done_callback(self._afterthoughts.discard)

    async def _not_running(self, type: JobType, id: JobId) -> None:
        """Wait until a job is not running any more, by a watch of its type's activity: needs no notifier."""
        place = self._place(type, id)

        async def look(transaction: Transaction) -> tuple[bool, Watch]:
            watch = transaction.watch(place[0].watch_activity)
            try:
                job = await _get(transaction, place)
            except JobNotFound:
                return False, watch
            return job.state is JobState.RUNNING, watch

        while True:
            running, watch = await self._context.retried(lambda: self._read(look), type=type, id=id)
            try:
                if not running:
                    return
                with contextlib.suppress(StoreError):  # A watch that was lost: look again.
                    await watch.wait()
            finally:
                watch.cancel()
            await asyncio.sleep(_WATCH_HOLDOFF)

    # The tree

    async def _start_tree(self) -> None:
        settings = self.settings
        context = self._context
        hub = self._hub
        loop = asyncio.get_running_loop()

        monitors: _Supervisors = []
        notifiers: _Supervisors = []

        def make_monitors() -> DynamicSupervisor:
            monitors[:] = [DynamicSupervisor("monitors", max_restarts=10, restart_period=3.0)]
            return monitors[0]

        def make_notifiers() -> DynamicSupervisor:
            notifiers[:] = [DynamicSupervisor("notifiers", max_restarts=10, restart_period=3.0)]
            return notifiers[0]

        children = [
            ChildSpec("keyspace", lambda: KeyspaceKeeper(context), Restart.PERMANENT),
            ChildSpec("monitors", make_monitors, Restart.PERMANENT),
            ChildSpec("notifiers", make_notifiers, Restart.PERMANENT),
            ChildSpec("type server", lambda: TypeServer(context, hub, monitors[0], notifiers[0]), Restart.PERMANENT),
        ]
        if self._store.instance:
            # Last, so that it brings nobody down with it.
            children.append(ChildSpec("process monitor", lambda: ProcessMonitor(context), Restart.PERMANENT))
        self._tree = Supervisor(
            "JobsService",
            children,
            strategy=Strategy.REST_FOR_ONE,
            max_restarts=settings.max_restarts,
            restart_period=settings.restart_period,
        )
        hub.open()
        started: asyncio.Future[None] = loop.create_future()
        # One task of its own, because a caller may enter and leave the service in different tasks.
        self._tree_task = loop.create_task(run_tree(self._tree, started=lambda: started.set_result(None)))
        self._tree_task.add_done_callback(lambda task: self._tree_ended(task, started))
        await started

    def _tree_ended(self, task: asyncio.Task[None], started: asyncio.Future[None]) -> None:
        """Tell everybody when the tree has failed: those who wait, and the body of the `async with`."""
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        if not isinstance(error, SupervisorFailed):
            failed = SupervisorFailed(f"the supervisor tree failed: {error!r}")
            failed.__cause__ = error
            error = failed
        if not started.done():
            started.set_exception(error)
            return
        self._fail(error)

    def _fail(self, error: SupervisorFailed) -> None:
        """Refuse whatever is asked from now on, with this error, and raise it out of the body of the `async with`."""
        log.error("service_failed", error=str(error))
        self._failure = error
        self._usable = False
        self._hub.close(error)
        self._waiting.wake_all()
        if self._host is not None and not self._host.done() and not self._host_canceled:
            self._host_canceled = self._host.cancel("the service failed")

    def _runner_failed(self, error: Exception) -> None:
        """Have the application learn that its jobs are not run any more, if `run` was called in a task beside its own.

        Who awaits `run` itself is raised the error; of a task that was begun and forgotten nobody would hear, and jobs
        would be added that nobody runs.
        """
        if asyncio.current_task() is self._host or self._failure is not None:
            return
        failed = SupervisorFailed(f"the handlers are not run any more: {error}")
        failed.__cause__ = error
        self._fail(failed)

    def _timeout_changed(self, keys: TypeKeys) -> None:
        """Have the type's new timeout counted with at once, without waiting for that."""
        server = None if self._tree is None else self._tree.child("type server")
        if isinstance(server, TypeServer) and server.is_alive:
            server.look_again(keys)

    async def _leave(self) -> None:
        """Stop the tree, let what runs end, and close the store."""
        self._leaving = True
        if self._running is not None:
            task, over = self._running
            assert task is not None
            task.cancel("the service is left")
            # Not for the task: whoever has called `run` may do something of their own afterwards.
            await over.wait()
        # Whoever goes on using the service is told so, or there would always be something to wait for.
        self._usable = False
        self._waiting.wake_all()
        self._hub.close(ServiceClosed("the service was closed"))
        if self._tree_task is not None:
            self._tree_task.cancel()
            await asyncio.wait([self._tree_task])
        await self._operations.drain()
        await self._end_afterthoughts()
        if self._owns_store:
            # Of these, some have not reached the store yet: they wait for one another.
            await self._context.until_idle()
            await self._store.close()
            # A commit whose caller had gone may have come through just now: what it accepted waits for its timeout.
            await self._end_afterthoughts()
        self._entered = self._leaving = False
        self._tree_task = None
        # A look that was under way may have set a watch; a store that stays open would let it wait for ever.
        self._waiting.wake_all()

    async def _shielded(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it to its end, whoever cancels the caller meanwhile; the cancellation is passed on afterwards."""
        task = asyncio.get_running_loop().create_task(work)
        canceled: asyncio.CancelledError | None = None
        while not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError as error:
                canceled = error
        if canceled is not None:
            raise canceled
        task.result()


class _ServiceTransaction(JobTransaction):
    """A transaction of this service: it notes which types it changed, and its running jobs can call back.

    Args:
        unit, service, looks: as for every JobTransaction.
        touched: gets the types whose timeouts it has changed, or may have made by enqueueing; it holds when the
            transaction has committed.
        ending: gets the running jobs that it has ended, of which somebody keeps account.
    """

    def __init__(
        self, unit: UnitOfWork, service: JobsService, looks: QueueReads, touched: _Touched, ending: list[RunningJob]
    ) -> None:
        super().__init__(unit, service, service.settings.pending_batch, looks)
        self._service = service
        self._touched = touched
        self._ended_here = ending

    def _ending(self, job: RunningJob) -> None:
        super()._ending(job)
        if job._worker is not None:
            self._ended_here.append(job)

    async def set_type_timeout(self, type: JobType, seconds: float) -> None:
        await super().set_type_timeout(type, seconds)
        self._touched[self._keys(type)] = True

    async def clear_type_timeout(self, type: JobType) -> None:
        await super().clear_type_timeout(type)
        self._touched[self._keys(type)] = True

    async def enqueue(self, handler: Any, *args: Any, **how: Any) -> Job:
        job = await super().enqueue(handler, *args, **how)
        if job.type not in self._service._enqueued:
            self._touched.setdefault(self._keys(job.type), False)
        return job

    async def enqueue_many(self, handler: Any, jobs: Iterable[Any], **how: Any) -> _Jobs:
        added = await super().enqueue_many(handler, jobs, **how)
        if added and added[0].type not in self._service._enqueued:
            self._touched.setdefault(self._keys(added[0].type), False)
        return added

    def _handlers(self) -> Mapping[bytes, Handler[Any, Any]]:
        return self._service._handlers


def _here() -> asyncio.Task[Any] | int | None:
    """Return what tells the code that runs now from all other: its task, or, where no loop runs, its thread."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return threading.get_ident()


def _being_left() -> ServiceClosed:
    return ServiceClosed("the service is being left: it ends what was begun, and takes nothing new")


def _called(type: JobType) -> str:
    """Return how settings call a type."""
    return type if isinstance(type, str) else repr(type)


def check_timeout(timeout: Any) -> float | None:
    """Return seconds to wait if one can wait so long."""
    if timeout is None:
        return None
    try:
        seconds = exact_seconds(timeout)
    except OverflowError:  # for ever, or for less than nothing
        seconds = math.inf if timeout > 0 else None
    if seconds is None or not seconds >= 0:
        raise JobsError(f"timeout={shown(timeout)}: allowed are None and numbers of seconds from 0 up")
    return None if seconds == math.inf else seconds


def _failed(event: JobEvent) -> JobFailed:
    """Return the error for a job that ended without success."""
    assert event.outcome is not None
    why = "" if event.error is None else f": {event.error.type}: {in_one_line(event.error.message, _MOST_OF_AN_ERROR)}"
    return JobFailed(
        f"job {job_name(event.type, event.id)} ended as {event.outcome.value}{why}",
        type=event.type,
        id=event.id,
        outcome=event.outcome.value,
        error=event.error,
    )


def _not_in_time(
    type: JobType, id: JobId, wanted: Collection[JobState], seconds: float | None, event: JobEvent | None
) -> TimeoutError:
    """Return the error for a job that was waited for and, as its last event tells, did not come so far in time."""
    states = {*wanted} - {JobState.REMOVED} or wanted  # nobody waits for both because of the removal
    missing = f"was not {' or '.join(sorted(states))}" if states else "did not change"
    state = "" if event is None else f"; it is {event.state.value}"
    return TimeoutError(f"job {job_name(type, id)} {missing} within {seconds} s{state}")


def _event_state(state: Any) -> JobState:
    found = member(JobState, state)
    if found is None or found is JobState.UNREADABLE:
        allowed = ", ".join(repr(str(each)) for each in JobState if each is not JobState.UNREADABLE)
        raise InvalidJob(f"state {shown(state)}: allowed are {allowed}")
    return found


def _pairs(jobs: Any) -> Iterator[tuple[JobType, JobId]]:
    """Yield what subscribe_many was given."""
    try:
        pairs = iter(jobs)
    except TypeError:
        raise InvalidJob(f"jobs {shown(jobs)}: {a_kind_of(jobs)}; pairs of type and id, in any iterable") from None
    for pair in pairs:
        kind = type(pair)
        iterate = tuple.__iter__ if issubclass(kind, tuple) else list.__iter__ if issubclass(kind, list) else None
        items = [] if iterate is None else [*iterate(pair)]
        if len(items) != 2:
            raise InvalidJob(f"job {shown(pair)}: {a_kind_of(pair)}; it must be a pair of type and id")
        yield items[0], items[1]


def _check_kinds(store: Any, settings: Any, supervise: Any, sources: Any) -> None:
    """Refuse what no service can be made of."""
    if store is not None and not issubclass(type(store), str | Store):
        raise StoreError(f"store {shown(store)}: {a_kind_of(store)}; allowed are an address, a Store and None")
    if settings is not None and not issubclass(type(settings), Settings):
        raise InvalidSettings(f"settings {shown(settings)}: {a_kind_of(settings)}; allowed are Settings and None")
    if supervise is not True and supervise is not False:
        raise InvalidSettings(f"supervise={shown(supervise)}: allowed are True and False")
    if sources is not None and not issubclass(type(sources), Sources):
        raise InvalidSettings(f"sources {shown(sources)}: {a_kind_of(sources)}; allowed are Sources and None")


async def _get(transaction: Transaction, place: Place) -> Job:
    keys, id, packed_id = place
    raw = await transaction.get(keys.data + packed_id)
    if raw is None:
        raise JobNotFound(f"there is no job {job_name(keys.type, id)}", type=keys.type, id=id)
    try:
        return Job(keys.type, id, Record.decode(raw, True))
    except RecordDamaged as error:
        raise error.of(keys.type, id) from None
