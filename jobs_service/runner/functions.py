"""A handler's function: the code behind its wrappers, its annotations, its calls, and the job of a plain function."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import os
import threading
import types
import typing
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, overload

from jobs_service.arguments import check_duration
from jobs_service.blocking import LoopCalls
from jobs_service.durations import Duration
from jobs_service.errors import InvalidSettings, JobCanceled, JobsError, in_one_line, job_name, shown
from jobs_service.layer.transaction import either
from jobs_service.model import UNSET, EndedJob, Job, JobError, Outcome, ProgressReport, ResubmitFlag, RunningJob

T = TypeVar("T")

BLOCKED: Final = 1.0
"""Seconds of one step after which the log reports a handler that blocks the loop."""


# The function as Python sees it


def body(function: Any) -> Any:
    """Return the function whose code runs, behind functools.partial, objects with a __call__ and bound methods."""
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function):
        function = type(function).__call__
    return getattr(function, "__func__", function)


def unwrapped(function: Any) -> Any:
    """Return the function whose parameters count: the end of the chain of `__wrapped__`."""
    try:
        return inspect.unwrap(function)
    except ValueError:  # it wraps itself
        return function


def name_of(function: Any) -> str:
    """Return the name of a function in logs and errors: its module and name."""
    while isinstance(function, functools.partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") and hasattr(function, "__module__") else type(function)
    return in_one_line(f"{named.__module__}.{named.__qualname__}".replace(".<locals>", ""), 120)


def place_of(function: Any) -> str:
    """Return the name of a function with its file and line, for messages about two functions."""
    code = getattr(unwrapped(body(function)), "__code__", None)
    where = "" if code is None else f" ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"
    return name_of(function) + where


def refused(function: Any, why: str) -> InvalidSettings:
    """Return the error for a function that cannot be a handler."""
    return InvalidSettings(f"{name_of(function)} cannot be a handler: {why}")


class Scope(NamedTuple):
    """The names available to a function's annotations."""

    globals: dict[str, Any]
    locals: dict[str, Any]


def scope_of(function: Any) -> Scope:
    """Return the names of a function's module, and of its enclosing functions.

    The closure holds the latter only if the function's code uses them. Annotations put no name into the closure, so the
    frames of the enclosing functions are searched as well: they still run during decoration.
    """
    globals: dict[str, Any] = getattr(function, "__globals__", {})
    code = getattr(function, "__code__", None)
    locals: dict[str, Any] = {}
    for frame in _frames_around(function.__qualname__, globals) if code else ():
        locals = {**frame.f_locals, **locals}
    for name, cell in zip(code.co_freevars if code else (), getattr(function, "__closure__", None) or (), strict=True):
        try:
            locals[name] = cell.cell_contents
        except ValueError:  # a name that is not assigned yet
            continue
    return Scope(globals, locals)


def _frames_around(qualname: str, globals: dict[str, Any]) -> Iterator[types.FrameType]:
    """Yield the running frames of a function's enclosing functions, the nearest first."""
    *parts, _ = qualname.split(".<locals>.")
    around = {".<locals>.".join(parts[: count + 1]) for count in range(len(parts))}
    frame = inspect.currentframe()
    while around and frame is not None:
        if frame.f_globals is globals and frame.f_code.co_qualname in around:
            around.remove(frame.f_code.co_qualname)
            yield frame
        frame = frame.f_back


def resolved(function: Any, parameter: inspect.Parameter, scope: Scope, role: str = "be a handler") -> Any:
    """Return a parameter's annotation with all strings in it evaluated.

    Raises:
        InvalidSettings: it cannot be evaluated, so that the function cannot have its role.
    """
    if parameter.annotation is parameter.empty:
        return parameter.empty
    try:
        return evaluated(parameter.name, parameter.annotation, scope)
    except Exception as error:  # evaluating an annotation runs the user's code
        raise InvalidSettings(
            f"{name_of(function)} cannot {role}: the annotation {shown(parameter.annotation)} of parameter "
            f"{parameter.name} cannot be resolved: {in_one_line(str(error), 80)}"
        ) from None


def evaluated(name: str, annotation: Any, scope: Scope) -> Any:
    """Return an annotation with its strings evaluated; that runs the user's code, which may raise anything."""
    alone = types.SimpleNamespace(__annotations__={name: annotation})
    return typing.get_type_hints(alone, scope.globals, scope.locals, include_extras=True)[name]


# Calls: a coroutine step by step, with the time of each step, or a plain function in its own thread


