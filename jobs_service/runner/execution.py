"""One run of one job by its handler, from decoding the arguments to the operation that ends the run.

Nothing here touches the store: the service executes the operations of the job, and RunEndings writes the RunEnd.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import re
import types
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any, Final, TypeVar

from structlog.contextvars import bind_contextvars

from jobs_service import json_data, run_data, tracing
from jobs_service.arguments import json_of
from jobs_service.blocking import LoopCalls
from jobs_service.errors import (
    CommitUnknown,
    Discard,
    InvalidJob,
    JobCanceled,
    JobsError,
    JobTooLarge,
    RecordDamaged,
    Retry,
    Snooze,
    StoreUnavailable,
    WorkerConflict,
    shown,
    wait_of,
)
from jobs_service.layer import running_jobs
from jobs_service.layer.running_jobs import RunReport
from jobs_service.model import EndedJob, Ending, HistoryEvent, Job, JobError, Outcome, Progress, RunningJob, Worker
from jobs_service.model.process import MOST_KEPT, CommandFailed
from jobs_service.redaction import NO_REDACTION
from jobs_service.run_data import HistoryKind
from jobs_service.runner.functions import BlockingJob, Steps, in_thread
from jobs_service.runner.handler import Handler
from jobs_service.runner.options import HandlerOptions
from jobs_service.runner.payload import ResultCodec
from jobs_service.runner.retry_policy import decide, has_attempts_left
from jobs_service.runner.run import (
    NO_END,
    Run,
    RunEnd,
    StopReason,
    brief,
    decisive,
    describe,
    error_of,
    history_of,
    leaves,
)
from jobs_service.runner.surroundings import Around
from jobs_service.sources import Sources

if TYPE_CHECKING:
    from jobs_service.runner.process_pool import ProcessPool

JobT = TypeVar("JobT", bound=Job)

_MOST_OF_A_REASON: Final = 200

MOST_REFUSALS: Final = 14
"""Most releases of a job because its arguments do not fit; then the job fails, after more than two hours."""

FIRST_PAUSE_AFTER_REFUSAL: Final = 1.0
"""Seconds of pause after the first refusal; each further one doubles it."""

_LONGEST_CHAIN: Final = 20
"""Most errors of a chain of causes and contexts that are looked at; a chain can be a circle."""

_REFUSED: Final = re.compile(r"refused: (\d+): ")

_GIVEN_BACK: Final = object()
"""The result of a plain function that returned None because it was to stop, or whose job was canceled."""


class _Encoded(bytes):
    """The result of an isolated function, as JSON."""


# The worker behind a handler's job: the service executes its operations, and the runner learns of them


class JobWorker:
    """The worker of the jobs that one handler runs.

    Args:
        service: executes the operations.
        runs: the handler's runs, by their locks.
        ended: called with a job that its handler has ended itself, as it was and as it is.
        results: codec of the handler's results.
    """

    def __init__(
        self, service: Worker, runs: Mapping[bytes, Run], ended: Callable[[RunningJob, Job], None], results: ResultCodec
    ) -> None:
        self._service = service
        self._runs = runs
        self._on_end = ended
        self._results = results

    def take(self, job: RunningJob) -> RunningJob:
        """Route the operations of a running job through this worker."""
        job._worker = self
        return job

    async def _update(self, job: RunningJob, data: Any) -> RunningJob:
        return self._changed(await self._service._update(job, data))

    async def _progress(self, job: RunningJob, progress: Progress) -> RunningJob:
        return self._changed(await self._service._progress(job, progress))

    async def _resubmit(self, job: RunningJob, data: Any, priority: Any, run_at: Any) -> RunningJob:
        changed = self._changed(await self._service._resubmit(job, data, priority, run_at))
        if (run := self._runs.get(changed.lock)) is not None:
            run.asked = changed._record.next
        return changed

    async def _finish(self, job: RunningJob, ending: Ending) -> Job:
        return await self._ended_by(job, self._service._finish(job, ending))

    async def _finish_with(self, job: RunningJob, function: Callable[[Any], Any]) -> EndedJob[Any]:
        return self._ended(job, await self._service._finish_with(job, function))

    async def _release(self, job: RunningJob) -> Job:
        return await self._ended_by(job, self._service._release(job))

    def _result_data(self, result: Any) -> Any:
        return self._results.encode(result)

    def _ending(self, job: RunningJob, whether: bool) -> None:
        if (run := self._runs.get(job.lock)) is not None:
            run.ending = whether

    def _check_caller(self) -> None:
        self._service._check_caller()

    async def _ended_by(self, job: RunningJob, work: Awaitable[Job]) -> Job:
        """Await an operation that ends a job: until its answer, a lost lock may be lost by this very end."""
        run = self._runs.get(job.lock)
        if run is None:
            return await work
        run.end_awaited = True
        try:
            ended = await work
        except (StoreUnavailable, CommitUnknown, asyncio.CancelledError):
            run.ending = True  # the end may be in the store, or come to be
            raise
        finally:
            run.end_awaited = False
        return self._ended(job, ended)

    def _changed(self, job: RunningJob) -> RunningJob:
        if (run := self._runs.get(job.lock)) is not None:
            run.size = job._record.size()
        return self.take(job)

    def _ended(self, job: RunningJob, ended: JobT) -> JobT:
        self._on_end(job, ended)
        return ended


# The run


def _logged_variable(name: str) -> ContextVar[Any]:
    """Return structlog's context variable for a name: a lookup by name for each job is slow."""
    return copy_context().run(lambda: bind_contextvars(**{name: None})[name]).var


