"""One run of one job, from its accept until its end is stored; and the errors that end it, described.

The interface to the service that runs need is here as well.
"""

from __future__ import annotations

import asyncio
import enum
import math
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from jobs_service import run_data
from jobs_service.errors import (
    ANOTHER_ATTEMPT,
    Discard,
    InvalidJob,
    RecordDamaged,
    Retry,
    Snooze,
    StoreError,
    in_one_line,
    kind_of,
    wait_of,
)
from jobs_service.layer import running_jobs
from jobs_service.layer.batch_bounds import Batch
from jobs_service.layer.keyspace import Place, TypeKeys, pack_id
from jobs_service.layer.queue import AcceptTerms, EmptyQueue
from jobs_service.layer.record import NextRun
from jobs_service.layer.running_jobs import LockStatus
from jobs_service.layer.type_settings import Declared
from jobs_service.log import EventLog
from jobs_service.model import HistoryEvent, Job, JobError, JobType, Outcome, RunningJob, Worker
from jobs_service.redaction import Redaction
from jobs_service.settings import Settings
from jobs_service.sources import Sources
from jobs_service.store.base import Watch

if TYPE_CHECKING:
    from jobs_service.runner.ticker import AddedTicks, Periodic

ErrorT = TypeVar("ErrorT", bound=BaseException)

_MOST_LOGGED: Final = 300
"""Most characters of an error in a log event."""

_MOST_SHOWN: Final = 5
"""Most errors of a group in a message."""
_MOST_OF_ONE: Final = 200
_MOST_OF_A_MESSAGE: Final = 1000
_MOST_OF_A_TRACEBACK: Final = 3000
_MOST_OF_A_LINE: Final = 500
"""Most characters of a message in a traceback, and of all notes of an exception."""
_FRAMES: Final = 6
_RUNNER: Final = "jobs_service.runner."
_TOLD: Final = "jobs_service_told"
"""The attribute of exceptions that stand for another process's."""


# The run


class StopReason(enum.Enum):
    """Why a running handler was asked to end."""

    STOPPED = "stopped"
    """Another job gets its slot: the job is released."""
    ENDING = "ending"
    """The runner ends: the job is released."""
    CANCELED = "canceled"
    """A client has canceled the job."""
    TAKEN = "taken"
    """This worker no longer owns the job: the handler's result does not count."""
    OVERTIME = "overtime"
    """The run took longer than its time limit."""
    CUT = "cut"
    """Other code canceled the task, as a program that cancels all tasks to end: the job is released."""


class Run:
    """One job that a worker pool has accepted.

    Attributes:
        job: the accepted job.
        lock: the lock of its accept.
        size: bytes of the job's record at this process's last read or write.
        at: time of the accept, in seconds of the loop's clock.
        continuous: whether rotation may take its slot for other jobs.
        asked: the next run that the handler itself requested; None for none.
        max_attempts, time_limit: the job's own limits; None if its handler's apply.
        context: the context in which the job was added; empty for none.
        task: the handler's task; None if the run never began.
        begun: whether the task has made its first step.
        left: whether its slot is free again.
        stop_reason: the reason for asking the handler to end; None if it was not asked.
        written: whether the job's end is stored, or never will be.
        end_awaited: whether the handler awaits the answer of its `finish` or `release`.
        ending: whether the handler is ending the job in its own transaction, whose effect is open.
        abandoned: whether the handler still runs after its grace: its result does not count.
        stored: whether the end was already in the store when it was written again.
        announce: tells a handler in a thread, which cannot be canceled, to end soon; None for others.
        limit: begins the time limit of a run that waits for a process; None for others.
        deadline: end of its time limit, in seconds of the loop's clock; None without one.
        timers: timers to cancel when the handler has ended.
    """

    __slots__ = (
        "_packed_id",
        "abandoned",
        "announce",
        "asked",
        "at",
        "begun",
        "context",
        "continuous",
        "deadline",
        "end_awaited",
        "ending",
        "job",
        "left",
        "limit",
        "lock",
        "max_attempts",
        "size",
        "stop_reason",
        "stored",
        "task",
        "time_limit",
        "timers",
        "written",
    )

    def __init__(self, job: RunningJob, at: float, continuous: bool) -> None:
        self.job = job
        self.lock = job.lock
        record = job._record
        self.size = record.size()
        self.max_attempts: int | None = None
        self.time_limit: float | None = None
        self.context: Mapping[str, str] = {}
        if record.run_data and record.run_data[0] & run_data.LIMITS:  # few jobs have any
            self.max_attempts, self.time_limit = run_data.limits_of(record.run_data)
            self.context = job.context
        self.at = at
        self.asked: NextRun | None = None
        self.continuous = continuous
        self.task: asyncio.Task[None] | None = None
        self.begun = False
        self.left = False
        self.stop_reason: StopReason | None = None
        self.written = False
        self.end_awaited = False
        self.ending = False
        self.abandoned = False
        self.stored = False
        self.announce: Callable[[], None] | None = None
        self.limit: Callable[[], None] | None = None
        self.deadline: float | None = None
        self.timers: list[asyncio.TimerHandle] = []
        self._packed_id = pack_id(job.id)

    def place(self, keys: TypeKeys) -> Place:
        """Return the job's place under its type's current keys: they change when the directory is moved."""
        return keys, self.job.id, self._packed_id

    @property
    def history(self) -> tuple[HistoryEvent, ...]:
        """The job's events, newest first; see `history_of`."""
        return history_of(self.job)

    @property
    def has_ended(self) -> bool:
        """Whether its handler has ended, or never began."""
        return self.task is None or self.task.done()

    @property
    def can_be_asked(self) -> bool:
        """Whether a handler still runs that can be asked to end the job."""
        return not self.written and not self.has_ended


