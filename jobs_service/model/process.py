"""Processes that use a store, as operators see them, and the results of commands."""

from __future__ import annotations

import dataclasses
import enum
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any, Final

from jobs_service import json_data
from jobs_service.errors import JobsError
from jobs_service.json_types import Time, plain
from jobs_service.model.job import JobType


class ProcessState(enum.StrEnum):
    """The state of a process."""

    RUNNING = "running"
    """It takes jobs for its handlers, if it has any."""
    QUIET = "quiet"
    """It takes no more jobs, and ends its present ones."""
    STOPPING = "stopping"
    """It ends."""
    SILENT = "silent"
    """It has sent no heartbeat for some time: it is dead or stalled, or its clock is wrong."""
    DEAD = "dead"
    """It has ended without notice."""


class ProcessAction(enum.StrEnum):
    """Requests that a process accepts."""

    QUIET = "quiet"
    """To take no more jobs, and to end its present ones."""
    RESUME = "resume"
    """To take jobs again."""
    STOP = "stop"
    """To end, as on SIGTERM."""


@dataclass(frozen=True, slots=True)
class ProcessRequest:
    """The last request to a process.

    Attributes:
        action: the requested action.
        who: the name of the requester; empty if none was given.
        at: seconds since the epoch, by the clock of the process that received the request.
    """

    action: ProcessAction
    who: str
    at: Time


@dataclass(frozen=True, slots=True)
class HandlerSlots:
    """One handler of a process.

    Attributes:
        type: of its jobs.
        slots: most jobs that it runs at the same time.
        taken: jobs that it ran at the last heartbeat.
    """

    type: JobType
    slots: int
    taken: int


@dataclass(frozen=True, slots=True)
class OutboxInfo:
    """An outbox whose rows a process moves into the store.

    Attributes:
        name: address of the database, without user and password.
        rows: number of rows that waited when they were last counted.
        oldest: seconds for which the oldest of them had waited; None without any.
        set_aside: number of rows that cannot be a job.
        error: why nothing is moved at present; empty if all is well.
    """

    name: str
    rows: int = 0
    oldest: float | None = None
    set_aside: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A process that runs handlers, or is a daemon; times are seconds since the epoch, by its own clock.

    Attributes:
        id: of this run of the process; a restart has another.
        host, pid: its host and process id.
        worker: its name in the history of its jobs.
        version: of jobs_service.
        role: "daemon" for `jobs-service serve`, "runner" for a program that runs handlers itself.
        started: time of its start.
        heard: time of its last heartbeat.
        state: its state.
        slots: most jobs that its handlers run at the same time.
        taken: jobs that they ran at the last heartbeat.
        handlers: its handlers; only the first ones by name if there are very many.
        unnamed: number of further handlers.
        request: the last request to it; None for none.
        outboxes: the outboxes whose rows it moves.
    """

    id: str
    host: str
    pid: int
    worker: str
    version: str
    role: str
    started: Time
    heard: Time
    state: ProcessState
    slots: int = 0
    taken: int = 0
    handlers: tuple[HandlerSlots, ...] = ()
    unnamed: int = 0
    request: ProcessRequest | None = None
    outboxes: tuple[OutboxInfo, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the process as plain data for JSON; times in ISO 8601."""
        return plain(self)


# The result of a command, and the part of its output that is kept


MOST_KEPT: Final = 60_000
"""Most bytes of a command's outcome kept as a job's result: a record has room for it beside other data."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a command.

    Attributes:
        exit_code: 0 is success; None if a signal ended it, or if other code in this process took the exit code.
        signal: the name of the signal that ended it, or None.
        stdout: the end of its output, decoded as UTF-8; invalid bytes are replaced.
        stderr: likewise.
        cut: whether older output of one of them was left out.
        seconds: its run time.
    """

    exit_code: int | None
    signal: str | None
    stdout: str
    stderr: str
    cut: bool
    seconds: float

    def to_data(self) -> dict[str, Any]:
        """Return the result as a JSON object, to be kept as the job's result."""
        return dataclasses.asdict(self)

    def within(self, size: int) -> CommandResult:
        """Return the result with older output cut until its data has at most `size` bytes as JSON.

        JSON may take six times the bytes that were captured, because it escapes control characters. An output shorter
        than its half of the room leaves the rest to the other.
        """
        room = size - len(json_data.encode(dataclasses.replace(self, stdout="", stderr="", cut=False).to_data()))
        stdout = _newest(self.stdout, room - min(_size(self.stderr), room // 2))
        stderr = _newest(self.stderr, room - min(_size(self.stdout), room - room // 2))
        cut = self.cut or (stdout, stderr) != (self.stdout, self.stderr)
        return dataclasses.replace(self, stdout=stdout, stderr=stderr, cut=cut)


class CommandFailed(JobsError, slug="command-failed", http_status=409):
    """A command could not be started, ran too long, or ended with anything but exit code 0.

    Attributes:
        result: how it ended; None when it could not be started.
    """

    def __init__(self, message: str, *, result: CommandResult | None = None) -> None:
        super().__init__(message)
        self.result = result


def _size(text: str) -> int:
    """Return the bytes of a text as JSON, without its quotes."""
    return len(json_data.encode(text)) - 2


def _newest(text: str, room: int) -> str:
    """Return the longest end of a text that takes at most `room` bytes as JSON."""
    fitting = bisect_right(range(len(text) + 1), room, key=lambda length: _size(text[len(text) - length :]))
    return text[len(text) - max(fitting - 1, 0) :]
