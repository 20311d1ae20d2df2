"""The daemon of `serve`: loads an application's service, and runs it and its handlers until a signal arrives.

The end of a worker process of `serve --processes` is here as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import json
import os
import resource
import signal
import site
import socket
import sys
import sysconfig
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import structlog
import typer

from jobs_service import InvalidSettings, JobsService, JobType, Settings, sync
from jobs_service.cli import program
from jobs_service.errors import JobsError, a_kind_of
from jobs_service.names import one_line, printable, shown
from jobs_service.runner.commands import kill_all

if TYPE_CHECKING:
    from jobs_service import JobsService
    from jobs_service.http.server import Address, Server
    from jobs_service.outbox.relays import Relay
    from jobs_service.service.worker_processes import WorkerProcesses

HINT = "MODULE:ATTR"
_THIS_PACKAGE: Final = str(Path(__file__).parents[1])
_LONGEST_ERROR: Final = 200

GC_THRESHOLDS: Final = (20_000, 20, 20)
"""Jobs create and drop thousands of objects: with Python's default of 700, collections took a fifth of the time."""

LAST_GRACE: Final = 1.0
"""Seconds for threads and tasks left behind by handlers to end after the service is closed."""

NO_HANDLERS: Final = (
    "no job is run here, jobs are only watched over; name the service that has your handlers, jobs-service serve "
    "MODULE:ATTR, or have commands run, --commands"
)

log = structlog.get_logger("jobs_service.cli")


# The daemon


def serve(daemon: Daemon) -> int:
    """Run a service until SIGTERM or SIGINT; a second one ends the process at once, with exit code 128 + its number.

    On SIGHUP it reloads the settings. It logs `serving` (store, pid, types) when everything is ready, `draining`
    (signal), `stopped`, and after a SIGHUP `reloaded` or `reload_failed`. An error is one line on stderr.

    Returns:
        The exit code. If handlers have left threads or tasks behind, the process ends with it after LAST_GRACE.
    """
    gc.set_threshold(*GC_THRESHOLDS)
    threads = {*threading.enumerate()}
    parent = daemon.parent
    runner = asyncio.Runner()
    loop = runner.get_loop()

    def heed(number: signal.Signals) -> None:
        again = daemon.is_ending and number is not signal.SIGHUP
        if again and parent is not None and number is not signal.SIGQUIT:
            return  # a signal to all processes comes twice: the parent passes it on as well
        if loop.is_closed() or again or number is signal.SIGQUIT:
            kill_all()  # their jobs run again at once if another process uses the store
            os._exit(128 + number)
        if number is signal.SIGHUP:
            loop.call_soon_threadsafe(daemon.reload)
            return
        daemon.is_ending = True
        loop.call_soon_threadsafe(daemon.stop, number)

    def orphaned() -> None:
        heed(signal.SIGTERM)
        _later(daemon.patience(), lambda: os._exit(1))

    signals = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
    if parent is not None:
        signals.append(signal.SIGQUIT)
        parent.when_gone(orphaned)
    with program.in_thread(heed, *signals), runner:
        code = program.guard(lambda: runner.run(daemon.run()))
        left = {thread for thread in threading.enumerate() if not thread.daemon} - threads
        if left or asyncio.all_tasks(loop):
            _end_within(LAST_GRACE, code)
    return code


