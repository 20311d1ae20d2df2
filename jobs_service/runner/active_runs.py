"""The active runs of one handler: begun in its slots, asked to end, and ended.

ActiveRuns lives as long as the runner. The worker pool that accepts the jobs, and the heartbeat that keeps them alive,
may crash and be started again without any effect on handlers that run.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from jobs_service import job_context, tracing
from jobs_service.actors.context import log
from jobs_service.errors import StoreError
from jobs_service.layer import running_jobs
from jobs_service.layer.keyspace import TypeKeys
from jobs_service.layer.running_jobs import LockStatus
from jobs_service.model import HistoryEvent, HistoryKind, Job, Outcome, RunningJob
from jobs_service.redaction import Redaction
from jobs_service.runner.execution import Execution, JobWorker
from jobs_service.runner.handler import Handler
from jobs_service.runner.options import HandlerOptions
from jobs_service.runner.run import NO_END, Run, RunEnd, ServiceAccess, StopReason, traceback_of
from jobs_service.runner.run_endings import RunEndings
from jobs_service.runner.surroundings import Around
from jobs_service.store.base import Watch
from jobs_service.uncancelable import own_task

if TYPE_CHECKING:
    from jobs_service.runner.process_pool import ProcessPool

_NOTED_AGAIN: Final = 10.0
"""Seconds before a healthy run is reported again after the store refused the report."""

_LOST_TO_OTHERS = (StopReason.CANCELED, StopReason.TAKEN)
_WHY = {LockStatus.CANCELED: StopReason.CANCELED, LockStatus.TAKEN: StopReason.TAKEN}


# The runs that give up their slots, in the order of CouchDB's couch_replicator_scheduler (April 2017)


class SlotHolder(Protocol):
    """A job that runs, as rotation sees it."""

    @property
    def continuous(self) -> bool:
        """Whether the job never ends by itself, and so can be asked to give up its slot."""

    @property
    def at(self) -> float:
        """Start of the run, in seconds of a monotonic clock."""

    @property
    def history(self) -> Sequence[HistoryEvent]:
        """The job's events, newest first."""


SlotHolderT = TypeVar("SlotHolderT", bound=SlotHolder)


def excess(running: Iterable[SlotHolderT], slots: int) -> list[SlotHolderT]:
    """Choose the runs to stop when they exceed the slots: continuous runs first, longest running first."""
    runs = sorted(running, key=lambda run: (not run.continuous, _began(run)))
    return runs[: max(len(runs) - slots, 0)]


def rotation(running: Iterable[SlotHolderT]) -> list[SlotHolderT]:
    """Return the continuous jobs in the order of giving up their slots: longest running first."""
    return sorted((run for run in running if run.continuous), key=_began)


def _began(run: SlotHolder) -> tuple[float, ...]:
    # The clock of this process comes first, because wall clocks are set, and a history may be cut or damaged. Jobs that
    # one transaction accepted began at the same time; then their earlier starts decide, or the same ones always lose.
    return (run.at, *(event.at for event in run.history if event.kind is HistoryKind.STARTED))


# The limit over all handlers of one runner


class SlotLimit:
    """Counts the taken slots; worker pools that find none free wait in line.

    Args:
        limit: the number of slots; None for the sum of the handlers' slots.

    Attributes:
        limit: as given.
        taken: number of taken slots.
        is_closed: whether takers get no slot, even if slots are free.
        on_change: called whenever slots are given back; None for no callback.
    """

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.taken = 0
        self.is_closed = False
        self.on_change: Callable[[], object] | None = None
        self._line: dict[object, asyncio.Future[None]] = {}

    @property
    def is_full(self) -> bool:
        """Whether no slot is left."""
        return self.is_closed or (self.limit is not None and self.taken >= self.limit)

    async def take(self, who: object, most: int) -> int:
        """Take up to so many slots, at least one; the longest waiting taker gets the first free slot.

        Args:
            who: the taker, any object; it must not wait twice at the same time.
            most: at least 1.

        Returns:
            The number of taken slots.
        """
        got = 0
        if self.is_full:
            await self._turn(who)
            got = 1
        more = most - got if self.limit is None else min(most - got, self.limit - self.taken)
        self.taken += more
        return got + more

    def set_closed(self, closed: bool) -> None:
        """Refuse slots to all takers from now on, or serve them again; taken slots stay taken."""
        self.is_closed = closed
        self.give_back(0)

    def give_back(self, count: int) -> None:
        """Give slots back: each waiting taker gets one, in the order of the line."""
        self.taken -= count
        if self.on_change is not None:
            self.on_change()
        while self._line and not self.is_full:
            turn = self._line.pop(next(iter(self._line)))
            if not turn.done():
                self.taken += 1
                turn.set_result(None)

    def put_last(self, who: object) -> None:
        """Move a taker to the end of the line, if it waits there."""
        turn = self._line.pop(who, None)
        if turn is not None:
            self._line[who] = turn

    async def _turn(self, who: object) -> None:
        turn = self._line[who] = asyncio.get_running_loop().create_future()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._line.pop(who, None)
            else:
                self.give_back(1)  # canceled as its turn came
            raise


