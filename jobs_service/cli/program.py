"""Runs a verb: on an open service, with errors as one line on stderr and an exit code, and with signals heeded."""

from __future__ import annotations

import errno
import os
import re
import signal
import socket
import stat
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO, TypeAlias, TypeGuard, TypeVar

import typer

from jobs_service.names import printable, shown
from jobs_service.sources import Sources

if TYPE_CHECKING:
    from jobs_service import JobsService, JobTransaction
    from jobs_service.store import Store

PROGRAM = "jobs-service"

DONE = 0
NO = 1
USAGE = 2
STORE = 3
BUG = 70
OUTPUT = 74
INTERRUPTED = 130
BROKEN_PIPE = 141

_OUTPUT_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""Without a file's name they come from printing only: errors of files have one, and stores raise their own errors."""

React: TypeAlias = Callable[[signal.Signals], None]

T = TypeVar("T")


# The store


def _given(context: typer.Context | None) -> Iterator[str | None]:
    while context is not None:
        yield context.params.get("store")
        context = context.parent  # type: ignore[assignment]


def chosen_store(context: typer.Context) -> str:
    """Return the store's address: the verb's option, else the option before the verb, the variable or the default."""
    from jobs_service.service import DEFAULT_STORE
    from jobs_service.settings import STORE_VARIABLE

    return next(filter(None, _given(context)), None) or os.environ.get(STORE_VARIABLE) or DEFAULT_STORE


def refuse_store(context: typer.Context, why: str) -> None:
    """Refuse `--store` for a verb that would not use it.

    Raises:
        typer.BadParameter: the option was given, before the verb or after it.
    """
    if any(store is not None for store in _given(context)):
        raise typer.BadParameter(why, param_hint="--store")


def own_store(application: str) -> str:
    """Return why `--store` is refused beside an application."""
    return f"{application} brings its own store; JOBS_SERVICE_STORE is that of a JobsService() without an address"


def run(
    context: typer.Context,
    body: Callable[[JobsService], Coroutine[Any, Any, T]],
    *,
    rehearsal: Callable[[JobsService], Coroutine[Any, Any, object]] | None = None,
    supervise: bool = False,
) -> T:
    """Open the service, run a verb's body with it, close the service, and return the body's result.

    Args:
        context: the verb's context, which has its `--store`.
        body: called with the open service.
        rehearsal: run first on a memory store if the embedded store does not exist, so that a refused operation leaves
            no empty store behind. None if the body must not make a store: then the store must exist.
        supervise: whether to run the supervisor tree, which subscriptions need.

    Raises:
        StoreError: the store does not exist, or it cannot be opened.
    """
    return run_at(chosen_store(context), body, rehearsal=rehearsal, supervise=supervise)


def run_at(
    address: str,
    body: Callable[[JobsService], Coroutine[Any, Any, T]],
    *,
    rehearsal: Callable[[JobsService], Coroutine[Any, Any, object]] | None = None,
    supervise: bool = False,
) -> T:
    """Do the same as `run` for a store's address."""
    import asyncio

    if rehearsal is None:
        require_store(address)
    elif missing_store(address) is not None:
        asyncio.run(_within(imitated(address), rehearsal, supervise=False))
    return asyncio.run(_within(address, body, supervise))


async def _within(store: str | Store, body: Callable[[JobsService], Coroutine[Any, Any, T]], supervise: bool) -> T:
    from jobs_service import JobsService
    from jobs_service.cli.logging import configure

    configure("warning")
    async with JobsService(store, supervise=supervise) as jobs:
        return await body(jobs)


def require_store(address: str) -> None:
    """Raise StoreError if the address names an embedded store that does not exist."""
    from jobs_service.errors import StoreError
    from jobs_service.settings import STORE_VARIABLE

    path = missing_store(address)
    if path is not None:
        raise StoreError(
            f"there is no store at {path}; name another with --store or {STORE_VARIABLE}, "
            "or make this one: jobs-service types set TYPE SECONDS"
        )