def serve_processes(processes: WorkerProcesses) -> int:
    """Run worker processes until SIGTERM or SIGINT, as `serve` runs a service. SIGHUP goes to all of them."""
    on_terminal = sys.stderr.isatty()

    def heed(number: signal.Signals) -> None:
        if number is signal.SIGHUP and not terminal_was_closed(on_terminal):
            processes.signal(number)
        elif processes.is_ending or loop.is_closed():
            processes.kill()
            os._exit(128 + number)
        else:
            loop.call_soon_threadsafe(processes.stop, number)

    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        with program.in_thread(heed, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            code: int = runner.run(processes.run())
    return code


def terminal_was_closed(was_there: bool) -> bool:
    """Return whether a SIGHUP means that the terminal was closed: Ctrl-C is impossible from now on."""
    if not was_there or os.isatty(sys.stderr.fileno()):
        return False
    program.drop(sys.stderr)
    return True


def _end_within(seconds: float, code: int) -> None:
    """End the process after some seconds if it has not ended by itself."""

    def end() -> None:
        log.warning("exit_forced", seconds=seconds)
        os._exit(code)

    _later(seconds, end)


def _later(seconds: float, end: Callable[[], object]) -> None:
    """Call a function that ends this process after some seconds, whatever the process does then."""
    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


class Daemon:
    """A service that runs until it is stopped.

    Args:
        service: the service, not open yet.
        types: the types of the handlers to run; None for all.
        max_jobs: most jobs that run at the same time; None for the number of the handlers' slots.
        http: the address of the HTTP server; None for no server.
        relays: of outboxes; they begin when the types of the handlers exist.
        parent: the parent of this worker process, which ends it by SIGTERM, at once by SIGQUIT, and by its own end.
            None for a daemon by itself.
        setup: called first in the processes of isolated handlers.

    Attributes:
        parent: as given.
        is_ending: whether a signal or a request has told it to end; the next signal ends it at once.
    """

    def __init__(
        self,
        service: JobsService,
        types: Sequence[JobType] | None,
        max_jobs: int | None,
        http: Address | None,
        relays: Sequence[Relay],
        parent: Parent | None,
        setup: Callable[[], object],
    ) -> None:
        self.parent = parent
        self._setup = setup
        self._service = service
        self._served = types
        self._max_jobs = max_jobs
        self._http = http
        self._relays = relays
        self._server: Server | None = None
        self.is_ending = False
        self._stop = asyncio.Event()
        self._on_terminal = sys.stderr.isatty()

    async def run(self) -> None:
        """Open the service, run its handlers until `stop`, and close it.

        Raises:
            StoreError: the store cannot be opened.
            SupervisorFailed: the tree, or the handlers' runner, gave up.
        """
        listed = self._service.listed(self._stop_on_request)
        async with self._service as jobs, listed, self._served_over_http(), asyncio.TaskGroup() as group:
            tasks: list[asyncio.Task[None]] = []

            def ready() -> None:
                tasks.extend(group.create_task(relay.run()) for relay in self._relays)
                self._ready()

            parent = self.parent
            if jobs.handlers and not (parent is not None and parent.orders["http"]):
                run = jobs.run(types=self._served, max_jobs=self._max_jobs, started=ready, setup=self._setup)
                tasks.append(group.create_task(run))
                if parent is not None and parent.is_limited:
                    tasks.append(group.create_task(parent.limits(jobs, self._stop_on_request)))
            else:
                if self._http is None and not self._relays:
                    log.warning("no_handlers", hint=NO_HANDLERS)
                ready()
            await self._stop.wait()
            # Waiting HTTP requests are answered at once, not after the end of the last handler.
            if self._server is not None:
                await self._server.end_waiting()
            for task in tasks:
                task.cancel()
        log.info("stopped")

    @asynccontextmanager
    async def _served_over_http(self) -> AsyncIterator[None]:
        """Run the HTTP server, if there is an address for it, while the block runs.

        Bulk actions are run with it or without, including unfinished ones of other processes.
        """
        if self._http is None:
            self._service.bulk_actions.start()
            yield
            return
        from jobs_service.http.server import serving

        async with serving(self._service, self._http) as server:
            self._server = server
            if self._on_terminal or (
                self.parent is not None and self.parent.orders["people"]
            ):  # elsewhere it would be kept in a log
                log.info("log_in", url=server.login_url())
            yield

    def stop(self, number: signal.Signals) -> None:
        """Let `run` end."""
        self._stop.set()
        log.info("draining", signal=number.name)

    def _stop_on_request(self) -> None:
        """Stop as on SIGTERM; a stop that has begun already goes on at its pace."""
        if not self.is_ending:
            self.is_ending = True
            self.stop(signal.SIGTERM)

    def patience(self) -> float:
        """Return the seconds in which it ends unless something blocks it: handlers end, are canceled, are stored."""
        return 3 * self._grace() + LAST_GRACE

    def reload(self) -> None:
        """Reload the settings; settings that cannot be read change nothing."""
        if terminal_was_closed(self._on_terminal):
            signal.raise_signal(signal.SIGTERM)
            return
        try:
            self._service.reload(Settings())
        except InvalidSettings as error:
            log.error("reload_failed", error=str(error))
        else:
            log.info("reloaded", types=self._types())

    def _grace(self) -> float:
        return max((handler.options.grace for handler in self._service.handlers.values()), default=0.0)

    def _ready(self) -> None:
        if self.parent is not None:
            self.parent.tell(store=self._service.store.location, types=self._types(), grace=self._grace())
            return
        log.info("serving", store=self._service.store.location, pid=os.getpid(), types=self._types())

    def _types(self) -> list[str]:
        return [shown(type) for type in self._service.handlers if self._served is None or type in self._served]


# The application


def load(name: str) -> JobsService:
    """Import a module, from the working directory first, and return the service in it.

    If the module raises, the traceback is printed without frames of installed code, and the error names it in one line.

    Args:
        name: `package.module:attribute`, or `package.module:object.attribute`.

    Raises:
        typer.BadParameter: there is no such module or attribute, or it is not a JobsService.
    """
    module_name, colon, path = name.partition(":")
    if not (module_name and colon and path) or module_name.startswith("."):
        raise typer.BadParameter(f"{name!r}; write it like package.module:jobs", param_hint=HINT)
    found: Any = _import(module_name)
    for attribute in path.split("."):
        try:
            found = getattr(found, attribute)
        except AttributeError:
            raise typer.BadParameter(f"module {module_name} has no {path}", param_hint=HINT) from None
        except JobsError:
            raise
        except Exception as error:  # an attribute can be the user's code
            raise _broken(module_name, error) from error
    if isinstance(found, sync.JobsService):
        found = found.asynchronous
    if not isinstance(found, JobsService):
        raise typer.BadParameter(f"{name} is {a_kind_of(found)}, not a JobsService", param_hint=HINT)
    return found


def _import(name: str) -> Any:
    directory = os.getcwd()
    if directory not in sys.path:
        sys.path.insert(0, directory)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise typer.BadParameter(f"there is no module {name}", param_hint=HINT) from None
        raise _broken(name, error) from error
    except (Exception, SystemExit) as error:  # Any error in the user's code is shown to the user.
        raise _broken(name, error) from error


def _broken(name: str, error: BaseException) -> typer.BadParameter:
    _print_traceback(error)
    said = one_line(f"{type(error).__name__}: {error}".removesuffix(": "), _LONGEST_ERROR)
    return typer.BadParameter(f"importing {name} failed at {_place(error)}: {said}", param_hint=HINT)


def _print_traceback(error: BaseException) -> None:
    """Print an error's traceback on stderr, without frames of installed packages, of Python and of this package."""
    described = traceback.TracebackException.from_exception(error)
    for each in _with_causes(described):
        # Code that cannot be compiled has not run; the error itself names its line.
        each.stack[:] = [] if isinstance(error, SyntaxError) else _of_the_user(each.stack)
    for part in described.format():
        for line in part.rstrip("\n").split("\n"):
            print(printable(line), file=sys.stderr)
    sys.stderr.flush()


def _place(error: BaseException) -> str:
    """Return the file and line of the user's code that raised an error."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = _of_the_user(traceback.extract_tb(error.__traceback__))
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "an unknown place"


def _with_causes(described: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    yield described
    for other in (described.__cause__, described.__context__, *(described.exceptions or ())):
        if other is not None:
            yield from _with_causes(other)


def _of_the_user(frames: Iterable[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """Return the frames of the user's own files; if there are none, the frames of libraries."""
    paths = (*site.getsitepackages(), sysconfig.get_paths()["stdlib"])
    called = [frame for frame in frames if not frame.filename.startswith(("<", _THIS_PACKAGE))]
    return [frame for frame in called if not frame.filename.startswith(paths)] or called


# A worker process of `serve --processes`: this end of its socket to its parent, and its limits


_LOOK: Final = 1.0
"""Seconds between two looks at the limits."""
_LONGEST_LEAVING: Final = 3600.0
"""Seconds that a replaced worker has for the jobs that it runs; then they get their grace."""


def main(descriptor: int) -> None:
    """Be a worker whose parent is at the other end of a socket."""
    parent = Parent(descriptor)
    sys.path[:] = parent.orders["path"]
    sys.exit(program.guard(lambda: _work(parent)))


def _work(parent: Parent) -> NoReturn:
    from jobs_service.cli.verbs.serve import work

    raise typer.Exit(work(parent.orders["options"], parent))


class Parent:
    """The parent of this process.

    Attributes:
        orders: `path` (of modules), `options` (of `serve`), `http` (whether this is the process of the HTTP server),
            `people` (whether people read the log), `most_jobs` and `most_memory`: its limits, or None.
    """

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        with self._socket.makefile("rb") as file:
            self.orders: dict[str, Any] = json.loads(file.readline())

    def tell(self, **said: Any) -> None:
        """Tell it something; from the loop's thread."""
        with contextlib.suppress(OSError):
            self._socket.sendall(json.dumps(said).encode() + b"\n")

    def when_gone(self, react: Callable[[], None]) -> None:
        """Call a function in a thread of its own when the parent has ended."""

        def wait() -> None:
            with contextlib.suppress(OSError):
                self._socket.recv(1)
            react()

        threading.Thread(target=wait, name="parent", daemon=True).start()

    @property
    def is_limited(self) -> bool:
        """Whether this process is to be replaced one day."""
        return self.orders["most_jobs"] is not None or self.orders["most_memory"] is not None

    async def limits(self, service: JobsService, stop: Callable[[], None]) -> None:
        """Wait until this process reaches a limit; then take no more jobs, and stop when those that run have ended."""
        loop = asyncio.get_running_loop()
        while not (why := self._limit_reached(service)):  # noqa: ASYNC110 - memory has no event
            await asyncio.sleep(_LOOK)
        if id := service.process_id:
            with contextlib.suppress(JobsError):  # it ends all the same
                await service.quiet_process(id)
        self.tell(leaving=why)
        latest = loop.time() + _LONGEST_LEAVING
        while id and loop.time() < latest and any(use.busy for use in service.slot_uses().values()):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK)
        stop()

    def _limit_reached(self, service: JobsService) -> str:
        jobs, memory = self.orders["most_jobs"], self.orders["most_memory"]
        ended = sum(use.ended for use in service.slot_uses().values())
        if jobs is not None and ended >= jobs:
            return f"it has run {ended} jobs"
        if memory is not None and (used := _memory()) >= memory:
            return f"it has {used} bytes of memory"
        return ""


def _memory() -> int:
    """Return the bytes of memory that this process has; where the system does not tell, the most that it had."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize()
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
