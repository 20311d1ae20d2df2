"""The supervisor tree of a service, and the notices of changed types from operations to its type server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from jobs_service.actors.context import Context
from jobs_service.actors.keyspace_keeper import KeyspaceKeeper
from jobs_service.actors.process_monitor import ProcessMonitor
from jobs_service.actors.subscriptions import Hub
from jobs_service.actors.type_server import TypeServer
from jobs_service.errors import SupervisorFailed
from jobs_service.layer.keyspace import TypeKeys
from jobs_service.model import JobType
from jobs_service.runner.runner import Runner
from jobs_service.supervision import ChildSpec, DynamicSupervisor, Restart, Strategy, Supervisor, run_tree


class ServiceTree:
    """Runs the actors that look after the jobs of all types.

    Args:
        context: shared by the actors.
        hub: keeps the subscriptions over restarts.
        failed: called with the error if the tree fails for good.

    Attributes:
        root: the supervisor at its top; None before the service was opened with supervision.
    """

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
        if context.store.instance:
            # Last, so that no other child is restarted when it fails.
            children.append(ChildSpec("process monitor", lambda: ProcessMonitor(context), Restart.PERMANENT))
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

    def timeout_set(self, keys: TypeKeys) -> None:
        """Do `timeout_changed` for a type that may have been removed: the next enqueued job makes it again."""
        self._enqueued.discard(keys.type)
        self.timeout_changed(keys)
