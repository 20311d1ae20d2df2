"""The runner of one service: its tree of worker pools, heartbeats and tickers, from start to end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jobs_service import job_context
from jobs_service.actors.context import log
from jobs_service.model import JobType
from jobs_service.runner.active_runs import ActiveRuns, SlotLimit
from jobs_service.runner.handler import Handler
from jobs_service.runner.heartbeat import Heartbeat, LoopWatch
from jobs_service.runner.options import KEEP_TICKS
from jobs_service.runner.run import ServiceAccess
from jobs_service.runner.surroundings import Surroundings
from jobs_service.runner.ticker import Periodic, Ticker
from jobs_service.runner.worker_pool import SlotSharing, WorkerPool
from jobs_service.supervision import ChildSpec, PatientSupervisor, SupervisedProcess, run_tree
from jobs_service.uncancelable import own_task, through_cancellation

if TYPE_CHECKING:
    from jobs_service.runner.process_pool import ProcessPool

_NAME: Final = "runner"

_LONGEST_PAUSE: Final = 10.0
"""Most seconds before a child that keeps failing is restarted."""

_LONGEST_PAUSE_OF_HEARTBEATS: Final = 0.2
"""The same for a heartbeat: during its pause, running jobs may come to count as lost."""

_DEFAULT_OF_TICKS: Final = (KEEP_TICKS, None)
"""The default retention of periodic jobs."""


class SlotUse(NamedTuple):
    """The slots of one handler in this process.

    Attributes:
        slots: most jobs that it runs at the same time.
        busy: number of jobs that it runs.
        heartbeats_missed: heartbeats that failed, or came so late that another was due, since `run` began.
        ended: number of runs that have ended since then.
    """

    slots: int
    busy: int
    heartbeats_missed: int
    ended: int = 0


class Runner:
    """Runs the jobs of all handlers until it is canceled.

    A worker pool that fails is restarted after a growing pause, for as long as the runner runs. Other handlers and the
    running jobs are not affected.

    Args:
        service: the service in which it runs.
        handlers: the handlers, each of another type.
        periodic: the handlers among them whose jobs a schedule adds.
        surroundings: their middleware and resources.
        max_jobs: most jobs of all handlers together; None for the sum of their slots.
        started: called once, when all types exist and the accepts begin.
        ended: called when the runner stops accepting jobs, and at each end of jobs after that.
        setup: called first in the processes of isolated handlers; it can be pickled.

    Attributes:
        tree: the supervisor.
        is_draining: whether the runner is ending.
    """

    def __init__(
        self,
        service: ServiceAccess,
        handlers: Sequence[Handler[Any, Any]],
        periodic: Sequence[Periodic],
        surroundings: Surroundings,
        max_jobs: int | None,
        started: Callable[[], object],
        ended: Callable[[], object] | None = None,
        setup: Callable[[], object] | None = None,
    ) -> None:
        self._service = service
        self._unprepared = {handler.packed for handler in handlers}
        self._started = started
        self._slot_limit = SlotLimit(max_jobs)
        self._ended = ended
        self.is_draining = False
        # A future, not an event: only a task can wait for an event beside another task.
        self._asked_to_stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._surroundings = surroundings
        self._handlers = handlers
        self._pool = _pool_of(handlers, setup)
        self._runs = {
            handler.packed: ActiveRuns(
                service,
                handler,
                self._slot_limit,
                surroundings.of(handler),
                self._pool if handler.kind == "isolated" else None,
            )
            for handler in handlers
        }
        self._loop_watch = LoopWatch(service, [*self._runs.values()])
        self._worker_pools: dict[bytes, WorkerPool] = {}
        self._changed = asyncio.Event()
        children: list[ChildSpec[SupervisedProcess]] = []
        for runs in self._runs.values():
            children.append(ChildSpec(f"pool {runs.keys.name}", partial(self._worker_pool, runs)))
        children.append(ChildSpec("heartbeats", self._heartbeats))
        for each in periodic:
            name = f"ticker {self._runs[each.handler.packed].keys.name}"
            children.append(ChildSpec(name, partial(Ticker, service, each)))
        if max_jobs is not None:
            sharing = partial(SlotSharing, self._slot_limit, self._runs, self._worker_pools, self._changed)
            children.append(ChildSpec("sharing", sharing))
        self.tree = self._supervisor(_NAME, children, _LONGEST_PAUSE)

    async def run(self) -> None:
        """Run jobs until `stop`, or until the caller is canceled; then let running jobs end within their grace.

        Raises:
            JobsError: a resource cannot be opened.
            SupervisorFailed: a worker pool never starts.
        """
        async with self._surroundings.open(self._handlers):
            await self._run()

    async def _run(self) -> None:
        with job_context.without():  # handlers run in their jobs' contexts, not in their caller's
            task = asyncio.get_running_loop().create_task(run_tree(self.tree), name=_NAME)
        self._loop_watch.start()
        if self._pool is not None:
            self._pool.start()
        try:
            await asyncio.wait([task, self._asked_to_stop], return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            # The first cancellation is raised anyway; another one shortens nothing.
            with contextlib.suppress(asyncio.CancelledError):
                await through_cancellation(self._end(task))
            raise
        await through_cancellation(self._end(task))
        if not (self._asked_to_stop.done() and task.cancelled()):
            task.result()

    def stop(self) -> None:
        """Make `run` end and return, as if its caller were canceled."""
        if not self._asked_to_stop.done():
            self._asked_to_stop.set_result(None)

    def set_quiet(self, quiet: bool) -> None:
        """Stop or resume the accept of jobs; running jobs go on."""
        self._slot_limit.on_change = self._ended if quiet else None
        self._slot_limit.set_closed(quiet)

    def slot_uses(self) -> dict[JobType, SlotUse]:
        """Return the slots and the taken slots of each handler, by type."""
        return {
            runs.handler.type: SlotUse(runs.options.slots, runs.busy, runs.heartbeats_missed, runs.ended)
            for runs in self._runs.values()
        }

    def options_changed(self, handler: Handler[Any, Any]) -> None:
        """Apply the changed options of a handler."""
        worker_pool = self._worker_pools.get(handler.packed)
        if worker_pool is not None:  # one that starts later begins with them
            worker_pool.options_changed()
            self._changed.set()

    def _supervisor(
        self, name: str, children: list[ChildSpec[SupervisedProcess]], longest_pause: float
    ) -> PatientSupervisor:
        settings = self._service.settings
        first_pause = min(settings.retry_backoff, longest_pause)
        calm = settings.restart_period
        return PatientSupervisor(name, children, first_pause=first_pause, longest_pause=longest_pause, calm=calm)

    def _heartbeats(self) -> PatientSupervisor:
        children: list[ChildSpec[SupervisedProcess]] = [
            ChildSpec(f"heartbeat {runs.keys.name}", partial(Heartbeat, self._service, runs))
            for runs in self._runs.values()
        ]
        return self._supervisor("heartbeats", children, _LONGEST_PAUSE_OF_HEARTBEATS)

    def _worker_pool(self, runs: ActiveRuns) -> WorkerPool:
        packed = runs.handler.packed
        worker_pool = self._worker_pools[packed] = WorkerPool(
            self._service, runs, self._slot_limit, partial(self._prepared, packed)
        )
        return worker_pool

    def _prepared(self, packed: bytes) -> None:
        if packed in self._unprepared:
            self._unprepared.remove(packed)
            if not self._unprepared:
                self._started()

    async def _end(self, tree: asyncio.Task[None]) -> None:
        """End the runs, then the tree: heartbeats last as long as handlers."""
        try:
            await self._drain()
        finally:
            tree.cancel()
            await asyncio.wait([tree])
            await self._loop_watch.end()
            if self._pool is not None:
                await self._pool.close()

    async def _drain(self) -> None:
        busy = sum(runs.busy for runs in self._runs.values())
        log.debug("runner_draining", running=busy)
        self.is_draining = True
        self._slot_limit.on_change = self._ended
        if self._ended is not None:
            self._ended()
        drains = [own_task(runs.drain()) for runs in self._runs.values()]
        for failure in await asyncio.gather(*drains, return_exceptions=True):
            if isinstance(failure, BaseException):
                log.error("runner_end_failed", exc_info=failure)


def _pool_of(handlers: Sequence[Handler[Any, Any]], setup: Callable[[], object] | None) -> ProcessPool | None:
    isolated = [handler for handler in handlers if handler.kind == "isolated"]
    if not isolated:
        return None
    from jobs_service.runner.process_pool import ProcessPool

    return ProcessPool(isolated, setup)


def log_retention(handlers: Iterable[Handler[Any, Any]], periodic: Iterable[Handler[Any, Any]]) -> None:
    """Log the retention times of finished jobs: one event for all types with the same times.

    Periodic handlers with the default times are left out: no client added their jobs, or looks for old ones.

    Args:
        handlers: the handlers that start.
        periodic: the handlers among them whose jobs a schedule adds.
    """
    ticking = {id(handler) for handler in periodic}
    types: dict[tuple[float | None, float | None], list[JobType]] = {}
    for handler in handlers:
        kept = handler.options.keep, handler.options.keep_failed
        if kept != (None, None) and not (kept == _DEFAULT_OF_TICKS and id(handler) in ticking):
            types.setdefault(kept, []).append(handler.type)
    for (keep, keep_failed), each in types.items():
        log.info("finished_jobs_expire", types=each, keep=keep, keep_failed=keep_failed)
