"""JobsService, the class that applications embed. The only place that wires the floors together.

The public methods are in the modules `*_operations`, one per group of users; they share small objects.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from types import TracebackType
from typing import Any, Final, Self

from jobs_service.actors.context import Context
from jobs_service.actors.subscriptions import Hub
from jobs_service.batching.group_commit import GroupCommit
from jobs_service.errors import InvalidSettings, StoreError, a_kind_of, shown
from jobs_service.layer.adaptive_spread import Spreading
from jobs_service.model import JobType, RunningJob
from jobs_service.service.abandoned_jobs import AbandonedJobs
from jobs_service.service.acceptor import Acceptor
from jobs_service.service.bulk import BulkCreation
from jobs_service.service.count_operations import CountOperations
from jobs_service.service.creator_operations import CreatorOperations
from jobs_service.service.handler_operations import HandlerOperations
from jobs_service.service.handler_registry import HandlerRegistry
from jobs_service.service.handler_runs import HandlerRuns, checked
from jobs_service.service.lifecycle import Lifecycle
from jobs_service.service.local_access import LocalAccess
from jobs_service.service.presence import Presence
from jobs_service.service.process_operations import ProcessOperations
from jobs_service.service.remote import Remote
from jobs_service.service.running_job_calls import RunningJobCalls
from jobs_service.service.store_access import StoreAccess
from jobs_service.service.sync_transaction import Blocks
from jobs_service.service.transactions import Transactions
from jobs_service.service.type_operations import TypeOperations
from jobs_service.service.waiting_workers import WaitingWorkers
from jobs_service.service.watcher_operations import WatcherOperations
from jobs_service.service.worker_operations import WorkerOperations
from jobs_service.settings import STORE_VARIABLE, Settings
from jobs_service.sources import Sources
from jobs_service.store import Store, open_address

DEFAULT_STORE: Final = "lmdb:jobs-data"


class JobsService(
    TypeOperations,
    CreatorOperations,
    CountOperations,
    WatcherOperations,
    WorkerOperations,
    HandlerOperations,
    ProcessOperations,
):
    """Durable background jobs: an async context manager with every operation on jobs.

    Args:
        store: an address (`lmdb:PATH`, `memory:`, `fdb:[CLUSTER_FILE]`), a Store, or None for the address in
            JOBS_SERVICE_STORE, else `lmdb:jobs-data`. Services of one process may share a Store: the last service to
            close also closes the Store, unless the application itself has opened it.
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
        self._bulk = BulkCreation(context, access)

        waiting = self._waiting = WaitingWorkers[list[RunningJob]]()
        hub = self._hub = Hub()
        self._lifecycle = Lifecycle(context, access, hub, operations, waiting, abandoned, supervised=supervise)
        self._tree = self._lifecycle.tree

        self._registry = HandlerRegistry()
        handlers = self._registry.handlers
        self._transactions = Transactions(context, access, self._tree, abandoned, spreading, handlers)
        self._worker = RunningJobCalls(access, operations, self._transactions)
        self._blocks = Blocks(sources, self._worker, self.settings.pending_batch, access.check_open)
        self._acceptor = Acceptor(context, access, operations, waiting, abandoned, self._worker)
        acceptor = self._acceptor
        worker, registry, tree = self._worker, self._registry, self._tree
        for_runner = LocalAccess(context, operations, self._worker, acceptor)
        self._remote = Remote(context, access, operations, acceptor, worker, registry, tree, hub, for_runner)
        self._presence = Presence(context, self._registry)
        self._runs = HandlerRuns(context, self._registry, self._lifecycle, self._presence, for_runner)

    async def __aenter__(self) -> Self:
        await self._lifecycle.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._lifecycle.leave(kind)

    @property
    def store(self) -> Store:
        """The store; open while the service is."""
        return self._store

    def supervision(self) -> dict[str, Any]:
        """Return the supervisor tree as plain data.

        Returns:
            For every node name, kind ("supervisor", "dynamic" or "actor"), state, restarts, seconds (since its start)
            and children; the runner with its worker pools is one of them while `run` runs. Without supervision the
            runner alone, and empty while nothing runs.
        """
        runner = self._registry.runner
        nodes = [] if runner is None else [runner.tree.tree()]
        if self._tree.root is not None:
            tree = self._tree.root.tree()
            return replace(tree, children=[*tree.children, *nodes]).as_dict()
        return nodes[0].as_dict() if nodes else {}

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
        mounted = import_module("jobs_service.http.application")
        return mounted.mounted(self, options)

    async def run(
        self,
        *,
        types: Iterable[JobType] | None = None,
        max_jobs: int | None = None,
        started: Callable[[], object] | None = None,
    ) -> None:
        """Run the jobs of handlers until the caller is canceled, or this process is asked to stop.

        Then it accepts no more jobs, and running handlers get their grace period. Handlers that do not end in time are
        canceled and their jobs released, so that another process takes them at once; after `stop_process`, this method
        returns. It opens the service if it is not open. Options in the settings take precedence over the options in a
        handler's registration.

        Args:
            types: types to run the handlers of; None for all.
            max_jobs: limit of simultaneous jobs over all types; None for the sum of the handlers' slots.
            started: called once, when all types exist and accepting has begun.

        Raises:
            InvalidSettings: there is no handler, or none for one of the types, or max_jobs is out of range.
            SupervisorFailed: a handler's worker pool cannot be started at all. A pool that fails later is restarted
                without limit and affects no other pool. If another task has entered the service, the error is raised
                out of the body of its `async with` as well.
            JobsError: the handlers run already, or the service was opened on another event loop.
        """
        handlers = checked(self._registry, types, max_jobs)
        if not self._lifecycle.is_entered:
            async with self:
                return await self.run(types=[handler.type for handler in handlers], max_jobs=max_jobs, started=started)
        self._lifecycle.check_can_run()
        self.reload(self.settings)
        await self._runs.run(handlers, max_jobs, started)


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