_LOGGED_TYPE: Final = _logged_variable("job_type")
_LOGGED_ID: Final = _logged_variable("job_id")


class Execution:
    """Runs the jobs of one handler.

    Args:
        handler: the handler.
        sources: wall-clock time and randomness.
        blocked: called with a job and the seconds for which its handler blocked the loop.
        around: middleware and resources; None for none.
        pool: runs an isolated handler's function; None for other handlers.

    Attributes:
        redaction: rules that redact the log's events about the jobs.
    """

    def __init__(
        self,
        handler: Handler[Any, Any],
        sources: Sources,
        blocked: Callable[[RunningJob, float], None],
        around: Around | None,
        pool: ProcessPool | None,
    ) -> None:
        self._handler = handler
        self._is_plain = handler.is_plain
        self._pool = pool
        self._sources = sources
        self._blocked = blocked
        self._around = around
        self.redaction = handler.redaction or NO_REDACTION

    @property
    def _options(self) -> HandlerOptions:
        return self._handler.options

    async def run(self, run: Run) -> RunEnd:
        """Run the handler, and return the end of its run. It raises nothing: every failure is an end.

        Args:
            run: the run of an accepted job; the accept has counted the attempt.
        """
        job, handler = run.job, self._handler
        if not has_attempts_left(job.attempts, run.max_attempts, handler.options):
            # A worker that dies leaves no other trace than the attempt that it began.
            return self._used_up(job)
        try:
            args = handler.codec.decode(job.data) if handler.takes_args else None
        except InvalidJob as error:
            return self._refused(job, error)
        except RecordDamaged as error:
            return self._failed_for_good(job, error)
        except BaseException as error:  # validators are the user's code as well
            return self._end_of_raising(run, error)
        steps: Steps | None = None
        bound_type, bound_id = _LOGGED_TYPE.set(job.type), _LOGGED_ID.set(job.id)
        try:
            if not self._is_plain:  # the most frequent case: it has no coroutine of its own, because each costs time
                work = handler.call(job, args) if self._around is None else self._within(self._around, job, args)
                steps = Steps(work, functools.partial(self._blocked, job), run.task)
                result = await steps
                if run.deadline is not None:
                    _note_overtime(run, steps)
            elif handler.kind == "thread":
                result = await self._in_thread(run, args)
            else:
                result = await self._in_process(run)
        except GeneratorExit:
            raise  # the loop is gone
        except BaseException as error:  # KeyboardInterrupt and SystemExit would end the loop, and all other jobs
            if run.stop_reason is None and steps is not None and steps.cut and _is_canceled():
                run.stop_reason = StopReason.CUT
            elif steps is not None:
                _note_overtime(run, steps)
            return self._end_of_raising(run, error)
        finally:
            _LOGGED_ID.reset(bound_id)
            _LOGGED_TYPE.reset(bound_type)
        if result is None and run.stop_reason is None:
            return _succeeded_with_nothing(handler.options.max_history)
        return self._returned(run, result)

    async def traced(self, run: Run, tracer: Any) -> RunEnd:
        """Run the handler as `run` does, in a span of OpenTelemetry."""
        with tracing.processing(tracer, run.job) as span:
            end = await self.run(run)
            error = self.redaction.error(end.error, run.job)
            tracing.ended(span, end.outcome(run.written), error, failed=not isinstance(end.raised, Retry))
            return end

    async def _in_thread(self, run: Run, args: Any) -> Any:
        handler, job = self._handler, run.job
        blocking = BlockingJob(job, LoopCalls(asyncio.get_running_loop()))
        run.announce = blocking.announce_stop
        around = self._around
        if around is None:
            result = await in_thread(lambda: handler.call(blocking, args), blocking.stop)
        else:
            resources = around.resources()
            result = await around.call(
                job, lambda: in_thread(lambda: handler.call(blocking, args, resources), blocking.stop)
            )
        return self._nothing(run, blocking.has_heeded) if result is None else result

    async def _in_process(self, run: Run) -> Any:
        handler, pool, around = self._handler, self._pool, self._around
        assert pool is not None
        if around is None:
            json, has_heeded = await pool.call(handler, run)
            return _Encoded(json) if json else self._nothing(run, has_heeded)
        has_heeded = False

        async def call() -> Any:
            nonlocal has_heeded
            json, has_heeded = await pool.call(handler, run)
            return handler.results.decode(json_data.decode(json)) if json else None

        result = await around.call(run.job, call)
        return self._nothing(run, has_heeded) if result is None else result

    def _nothing(self, run: Run, has_heeded: bool) -> object:
        """Return the result of a plain function that has returned None."""
        # The result of a canceled job is of no use, whether its function has read `stopping` or not.
        return _GIVEN_BACK if (has_heeded or run.stop_reason is StopReason.CANCELED) and not run.written else None

    def _within(self, around: Around, job: RunningJob, args: Any) -> Coroutine[Any, Any, Any]:
        """Return the coroutine of a handler with its surroundings."""
        handler, resources = self._handler, around.resources()
        return around.call(job, lambda: handler.call(job, args, resources))

    def _returned(self, run: Run, result: Any) -> RunEnd:
        job = run.job
        if run.stop_reason is StopReason.TAKEN:
            return NO_END
        if run.stop_reason is StopReason.OVERTIME:
            # The handler has swallowed its cancellation; it is late all the same.
            return self.end_of_stopped(job, run.stop_reason)
        if result is _GIVEN_BACK:
            return self.end_of_stopped(job, run.stop_reason or StopReason.ENDING)
        if type(result) is _Encoded:  # an object of the user's may not have a readable __class__
            return _succeeded(result, self._options.max_history)
        try:
            if (run.written or run.ending) and isinstance(result, Job):
                result = None  # the handler returned the value of `job.finish()`, for instance
            json = b"" if result is None else json_of(job.type, job.id, self._handler.results.encode(result))
        except BaseException as error:  # to read an object of the user's runs its code, which may raise anything
            return self._failed_for_good(job, unfit(result, error))
        return _succeeded(json, self._options.max_history)

    def too_large(self, job: RunningJob, error: Exception) -> RunEnd:
        """Return the end of a job whose result is too large for the store."""
        return self._failed_for_good(job, error)._replace(instead=True)

    def _end_of_raising(self, run: Run, raised: BaseException) -> RunEnd:
        """Return the end of a run whose handler has raised; also if the exception's own code fails."""
        try:
            return self._raised(run, raised)
        except BaseException as error:
            return (
                self._failed(run.job, error)
                if run.stop_reason is None
                else self.end_of_stopped(run.job, run.stop_reason)
            )

    def _raised(self, run: Run, raised: BaseException) -> RunEnd:
        job, why = run.job, run.stop_reason
        # A handler may work on other jobs as well; a WorkerConflict or JobCanceled about those is an ordinary error.
        own = [each for each in leaves(raised) if isinstance(each, JobsError) and is_about(each, job)]
        if why is StopReason.TAKEN:
            return NO_END
        if any(isinstance(each, WorkerConflict) for each in own):
            # Another worker has the job; or the handler has ended it itself, and goes on to use it.
            return RunEnd(None, error=describe(raised), raised=raised) if run.written else NO_END
        canceled = any(isinstance(each, JobCanceled) for each in own)
        error = decisive(raised)
        if why is not None and (canceled or _comes_of_cancellation(error)):
            return self.end_of_stopped(job, why)
        if canceled:
            return self._canceled()
        if isinstance(error, Snooze) and why is not StopReason.OVERTIME:
            seconds = wait_of(error) or 0.0
            return self._stopped(f"snoozed for {seconds:g} s", self._sources.wall_time() + seconds, anew=True)
        if isinstance(error, asyncio.CancelledError):
            # Nobody has asked the handler to end: something in it was canceled, and it passed that on.
            error = JobsError("the handler canceled itself").with_traceback(error.__traceback__)
        return self._failed(job, error)

    def _stopped(self, reason: str, run_at: float | None = None, *, anew: bool = False) -> RunEnd:
        """Return the end of a job that is released to run again from a time on (seconds since the epoch).

        The attempts of a snoozed or rotated job are counted anew: its run came to its own end.
        """
        return RunEnd(running_jobs.stop, (run_at, self._options.max_history, reason, anew))

    def _canceled(self) -> RunEnd:
        return RunEnd(running_jobs.finish, (None, Outcome.CANCELED, RunReport(max_history=self._options.max_history)))

    def end_of_stopped(self, job: RunningJob, why: StopReason, *, begun: bool = True) -> RunEnd:
        """Return the end of a job whose handler was asked to end, whether the handler did so or not.

        Args:
            job: the job.
            why: the reason of the request.
            begun: whether its handler had begun.
        """
        match why:
            case StopReason.TAKEN:
                return NO_END
            case StopReason.CANCELED:
                return self._canceled()
            case StopReason.STOPPED:
                return self._stopped("its slot was wanted", anew=begun)
            case StopReason.ENDING:
                return self._stopped("its runner ended")
            case StopReason.CUT:
                return self._stopped("its task was canceled")
            case StopReason.OVERTIME:
                limit = job.time_limit or self._options.time_limit
                return self._failed(job, TimeoutError(f"it ran longer than its time limit of {limit:g} s"))

    def _used_up(self, job: RunningJob) -> RunEnd:
        """Return the end of a job that was lost with its worker in its last attempt, and does not run again."""
        end = self._failed_for_good(job, JobsError(_how_used_up(job)))
        json, outcome, report = end.arguments
        assert end.error is not None
        if (last := error_of(job)) is not None:  # the traceback of the last run that has failed
            error = dataclasses.replace(end.error, traceback=last.traceback)
            report = report._replace(error=run_data.error_json(error))
        # The accept has counted this attempt, but the job does not run.
        return end._replace(arguments=(json, outcome, report._replace(attempts=-1)))

    def _refused(self, job: RunningJob, error: InvalidJob) -> RunEnd:
        """Return the end of a job whose arguments this program cannot decode: a newer or older one may do so."""
        options = self._options
        if options.max_history < 2:  # nothing would tell how often it was refused
            return self._failed(job, error)
        times = 1 + _refusals(history_of(job))
        if times >= MOST_REFUSALS:
            return self._failed_for_good(job, error)
        described = describe(error)
        pause = FIRST_PAUSE_AFTER_REFUSAL * 2 ** (times - 1)
        end = self._stopped(f"refused: {times}: {error}", self._sources.wall_time() + pause)
        return end._replace(error=described, raised=error, retry_in=pause)

    def _failed(self, job: RunningJob, error: BaseException) -> RunEnd:
        """Return the end of a failed run by the retry policy: another attempt later, or none."""
        now = self._sources.wall_time()
        next_attempt = decide(
            error,
            self._options,
            history_of(job),
            now=now,
            attempts=job.attempts,
            max_attempts=job.max_attempts,
            crashes_before=run_data.crashes_of(job._record.run_data),
            uniform=self._sources.uniform,
        )
        if next_attempt is None:
            return self._failed_for_good(job, error)
        described, report, size = self._report(job, error)
        at, crashes = next_attempt
        return RunEnd(running_jobs.crash, (report._replace(crashes=crashes), at), size, described, error, at - now)

    def _failed_for_good(self, job: RunningJob, error: BaseException) -> RunEnd:
        """Return the end of a failed job that does not run again."""
        described, report, size = self._report(job, error)
        return RunEnd(running_jobs.finish, (None, Outcome.FAILED, report), size, described, error)

    def _report(self, job: RunningJob, error: BaseException) -> tuple[JobError, RunReport, int]:
        """Return the stored form of an error, the failed run's report and its approximate size in bytes."""
        described = describe(error)
        json = run_data.error_json(described)
        result = None
        if isinstance(error, CommandFailed) and error.result is not None:
            result = json_of(job.type, job.id, error.result.within(MOST_KEPT).to_data())
        report = RunReport(result, json, brief(described, _MOST_OF_A_REASON), self._options.max_history)
        return described, report, len(json) + len(result or b"")