def history_of(job: RunningJob) -> tuple[HistoryEvent, ...]:
    """Return a job's history; an empty one if it is damaged, because the job can still run."""
    try:
        return job.history
    except RecordDamaged:
        return ()


def error_of(job: RunningJob) -> JobError | None:
    """Return the error of a job's last failed run; None also if it is damaged."""
    try:
        return job.error
    except RecordDamaged:
        return None


# The error that decides: a handler's task groups may raise several


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception; of a group, the exceptions in it and in its inner groups."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from leaves(each)
    else:
        yield error


def decisive(error: BaseException) -> BaseException:
    """Return the exception that decides about the job.

    The only exception of a group decides. Of several, the first of these does: a Discard, because another attempt would
    be in vain; the errors that are no requests to the runner, a single one by itself or else the group; the Retry, or
    else the Snooze, with the longest time.
    """
    if not isinstance(error, BaseExceptionGroup):
        return error
    several = [*leaves(error)]
    for each in several:
        if isinstance(each, Discard):
            return each
    unasked = [each for each in several if not isinstance(each, Retry | Snooze | asyncio.CancelledError)]
    if len(unasked) == 1:
        return unasked[0]
    if unasked:
        return error
    retries = [each for each in several if isinstance(each, Retry)]
    if retries:
        return max(retries, key=_asked)
    snoozes = [each for each in several if isinstance(each, Snooze)]
    return max(snoozes, key=_asked) if snoozes else several[0]


def _asked(request: Retry | Snooze) -> float:
    try:
        seconds = wait_of(request)
    except InvalidJob:  # an application has set it itself: the decision about the run raises it again
        return math.inf
    return -1.0 if seconds is None else seconds


# Descriptions of errors: as stored with a job, and in one line


def standing_for(error: ErrorT, described: JobError) -> ErrorT:
    """Return an exception that stands for one in another process, after giving it the stored form of that."""
    error.__dict__[_TOLD] = described
    error.add_note(described.traceback)
    return error


def describe(error: BaseException) -> JobError:
    """Return the stored form of an error: its class, its message and the end of its or its cause's traceback."""
    if _TOLD in error.__dict__:
        described: JobError = error.__dict__[_TOLD]
        return described
    message = message_of(error)[:_MOST_OF_A_MESSAGE]
    # The raising line of a request to the runner means nothing; the line of its cause does.
    told = cause_of(error) if isinstance(error, Retry | Discard) else error
    where = ""
    if told is not None and told.__traceback__ is not None and not isinstance(told, InvalidJob):
        try:
            frames = _from_the_handler_on(told.__traceback__)
            shown = traceback.TracebackException(type(told), told, frames, limit=-_FRAMES)
            where = "".join(_lines(shown))[-_MOST_OF_A_TRACEBACK:]
        except Exception:
            where = ""
    return JobError(kind_of(error), _encodable(message), _encodable(where))


def brief(error: JobError, most: int) -> str:
    """Return an error in one line of at most so many characters."""
    return in_one_line(f"{error.type}: {error.message}", most)


def message_of(error: BaseException) -> str:
    """Return the message of an exception, or the messages of a group's exceptions."""
    if not isinstance(error, BaseExceptionGroup):
        return _text(error)
    several = [*leaves(error)]
    messages = [in_one_line(f"{kind_of(each)}: {_text(each)}", _MOST_OF_ONE) for each in several[:_MOST_SHOWN]]
    if len(several) > _MOST_SHOWN:
        messages.append("...")
    return f"{len(several)} errors: {'; '.join(messages)}"


