"""`run`: runs the handlers of one service in a Runner."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from jobs_service.actors.context import Context
from jobs_service.arguments import exact_int
from jobs_service.errors import InvalidSettings, JobsError, shown
from jobs_service.model import JobType
from jobs_service.runner.handler import Handler
from jobs_service.runner.retention_notice import log_retention
from jobs_service.runner.runner import Runner
from jobs_service.runner.service_access import ServiceAccess
from jobs_service.service.handler_registry import HandlerRegistry
from jobs_service.service.lifecycle import Lifecycle
from jobs_service.service.presence import RUNNER, Presence


class HandlerRuns:
    """Runs handlers, one Runner at a time.

    Args:
        context, registry, lifecycle, presence: of the service.
        service: the runner's access to the service.
    """

    def __init__(
        self,
        context: Context,
        registry: HandlerRegistry,
        lifecycle: Lifecycle,
        presence: Presence,
        service: ServiceAccess,
    ) -> None:
        self._context = context
        self._registry = registry
        self._lifecycle = lifecycle
        self._presence = presence
        self._service = service
        # Types whose retention was logged already.
        self._retention_logged: set[bytes] = set()

    async def run(
        self, handlers: list[Handler[Any, Any]], max_jobs: int | None, started: Callable[[], object] | None
    ) -> None:
        """Run handlers until the caller is canceled, the service is left, or this process is asked to stop."""

        def begun() -> None:
            for packed in self._registry.handlers:
                self._lifecycle.tree.timeout_changed(self._context.keyspace.of_packed(packed))
            self._log_retention(handlers)
            self._presence.changed()
            if started is not None:
                started()

        periodic = [each for each in self._registry.periodic if each.handler in handlers]
        runner = Runner(self._service, handlers, periodic, max_jobs, begun, self._presence.changed)
        runner.set_quiet(self._presence.is_quiet)
        self._registry.runner = runner
        try:
            await self._lifecycle.run(self._run_listed(runner))
        finally:
            self._registry.runner = None

    async def _run_listed(self, runner: Runner) -> None:
        async with self._presence.listed(RUNNER, runner.stop):
            await runner.run()

    def _log_retention(self, handlers: list[Handler[Any, Any]]) -> None:
        """Log the retention of these handlers' finished jobs, once per handler over all runs."""
        fresh = [each for each in handlers if each.packed not in self._retention_logged]
        self._retention_logged.update(each.packed for each in fresh)
        log_retention(fresh, [each.handler for each in self._registry.periodic])


def checked(
    registry: HandlerRegistry, types: Iterable[JobType] | None, max_jobs: int | None
) -> list[Handler[Any, Any]]:
    """Return the handlers to run; arguments and errors as for JobsService.run."""
    if max_jobs is not None and ((count := exact_int(max_jobs)) is None or count < 1):
        raise InvalidSettings(f"max_jobs={shown(max_jobs)}: allowed are None and integers from 1 up")
    handlers = registry.of_types(types)
    if registry.runner is not None:
        raise JobsError("this service's handlers run already")
    return handlers