def _succeeded(json: bytes | None, max_history: int | None) -> RunEnd:
    report = RunReport(json, None, "", max_history)
    return RunEnd(running_jobs.finish, (None, Outcome.SUCCEEDED, report), len(json or b""))


@functools.lru_cache(maxsize=16)  # most handlers return nothing, and their ends are all the same
def _succeeded_with_nothing(max_history: int | None) -> RunEnd:
    return _succeeded(b"", max_history)


def _how_used_up(job: RunningJob) -> str:
    """Return the message for a job that had no attempts left when it was accepted."""
    kinds = [event.kind for event in history_of(job) if event.kind in (HistoryKind.CRASHED, HistoryKind.LOST)]
    del kinds[job.attempts - 1 :]  # those before attempts were counted anew
    error = error_of(job)
    crashed = kinds.count(HistoryKind.CRASHED)
    if not crashed and error is None:
        return f"its worker was lost {_times(job.attempts - 1)}"
    lost = kinds.count(HistoryKind.LOST)
    last = "" if error is None else f"; the last error was {brief(error, _MOST_OF_A_REASON)}"
    return f"its {job.attempts - 1} attempts are used up: {crashed} crashed, {lost} lost with their worker{last}"


def _refusals(history: Sequence[HistoryEvent]) -> int:
    """Return how often a job was refused since its last run, or since it was added."""
    for event in history:
        if event.kind in (HistoryKind.ADDED, HistoryKind.CRASHED, HistoryKind.FINISHED):
            break
        if event.kind is HistoryKind.STOPPED and (found := _REFUSED.match(event.detail)):
            return int(found[1])
    return 0


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def is_about(error: JobsError, job: RunningJob) -> bool:
    """Return whether an error is about this job."""
    return (error.type, error.id) == (job.type, job.id)