def missing_store(address: str) -> str | None:
    """Return the path of an embedded store that does not exist; None if the store exists or is of another kind."""
    scheme, _, path = address.partition(":")
    if scheme == "sqlite" and path:
        return None if Path(path).exists() else path
    if scheme != "lmdb" or not path or Path(path).is_file() or Path(path, "data.mdb").exists():
        return None
    return path


def imitated(address: str) -> Store:
    """Return a memory store with the limits and the address of the store at an address."""
    from jobs_service.settings import Settings
    from jobs_service.store import open_address
    from jobs_service.store.memory import MemoryStore

    settings, sources = Settings(), Sources()
    store = MemoryStore(settings=settings, sources=sources)
    store.limits = open_address(address, settings, sources).limits
    store.address = address
    return store


# The user


def user() -> str:
    """Return the name of the user on this machine."""
    import getpass
    import socket

    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a user id without a name
        user = "somebody"
    return f"{user}@{socket.gethostname()}"


# Types


async def change_type(jobs: JobsService, type: Any, change: Callable[[JobTransaction], Awaitable[None]]) -> None:
    """Change a type, and check in the same transaction that it exists.

    Raises:
        AnswerIsNo: there is no such type.
    """

    async def work(tx: JobTransaction) -> None:
        if not await exists(tx, type):
            raise AnswerIsNo(f"there is no type {shown(type)}")
        await change(tx)

    await jobs.transact(work)


async def require_type(jobs: JobsService, type: Any) -> None:
    """Raise AnswerIsNo if there is no such type."""

    async def nothing(_: JobTransaction) -> None:
        pass

    await change_type(jobs, type, nothing)


async def exists(tx: JobTransaction, type: Any) -> bool:
    """Return whether the type exists: it has an activity timeout or jobs, or it is paused."""
    from jobs_service import NoTypeTimeout

    try:
        await tx.get_type_timeout(type)
    except NoTypeTimeout:
        if await tx.paused(type):
            return True
        async for _ in tx.list(type, page_size=1):
            return True
        return False
    return True


async def ensure_type(tx: JobTransaction, type: Any, timeout: float) -> None:
    """Give a type this activity timeout, in seconds, unless it has one."""
    from jobs_service import NoTypeTimeout

    try:
        await tx.get_type_timeout(type)
    except NoTypeTimeout:
        await tx.set_type_timeout(type, timeout)


# Errors and exit codes


class AnswerIsNo(Exception):
    """The verb has done its work, and the answer is no; the message says why."""


class Refused(Exception):
    """The verb cannot do this with the given input; the message says why."""


class Terminated(Exception):
    """A signal other than Ctrl-C has ended the verb, which has cleaned up.

    Attributes:
        code: the exit code, 128 plus the signal's number.
    """

    def __init__(self, code: int) -> None:
        super().__init__(f"ended by signal {code - 128}")
        self.code = code


class _TyperError(Protocol):
    """An error that typer raises. Their common base class differs between typer's releases, and may be private."""

    def format_message(self) -> str: ...


def guard(invoke: Callable[[], None]) -> int:
    """Run a command line and return its exit code; print an error as one line on stderr."""
    try:
        try:
            invoke()
        finally:
            _flush_log()
            sys.stdout.flush()
    except typer.Exit as ended:
        return ended.exit_code
    except Terminated as ended:
        return ended.code
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        drop(sys.stdout)
        return BROKEN_PIPE
    except BaseExceptionGroup as group:
        return _report(_leaf(group))
    except Exception as error:
        if isinstance(error, OSError) and error.filename is None and error.errno in _OUTPUT_ERRORS:
            drop(sys.stdout)
            say(f"the output cannot be written: {error.strerror}")
            return OUTPUT
        return _report(error)
    return DONE


def say(message: str) -> None:
    """Print a message as one line on stderr, with its line feeds replaced and its control characters escaped."""
    line = printable(re.sub(r"\s*\n\s*", " ", message.strip()))
    with suppress(OSError):  # stderr has no reader any more.
        print(f"{PROGRAM}: {line}", file=sys.stderr, flush=True)


def _flush_log() -> None:
    """Flush the log; a full disk must not change the exit code."""
    try:
        sys.stderr.flush()
    except OSError:
        drop(sys.stderr)


