"""The processes of isolated handlers from their own side: the nursery that forks them, and each of them at its work.

The nursery has one thread, and waits for its socket and for its children only. So it kills them all when the socket's
other end is gone, whatever they do. `process_pool.py` is the other end of both connections.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import importlib
import os
import pickle
import resource
import select
import signal
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias, TypeVar

from structlog.contextvars import bound_contextvars

from jobs_service.arguments import check_duration, json_of
from jobs_service.durations import Duration
from jobs_service.errors import (
    Discard,
    InvalidJob,
    JobCanceled,
    JobsError,
    JobTooLarge,
    Retry,
    Snooze,
    WorkerConflict,
    job_name,
    wait_of,
)
from jobs_service.model import EndedJob, Job, JobError, JobType, RunningJob
from jobs_service.model.job import JobId, JobRecord
from jobs_service.runner.execution import is_about, unfit
from jobs_service.runner.functions import BlockingJob
from jobs_service.runner.handler import Handler
from jobs_service.runner.run import decisive, describe, leaves

T = TypeVar("T")

UNIT: Final = struct.Struct(">cIi")
"""A message between the runner and the nursery: its kind, and two numbers."""
FORK, KILL = b"F", b"K"
READY, ENDED = b"R", b"E"
NO_CODE: Final = 1 << 30
"""The exit code of a process that could not be forked, or whose nursery has ended."""

SIZE: Final = struct.Struct(">I")
"""The head of a message between the runner and a process: its length. The rest is a pickle."""

_LARGEST: Final = 4_000_000
"""Most bytes of what a function may send: more than any store takes, and little beside what the runner has."""

_STEP: Final = 0.5
"""Most seconds until a thread that outlives its run learns that it is over."""

THREADED: Final = 75
"""The nursery's exit code when the application has threads: forks would have copies of their locks without them."""

_SET_DEATH_SIGNAL: Final = 1
_SET_SUBREAPER: Final = 36


Place: TypeAlias = tuple[JobType, str, str]
"""A handler's type, and module and name of its function."""


class Orders(NamedTuple):
    """The nursery's orders.

    Attributes:
        path: its `sys.path`.
        places: of the handlers.
        setup: a pickled function to call first, or None.
        preload: whether to import the application before the first fork. Otherwise each process does it.
    """

    path: list[str]
    places: list[Place]
    setup: bytes
    preload: bool


def frame(message: object) -> bytes:
    """Return a message to or from a process, with its head."""
    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return SIZE.pack(len(body)) + body


def parts(job: Job) -> tuple[JobType, JobId, JobRecord]:
    """Return a job in parts that can be pickled."""
    return job.type, job.id, job._record


# The nursery


def main(descriptor: int) -> None:
    """Be the nursery at the other end of a socket."""
    with socket.socket(fileno=descriptor) as control:
        orders = _received(control)
        assert isinstance(orders, Orders)
        sys.path[:] = orders.path
        for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # Whoever signals all processes of a service means its runner, which ends these. Programs that they start
            # get the signals' defaults back.
            signal.signal(each, lambda *_: None)
        setup = pickle.loads(orders.setup)
        if setup is not None:
            setup()
        if orders.preload:
            _find(orders.places)
            if _has_threads():
                sys.exit(THREADED)
        with contextlib.suppress(ConnectionError):
            _Nursery(control, orders.places).run()


def _has_threads() -> bool:
    try:
        return len(os.listdir("/proc/self/task")) > 1
    except OSError:
        return threading.active_count() > 1


@functools.cache
def _handler(type: JobType, module: str, name: str) -> Handler[Any, Any]:
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return Handler(type, found)


def _find(places: list[Place]) -> None:
    """Import handlers, as far as that is possible: each job of another one will tell."""
    for place in places:
        with contextlib.suppress(BaseException):
            _handler(*place)