def _note_overtime(run: Run, steps: Steps) -> None:
    """Note overtime of a handler that itself blocked the loop past its time limit: the timer had no turn."""
    deadline = run.deadline
    if deadline is not None and run.stop_reason is None and steps.began <= deadline < asyncio.get_running_loop().time():
        run.stop_reason = StopReason.OVERTIME


def _comes_of_cancellation(error: BaseException | None) -> bool:
    """Return whether an error is a cancellation, or was raised while one was handled, by a driver or in a clean-up.

    Retry, Snooze and Discard are what the handler wants, whatever made it raise them.
    """
    if isinstance(error, Retry | Snooze | Discard):
        return False
    for _ in range(_LONGEST_CHAIN):
        if error is None or isinstance(error, asyncio.CancelledError):
            break
        error = error.__cause__ or error.__context__
    return isinstance(error, asyncio.CancelledError)


def _is_canceled() -> bool:
    """Return whether the current task has a cancellation that was not taken back, as a timeout takes back its own."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def unfit(result: Any, error: BaseException) -> JobsError:
    """Return the error for a handler's return value that JSON cannot carry.

    Args:
        result: returned by the handler.
        error: raised by its encoding.
    """
    if issubclass(type(result), types.CoroutineType):
        return InvalidJob(f"the handler returned the coroutine {result.__qualname__} instead of awaiting it")
    why = str(error) if isinstance(error, InvalidJob | JobTooLarge) else brief(describe(error), _MOST_OF_A_REASON)
    return InvalidJob(f"the handler returned {shown(result)}, which is no result: {why}")