class Steps:
    """An awaitable coroutine that reports each long step: nothing else ran on the loop meanwhile.

    Args:
        coroutine: the handler's coroutine.
        blocked: called with the duration of a long step, in seconds.
        task: awaits it.

    Attributes:
        cut: whether the last cancellation came from outside, while the coroutine waited. A timeout of the coroutine's
            own counts as well, until it takes its cancellation back.
        began: start of the last step, in seconds of the loop's clock.
    """

    __slots__ = ("_blocked", "_coroutine", "_task", "began", "cut")

    def __init__(
        self, coroutine: Coroutine[Any, Any, Any], blocked: Callable[[float], None], task: asyncio.Task[Any] | None
    ) -> None:
        self._coroutine = coroutine
        self._task = task
        self._blocked = blocked
        self.cut = False
        self.began = 0.0

    def __await__(self) -> Generator[Any, Any, Any]:
        coroutine = self._coroutine
        time = asyncio.get_running_loop().time
        task = self._task
        assert task is not None
        error: BaseException | None = None
        while True:
            self.began = began = time()
            try:
                waits_for = coroutine.send(None) if error is None else coroutine.throw(error)
            except StopIteration as stop:
                return stop.value
            except GeneratorExit as raised:
                if isinstance(error, GeneratorExit):  # the loop is gone
                    raise
                raise _raised(raised) from raised
            finally:
                took = time() - began
                if took >= BLOCKED:
                    self._blocked(took)
            error = None
            cancelled_before = task.cancelling()
            try:
                yield waits_for
            except BaseException as thrown:
                error = thrown
                if isinstance(thrown, asyncio.CancelledError):
                    self.cut = task.cancelling() > cancelled_before


async def in_thread(function: Callable[[], Any], canceled: Callable[[], None]) -> Any:
    """Run a function in a daemon thread, wait for its end, and return its result.

    A thread cannot be ended, so a cancellation of the caller with a message, as the runner's, does not end the wait. A
    cancellation without a message comes from the end of the loop, which must not wait for a function that may never
    return.

    Args:
        function: the function; it runs in a copy of the caller's context.
        canceled: called for each cancellation of the caller.

    Raises:
        CancelledError: the loop ends.
        BaseException: the function's exception.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
    context = contextvars.copy_context()

    def tell(result: Any, error: BaseException | None) -> None:
        if not ended.done():
            ended.set_result((result, error))

    def work() -> None:
        result, error = None, None
        try:
            result = context.run(function)
        except BaseException as raised:  # SystemExit ends a thread in silence
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
            loop.call_soon_threadsafe(tell, result, error)

    # A daemon thread: a function that never returns must not keep the program from ending.
    threading.Thread(target=work, name="jobs_service handler", daemon=True).start()
    while not ended.done():
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError as cancellation:
            canceled()
            if not cancellation.args:
                raise
    result, failure = ended.result()
    if isinstance(failure, GeneratorExit):
        raise _raised(failure) from failure
    if failure is not None:
        raise failure
    return result


def _raised(error: GeneratorExit) -> RuntimeError:
    """Return the error for a handler that raised GeneratorExit, which tells a coroutine that it is being closed."""
    return RuntimeError(f"the handler raised {type(error).__name__}")


# The job of a plain function: its fields, and its operations as plain calls


class BlockingProgress(ProgressReport):
    """The `progress` of a BlockingJob: a value, and, when called, the operation as a plain call."""

    __slots__ = ("_blocking",)

    def __init__(self, blocking: BlockingJob) -> None:
        super().__init__(blocking._job)
        object.__setattr__(self, "_blocking", blocking)

    if TYPE_CHECKING:
        _blocking: BlockingJob

    def __call__(  # type: ignore[override]
        self, done: float, total: float | None = None, message: str = ""
    ) -> BlockingJob:
        """Report the job's progress; see RunningJob.progress."""
        return self._blocking.report(done, total, message)


class BlockingResubmit(ResubmitFlag):
    """The `resubmit` of a BlockingJob: a flag, and, when called, the operation as a plain call."""

    __slots__ = ("_blocking",)

    def __init__(self, blocking: BlockingJob) -> None:
        super().__init__(blocking._job)
        self._blocking = blocking

    def __call__(  # type: ignore[override]
        self, *, data: Any = UNSET, priority: Any = UNSET, run_at: Any = UNSET
    ) -> BlockingJob:
        """Ask for another run after this one; see RunningJob.resubmit."""
        return self._blocking._alive(lambda: self._job.resubmit(data=data, priority=priority, run_at=run_at))


class _Stop:
    """The end of a run, as its function is told: for all that a job's operations return, too."""

    __slots__ = ("announced", "has_heeded", "now")

    def __init__(self) -> None:
        self.announced = threading.Event()
        self.now = threading.Event()
        self.has_heeded = False


