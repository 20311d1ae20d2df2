"""The worker pool of one handler: an actor that accepts jobs into its slots.

It never polls: without jobs it waits on a watch of the queue, and while jobs run, on a watch of the type's canceled
jobs. Its runs outlive its crash: see ActiveRuns.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from jobs_service.arguments import Spread
from jobs_service.errors import StoreError
from jobs_service.layer.batch_bounds import Pace, too_much_for
from jobs_service.layer.keyspace import pack_id
from jobs_service.layer.queue import EmptyQueue, terms
from jobs_service.layer.running_jobs import LockStatus
from jobs_service.layer.type_settings import Declared
from jobs_service.model import RunningJob
from jobs_service.model.type_state import Retention
from jobs_service.runner.active_runs import ActiveRuns, SlotLimit, excess, rotation
from jobs_service.runner.options import HandlerOptions
from jobs_service.runner.run import Run, ServiceAccess, StopReason
from jobs_service.store.base import Watch
from jobs_service.supervision import Actor

_SETTLED: Final = 0.05
"""Seconds of a run before the first check for a cancellation: most jobs have ended by then."""

_MOST_ACCEPTED: Final = 1000

_LONGEST_GATHERING: Final = 0.1
"""Most seconds that free slots wait for further free slots."""


# Accepting jobs


class WorkerPool(Actor):
    """Accepts the jobs of one type into its slots, stops canceled jobs, and rotates continuous jobs.

    Args:
        service: the service in which the runner runs.
        runs: the runs of the type.
        slot_limit: shared by all worker pools.
        prepared: called when the type exists, before the first accept.
    """

    def __init__(
        self, service: ServiceAccess, runs: ActiveRuns, slot_limit: SlotLimit, prepared: Callable[[], None]
    ) -> None:
        super().__init__(f"pool {runs.keys.name}")
        self._service = service
        self._active_runs = runs
        self._slot_limit = slot_limit
        self._prepared = prepared
        self._keys = runs.keys
        self._changed = asyncio.Event()
        self._accept_took = 0.0
        self._reads = Pace(service.batch)

    @property
    def options(self) -> HandlerOptions:
        """The handler's options, as they are now."""
        return self._active_runs.options

    async def count_due(self, limit: int, max_priority: bytes | None = None) -> int:
        """Return the number of due jobs, counted up to a limit; 0 while the type is paused.

        Args:
            limit: jobs to count.
            max_priority: most inclusive priority, packed; None for all.
        """
        return await self._service.retried(
            lambda: self._service.count_due(self._keys, limit, max_priority), type=self._keys.type
        )

    async def count_due_up_to(self, priorities: Iterable[bytes], limit: int) -> dict[bytes, int]:
        """Return the number of due jobs up to each of some priorities, inclusive.

        Args:
            priorities: packed priorities.
            limit: as for count_due.
        """
        due: dict[bytes, int] = {}
        count = limit
        for priority in sorted(priorities, reverse=True):
            # Where none wait up to a priority, none do up to a more urgent one: that takes no read.
            count = await self.count_due(limit, priority) if count else 0
            due[priority] = count
        return due

    # The actor

    async def run(self) -> None:
        await self._prepare_type()
        self._prepared()
        self.spawn_link(self._fill(), "fill")
        self.spawn_link(self._follow_cancellations(), "canceled")
        self.spawn_link(self._rotate(), "rotation")
        await super().run()

    def options_changed(self) -> None:
        """Apply the handler's changed options."""
        self._changed.set()
        self._active_runs.wake()

    async def _prepare_type(self) -> None:
        """Make a missing type, and store its handler's declarations."""
        options = self.options
        wanted = Declared(options.timeout, Retention(options.keep, options.keep_failed))
        secret = self._active_runs.handler.redaction
        found, hidden = await self._service.retried(
            lambda: self._service.declare(self._keys, wanted, secret), type=self._keys.type
        )
        if (found, hidden) != (wanted, secret):
            differing = {
                "timeout": (options.timeout, found.timeout),
                "keep": (options.keep, found.retention.keep),
                "keep_failed": (options.keep_failed, found.retention.keep_failed),
                "redact": tuple(None if each is None else each.paths for each in (secret, hidden)),
            }
            self._active_runs.log.warning(
                "declared_options_differ", **{name: pair for name, pair in differing.items() if pair[0] != pair[1]}
            )

    # Accepting

    async def _fill(self) -> None:
        """Keep the slots taken while there are jobs."""
        runs = self._active_runs
        while not runs.draining:
            await runs.until_room()
            await self._gather()
            free = min(runs.free, _MOST_ACCEPTED)
            if free <= 0:
                runs.room.clear()
                continue
            wanted = await self._slot_limit.take(runs, free)
            if runs.draining or wanted > runs.free:  # changed while it waited
                self._slot_limit.give_back(wanted)
                continue
            try:
                found = await self._accept(wanted)
                if self._accept_took > runs.timeout / 2 and not isinstance(found, EmptyQueue):
                    found = await self._still_held(found)
            except BaseException:
                self._slot_limit.give_back(wanted)
                raise
            if isinstance(found, EmptyQueue):
                self._slot_limit.give_back(wanted)
                await self._wait_for_jobs(found)
            else:
                self._slot_limit.give_back(wanted - len(found))
                runs.begin(found)

    async def _gather(self) -> None:
        """If processes collide on the queue, wait as long as the last accept took for further free slots.

        Then fewer accepts can collide, and each takes more jobs.
        """
        free = self._active_runs.free
        if 0 < 2 * free < self.options.slots and self._service.is_crowded(self._keys):
            await asyncio.sleep(min(self._accept_took, _LONGEST_GATHERING))

    async def _accept(self, limit: int) -> list[RunningJob] | EmptyQueue:
        service = self._service
        spread: Spread = 1 if self.options.fifo else "adaptive"
        most = self.options.max_history
        wanted = terms(limit, None, None, spread, service.settings.pending_batch, service.sources.worker, most)
        began = self._loop.time()
        found = await service.retried(lambda: service.accept(self._keys, wanted), type=self._keys.type)
        self._accept_took = self._loop.time() - began
        return found

    async def _still_held(self, jobs: list[RunningJob]) -> list[RunningJob]:
        """Return the accepted jobs that this worker still owns: the loop was blocked when they came."""
        held = [((self._keys, job.id, pack_id(job.id)), job.lock) for job in jobs]
        found = await self._service.retried(lambda: self._service.beat(held), type=self._keys.type)
        return [job for job, status in zip(jobs, found, strict=True) if status is not LockStatus.TAKEN]

    async def _wait_for_jobs(self, nothing: EmptyQueue) -> None:
        watch = nothing.watch
        if watch is None:
            return
        self._active_runs.queue_watch = watch
        try:
            if not self._active_runs.draining:
                # Whether the watch fires, is lost or times out, the queue is read again.
                with contextlib.suppress(TimeoutError, StoreError):
                    async with asyncio.timeout(nothing.due_in):
                        await watch.wait()
        finally:
            self._active_runs.queue_watch = None
            watch.cancel()

    # Canceled jobs

    async def _follow_cancellations(self) -> None:
        """Stop the handlers of canceled jobs as soon as the store reports the cancellation."""
        while True:
            await self._active_runs.some.wait()
            await asyncio.sleep(_SETTLED)
            settled = self._loop.time() - _SETTLED
            alive = [run for run in self._active_runs.all() if run.can_be_asked]
            runs = [run for run in alive if run.at <= settled]
            if alive and not runs:
                continue
            watch = await self._check(runs)
            # The watch reports only cancellations made after this read, so jobs accepted since are read once more.
            young = [run for run in self._active_runs.all() if run.at > settled]
            try:
                self._active_runs.cancel_watch = watch
                if young:
                    await asyncio.sleep(_SETTLED)
                    left = [run for run in young if run.can_be_asked]
                    if left:
                        (await self._check(left)).cancel()
                if self._active_runs.some.is_set():
                    with contextlib.suppress(StoreError):  # after the loss of a watch, read again
                        await watch.wait()
            finally:
                self._active_runs.cancel_watch = None
                watch.cancel()

    async def _check(self, runs: list[Run]) -> Watch:
        """Ask the handlers of canceled jobs to end; return a watch that fires at a cancellation after this read."""
        watches: list[Watch] = []

        async def check_part(part: Sequence[Run]) -> None:
            watches.extend(await self._check_part(part, watched=bool(watches)))

        try:
            await self._reads.through(runs, lambda run: run.size, check_part)
            if not watches:
                await check_part([])
        except BaseException:
            for watch in watches:
                watch.cancel()
            raise
        return watches[0]

    async def _check_part(self, runs: Sequence[Run], *, watched: bool) -> list[Watch]:
        """Ask the handlers of some jobs to end if these were canceled or taken over.

        Returns:
            A watch on the type's canceled jobs, made before the read, unless there is one already.
        """
        held = [(run.place(self._keys), run.lock) for run in runs]
        found, watches = await self._service.retried(
            lambda: self._service.look(self._keys, held, watched=watched),
            unless=too_much_for(len(runs)),
            type=self._keys.type,
        )
        self._active_runs.heed(runs, found)
        return watches

    # Taking turns

    async def _rotate(self) -> None:
        last = self._loop.time()
        while not self._active_runs.draining:
            if await is_time(last + self.options.interval, self._changed):
                last = self._loop.time()
                await self.reschedule()
            else:
                self._stop_excess()

    async def reschedule(self) -> None:
        """Stop the runs beyond the slots. If all slots are taken and jobs wait, make continuous jobs give way."""
        runs = self._active_runs
        if self._stop_excess() or runs.free > 0:
            return
        running = runs.running()
        continuous = [(run, run.job._record.priority) for run in rotation(running)]
        if not continuous:
            return
        # A job does not give way to jobs that come after it in the queue: it would be accepted again at once.
        leaving = runs.leaving
        due = await self.count_due_up_to({priority for _, priority in continuous}, len(running) + leaving)
        turns: list[Run] = []
        most = max(due.values())
        for run, priority in continuous:
            # Handlers that are leaving make room already.
            if len(turns) < min(most, due[priority]) - leaving and len(turns) < self.options.max_churn:
                turns.append(run)
                most = min(most, due[priority])  # those after it would have to wait for it as well
        self._stop(turns)

    def _stop_excess(self) -> bool:
        """Stop the runs beyond the slots; return whether there were any."""
        too_many = -self._active_runs.free - self._active_runs.leaving
        if too_many <= 0:
            return False
        running = self._active_runs.running()
        # Handlers that were given up keep their slots, and cannot be stopped.
        self._stop(excess(running, max(len(running) - too_many, 0)))
        return True

    def _stop(self, runs: Iterable[Run]) -> None:
        for run in runs:
            self._active_runs.stop_run(run, StopReason.STOPPED)


