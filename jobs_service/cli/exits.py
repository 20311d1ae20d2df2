"""How a command line ends: every error is one line on stderr and an exit code."""

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

from jobs_service.cli.names import printable, shown

PROGRAM = "jobs-service"

DONE = 0
NO = 1
USAGE = 2
STORE = 3
BUG = 70
OUTPUT = 74
INTERRUPTED = 130
BROKEN_PIPE = 141

_OF_WRITING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""What a verb meets only where it prints: files have names, and a store says such things in its own words."""


class AnswerIsNo(Exception):
    """The verb did what it was asked, and the answer is no. The message says which."""


class Refused(Exception):
    """What was asked cannot be done as it was given. The message says why."""


class Terminated(Exception):
    """A signal other than Ctrl-C asked the verb to end; it has put things in order.

    Attributes:
        code: the exit code, 128 plus the signal's number.
    """

    def __init__(self, code: int) -> None:
        super().__init__(f"ended by signal {code - 128}")
        self.code = code


class _OfTyper(Protocol):
    """An error of typer's. In one release their common class is click's, in another its own, with or without a name."""

    def format_message(self) -> str: ...


def say(message: str) -> None:
    """Print one line on stderr, whatever the message holds."""
    line = printable(re.sub(r"\s*\n\s*", " ", message.strip()))
    with contextlib.suppress(OSError):  # Then nobody is left to be told.
        print(f"{PROGRAM}: {line}", file=sys.stderr, flush=True)


def guard(invoke: Callable[[], None]) -> int:
    """Run a command line; return its exit code, and say in one line what went wrong."""
    try:
        try:
            invoke()
        finally:
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
        if isinstance(error, OSError) and error.filename is None and error.errno in _OF_WRITING:
            drop(sys.stdout)
            say(f"the output cannot be written: {error.strerror}")
            return OUTPUT
        return _report(error)
    return DONE


def wording(error: BaseException) -> str:
    """Return an error's message, with the command line's own means against it."""
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
    """Return file and line where an exception was raised, for a one-line report."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "an unknown place"


def _report(error: BaseException) -> int:
    code = _code(error)
    if _is_of_typer(error):
        # The library that checks arguments says what kind of error it raised; that is of no use to anybody.
        say(error.format_message().replace(": Value error, ", ": ", 1) + _help_hint(error))
    elif code == BUG:
        say(f"internal error, please report it: {type(error).__name__}: {error} at {place(error)}")
    else:
        say(wording(error))
    return code


def _code(error: BaseException) -> int:
    from jobs_service import errors

    if isinstance(error, Refused) or _is_of_typer(error):
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


def _is_of_typer(error: BaseException) -> TypeGuard[_OfTyper]:
    return callable(getattr(error, "format_message", None))


def _help_hint(error: object) -> str:
    context = getattr(error, "ctx", None)
    return f" (see {context.command_path} --help)" if context is not None else ""


def _leaf(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first exception in a group that is no group."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def drop(stream: TextIO) -> None:
    """Let what is still written to a stream go nowhere: nobody complains then, not even the interpreter at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
