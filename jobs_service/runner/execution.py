"""One run of one job by its handler, from the decoding of its arguments to what is to be written at its end.

Floor: runner. Nothing here touches the store: what becomes of the job is returned as an End.
"""

from __future__ import annotations

import asyncio
import enum
import functools
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, NamedTuple

from jobs_service import notes
from jobs_service.errors import (
    Discard,
    InvalidJob,
    JobCanceled,
    JobsError,
    JobTooLarge,
    Retry,
    Snooze,
    WorkerConflict,
    in_one_line,
    kind_of,
    shown,
)
from jobs_service.layer import creation, processing
from jobs_service.layer.processing import Told
from jobs_service.model import JobError, Outcome, RunningJob
from jobs_service.runner.blocking import BlockingJob
from jobs_service.runner.calling import Steps, in_thread
from jobs_service.runner.command import MOST_KEPT, CommandFailed
from jobs_service.runner.handler import Handler
from jobs_service.runner.options import HandlerOptions
from jobs_service.runner.scheduling import retry_at
from jobs_service.sources import Sources

_MOST_OF_A_MESSAGE: Final = 1000
_MOST_OF_A_REASON: Final = 200
_FRAMES: Final = 6
_MOST_OF_A_TRACEBACK: Final = 3000
_RUNNER: Final = "jobs_service.runner."


class Why(enum.Enum):
    """Why a handler that runs is to end."""

    STOPPED = "stopped"
    """Its slot is wanted, or the runner ends: the job is given back."""
    CANCELED = "canceled"
    """A creator asked for the job's removal."""
    TAKEN = "taken"
    """The job is this worker's no more: nothing that it does counts."""
    OVERTIME = "overtime"
    """It took longer than its time limit."""


class End(NamedTuple):
    """What is to be written when a run has ended.

    Attributes:
        operation: of the layer, called with unit, place, lock and the arguments; None for nothing at all.
        arguments: see `operation`.
        size: bytes that it writes beside what is there, about.
        error: how the run failed, for the log; None when it did not.
    """

    operation: Callable[..., Any] | None
    arguments: tuple[Any, ...] = ()
    size: int = 0
    error: JobError | None = None


NOTHING: Final = End(None)