# Active runs


class ActiveRuns:
    """The runs of one handler's jobs, in a limited number of slots.

    Args:
        service: the service in which the runner runs.
        handler: the handler.
        slot_limit: shared by all handlers.
        around: the handler's middleware and resources; None for none.
        pool: runs isolated handlers; None for other handlers.

    Attributes:
        handler: as given.
        log: for events about its jobs.
        busy: number of taken slots.
        heartbeats_missed: number of heartbeats that failed, or came so late that another was due.
        ended: number of runs that have ended.
        draining: whether the runner is ending: it begins no more runs.
        timeout: the type's current timeout, in seconds.
        beaten_at: time of the last heartbeat, by the monotonic clock.
        room: an event, set when a slot may be free.
        some: an event, set while there are runs: the worker pool then looks for canceled ones.
        queue_watch, cancel_watch: the watches on which the worker pool waits, if any; fired to make it read again.
    """

    def __init__(
        self,
        service: ServiceAccess,
        handler: Handler[Any, Any],
        slot_limit: SlotLimit,
        around: Around | None = None,
        pool: ProcessPool | None = None,
    ) -> None:
        self.handler = handler
        self.log = log.bind(type=handler.type, handler=handler.name)
        self.busy = 0
        self.heartbeats_missed = 0
        self.ended = 0
        self.draining = False
        self.timeout = handler.options.timeout
        self.beaten_at = service.sources.monotonic()
        self.room = asyncio.Event()
        self.room.set()
        self.some = asyncio.Event()
        self.queue_watch: Watch | None = None
        self.cancel_watch: Watch | None = None
        self._service = service
        self._slot_limit = slot_limit
        self._loop = asyncio.get_running_loop()
        self._is_plain = handler.is_plain
        self._execution = Execution(handler, service.sources, self._blocked, around, pool)
        self._ends = RunEndings(service, handler.type, self._execution, self.log, self._forget)
        self._by_lock: dict[bytes, Run] = {}
        service.own_runs[handler.packed] = self._by_lock
        self._worker = JobWorker(service.worker, self._by_lock, self.job_ended, handler.results)
        self._tracer: Any = None
        self._none = asyncio.Event()
        self._none.set()

    def hide(self, redaction: Redaction) -> None:
        """Redact from now on the log's events and the handler's own messages about its jobs."""
        own = self.handler.redaction
        self._execution.redaction = redaction if own is None else Redaction((*own.paths, *redaction.paths))

    @property
    def options(self) -> HandlerOptions:
        """The handler's options, as they are now."""
        return self.handler.options

    @property
    def keys(self) -> TypeKeys:
        """The type's keys; they change when the store's directory is moved."""
        return self._service.keys(self.handler.type)

    @property
    def free(self) -> int:
        """Number of free slots; negative after a reduction of the slots."""
        return self.options.slots - self.busy

    @property
    def leaving(self) -> int:
        """Number of handlers that were asked to end and still run, within their grace."""
        return sum(run.stop_reason is not None and run.can_be_asked for run in self._by_lock.values())

    def all(self) -> list[Run]:
        """Return all runs whose end is not stored yet, in accept order."""
        return [*self._by_lock.values()]

    def running(self) -> list[Run]:
        """Return the runs that were not asked to end, in accept order."""
        return [run for run in self._by_lock.values() if run.stop_reason is None and not run.has_ended]

    def wake(self) -> None:
        """Make the worker pool check again for work."""
        self.room.set()
        if self.queue_watch is not None:
            self.queue_watch.fire()

    async def until_room(self) -> None:
        """Wait until a slot is free, and until few ends wait for a store that refused them."""
        await self.room.wait()
        await self._ends.room.wait()

    # Beginning

    def begin(self, jobs: list[RunningJob]) -> None:
        """Run accepted jobs; their slots of the limit over all handlers are taken already."""
        if self.log.wants_details():
            for job in jobs:
                self.log.debug("job_started", id=job.id, attempt=job.attempts)
        at = self._loop.time()  # one for all: rotation then compares their earlier starts
        self._tracer = tracing.tracer()
        begun = [self._begin(job, at) for job in jobs]
        self._loop.call_soon(self._give_back_canceled, begun)  # behind the first step of each

    def _begin(self, job: RunningJob, at: float) -> Run:
        self._worker.take(job)
        options = self.options
        continuous = options.continuous
        if callable(continuous):
            continuous = self._is_continuous(continuous, job)
        run = Run(job, at, continuous)
        self._by_lock[run.lock] = run
        self.busy += 1
        if len(self._by_lock) == 1:
            self.some.set()
            self._none.clear()
        if self.draining or self.busy > options.slots:
            run.stop_reason = StopReason.ENDING if self.draining else StopReason.STOPPED
            self._left(run)
            self._write(run, self._execution.end_of_stopped(job, run.stop_reason, begun=False))
            return run
        if self._is_plain:
            # Canceling this task at the program's end cannot end a thread: the runner asks the function to end.
            run.task = own_task(self._execute(run), name=self.handler.name)
        else:
            run.task = self._loop.create_task(self._execute(run), name=self.handler.name)
        limit = run.time_limit or options.time_limit
        if limit is not None:
            if self.handler.kind == "isolated":
                run.limit = partial(self._limit, run, limit)
            else:
                self._limit(run, limit)
        if continuous and job.attempts > 1:
            run.timers.append(self._loop.call_later(options.health_threshold, self._note_healthy, run))
        return run

    def _limit(self, run: Run, seconds: float) -> None:
        run.deadline = self._loop.time() + seconds
        run.timers.append(self._loop.call_at(run.deadline, self.stop_run, run, StopReason.OVERTIME))

    def _is_continuous(self, question: Callable[[RunningJob], bool], job: RunningJob) -> bool:
        """Call the user's function that classifies a job as continuous."""
        try:
            return bool(question(job))
        except BaseException as error:  # as with handlers: SystemExit would end the loop, and all other jobs
            self.log.error("continuous_failed", id=job.id, **traceback_of(error, job, self._execution.redaction))
            return False

    def _give_back_canceled(self, runs: Iterable[Run]) -> None:
        """Release the jobs whose tasks were canceled before their first step: none of their code has run."""
        early = [run for run in runs if not run.begun and not run.left]
        for run in early:
            if run.has_ended:
                self._left(run)
                self._write(
                    run, self._execution.end_of_stopped(run.job, run.stop_reason or StopReason.CUT, begun=False)
                )
        if waiting := [run for run in early if not run.left]:
            self._loop.call_soon(self._give_back_canceled, waiting)

    def _note_healthy(self, run: Run) -> None:
        """Count the attempts of a continuous job anew: it runs for ever, and its earlier failures are over.

        Jobs that come to an end are not reset: their attempts stay limited, however long each takes.
        """
        if run.written or run.ending:
            return

        def noted(job: RunningJob | Exception) -> None:
            if not isinstance(job, Exception):
                # The decision at the end of the run goes by its count.
                run.job = self._worker.take(job)
            elif isinstance(job, StoreError) and not run.has_ended:
                run.timers.append(self._loop.call_later(_NOTED_AGAIN, self._note_healthy, run))

        self._service.note_healthy((run.place(self.keys), run.lock), noted, run.size)

    async def _execute(self, run: Run) -> None:
        if run.task is None:
            # The loop's task factory is eager (Python 3.12): `_begin` has not got the task yet.
            await asyncio.sleep(0)
        run.begun = True
        end = NO_END
        if run.context:
            job_context.enter(run.context)  # of this task, which ends with the run
        try:
            if run.stop_reason is None:
                tracer = self._tracer
                end = await (self._execution.run(run) if tracer is None else self._execution.traced(run, tracer))
            else:  # it was asked to end before it began
                end = self._execution.end_of_stopped(run.job, run.stop_reason, begun=False)
        finally:
            # The slot is freed first, so that the next jobs are accepted in the transaction that writes this end.
            self._left(run)
            self._write(run, end)

    def _left(self, run: Run) -> None:
        """Free the slot of a handler that has ended."""
        run.left = True
        for timer in run.timers:
            timer.cancel()
        self.busy -= 1
        self.ended += 1
        self._slot_limit.give_back(1)
        if not self.draining:
            self.room.set()

    def _blocked(self, job: RunningJob, seconds: float) -> None:
        self.log.warning("handler_blocked_loop", id=job.id, seconds=round(seconds, 3))

    # Ends

    def _write(self, run: Run, end: RunEnd) -> None:
        if run.written or end.operation is None:
            if run.stop_reason is StopReason.TAKEN and not run.abandoned:
                self.log.warning("job_taken_over", id=run.job.id)
            elif run.written and not run.abandoned:
                end.log_dropped(self.log, run.job, self._execution.redaction)
            self._forget(run)
            return
        if end.error is not None and not run.ending:
            end.log_to(self.log, run.job, self._execution.redaction)
        if run.asked is not None and end.operation is running_jobs.crash:
            end = end._replace(arguments=(*end.arguments, run.asked))
        self._ends.write(run, end)

    def _forget(self, run: Run) -> None:
        run.written = True
        task = run.task
        if not (task is None or task.done() or task is asyncio.current_task()):
            return
        self._by_lock.pop(run.lock, None)
        if not self._by_lock:
            self.some.clear()
            self._none.set()
            if self.cancel_watch is not None:
                self.cancel_watch.fire()

    def job_ended(self, job: RunningJob, ended: Job) -> None:
        """Note that a handler has ended its job itself."""
        run = self._by_lock.get(job.lock)
        if run is not None:
            run.written = True
            if ended.outcome is Outcome.SUCCEEDED:
                took = round(self._loop.time() - run.at, 3)
                self.log.debug("job_succeeded", id=job.id, attempt=job.attempts, seconds=took)

    # Stopping runs

    def heed(self, runs: Iterable[Run], found: Iterable[LockStatus]) -> None:
        """Stop the handlers whose jobs were found canceled, or taken over by another worker."""
        for run, holding in zip(runs, found, strict=True):
            if holding is LockStatus.TAKEN and run.end_awaited:
                continue  # by the handler itself, or by another worker: the answer tells the handler, or the next look
            if holding is LockStatus.TAKEN and run.ending:
                run.written = True  # its handler has ended it as it wanted to, and goes on
            elif holding in _WHY and not run.written:
                self.stop_run(run, _WHY[holding])

    def stop_run(self, run: Run, why: StopReason) -> None:
        """Ask a handler to end, and give up its job after the grace."""
        if run.task is None or run.task.done() or run.stop_reason is StopReason.TAKEN or run.stop_reason is why:
            return
        first = run.stop_reason is None
        if not first and why not in _LOST_TO_OTHERS:
            return
        run.stop_reason = why
        if first:
            # A handler is canceled once only, so that its work in the grace is not interrupted. A task that has
            # not begun is not canceled, because it would never run, nor give its slot back.
            if run.begun:
                run.task.cancel(why.value)
            run.timers.append(self._loop.call_later(self.options.grace, self._abandon, run))

    def _abandon(self, run: Run) -> None:
        """Give up the job of a handler that still runs after its grace; the handler keeps its slot until it ends."""
        assert run.task is not None
        assert run.stop_reason is not None
        if run.task.done() or run.written:
            return
        self.log.error(
            "handler_ignores_cancellation", id=run.job.id, why=run.stop_reason.value, seconds=self.options.grace
        )
        self._write(run, self._execution.end_of_stopped(run.job, run.stop_reason))
        # Whatever the handler returns later has no effect.
        run.written = run.abandoned = True
        run.task.cancel(run.stop_reason.value)

    async def drain(self) -> None:
        """End all runs: wait one grace, ask the handlers to end, wait another grace, give up the remaining jobs."""
        self.draining = True
        self.wake()
        for run in self.running():
            # These would not end by themselves within the grace, or have not begun.
            if run.continuous or self.handler.kind == "command" or not run.begun:
                # A cancellation of all tasks has reached this handler already: its grace is not interrupted.
                if run.task is None or not run.task.cancelling():
                    self.stop_run(run, StopReason.ENDING)
            elif run.announce is not None:
                run.announce()
        await self._within(self.options.grace)
        await self._stop_all()

    async def _stop_all(self) -> None:
        for run in list(self._by_lock.values()):
            self.stop_run(run, StopReason.ENDING)
        await self._within(self.options.grace)
        for run in list(self._by_lock.values()):
            if run.task is not None and not run.task.done():
                self._abandon(run)
        await self._ends.settle(self.options.grace)
        self._service.own_runs.pop(self.handler.packed, None)  # a job whose end was not written is to count as lost
        if self._is_plain:
            for run in self.all():  # functions that may never return: nobody waits for them any more
                if run.task is not None:
                    run.task.cancel()

    async def _within(self, seconds: float) -> None:
        """Wait for the end of all runs, at most so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._none.wait()