def cause_of(error: BaseException) -> BaseException | None:
    """Return the error behind a handler's Retry or Discard: its cause, or the exception being handled."""
    if not isinstance(error, Retry | Discard):
        return None
    if error.__cause__ is not None or error.__suppress_context__:
        return error.__cause__
    # That a task was canceled beside one that failed is no reason of its own.
    return None if isinstance(error.__context__, asyncio.CancelledError) else error.__context__


def traceback_of(error: BaseException, job: Job, redaction: Redaction) -> dict[str, Any]:
    """Return an error's traceback as a field of a log event, redacted by the rules of its job."""
    if not redaction:
        return {"exc_info": error}
    hidden = redaction.error(JobError("", "", "".join(traceback.format_exception(error))), job)
    assert hidden is not None
    return {"stack": hidden.traceback.rstrip()}


def _text(error: BaseException) -> str:
    try:
        text = str(error)
        cause = cause_of(error)
        if cause is None:
            return text
        why = f"{kind_of(cause)}: {message_of(cause)}"
        return why if text == ANOTHER_ATTEMPT else f"{text}: {why}"
    except Exception:  # __str__ of a user's exception is the user's code
        return "(its message cannot be shown)"


def _from_the_handler_on(frames: TracebackType) -> TracebackType:
    """Return the frames without the runner's frames in front; all of them if the handler has none."""
    own: TracebackType | None = frames
    while own is not None and own.tb_frame.f_globals.get("__name__", "").startswith(_RUNNER):
        own = own.tb_next
    return own or frames


def _lines(shown: traceback.TracebackException) -> Iterator[str]:
    """Yield a traceback with its messages and notes cut, so that they do not push out the frames."""
    left: list[traceback.TracebackException | None] = [shown]
    while left:
        if (each := left.pop()) is None:
            continue
        notes = getattr(each, "__notes__", None)
        if isinstance(notes, Sequence) and notes:
            each.__notes__ = [_cut("\n".join(map(str, notes)))]
        left += [each.__cause__, each.__context__, *(each.exceptions or ())]
    for line in shown.format():
        yield _cut(line)


def _cut(text: str) -> str:
    end = "\n" if text.endswith("\n") else ""
    return text if len(text) <= _MOST_OF_A_LINE else f"{text[:_MOST_OF_A_LINE]}…{end}"


def _encodable(text: str) -> str:
    return text.encode(errors="replace").decode()


# The end of the run: its write to the store, and its log event


class RunEnd(NamedTuple):
    """The pending write of an ended run.

    Attributes:
        operation: an operation of the layer, called with unit, place, lock and the arguments; None to write nothing.
        arguments: see `operation`.
        size: approximate bytes that it adds to the record.
        error: the run's failure, for the log; None for none.
        raised: the exception that `error` describes.
        retry_in: seconds until the next attempt; None for none.
        instead: whether it replaces an end that the store refused.
    """

    operation: Callable[..., Any] | None
    arguments: tuple[Any, ...] = ()
    size: int = 0
    error: JobError | None = None
    raised: BaseException | None = None
    retry_in: float | None = None
    instead: bool = False

    def outcome(self, written: bool) -> str:
        """Return the job's outcome in a word.

        Args:
            written: whether its handler has ended it itself.
        """
        if written:
            return "ended by its handler"
        if self.operation is None:
            return "taken over"
        if self.operation is running_jobs.finish:
            outcome: Outcome = self.arguments[1]
            return outcome.value
        return "retried" if self.operation is running_jobs.crash else "given back"

    def log_to(self, log: EventLog, job: RunningJob, redaction: Redaction, seconds: float = 0.0) -> None:
        """Log the end of the run.

        Args:
            log: the handler's log.
            job: the job of the run.
            redaction: rules that redact the event.
            seconds: duration of the run.
        """
        if self.error is None:
            if self.operation is running_jobs.finish and self.arguments[1] is Outcome.SUCCEEDED:
                log.debug("job_succeeded", id=job.id, attempt=job.attempts, seconds=round(seconds, 3))
            return
        fields: dict[str, Any] = {"id": job.id, "attempt": job.attempts, "error": self._brief(job, redaction)}
        if self.retry_in is not None:
            fields["retry_in"] = round(self.retry_in, 3)
        if self.operation is running_jobs.finish:
            fields["attempt"] += self.arguments[2].attempts  # -1 where the job had no attempts left, and did not run
            log.warning("job_failed", **fields)
        elif self.operation is running_jobs.stop:
            log.warning("arguments_refused", **fields)
        elif isinstance(self.raised, Retry):  # the handler has asked for it, so it is no warning
            log.info("job_retrying", **fields)
        else:
            log.warning("job_crashed", **fields)

    def log_dropped(self, log: EventLog, job: RunningJob, redaction: Redaction) -> None:
        """Log an error or a result that is lost because the handler ended its job earlier."""
        if self.raised is not None and self.error is not None:
            error = self._brief(job, redaction)
            log.error("handler_failed_after_end", id=job.id, error=error, **traceback_of(self.raised, job, redaction))
        elif self.operation is running_jobs.finish and self.size:
            log.warning("result_not_stored", id=job.id)

    def _brief(self, job: RunningJob, redaction: Redaction) -> str:
        error = redaction.error(self.error, job)
        assert error is not None
        return brief(error, _MOST_LOGGED)