class Execution:
    """How the jobs of one handler are run.

    Args:
        handler: whose function is called.
        sources: wall-clock time and randomness.
        blocked: called with a job and seconds when its handler has blocked the loop for so long.
    """

    def __init__(
        self, handler: Handler[Any, Any], sources: Sources, blocked: Callable[[RunningJob, float], None]
    ) -> None:
        self._handler = handler
        self._sources = sources
        self._blocked = blocked

    @property
    def _options(self) -> HandlerOptions:
        return self._handler.options

    async def run(self, job: RunningJob, why: Callable[[], Why | None]) -> End:
        """Run the handler, and return what becomes of the job. Raises nothing: whatever happens is an end.

        Args:
            job: accepted, its attempt counted.
            why: returns why the handler was canceled; None when it was not.
        """
        handler = self._handler
        options = handler.options
        if options.max_attempts is not None and job.attempts > options.max_attempts:
            # Workers that die with a job leave no other trace than the attempts that they began.
            return self._failed(job, JobsError(f"its worker was lost {job.attempts - 1} times"), final=True)
        try:
            args = handler.codec.decode(job.data) if handler.takes_args else None
        except InvalidJob as error:
            return self._failed(job, error, final=True)
        try:
            if handler.kind == "thread":
                result = await self._in_thread(job, args)
            else:
                coroutine = handler.function(*handler.arguments(job, args))
                result = await Steps(coroutine, functools.partial(self._blocked, job))
        except GeneratorExit:
            raise  # the loop is gone
        except BaseException as error:  # KeyboardInterrupt and SystemExit would end the loop with all other jobs
            return self._ended_with(job, error, why())
        if why() is Why.TAKEN:
            return NOTHING
        try:
            json = b"" if result is None else creation.json_of(job.type, job.id, result)
        except (InvalidJob, JobTooLarge) as error:
            return self._failed(job, _unfit(result, error), final=True)
        told = Told(json, None, "", options.max_history)
        return End(processing.finish, (None, Outcome.SUCCEEDED, told), len(json or b""))

    def too_large(self, job: RunningJob, error: Exception) -> End:
        """Return the end of a job whose result the store does not take."""
        return self._failed(job, error, final=True)

    async def _in_thread(self, job: RunningJob, args: Any) -> Any:
        handler = self._handler
        blocking = BlockingJob(job, asyncio.get_running_loop())
        arguments = handler.arguments(blocking, args)
        return await in_thread(lambda: handler.function(*arguments), blocking.stop)

    def _ended_with(self, job: RunningJob, error: BaseException, why: Why | None) -> End:
        # A handler may work on other jobs as well: what it is told of those is an error like any other.
        own = isinstance(error, JobsError) and (error.type, error.id) == (job.type, job.id)
        if why is Why.TAKEN or (own and isinstance(error, WorkerConflict)):
            return NOTHING
        heard = isinstance(error, asyncio.CancelledError) or (own and isinstance(error, JobCanceled))
        if heard and why is not None:
            return self.asked(job, why)
        if own and isinstance(error, JobCanceled):
            return self._canceled()
        if isinstance(error, Snooze):
            later = self._sources.wall_time() + error.seconds
            return End(processing.stop, (later, self._options.max_history))
        if isinstance(error, Discard):
            return self._failed(job, error, final=True)
        if isinstance(error, asyncio.CancelledError):
            # Nobody has asked for it: something in the handler was canceled, and it passed that on.
            error = JobsError("the handler canceled itself")
        return self._failed(job, error, after=error.after if isinstance(error, Retry) else None)

    def stopped(self) -> End:
        """Return the end of a job that is given back."""
        return End(processing.stop, (None, self._options.max_history))

    def _canceled(self) -> End:
        return End(processing.finish, (None, Outcome.CANCELED, Told(max_history=self._options.max_history)))

    def asked(self, job: RunningJob, why: Why) -> End:
        """Return the end of a job whose handler was asked to end, and has said nothing else or goes on all the same."""
        match why:
            case Why.TAKEN:
                return NOTHING
            case Why.CANCELED:
                return self._canceled()
            case Why.STOPPED:
                return self.stopped()
            case Why.OVERTIME:
                limit = self._options.time_limit
                return self._failed(job, TimeoutError(f"it ran longer than its time limit of {limit:g} s"))

    def _failed(self, job: RunningJob, error: BaseException, *, final: bool = False, after: float | None = None) -> End:
        """Return the end of a run that failed: another attempt later, or none."""
        options = self._options
        now = self._sources.wall_time()
        at = None
        if not final:
            at = retry_at(
                job.history, now, job.attempts, options.max_attempts, options.health_threshold, options.backoff
            )
        described = _described(error)
        json = notes.error_json(described)
        result = None
        if isinstance(error, CommandFailed) and error.result is not None:
            result = creation.json_of(job.type, job.id, error.result.within(MOST_KEPT).to_data())
        reason = in_one_line(f"{described.type}: {described.message}", _MOST_OF_A_REASON)
        told = Told(result, json, reason, options.max_history)
        size = len(json) + len(result or b"")
        if at is None:
            return End(processing.finish, (None, Outcome.FAILED, told), size, described)
        if after is not None:
            at = now + after
        elif options.jitter:
            at += self._sources.uniform(0.0, options.jitter) * (at - now)
        return End(processing.crash, (told, at), size, described)


def _described(error: BaseException) -> JobError:
    """Return an error as it is kept: what it said, and where, in few lines."""
    try:
        message = str(error)[:_MOST_OF_A_MESSAGE]
    except Exception:  # what an exception of the user's says of itself is the user's code
        message = "(its message cannot be shown)"
    where = ""
    if error.__traceback__ is not None and not isinstance(error, Retry | Discard | InvalidJob):
        try:
            frames = _from_the_handler_on(error.__traceback__)
            lines = traceback.format_exception(type(error), error, frames, limit=-_FRAMES)
            where = "".join(lines)[-_MOST_OF_A_TRACEBACK:]
        except Exception:
            where = ""
    return JobError(kind_of(error), _encodable(message), _encodable(where))


def _from_the_handler_on(frames: TracebackType) -> TracebackType:
    """Return the frames without those in front that have called the handler; all if it has none itself."""
    own: TracebackType | None = frames
    while own is not None and own.tb_frame.f_globals.get("__name__", "").startswith(_RUNNER):
        own = own.tb_next
    return own or frames


def _encodable(text: str) -> str:
    return text.encode(errors="replace").decode()


def _unfit(result: Any, error: Exception) -> JobsError:
    return InvalidJob(f"the handler returned {shown(result)}, which is no result: {error}")