def wording(error: BaseException) -> str:
    """Return an error's message, with a helpful command or option."""
    from jobs_service.errors import JobExists, JobNotFound, NoTypeTimeout

    if isinstance(error, NoTypeTimeout):
        name = shown(error.type)
        return f"there is no type {name}: the start of its handler makes it, or {PROGRAM} types set {name} SECONDS"
    if isinstance(error, JobExists):
        return f"job {shown(error.id)} of type {shown(error.type)} exists already; --resubmit has it run again"
    if isinstance(error, JobNotFound):
        return f"there is no job {shown(error.id)} of type {shown(error.type)}"
    return str(error) or type(error).__name__


def place(error: BaseException) -> str:
    """Return the file and line that raised an exception, for a one-line report."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "an unknown place"


def _report(error: BaseException) -> int:
    code = _code(error)
    if _is_typer_error(error):
        # Validation puts the useless words "Value error" before the message.
        say(error.format_message().replace(": Value error, ", ": ", 1) + _help_hint(error))
    elif code == BUG:
        say(f"internal error, please report it: {type(error).__name__}: {error} at {place(error)}")
    else:
        say(wording(error))
    return code


def _code(error: BaseException) -> int:
    from jobs_service import errors

    if isinstance(error, Refused) or _is_typer_error(error):
        return USAGE
    if isinstance(error, AnswerIsNo | TimeoutError):
        return NO
    if isinstance(error, errors.InvalidJob | errors.JobTooLarge | errors.TransactionTooLarge):
        return USAGE
    if isinstance(error, errors.InvalidSettings | errors.InvalidAddress):
        return USAGE
    if isinstance(error, errors.StoreError | errors.SupervisorFailed):
        return STORE
    if isinstance(error, errors.JobsError):
        return NO
    if isinstance(error, OSError):
        return STORE
    return BUG


def _is_typer_error(error: BaseException) -> TypeGuard[_TyperError]:
    return callable(getattr(error, "format_message", None))


def _help_hint(error: object) -> str:
    context = getattr(error, "ctx", None)
    return f" (see {context.command_path} --help)" if context is not None else ""


def _leaf(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first exception of a group, and of groups in it."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def drop(stream: TextIO) -> None:
    """Send all further output of a stream to /dev/null, so that no write fails, not even the flush at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


# Signals and pipes


@asynccontextmanager
async def while_read() -> AsyncIterator[None]:
    """End the block when standard output is a pipe that has lost its reader, even while there is nothing to print.

    Raises:
        BrokenPipeError: the pipe has no reader any more.
    """
    import asyncio

    try:
        output = sys.stdout.fileno()
        is_pipe = stat.S_ISFIFO(os.fstat(output).st_mode)
    except (OSError, ValueError):  # stdout has no descriptor, as in tests
        is_pipe = False
    if not is_pipe:
        yield
        return
    loop = asyncio.get_running_loop()

    def end() -> None:
        loop.remove_reader(output)
        scope.reschedule(loop.time())

    scope = asyncio.timeout(None)
    try:
        async with scope:
            # The writing end of a pipe never has data to read; it becomes readable when the reading end is closed.
            loop.add_reader(output, end)
            try:
                yield
            finally:
                loop.remove_reader(output)
    except TimeoutError:
        if scope.expired():
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) from None
        raise


@contextmanager
def in_thread(react: React, *signals: signal.Signals) -> Iterator[None]:
    """While the block runs, call `react` in a thread of its own with each of these signals on its arrival.

    The call comes even while the event loop is blocked. Python's own handlers run in the main thread, which does not
    wake up if the system delivers the signal to another thread.
    """
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    thread = threading.Thread(target=_heed, args=(ours, react, frozenset(signals)), name="signals", daemon=True)
    thread.start()
    # Python writes the number of each signal that has a handler to this descriptor at once.
    before_fd = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    before = {number: signal.signal(number, lambda *_: None) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(before_fd)
        theirs.close()
        thread.join()
        ours.close()


def _heed(source: socket.socket, react: React, signals: frozenset[signal.Signals]) -> None:
    while numbers := source.recv(64):
        for number in numbers:
            if number in signals:
                react(signal.Signals(number))