# Turns of continuous jobs


async def is_time(at: float, changed: asyncio.Event) -> bool:
    """Wait until a time of the loop's clock and return True; return False at once after a change."""
    try:
        async with asyncio.timeout_at(at):
            await changed.wait()
    except TimeoutError:
        return True
    changed.clear()
    return False


class SlotSharing(Actor):
    """Makes continuous jobs take turns when the limit over all handlers is reached, but no handler's own limit.

    If all slots of a handler are taken, its worker pool rotates by itself.

    Args:
        slot_limit: the limit over all handlers.
        runs: the runs of each handler, by its packed type.
        worker_pools: the current worker pools, by the same key.
        changed: set when options have changed.
    """

    def __init__(
        self,
        slot_limit: SlotLimit,
        runs: dict[bytes, ActiveRuns],
        worker_pools: dict[bytes, WorkerPool],
        changed: asyncio.Event,
    ) -> None:
        super().__init__("sharing")
        self._slot_limit = slot_limit
        self._runs = runs
        self._worker_pools = worker_pools
        self._changed = changed

    async def run(self) -> None:
        last = self._loop.time()
        while True:
            interval = min(runs.options.interval for runs in self._runs.values())
            if await is_time(last + interval, self._changed):
                last = self._loop.time()
                if self._slot_limit.is_full and not self._slot_limit.is_closed:
                    await self._share()

    async def _share(self) -> None:
        """Stop as many continuous jobs of all handlers together as other jobs are due."""
        limit = self._slot_limit.limit
        assert limit is not None
        every = list(self._runs.values())
        holders = {run: runs for runs in every for run in runs.running()}
        continuous = rotation(holders)
        if not continuous:
            return
        leaving = sum(runs.leaving for runs in every)
        waiting = {runs: self._worker_pools[runs.handler.packed] for runs in every if runs.free > 0}
        # A handler takes no more than it has slots of its own, those included that become free now.
        room = {runs: runs.free + runs.leaving for runs in waiting}
        due = {runs: await worker_pool.count_due(limit) for runs, worker_pool in waiting.items()}
        # A job does not give way to those of its own type that come after it in the queue: it would be accepted again.
        before: dict[tuple[ActiveRuns, bytes], int] = {}
        for runs in dict.fromkeys(holders[run] for run in continuous if due.get(holders[run])):
            priorities = {run.job._record.priority for run in continuous if holders[run] is runs}
            found = await waiting[runs].count_due_up_to(priorities, limit)
            before |= {(runs, priority): count for priority, count in found.items()}
        churn = max(runs.options.max_churn for runs in every)
        turns: list[Run] = []
        for run in continuous:
            runs = holders[run]
            gains = dict(due)
            if runs in gains:
                gains[runs] = min(gains[runs], before.get((runs, run.job._record.priority), 0))
            gained = sum(min(count, room[each] + (each is runs)) for each, count in gains.items())
            if len(turns) < min(gained - leaving, churn):
                turns.append(run)
                due = gains  # its slot goes to none of its type that come after it in the queue
                if runs in room:
                    room[runs] += 1
        for run in turns:
            runs = holders[run]
            runs.stop_run(run, StopReason.STOPPED)
            # Otherwise the same handler might get the slot again.
            self._slot_limit.put_last(runs)