NO_END: Final = RunEnd(None)


# The runner's interface to the service whose jobs it runs: the service of its process, or one over HTTP


T = TypeVar("T")

Held: TypeAlias = tuple[Place, bytes]
"""A running job's place and lock."""

EndCall: TypeAlias = tuple[Callable[..., Awaitable[Any]], Place, tuple[Any, ...]]
"""The end of a run: an operation of `layer.running_jobs`, the job's place, and its lock with the other arguments."""


class ServiceAccess(Protocol):
    """One service, as the runner sees it. It raises the errors of JobsService."""

    @property
    def settings(self) -> Settings:
        """The settings, such as pauses between attempts."""

    @property
    def sources(self) -> Sources:
        """Wall-clock time and randomness."""

    @property
    def worker(self) -> Worker:
        """Executes the operations of running jobs."""

    @property
    def batch(self) -> Batch:
        """The most jobs and bytes for one call about many jobs."""

    @property
    def own_runs(self) -> dict[bytes, Mapping[bytes, object]]:
        """The runner's jobs by packed type and lock: its own service does not declare them lost."""

    @property
    def serves_threads(self) -> bool:
        """Whether `beat_in_thread` is available."""

    def beat_in_thread(self, held: Sequence[Held], answered: Callable[[list[LockStatus]], object]) -> None:
        """Call `beat` in a thread, while the loop may be blocked; the same errors."""

    def keys(self, type: JobType) -> TypeKeys:
        """Return the keys of a type; they change when the store's directory is moved."""

    async def retried(
        self, operation: Callable[[], Awaitable[T]], *, unless: tuple[type[StoreError], ...] = (), **fields: Any
    ) -> T:
        """Repeat an operation while it raises passing errors; see Context.retried."""

    async def declare(
        self, keys: TypeKeys, wanted: Declared, secret: Redaction | None
    ) -> tuple[Declared, Redaction | None]:
        """Make a missing type, and store its handler's declarations; return the effective ones."""

    async def accept(self, keys: TypeKeys, terms: AcceptTerms) -> list[RunningJob] | EmptyQueue:
        """Take jobs on these terms, or return a watch on the queue.

        Jobs that are accepted for a canceled caller are released.
        """

    def is_crowded(self, keys: TypeKeys) -> bool:
        """Whether accepts of a type have recently collided with accepts of other processes."""

    async def count_due(self, keys: TypeKeys, limit: int, max_priority: bytes | None) -> int:
        """Return the number of due jobs of a type, counted up to a limit, of priorities up to a packed one."""

    async def beat(self, held: Sequence[Held]) -> list[LockStatus]:
        """Renew the locks of running jobs of one type; return the status of each lock."""

    async def look(
        self, keys: TypeKeys, held: Sequence[Held], *, watched: bool
    ) -> tuple[list[LockStatus], list[Watch]]:
        """Return the status of locks, and a watch on the type's canceled jobs.

        Args:
            keys: the type's keys.
            held: the type's jobs.
            watched: whether the caller has a watch already; then the answer has none.
        """

    async def timeout(self, keys: TypeKeys) -> tuple[float | None, Watch]:
        """Return a type's activity timeout in seconds, None if the type does not exist, and a watch on it."""

    async def redaction(self, keys: TypeKeys) -> tuple[Redaction, Watch]:
        """Return the redaction of a type's jobs, and a watch on it."""

    def end_all(
        self, calls: Sequence[EndCall], answer: Callable[[Sequence[Exception | None]], None], size: int
    ) -> None:
        """End runs, each independent of the others.

        Args:
            calls: the ends of the runs; all of one type.
            answer: called with the error of each, None for success.
            size: approximate bytes of the values that they write.
        """

    async def end(self, call: EndCall) -> None:
        """End one run by itself."""

    def note_healthy(self, held: Held, answered: Callable[[RunningJob | Exception], object], size: int) -> None:
        """Count a running job's attempts anew.

        Args:
            held: the job.
            answered: called with the changed job, or the error.
            size: approximate bytes of the write.
        """

    async def tick(self, periodic: Periodic, most: int, seen: float | None) -> AddedTicks:
        """Add a periodic handler's due jobs, up to so many; see `ticker.add_due`."""

    async def watch_tick(self, periodic: Periodic, key: bytes) -> Watch | None:
        """Return a watch on the obstacle to a tick's job; None if it is gone."""
