"""Ends a command line: each error becomes one line on stderr and an exit code."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
import traceback
from collections.abc import Callable
from typing import Protocol, TextIO, TypeGuard

import typer

from jobs_service.names import printable, shown

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


def say(message: str) -> None:
    """Print a message as one line on stderr, with its line feeds replaced and its control characters escaped."""
    line = printable(re.sub(r"\s*\n\s*", " ", message.strip()))
    with contextlib.suppress(OSError):  # stderr has no reader any more.
        print(f"{PROGRAM}: {line}", file=sys.stderr, flush=True)


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
        return f"type {name} has no activity timeout; give it one: {PROGRAM} types set {name} SECONDS"
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
