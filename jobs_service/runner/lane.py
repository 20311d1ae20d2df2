"""The lane of one handler: an actor that accepts jobs into its slots, runs them, and keeps them alive. Floor: runner.

It never polls: it waits on the queue when there are no jobs, and on the type's canceled jobs while any run.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from jobs_service.accepting import Nothing
from jobs_service.actors.context import log
from jobs_service.errors import StoreError, WorkerConflict, in_one_line
from jobs_service.layer import activity, processing
from jobs_service.layer.keyspace import Place, pack_id
from jobs_service.layer.processing import Holding
from jobs_service.layer.transaction import Spread, terms
from jobs_service.layer.unit import FOR_EVER, Retention, Unit
from jobs_service.model import JobError, JobId, RunningJob
from jobs_service.runner import scheduling
from jobs_service.runner.cap import Cap
from jobs_service.runner.execution import NOTHING, End, Execution, Why
from jobs_service.runner.handler import Handler
from jobs_service.runner.host import Host
from jobs_service.runner.options import HandlerOptions
from jobs_service.runner.owner import Owner
from jobs_service.runner.scheduling import Candidate
from jobs_service.store.base import Transaction, TransactionFunction, Watch
from jobs_service.supervision import Actor

T = TypeVar("T")

_BEATS: Final = 3
"""Heartbeats per activity timeout."""

_SETTLED: Final = 0.05
"""Seconds that a job has run before anybody looks whether it was canceled: most have ended by then."""

_BATCH: Final = 500
_BATCH_BYTES: Final = 500_000
_MOST_LOGGED: Final = 300
_MOST_ACCEPTED: Final = 1000

_LONGEST_GATHERING: Final = 0.1
"""Seconds that free slots wait for others at most."""
_LOST_TO_OTHERS: Final = (Why.CANCELED, Why.TAKEN)
_WHY: Final = {Holding.CANCELED: Why.CANCELED, Holding.TAKEN: Why.TAKEN}


class Run:
    """One job that a lane has accepted.

    Attributes:
        job: as it was accepted.
        lock: with which it was accepted.
        place: where it is.
        at: when it was accepted, seconds of the loop's clock.
        continuous: whether it may be asked to give up its slot to others.
        task: in which its handler runs.
        begun: whether the task has made its first step.
        why: why the handler was asked to end; None as long as it was not.
        written: whether the job's end is in the store, or will never be.
        timers: to be canceled when the handler has ended.
    """

    __slots__ = ("at", "begun", "continuous", "job", "lock", "place", "task", "timers", "why", "written")

    def __init__(self, job: RunningJob, place: Place, at: float, continuous: bool) -> None:
        self.job = job
        self.lock = job.lock
        self.place = place
        self.at = at
        self.continuous = continuous
        self.task: asyncio.Task[None] | None = None
        self.begun = False
        self.why: Why | None = None
        self.written = False
        self.timers: list[asyncio.TimerHandle] = []

    def reason(self) -> Why | None:
        """Return why the handler was asked to end."""
        return self.why


class Lane(Actor):
    """Runs the jobs of one type, in a limited number of slots.

    Args:
        host: the service.
        handler: what runs them.
        cap: shared by all lanes.
        prepared: called when the type is there, and its jobs are accepted.
    """

    # It waits for its handlers as long as their grace allows.
    shutdown = None

    def __init__(
        self, host: Host, handler: Handler[Any, Any], cap: Cap, prepared: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(f"lane {handler.type!r}")
        self._host = host
        self._context = host.context
        self._handler = handler
        self._cap = cap
        self._prepared = prepared
        self._keys = host.context.keyspace.of(handler.type)
        self._log = log.bind(type=handler.type, handler=handler.name)
        self._execution = Execution(handler, host.context.sources, self._blocked)
        self._owner = Owner(host.worker, self._over)
        self._runs: dict[bytes, Run] = {}
        self._busy = 0
        self._draining = False
        self._gave_up = False
        self._timeout = handler.options.timeout
        self._changed = asyncio.Event()
        self._rhythm = asyncio.Event()
        self._room = asyncio.Event()
        self._some = asyncio.Event()
        self._none = asyncio.Event()
        self._none.set()
        self._look_took = 0.0
        self._queue_watch: Watch | None = None
        self._cancel_watch: Watch | None = None
        self._ends: list[tuple[Run, End]] = []
        self._rewriting: set[asyncio.Task[None]] = set()

    @property
    def options(self) -> HandlerOptions:
        """The handler's options, as they are now."""
        return self._handler.options

    @property
    def busy(self) -> int:
        """How many handlers run."""
        return self._busy

    @property
    def leaving(self) -> int:
        """How many handlers were asked to end, and still have their grace to do so."""
        return sum(run.why is not None and not run.written and not _has_ended(run) for run in self._runs.values())

    def running(self) -> list[Run]:
        """Return what runs and was not asked to end, in the order in which it was accepted."""
        return [run for run in self._runs.values() if run.why is None and not _has_ended(run)]

    async def count_due(self, limit: int, max_priority: bytes | None = None) -> int:
        """Return how many jobs wait that could run now, counted up to a limit; none while the type is paused."""
        return await self._context.retried(
            lambda: self._host.count_due(self._keys, limit, max_priority), type=self._keys.type
        )

    # The actor

    async def init(self) -> None:
        self._room.set()

    async def run(self) -> None:
        await self._transact(self._prepare_type)
        self._prepared()
        self.spawn_link(self._fill(), "fill")
        self.spawn_link(self._beat(), "heartbeat")
        self.spawn_link(self._follow_timeout(), "timeout")
        self.spawn_link(self._look_for_canceled(), "canceled")
        self.spawn_link(self._rotate(), "rotation")
        await super().run()

    async def terminate(self) -> None:
        """Give back whatever still runs: the lane was stopped, or has failed."""
        self._draining = True
        if not self._gave_up:
            await self._stop_all()

    async def drain(self) -> None:
        """Accept nothing more; let what runs end within its grace, then have it end, then go without it."""
        self._draining = True
        self._wake()
        for run in self.running():
            if run.continuous:  # it would not end by itself
                self.stop_run(run, Why.STOPPED)
        await self._within(self.options.grace)
        await self._stop_all()

    def options_changed(self) -> None:
        """Go on with the options that the handler has now."""
        self._changed.set()
        self._room.set()
        self._wake()

    async def _transact(self, operation: Callable[[Unit], Awaitable[T]]) -> T:
        return await self._context.retried(lambda: self._context.transact(operation), type=self._keys.type)

    async def _read(self, function: TransactionFunction[T]) -> T:
        return await self._context.retried(lambda: self._context.read(function), type=self._keys.type)

    async def _prepare_type(self, unit: Unit) -> None:
        """Make the type where it is missing, and say how long its jobs are kept."""
        options = self.options
        timeout = await activity.timeout_if_any(unit.transaction, self._keys)
        if timeout is None:
            await activity.set_type_timeout(unit, self._keys, options.timeout)
        self._timeout = options.timeout if timeout is None else timeout
        wanted = Retention(options.keep, options.keep_failed)
        # A handler that says nothing leaves it as set_retention has said.
        if wanted != FOR_EVER and await unit.retention(self._keys) != wanted:
            await activity.set_retention(unit, self._keys, wanted)

    # Accepting

    async def _fill(self) -> None:
        """Keep the slots taken as long as there are jobs."""
        while not self._draining:
            await self._room.wait()
            await self._gather()
            free = min(self.options.slots - self._busy, _MOST_ACCEPTED)
            if free <= 0:
                self._room.clear()
                continue
            wanted = await self._cap.take(self, free)
            if self._draining or wanted > self.options.slots - self._busy:  # changed while it waited
                self._cap.give_back(wanted)
                continue
            try:
                found = await self._accept(wanted)
            except BaseException:
                self._cap.give_back(wanted)
                raise
            if isinstance(found, Nothing):
                self._cap.give_back(wanted)
                await self._wait_for_jobs(found)
            else:
                self._cap.give_back(wanted - len(found))
                for job in found:
                    self._begin(job)

    async def _gather(self) -> None:
        """On a crowded queue, have what few slots are free wait for more, as long as the last look has taken.

        So there are fewer looks that can collide, and each takes more jobs.
        """
        free = self.options.slots - self._busy
        if 0 < 2 * free < self.options.slots and self._host.operations.is_crowded(self._keys):
            await asyncio.sleep(min(self._look_took, _LONGEST_GATHERING))

    async def _accept(self, limit: int) -> list[RunningJob] | Nothing:
        context = self._context
        spread: Spread = 1 if self.options.fifo else "adaptive"
        most = self.options.max_history
        wanted = terms(limit, None, None, spread, context.settings.pending_batch, context.sources.worker, most)
        began = self._loop.time()
        found = await context.retried(lambda: self._host.accept(self._keys, wanted), type=self._keys.type)
        self._look_took = self._loop.time() - began
        return found

    async def _wait_for_jobs(self, nothing: Nothing) -> None:
        watch = nothing.watch
        if watch is None:
            return
        self._queue_watch = watch
        try:
            if not self._draining:
                # In time or not, lost or not: one looks again.
                with contextlib.suppress(TimeoutError, StoreError):
                    async with asyncio.timeout(nothing.due_in):
                        await watch.wait()
        finally:
            self._queue_watch = None
            watch.cancel()

    def _wake(self) -> None:
        self._room.set()
        if self._queue_watch is not None:
            self._queue_watch.fire()

    # Running

    def _begin(self, job: RunningJob) -> None:
        """Run a job that was accepted; it has a place of the cap already."""
        self._owner.take(job)
        options = self.options
        continuous = options.continuous
        if callable(continuous):
            continuous = bool(self._told(continuous, job))
        run = Run(job, (self._keys, job.id, pack_id(job.id)), self._loop.time(), continuous)
        self._runs[run.lock] = run
        self._busy += 1
        if len(self._runs) == 1:
            self._some.set()
            self._none.clear()
        if self._draining or self._busy > options.slots:
            run.why = Why.STOPPED
            self._left(run)
            self._write(run, self._execution.stopped())
            return
        run.task = self._loop.create_task(self._execute(run), name=self._handler.name)
        if options.time_limit is not None:
            run.timers.append(self._loop.call_later(options.time_limit, self.stop_run, run, Why.OVERTIME))

    def _told(self, question: Callable[[RunningJob], bool], job: RunningJob) -> bool:
        """Ask a function of the user's about a job."""
        try:
            return question(job)
        except Exception as error:
            self._log.error("continuous_failed", id=job.id, exc_info=error)
            return False

    async def _execute(self, run: Run) -> None:
        end = NOTHING
        run.begun = True
        try:
            if run.why is None:
                end = await self._execution.run(run.job, run.reason)
            else:  # it was asked to end before it had begun
                end = self._execution.asked(run.job, run.why)
        finally:
            # First the room: who accepts the next jobs does so in the transaction that writes these ends.
            self._left(run)
            self._write(run, end)

    def _left(self, run: Run) -> None:
        """A handler has ended: its slot is free."""
        for timer in run.timers:
            timer.cancel()
        self._busy -= 1
        self._cap.give_back(1)
        if not self._draining:
            self._room.set()

    def _blocked(self, job: RunningJob, seconds: float) -> None:
        self._log.warning("handler_blocked_loop", id=job.id, seconds=round(seconds, 3))

    # Ends

    def _write(self, run: Run, end: End) -> None:
        """Have the end of a run written, together with those that end now."""
        if end.error is not None and not run.written:
            self._log_failure(run, end, end.error)
        if run.written or end.operation is None:
            if run.why is Why.TAKEN:
                self._log.warning("job_taken_over", id=run.job.id)
            self._forget(run)
            return
        if not self._ends:
            self._loop.call_soon(self._send_ends)
        self._ends.append((run, end))

    def _send_ends(self) -> None:
        """Have the ends of one turn of the loop written, in transactions well within the limits."""
        ends, self._ends = self._ends, []
        batch: list[tuple[Run, End]] = []
        size = 0
        for run, end in ends:
            if len(batch) == _BATCH or (batch and size + end.size > _BATCH_BYTES):
                self._send(batch, size)
                batch, size = [], 0
            batch.append((run, end))
            size += end.size
        self._send(batch, size)

    def _send(self, batch: list[tuple[Run, End]], size: int) -> None:
        def answer(errors: Sequence[Exception | None]) -> None:
            for (run, end), error in zip(batch, errors, strict=True):
                if error is None:
                    self._forget(run)
                else:
                    self._not_ended(run, end, error)

        calls = [
            (end.operation, run.place, (run.lock, *end.arguments)) for run, end in batch if end.operation is not None
        ]
        self._host.operations.operate_all(calls, answer, size=size)

    def _not_ended(self, run: Run, end: End, error: Exception) -> None:
        if isinstance(error, StoreError) and error.retryable:
            self._log.warning("store_retry", error=str(error), id=run.job.id)
            self._rewrite(run, end)
            return
        if not isinstance(error, WorkerConflict):
            failure = self._execution.too_large(run.job, error)
            # A result that the store does not take; an error of bounded size it takes.
            if end.operation is processing.finish and failure.arguments != end.arguments:
                self._write(run, failure)
                return
            self._log.error("end_not_written", id=run.job.id, exc_info=error)
        else:
            self._log.warning("job_taken_over", id=run.job.id)
        self._forget(run)

    def _rewrite(self, run: Run, end: End) -> None:
        """Write an end that met weather again and again, until it is there or the job is another's."""
        operation = end.operation
        assert operation is not None

        async def write() -> None:
            try:
                await self._context.retried(
                    lambda: self._context.transact(lambda unit: operation(unit, run.place, run.lock, *end.arguments)),
                    type=self._keys.type,
                    id=run.job.id,
                )
            except WorkerConflict:
                self._log.warning("job_taken_over", id=run.job.id)
            except StoreError as error:
                self._log.error("end_not_written", id=run.job.id, exc_info=error)
            finally:
                self._forget(run)

        task = self._loop.create_task(write(), name=f"{self.name}/end")
        self._rewriting.add(task)
        task.add_done_callback(self._rewriting.discard)

    def _forget(self, run: Run) -> None:
        run.written = True
        if _has_ended(run) or run.task is asyncio.current_task():
            self._drop(run)

    def _drop(self, run: Run) -> None:
        self._runs.pop(run.lock, None)
        if not self._runs:
            self._some.clear()
            self._none.set()
            if self._cancel_watch is not None:
                self._cancel_watch.fire()

    def _log_failure(self, run: Run, end: End, error: JobError) -> None:
        job = run.job
        said = {
            "id": job.id,
            "attempt": job.attempts,
            "error": in_one_line(f"{error.type}: {error.message}", _MOST_LOGGED),
        }
        if end.operation is processing.crash:
            self._log.warning("job_crashed", **said)
        else:
            self._log.warning("job_failed", **said)

    # Stopping runs

    def stop_run(self, run: Run, why: Why) -> None:
        """Ask a handler to end, and go on without it when its grace is over."""
        if run.task is None or run.task.done() or run.why is Why.TAKEN or run.why is why:
            return
        first = run.why is None
        if not first and why not in _LOST_TO_OTHERS:
            return
        run.why = why
        if first:
            # Once only: what it does in its grace is not interrupted. And a task that is canceled before its first
            # step would not even give its slot back.
            if run.begun:
                run.task.cancel(why.value)
            run.timers.append(self._loop.call_later(self.options.grace, self._abandon, run))

    def _abandon(self, run: Run) -> None:
        """Give up a job whose handler goes on; its slot stays taken as long as it does."""
        assert run.task is not None
        assert run.why is not None
        if run.task.done() or run.written:
            return
        self._log.error("handler_ignores_cancellation", id=run.job.id, why=run.why.value, seconds=self.options.grace)
        self._write(run, self._execution.asked(run.job, run.why))
        # From here on it is nobody's, whenever the handler ends.
        run.written = True
        run.task.cancel(run.why.value)

    async def _stop_all(self) -> None:
        for run in list(self._runs.values()):
            self.stop_run(run, Why.STOPPED)
        await self._within(self.options.grace)
        for run in list(self._runs.values()):
            if run.task is not None and not run.task.done():
                self._abandon(run)
        # The store is away: the timeouts of these jobs will give them back.
        for task in self._rewriting:
            task.cancel()
        if self._rewriting:
            await asyncio.wait(self._rewriting)
        self._gave_up = True

    async def _within(self, seconds: float) -> None:
        """Wait until nothing runs, but no longer than so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._none.wait()

    # Keeping jobs alive

    async def _beat(self) -> None:
        """Renew all running jobs of the type in one transaction, again and again."""
        while True:
            period = self._timeout / _BEATS
            on_time = await is_time(self._loop.time() + period, self._rhythm)
            # What was accepted in the latter half of the period is renewed in time by the next one.
            before = self._loop.time() - period / 2 if on_time else self._loop.time()
            await self._renew([run for run in self._runs.values() if run.at <= before and not run.written])

    async def _renew(self, runs: list[Run]) -> None:
        for start in range(0, len(runs), _BATCH):
            batch = [run for run in runs[start : start + _BATCH] if not run.written]
            held = [(run.place, run.lock) for run in batch]

            async def renew(unit: Unit, held: list[tuple[Place, bytes]] = held) -> list[Holding]:
                return await processing.beat(unit, held)

            self._heed(batch, await self._transact(renew))

    async def _follow_timeout(self) -> None:
        """Have hearts beat in the rhythm of the type's timeout as soon as somebody has changed that."""

        async def look(transaction: Transaction) -> tuple[float | None, Watch]:
            watch = transaction.watch(self._keys.timeout)
            return await activity.timeout_if_any(transaction, self._keys), watch

        while True:
            timeout, watch = await self._read(look)
            if timeout is not None and timeout != self._timeout:
                self._timeout = timeout
                self._rhythm.set()
            try:
                with contextlib.suppress(StoreError):  # a watch that was lost: look again
                    await watch.wait()
            finally:
                watch.cancel()
            await asyncio.sleep(_SETTLED)

    async def _look_for_canceled(self) -> None:
        """Have the handlers of canceled jobs end, as soon as that is known."""
        while True:
            await self._some.wait()
            await asyncio.sleep(_SETTLED)
            settled = self._loop.time() - _SETTLED
            alive = [run for run in self._runs.values() if _can_be_asked(run)]
            runs = [run for run in alive if run.at <= settled]
            if alive and not runs:
                continue
            watch = await self._look(runs)
            # What was canceled before this look, the watch does not tell.
            young = [run for run in self._runs.values() if run.at > settled]
            try:
                self._cancel_watch = watch
                if young:
                    await asyncio.sleep(_SETTLED)
                    left = [run for run in young if _can_be_asked(run)]
                    if left:
                        (await self._look(left)).cancel()
                if self._runs:
                    with contextlib.suppress(StoreError):  # a watch that was lost: look again
                        await watch.wait()
            finally:
                self._cancel_watch = None
                watch.cancel()

    async def _look(self, runs: list[Run]) -> Watch:
        """Have the handlers of canceled jobs end; return a watch that fires when one is canceled after this look."""
        data_keys = [run.place[0].data + run.place[2] for run in runs]

        async def look(transaction: Transaction) -> tuple[list[bytes | None], Watch]:
            watch = transaction.watch(self._keys.watch_canceled)
            return await transaction.snapshot.get_many(data_keys), watch

        raws, watch = await self._read(look)
        self._heed(runs, [processing.holding(raw, run.lock) for raw, run in zip(raws, runs, strict=True)])
        return watch

    def _heed(self, runs: Iterable[Run], found: Iterable[Holding]) -> None:
        for run, holding in zip(runs, found, strict=True):
            if holding in _WHY and not run.written:
                self.stop_run(run, _WHY[holding])

    # Taking turns

    async def _rotate(self) -> None:
        last = self._loop.time()
        while not self._draining:
            if await is_time(last + self.options.interval, self._changed):
                last = self._loop.time()
                await self.reschedule()
            else:
                self._stop_excess()

    async def reschedule(self) -> None:
        """Stop what is more than the slots; with all taken and others waiting, let continuous jobs take turns."""
        if self._stop_excess() or self._busy < self.options.slots:
            return
        running = self.running()
        if not any(run.continuous for run in running):
            return
        # Nobody gives way to jobs that come after it in the queue: it would be accepted again at once.
        leaving = self.leaving
        priority: dict[JobId, bytes] = {run.lock: run.job._record.priority for run in running if run.continuous}
        due = {each: await self.count_due(len(running) + leaving, each) for each in sorted({*priority.values()})}
        turns: list[Candidate] = []
        # A slot that an abandoned handler keeps is out of the game.
        for candidate in scheduling.rotation(candidates(running), len(running), len(running), len(running)):
            # Who is leaving makes room already.
            if len(turns) < min(due[priority[candidate.id]] - leaving, self.options.max_churn):
                turns.append(candidate)
        self._stop(running, turns)

    def _stop_excess(self) -> bool:
        """Stop what is more than the slots; return whether anything is."""
        too_many = self._busy - self.leaving - self.options.slots
        if too_many <= 0:
            return False
        running = self.running()
        # An abandoned handler keeps its slot.
        self._stop(running, scheduling.excess(candidates(running), max(len(running) - too_many, 0)))
        return True

    def _stop(self, running: list[Run], victims: list[Candidate]) -> None:
        runs: dict[JobId, Run] = {run.lock: run for run in running}
        for victim in victims:
            self.stop_run(runs[victim.id], Why.STOPPED)

    def _over(self, lock: bytes) -> None:
        """A handler has ended its job itself."""
        run = self._runs.get(lock)
        if run is not None:
            run.written = True


async def is_time(at: float, changed: asyncio.Event) -> bool:
    """Wait until a time of the loop's clock and return True; as soon as something has changed, return False."""
    try:
        async with asyncio.timeout_at(at):
            await changed.wait()
    except TimeoutError:
        return True
    changed.clear()
    return False


def candidates(runs: Iterable[Run]) -> list[Candidate]:
    """Return runs as scheduling looks at them: by their locks, for ids are not unique among those of all types."""
    return [Candidate(run.lock, run.job.history, run.continuous, True) for run in runs]


def _has_ended(run: Run) -> bool:
    return run.task is None or run.task.done()


def _can_be_asked(run: Run) -> bool:
    """Whether there is a handler that can be asked to end its job."""
    return not run.written and not _has_ended(run)