class _Nursery:
    def __init__(self, control: socket.socket, places: list[Place]) -> None:
        self._control = control
        self._places = places
        # Numbers by process ids.
        self._children: dict[int, int] = {}
        self._prctl: Callable[..., int] | None = getattr(ctypes.CDLL(None), "prctl", None)

    def run(self) -> None:
        """Obey until the socket's other end is gone, then kill all processes."""
        control = self._control.fileno()
        woken, wakes = os.pipe()
        os.set_blocking(wakes, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        try:
            self._tell(READY)
            while True:
                readable, _, _ = select.select([control, woken], [], [])
                if woken in readable:
                    os.read(woken, 1 << 12)
                    self._reap()
                if control in readable and not self._obey():
                    break
        finally:
            for pid in self._children:
                _kill(pid)

    def _obey(self) -> bool:
        data, descriptors, _, _ = socket.recv_fds(self._control, UNIT.size, 2)
        if not data:
            return False
        kind, number, _ = UNIT.unpack(data)
        if kind == FORK:
            self._fork(number, *descriptors)
        for pid, each in self._children.items():
            if kind == KILL and each == number:
                _kill(pid)
        return True

    def _fork(self, number: int, channel: int, crash: int) -> None:
        nursery = os.getpid()
        try:
            pid = os.fork()
        except OSError:
            self._tell(ENDED, number, NO_CODE)
        else:
            if not pid:
                self._be_born(nursery, channel, crash)
            self._children[pid] = number
        os.close(channel)
        os.close(crash)

    def _be_born(self, nursery: int, channel: int, crash: int) -> NoReturn:
        """Be a process, from its fork to its end."""
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._control.close()
            os.setsid()
            if self._prctl is not None:
                self._prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
                self._prctl(_SET_SUBREAPER, 1)  # it gets its children's orphans, and so sees that there are some
            if os.getppid() == nursery:
                faulthandler.enable(crash)
                _Process(socket.socket(fileno=channel), self._places).run()
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(0)

    def _reap(self) -> None:
        """Note the ends of processes; the rest of their groups ends with them."""
        while self._children:
            if hasattr(os, "waitid"):
                # Until it is waited for, its number cannot become that of another group.
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if found is None:
                    return
                _kill(found.si_pid)
                pid, status = os.waitpid(found.si_pid, 0)
            else:  # macOS with Python before 3.13
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                _kill(pid)
            self._tell(ENDED, self._children.pop(pid), os.waitstatus_to_exitcode(status))

    def _tell(self, kind: bytes, number: int = 0, value: int = 0) -> None:
        self._control.sendall(UNIT.pack(kind, number, value))


def _kill(pid: int) -> None:
    """Kill a process, and its group if it has made one."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


# A process


class _Channel:
    """The connection to the runner for one run: for the thread of its function, and for threads that it starts.

    Those may outlive the run, and its process then runs another job. So nothing is sent or read for this one any more
    once it is over. Neither is for a fork of the process, which has the same connection.

    Args:
        connection: the connection.
        lock: held by the thread that reads; between two runs by that of the functions.
        about: the job, for errors.

    Attributes:
        is_announced: whether the function must return soon.
        is_stopped: whether its operations fail from now on.
    """

    def __init__(self, connection: socket.socket, lock: threading.Lock, about: tuple[JobType, JobId]) -> None:
        self._connection = connection
        self._lock = lock
        self._about = about
        self._pid = os.getpid()
        self._is_over = False
        self.is_announced = self.is_stopped = False

    def end(self) -> None:
        """Note the end of the run, and keep the lock."""
        self._lock.acquire()
        self._is_over = True

    def ask(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """Have the runner do an operation on the job; return the job as it is now."""
        try:
            question = frame(("ask", name, arguments))
        except Exception as error:
            raise InvalidJob(f"a value that cannot be sent to another process: {error}") from None
        if len(question) > _LARGEST:
            raise _too_large(len(question))
        self._check()
        with self._lock:
            self._check()
            self._connection.sendall(question)
            while (message := self._noted()) is None:
                pass
        _, refusal, *done = message
        if refusal is not None:
            raise refusal
        return done

    def _check(self) -> None:
        type, id = self._about
        if os.getpid() != self._pid:
            raise JobsError(f"job {job_name(type, id)}: its operations are for its own process, not for forks of that")
        if self._is_over:
            raise WorkerConflict(f"job {job_name(type, id)}: its function has returned", type=type, id=id)

    def poll(self, seconds: float = 0.0) -> bool:
        """Wait at most so many seconds for the function's stop; return whether it must return soon."""
        until = monotonic() + seconds
        while not self.is_announced and not self._is_over and os.getpid() == self._pid:
            left = max(until - monotonic(), 0.0)
            # Without the lock: other threads may ask meanwhile. In steps: no message comes when the run is over.
            if not select.select([self._connection], [], [], min(left, _STEP))[0]:
                if left > _STEP:
                    continue
                break
            if not self._lock.acquire(timeout=left):
                break
            try:
                if not self._is_over and select.select([self._connection], [], [], 0)[0]:
                    self._noted()
            finally:
                self._lock.release()
        return self.is_announced or self._is_over

    def _noted(self) -> Any:
        """Return the next message if it is an answer; note any other one, and return None."""
        message = _received(self._connection)
        if message is None:
            os._exit(1)  # the runner is gone
        if message[0] == "answer":
            return message
        self.is_announced = True
        self.is_stopped = self.is_stopped or message[0] == "stop"
        return None


def _too_large(size: int) -> JobTooLarge:
    return JobTooLarge(f"a value of {size} bytes; no store takes that much")


class _Operations:
    """The worker of a job in a process of its own: the service beside the runner executes the operations."""

    def __init__(self, channel: _Channel) -> None:
        self.channel = channel
        self.has_ended = False

    async def _update(self, job: RunningJob, *arguments: Any) -> RunningJob:
        return self._running("_update", arguments)

    async def _progress(self, job: RunningJob, *arguments: Any) -> RunningJob:
        return self._running("_progress", arguments)

    async def _resubmit(self, job: RunningJob, *arguments: Any) -> RunningJob:
        return self._running("_resubmit", arguments)

    async def _finish(self, job: RunningJob, *arguments: Any) -> Job:
        return self._ended("_finish", arguments)

    async def _release(self, job: RunningJob) -> Job:
        return self._ended("_release", ())

    async def _finish_with(self, job: RunningJob, function: Callable[[Any], Any]) -> EndedJob[Any]:
        raise JobsError(
            "finish_with runs its function in a transaction beside the store, and an isolated handler is in a process "
            "of its own: return the result, or register the handler without isolated=True"
        )

    def _result_data(self, result: Any) -> Any:
        return result  # the runner encodes it

    def _ending(self, job: RunningJob, whether: bool) -> None:
        """Nothing: the runner's own worker observes the operation."""

    def _check_caller(self) -> None:
        """Nothing: there is no event loop here."""

    def _running(self, name: str, arguments: tuple[Any, ...]) -> RunningJob:
        type, id, record = self.channel.ask(name, arguments)
        return RunningJob(type, id, record, self)

    def _ended(self, name: str, arguments: tuple[Any, ...]) -> Job:
        ended = Job(*self.channel.ask(name, arguments))
        self.has_ended = True
        return ended


class IsolatedJob(BlockingJob):
    """A BlockingJob in a process of its own."""

    __slots__ = ("_channel",)

    def __init__(self, job: RunningJob, channel: _Channel) -> None:
        super().__init__(job, None)
        self._channel = channel

    @property
    def stopping(self) -> bool:
        """See BlockingJob."""
        return self._heeded(self._channel.poll())

    def wait_for_stop(self, timeout: Duration) -> bool:
        """See BlockingJob."""
        seconds = check_duration("timeout", timeout, refused=JobsError)
        assert seconds is not None
        return self._heeded(self._channel.poll(seconds))

    def _later(self, job: RunningJob) -> IsolatedJob:
        later = IsolatedJob(job, self._channel)
        later._stop = self._stop
        return later

    def _do(self, operation: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self._channel.poll()
        if self._heeded(self._channel.is_stopped):
            raise self._stop_now()
        try:
            operation().send(None)
        except StopIteration as done:
            result: T = done.value
            return result
        raise AssertionError("an operation has waited for a loop")


class _Process:
    def __init__(self, connection: socket.socket, places: list[Place]) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._places = places
        self._pid = os.getpid()

    def run(self) -> None:
        """Run the functions of jobs until the other end is gone."""
        self._lock.acquire()
        _find(self._places)
        self._tell("ready")
        while (message := _received(self._connection)) is not None:
            if message[0] == "run":  # any other message between two jobs was about the former one
                self._run(*message[1:])

    def _run(self, number: int, type: JobType, id: JobId, record: JobRecord, memory: int | None) -> None:
        channel = _Channel(self._connection, self._lock, (type, id))
        operations = _Operations(channel)
        self._lock.release()
        with bound_contextvars(job_type=type, job_id=id):
            said = self._outcome(number, RunningJob(type, id, record, operations), operations, memory)
        if os.getpid() != self._pid:
            os._exit(said[0] != "returned")  # a fork that the function has made, and that has returned from it as well
        channel.end()
        # A process that has children, or has used up its memory, is not for other jobs.
        self._tell(*said, not _has_children() and (memory is None or said[0] == "returned"))

    def _tell(self, *message: Any) -> None:
        self._connection.sendall(frame(message))

    def _outcome(self, number: int, job: RunningJob, operations: _Operations, memory: int | None) -> tuple[Any, ...]:
        blocking = IsolatedJob(job, operations.channel)
        try:
            handler = _handler(*self._places[number])
            with _limited(memory):
                result = handler.call(blocking, handler.codec.decode(job.data) if handler.takes_args else None)
                if operations.has_ended and isinstance(result, Job):
                    result = None
                try:
                    json = b"" if result is None else json_of(job.type, job.id, handler.results.encode(result))
                    assert json is not None
                    if len(json) > _LARGEST:
                        raise _too_large(len(json))
                except MemoryError:
                    raise
                except BaseException as error:
                    return "raised", Discard(""), JobError(InvalidJob.__name__, str(unfit(result, error)), "")
        except BaseException as error:
            return "raised", *_sendable(error, job, memory)
        return "returned", json, blocking.has_heeded


@contextmanager
def _limited(memory: int | None) -> Iterator[None]:
    """Limit this process to so many bytes more than it has; children that it starts inherit the limit."""
    if memory is None:
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with open("/proc/self/statm", "rb") as statm:
        used = int(statm.read().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + memory, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _sendable(raised: BaseException, job: RunningJob, memory: int | None) -> tuple[JobsError, JobError]:
    """Return an exception for the runner that means as much as the raised one, and the stored form of that."""
    own = [each for each in leaves(raised) if isinstance(each, JobsError) and is_about(each, job)]
    error = decisive(raised)
    standing = JobsError("")
    try:
        if isinstance(error, Retry):
            standing = Retry(wait_of(error))
        elif isinstance(error, Snooze):
            standing = Snooze(wait_of(error) or 0.0)
        elif isinstance(error, Discard):
            standing = Discard("")
    except InvalidJob as refused:
        error = refused
    for kind in (JobCanceled, WorkerConflict):
        if any(isinstance(each, kind) for each in own):
            standing = kind("", type=job.type, id=job.id)
    described = describe(error)
    if isinstance(error, MemoryError) and memory is not None:
        reason = f"it needed more than its memory_limit of {memory} bytes"
        described = JobError(described.type, reason, described.traceback)
    return standing, described


def _has_children() -> bool:
    """Whether the job has left children that still run."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _received(connection: socket.socket) -> Any:
    """Return the next message; None when the other end is gone."""
    with contextlib.suppress(EOFError, ConnectionError):
        [size] = SIZE.unpack(_exactly(connection, SIZE.size))
        return pickle.loads(_exactly(connection, size))
    return None


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        if not chunk:
            raise EOFError
        data = data + chunk if data else chunk
    return data