class BlockingJob(Job):
    """A running job for a plain function, which runs in its own thread.

    It has the operations of a RunningJob under the same names, as plain blocking calls.

    When the run must end, because the process is stopping or the job was canceled or lost, `stopping` turns true at
    once. A long computation checks it and returns None; then its job is released. If the process is stopping, the
    function may also complete within the handler's grace: its job ends when it returns another value, or has called
    `finish`. After the grace, and when the job was canceled or lost, each operation raises JobCanceled.

    Within a transaction function, and on the event loop, each operation raises instead of waiting for itself.
    """

    __slots__ = ("_calls", "_job", "_stop")

    def __init__(self, job: RunningJob, calls: LoopCalls | None, stop: _Stop | None = None) -> None:
        super().__init__(job.type, job.id, job._record)
        self._job = job
        self._calls = calls
        self._stop = _Stop() if stop is None else stop

    @property
    def stopping(self) -> bool:
        """Whether the function must return soon; if it returns None, its job is released and runs again."""
        return self._heeded(self._stop.announced.is_set())

    def wait_for_stop(self, timeout: Duration) -> bool:
        """Sleep; wake early when the function must return.

        Args:
            timeout: a duration.

        Returns:
            `stopping`.
        """
        return self._heeded(self._stop.announced.wait(check_duration("timeout", timeout, refused=JobsError)))

    @property
    def has_heeded(self) -> bool:
        """Whether the function has seen, by `stopping` or `wait_for_stop`, that it must return."""
        return self._stop.has_heeded

    def update(self, data: Any = UNSET) -> BlockingJob:
        """Show that the job is alive, and store new data if given; see RunningJob.update."""
        return self._alive(lambda: self._job.update(data))

    @property
    def lock(self) -> bytes:
        """The random bytes in the record that identify this worker as the job's owner."""
        return self._job.lock

    @property
    def progress(self) -> BlockingProgress:
        """The job's progress; call it to report more: see RunningJob.progress."""
        return BlockingProgress(self)

    @property
    def resubmit(self) -> BlockingResubmit:  # type: ignore[override]
        """Whether another run was requested; call it to request one: see RunningJob.resubmit."""
        return BlockingResubmit(self)

    def report(self, done: float, total: float | None = None, message: str = "") -> BlockingJob:
        """Report the job's progress: another name of `progress(...)`."""
        return self._alive(lambda: self._job.progress(done, total, message))

    def finish(
        self,
        data: Any = UNSET,
        *,
        outcome: Outcome = Outcome.SUCCEEDED,
        result: Any = UNSET,
        error: JobError | None = None,
    ) -> Job:
        """End this run; see RunningJob.finish."""
        return self._do(lambda: self._job.finish(data, outcome=outcome, result=result, error=error))

    @overload
    def finish_with(self, function: Callable[[Any], Awaitable[Job] | Job]) -> EndedJob[None]: ...

    @overload
    def finish_with(self, function: Callable[[Any], Awaitable[T]]) -> EndedJob[T]: ...

    @overload
    def finish_with(self, function: Callable[[Any], T]) -> EndedJob[T]: ...

    def finish_with(self, function: Callable[[Any], Any]) -> EndedJob[Any]:
        """Run a function and finish the job in one transaction; see RunningJob.finish_with.

        Args:
            function: a plain function, which takes a PlainJobTransaction, or a coroutine function.
        """
        return self._do(lambda: self._job.finish_with(either(function)))

    def release(self) -> Job:
        """Release the job unfinished; see RunningJob.release."""
        return self._do(self._job.release)

    def announce_stop(self) -> None:
        """Tell the function that it must return soon; its operations still work."""
        self._stop.announced.set()

    def stop(self) -> None:
        """Tell the function that it must return now; its operations fail from now on."""
        self._stop.now.set()
        self._stop.announced.set()

    def _heeded(self, stopping: bool) -> bool:
        self._stop.has_heeded = self._stop.has_heeded or stopping
        return stopping

    def _alive(self, operation: Callable[[], Coroutine[Any, Any, RunningJob]]) -> BlockingJob:
        return self._later(self._do(operation))

    def _later(self, job: RunningJob) -> BlockingJob:
        """Return the same job as it is now."""
        return BlockingJob(job, self._calls, self._stop)

    def _do(self, operation: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if self._heeded(self._stop.now.is_set()):
            raise self._stop_now()
        # It would wait for the loop, and the loop, or the store's thread, for the transaction function that called it.
        self._job._service()._check_caller()
        assert self._calls is not None
        return self._calls.call(operation)

    def _stop_now(self) -> JobCanceled:
        return JobCanceled(f"job {job_name(self.type, self.id)} is to stop: return now", type=self.type, id=self.id)
