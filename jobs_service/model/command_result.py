"""The result of a command, and the part of its output that is kept."""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any, Final

from jobs_service import json_data
from jobs_service.errors import JobsError

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
