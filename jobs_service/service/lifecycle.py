"""Opening, leaving and failure of a service, and the supervisor tree that it runs meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

from jobs_service.actors.activity_monitor import ProcessMonitor
from jobs_service.actors.context import Context, KeyspaceKeeper, StoreAccess, being_left
from jobs_service.actors.subscriptions import Hub, other_loop
from jobs_service.actors.type_server import TypeServer
from jobs_service.batching import GroupCommit
from jobs_service.errors import JobsError, ServiceClosed, StoreDamaged, StoreLost, SupervisorFailed
from jobs_service.layer.keyspace import TypeKeys
from jobs_service.layer.rows import refuse_half_copied
from jobs_service.log import EventLog
from jobs_service.model import JobType
from jobs_service.runner.runner import Runner
from jobs_service.service.acceptor import AbandonedJobs, WaitingWorkers
from jobs_service.settings import log_unknown_variables
from jobs_service.supervision import Actor, ChildSpec, DynamicSupervisor, Strategy, Supervisor, run_tree
from jobs_service.uncancelable import through_cancellation

log = EventLog("jobs_service")


class Lifecycle:
    """Opens and leaves one service.

    Args:
        context, access, hub, operations, waiting, abandoned: the parts of the service to open, wake or wait for.
        supervised: whether the supervisor tree runs.

    Attributes:
        is_entered: whether the service is open.
        loop: event loop of the last opening.
        give_up: closes the service in the thread of `sync`, so that it may be opened on the running loop; None unless
            it is open in that thread.
        supervised: see above.
        tree: the supervisor tree.
    """

    def __init__(
        self,
        context: Context,
        access: StoreAccess,
        hub: Hub,
        operations: GroupCommit,
        waiting: WaitingWorkers[Any],
        abandoned: AbandonedJobs,
        *,
        supervised: bool,
    ) -> None:
        self.is_entered = False
        self.loop: asyncio.AbstractEventLoop | None = None
        self.give_up: Callable[[], Awaitable[None]] | None = None
        self.supervised = supervised
        self.tree = ServiceTree(context, hub, self._fail)
        self._context = context
        self._store = context.store
        self._access = access
        self._hub = hub
        self._operations = operations
        self._waiting = waiting
        self._abandoned = abandoned
        self._is_tenant = False
        # The task that entered the service: the body of its `async with` is canceled when the service fails.
        self._host: asyncio.Task[Any] | None = None
        self._host_canceled = False
        # Called first when the service is left: servers end their waiting requests.
        self.before_leaving: list[Callable[[], Awaitable[None]]] = []
        # The task that runs the handlers, canceled when the service is left; and the event of their end.
        self._running: tuple[asyncio.Task[Any], asyncio.Event] | None = None
        self._ignore_loss: Callable[[], object] = lambda: None

    # Opening

    async def enter(self) -> None:
        """Open the store, unless it is open, and start the supervisor tree.

        Raises:
            JobsError: the service is open already.
            StoreError: the store cannot be opened, or is half a copy.
            SupervisorFailed: the tree cannot be started.
        """
        if self.is_entered and self.give_up is not None:
            await self.give_up()
        if self.is_entered:
            raise JobsError("this service is open already; make another JobsService for a second one")
        self.is_entered = True
        self.loop = asyncio.get_running_loop()
        log_unknown_variables()
        try:
            await self._store.tenants.enter()
            self._is_tenant = True
            self._ignore_loss = self._store.on_lost(self._store_lost)
            await self._context.open_keyspace()
            self._operations.open()
            refuse = partial(refuse_half_copied, self._store, self._context.keyspace)
            await self._context.retried(refuse, unless=(StoreDamaged,))
            self._access.is_open = True
            self._abandoned.begin_anew()
            self._host = asyncio.current_task()
            if self.supervised:
                await self.tree.start()
        except BaseException:
            await through_cancellation(self._leave())
            raise
        log.debug("service_opened", store=self._store.location, supervise=self.supervised)

    # Leaving

    async def leave(self, kind: type[BaseException] | None) -> None:
        """Stop everything, even if the caller is canceled meanwhile.

        Args:
            kind: class of the exception from the body of the `async with`.

        Raises:
            SupervisorFailed: the service has failed, and the body was canceled for no other reason.
        """
        canceled: asyncio.CancelledError | None = None
        try:
            await through_cancellation(self._leave())
        except asyncio.CancelledError as error:
            canceled = error
        log.debug("service_closed", store=self._store.location)
        failure, self._access.failure = self._access.failure, None
        # The failure of the service has canceled the body. That cancellation ends here, unless other code has
        # canceled the task as well: then the task has to end as canceled.
        only_we_canceled = self._host_canceled and self._host is not None and self._host.uncancel() == 0
        others_canceled = self._host_canceled and not only_we_canceled
        self._host_canceled = False
        if failure is not None and not others_canceled and (kind is None or issubclass(kind, asyncio.CancelledError)):
            raise failure
        if canceled is not None and not only_we_canceled:
            raise canceled

    async def _leave(self) -> None:
        """Stop the handlers and the tree, wait for running operations, and close the store."""
        self._access.is_leaving = True
        for prepare in self.before_leaving:
            await prepare()
        if self._running is not None:
            task, ended = self._running
            task.cancel("the service is left")
            # Not for the task: the caller of `run` may go on afterwards.
            await ended.wait()
        # Admit nothing new from here on, or the wait for running operations might never end.
        self._access.close()
        self._waiting.wake_all()
        self._hub.close(ServiceClosed("the service was closed"))
        await self.tree.stop()
        await self._operations.drain()
        await self._abandoned.until_given_back()
        if self._is_tenant:
            self._is_tenant = False
            # Transactions that wait for one another have not reached the store yet: closing it would refuse them.
            await self._context.until_idle()
            await self._store.tenants.leave()
            # A commit may just have succeeded after its caller had gone. Its accepted jobs cannot be released
            # any more and wait for their timeout, but the attempts to release them must end.
            await self._abandoned.until_given_back()
        self._ignore_loss()
        self.is_entered = self._access.is_leaving = False
        # An attempt to accept that was under way may have set a watch, which a store that stays open never fires.
        self._waiting.wake_all()

    # Running handlers

    def check_can_run(self) -> None:
        """Raise an error if handlers cannot run in the current task."""
        self._access.check_open()
        if self._host is not None and self._host.get_loop() is not asyncio.get_running_loop():
            raise other_loop()
        if self._access.is_leaving:
            raise being_left()

    async def run(self, work: Awaitable[None]) -> None:
        """Run handlers in the current task; leaving the service cancels the task and waits until the handlers have
        ended."""
        task, ended = asyncio.current_task(), asyncio.Event()
        assert task is not None
        self._running = task, ended
        try:
            await work
        except Exception as error:
            self._run_failed(error)
            raise
        finally:
            self._running = None
            ended.set()

    # Failing

    def _run_failed(self, error: Exception) -> None:
        """Fail the service after a failure of its handlers, if they ran in a task beside the one that entered it.

        A caller that awaits `run` gets the error. But the error of a task that nobody awaits would go unnoticed, and
        jobs would be added and never run.
        """
        if asyncio.current_task() is self._host or self._access.failure is not None:
            return
        failed = SupervisorFailed(f"the handlers are not run any more: {error}")
        failed.__cause__ = error
        self._fail(failed)

    def _store_lost(self, error: StoreLost) -> None:
        """Fail a service with actors or handlers at once: restarting its parts would not help."""
        if not self.supervised and self._running is None:
            return
        failed = SupervisorFailed(str(error))
        failed.__cause__ = error
        self._fail(failed)

    def _fail(self, error: SupervisorFailed) -> None:
        """Refuse every later operation with this error, and raise it out of the body of the `async with`."""
        log.error("service_failed", error=str(error))
        self._access.failure = error
        self._access.close()
        self._hub.close(error)
        self._waiting.wake_all()
        if self._host is not None and not self._host.done() and not self._host_canceled:
            self._host_canceled = self._host.cancel("the service failed")


class ServiceTree:
    """Runs the actors that look after the jobs of all types.

    Args:
        context: shared by the actors.
        hub: keeps the subscriptions over restarts.
        failed: called with the error if the tree fails for good.

    Attributes:
        root: the supervisor at its top; None before the service was opened with supervision.
        make_schedules: makes the actor for the store's schedules; the service sets it.
    """

    make_schedules: Callable[[], Actor]

    def __init__(self, context: Context, hub: Hub, failed: Callable[[SupervisorFailed], None]) -> None:
        self.root: Supervisor | None = None
        self._context = context
        self._hub = hub
        self._failed = failed
        self._task: asyncio.Task[None] | None = None
        # Types that jobs were enqueued for: the first one may have made the type.
        self._enqueued: set[JobType] = set()

    async def start(self) -> None:
        """Start all actors.

        Raises:
            SupervisorFailed: an actor cannot be started.
        """
        loop = asyncio.get_running_loop()
        self.root = self._supervisor()
        self._hub.open()
        started: asyncio.Future[None] = loop.create_future()
        # A task of its own, because a caller may enter and leave the service in different tasks.
        self._task = loop.create_task(run_tree(self.root, started=lambda: started.set_result(None)))
        self._task.add_done_callback(lambda task: self._ended(task, started))
        await started

    async def stop(self) -> None:
        """Stop all actors, and wait until they have ended."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    def _supervisor(self) -> Supervisor:
        context, hub, settings = self._context, self._hub, self._context.settings
        monitors: list[DynamicSupervisor] = []
        notifiers: list[DynamicSupervisor] = []

        def make_monitors() -> DynamicSupervisor:
            monitors[:] = [DynamicSupervisor("monitors")]
            return monitors[0]

        def make_notifiers() -> DynamicSupervisor:
            notifiers[:] = [DynamicSupervisor("notifiers")]
            return notifiers[0]

        def make_server() -> TypeServer:
            return TypeServer(context, hub, monitors[0], notifiers[0], self.make_schedules)

        children = [
            ChildSpec("keyspace", lambda: KeyspaceKeeper(context)),
            ChildSpec("monitors", make_monitors),
            ChildSpec("notifiers", make_notifiers),
            ChildSpec("type server", make_server),
        ]
        if context.store.instance:
            # Last, so that no other child is restarted when it fails.
            children.append(ChildSpec("process monitor", lambda: ProcessMonitor(context)))
        return Supervisor(
            "JobsService",
            children,
            strategy=Strategy.REST_FOR_ONE,
            max_restarts=settings.max_restarts,
            restart_period=settings.restart_period,
        )

    def _ended(self, task: asyncio.Task[None], started: asyncio.Future[None]) -> None:
        """Pass on the tree's failure, to a waiting `start` or else to the service."""
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
        self._failed(error)

    def as_dict(self, runner: Runner | None) -> dict[str, Any]:
        """Return the tree as plain data, and in it the runner's; see JobsService.supervision."""
        nodes = [] if runner is None else [runner.tree.tree()]
        if self.root is not None:
            tree = self.root.tree()
            return replace(tree, children=[*tree.children, *nodes]).as_dict()
        return nodes[0].as_dict() if nodes else {}

    # Changed types

    def timeout_changed(self, keys: TypeKeys) -> None:
        """Have the type server read a type's timeout now instead of at its next check; return at once."""
        server = None if self.root is None else self.root.child("type server")
        if isinstance(server, TypeServer) and server.is_alive:
            server.check_timeout(keys)

    def enqueued_for(self, keys: TypeKeys) -> None:
        """Have the type server check a type for which a job was enqueued: the first job may have made the type."""
        if keys.type not in self._enqueued:
            self._enqueued.add(keys.type)
            self.timeout_changed(keys)

    def is_known(self, type: JobType) -> bool:
        """Return whether `enqueued_for` was called for the type."""
        return type in self._enqueued

    def timeout_set_or_cleared(self, keys: TypeKeys) -> None:
        """Do `timeout_changed` for a type that may have been removed: the next enqueued job makes it again."""
        self._enqueued.discard(keys.type)
        self.timeout_changed(keys)
