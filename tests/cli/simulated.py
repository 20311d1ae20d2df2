"""A verb of the command line in a simulated process: all of its code runs, but the service is the process's own.

A verb is code that blocks while its part with the service runs. So it has a thread of its own, which stands still while
the loop goes on, and the other way around: there is never a choice of who runs.
"""

from __future__ import annotations

import functools
import io
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, Final, NamedTuple
from unittest import mock

import typer.main

from jobs_service import JobsError, JobsService, StoreError, SupervisorFailed
from jobs_service.cli import app, program
from jobs_service.errors import InvalidJob, JobTooLarge, TransactionTooLarge

_USAGE: Final = (InvalidJob, JobTooLarge, TransactionTooLarge)
_STORE: Final = (StoreError, SupervisorFailed)


class Answer(NamedTuple):
    """What came of a command line.

    Attributes:
        code: it has exited with.
        out: what it has printed.
        err: what it has printed on stderr.
        value: what its part with the service has returned; None if that failed.
        error: what that part has raised.
    """

    code: int
    out: str
    err: str
    value: Any
    error: Exception | None

    def complaint(self) -> str | None:
        """Return what is wrong with how it has ended, whatever it was to do: its exit code, or what it has said.

        docs/command-line.md has the exit codes; an error is one line on stderr, and nothing else is there.
        """
        wanted = _code_of(self.error)
        if self.code != wanted:
            return f"exited with {self.code}, not {wanted}, after {self.error!r}: {self.err!r}"
        lines = self.err.splitlines()
        is_told = len(lines) == 1 and lines[0].startswith(f"{program.PROGRAM}: ")
        if self.err if self.code == program.DONE else not is_told:
            return f"exited with {self.code} and said {self.err!r}"
        return None


async def command_line(jobs: JobsService, arguments: Sequence[str]) -> Answer:
    """Run one command line in the present process.

    Args:
        jobs: the open service that it gets in place of one that it would open.
        arguments: as after the program's name.
    """
    verb = _Verb(arguments)
    try:
        while (body := verb.go_on()) is not None:
            try:
                verb.take(await _Printing(body(jobs), verb.printing), None)
            except Exception as error:
                verb.take(None, error)
    finally:
        verb.leave()
    return Answer(verb.code, verb.out.getvalue(), verb.err.getvalue(), verb.value, verb.error)


class _Gone(BaseException):
    """The process of the verb has ended."""


class _Verb:
    """A verb, in its thread.

    Args:
        arguments: of the command line.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self.out, self.err = io.StringIO(), io.StringIO()
        self.code = -1
        self.value: Any = None
        self.error: Exception | None = None
        self._arguments = list(arguments)
        self._body: Callable[[JobsService], Coroutine[Any, Any, Any]] | None = None
        self._is_gone = False
        self._of_verb, self._of_loop = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name="verb", daemon=True)
        self._thread.start()

    def go_on(self) -> Callable[[JobsService], Coroutine[Any, Any, Any]] | None:
        """Let it run until it needs the service, and return its part for that; None when it has ended."""
        self._body = None
        with mock.patch.object(program, "run", self._needs), self.printing():
            self._of_verb.release()
            self._of_loop.acquire()
        return self._body

    def take(self, value: Any, error: Exception | None) -> None:
        """Note what its part with the service has returned, or raised."""
        self.value, self.error = value, error

    def leave(self) -> None:
        """End it, wherever it stands."""
        while self._thread.is_alive():
            self._is_gone = True
            self._of_verb.release()
            self._thread.join()

    @contextmanager
    def printing(self) -> Iterator[None]:
        """Have what is printed be its output."""
        with redirect_stdout(self.out), redirect_stderr(self.err):
            yield

    def _run(self) -> None:
        self._of_verb.acquire()
        try:
            if not self._is_gone:
                self.code = program.guard(self._invoke)
        except _Gone:
            pass
        finally:
            self._of_loop.release()

    def _invoke(self) -> None:
        command = _command()
        with command.make_context(program.PROGRAM, self._arguments) as context:
            command.invoke(context)

    def _needs(self, context: object, store: object, body: Any, **options: Any) -> Any:
        """In place of session.run."""
        self._body = body
        self._of_loop.release()
        self._of_verb.acquire()
        if self._is_gone:
            raise _Gone
        if self.error is not None:
            raise self.error
        return self.value


class _Printing(Awaitable[Any]):
    """A coroutine whose output goes elsewhere, while others run between its steps.

    Args:
        coroutine: to wait for.
        printing: the place of its output, entered for each step.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, Any], printing: Callable[[], Any]) -> None:
        self._coroutine = coroutine
        self._printing = printing

    def __await__(self) -> Generator[Any, Any, Any]:
        step: Callable[[], Any] = functools.partial(self._coroutine.send, None)
        try:
            while True:
                try:
                    with self._printing():
                        wanted = step()
                except StopIteration as end:
                    return end.value
                try:
                    step = functools.partial(self._coroutine.send, (yield wanted))
                except GeneratorExit:
                    raise
                except BaseException as error:
                    step = functools.partial(self._coroutine.throw, error)
        finally:
            self._coroutine.close()


@functools.cache
def _command() -> Any:
    return typer.main.get_command(app.application())


def _code_of(error: Exception | None) -> int:
    """Return the exit code after what the service has said."""
    if error is None:
        return program.DONE
    if isinstance(error, _USAGE):
        return program.USAGE
    if isinstance(error, _STORE):
        return program.STORE
    return program.NO if isinstance(error, JobsError | TimeoutError | program.AnswerIsNo) else program.BUG
