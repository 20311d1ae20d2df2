"""The parts of a job's runs that an application sees: the events of its history, its last error, and its progress."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from jobs_service.errors import InvalidJob, RecordDamaged, a_kind_of, in_one_line, shown
from jobs_service.json_types import Time

_MOST_OF_A_MESSAGE: Final = 200


class HistoryKind(enum.StrEnum):
    """Kinds of events in a job's history."""

    ADDED = "added"
    """It was added, or resubmitted."""
    STARTED = "started"
    """A worker accepted it; the detail names the worker."""
    STOPPED = "stopped"
    """It was given back unfinished, by rotation, on shutdown, or to continue later; the detail is the reason."""
    CRASHED = "crashed"
    """Its run failed; the detail is the reason."""
    LOST = "lost"
    """Its worker fell silent."""
    FINISHED = "finished"
    """Its run ended; `outcome` tells how."""
    CANCELED = "canceled"
    """It ended because it was removed while it ran."""


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """One event of a job's history.

    Attributes:
        kind: the kind of event.
        at: its time, seconds since the epoch.
        detail: the worker of a start, or the reason of a crash or stop; at most 255 bytes.
    """

    kind: HistoryKind
    at: Time
    detail: str = ""

    @property
    def time(self) -> datetime:
        """The event's time, as an aware datetime (UTC).

        Raises:
            RecordDamaged: `at` is outside the range of dates.
        """
        try:
            return datetime.fromtimestamp(self.at, UTC)
        except (ValueError, OverflowError, OSError):
            raise RecordDamaged(f"a job's history is damaged: an event at {self.at} s since the epoch") from None


@dataclass(frozen=True, slots=True)
class JobError:
    """How a job's last failed run ended.

    Attributes:
        type: name of the exception's class.
        message: the exception's message.
        traceback: the last lines of its traceback; empty when there is none.
    """

    type: str
    message: str
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a running job.

    Attributes:
        done: completed amount, in any unit.
        total: total amount; None if unknown.
        message: description of the current work.
        attempt: number of the run that reported it, 1 for the first; None if unknown. Equality ignores it.
    """

    done: int | float
    total: int | float | None = None
    message: str = ""
    attempt: int | None = field(default=None, compare=False)


def progress_of_values(done: Any, total: Any, message: Any, attempt: int | None = None) -> Progress:
    """Return an application's progress report, checked.

    Raises:
        InvalidJob: the amounts are no numbers, or the message is no text.
    """
    for what, number in (("done", done), ("total", total)):
        is_number = isinstance(number, int | float) and not isinstance(number, bool)
        if not is_number and not (what == "total" and number is None):
            raise InvalidJob(f"progress: {what}={shown(number)}: {a_kind_of(number)}; allowed are numbers")
    if not isinstance(message, str):
        raise InvalidJob(f"progress: message={shown(message)}: {a_kind_of(message)}; allowed is str")
    return Progress(done, total, in_one_line(message, _MOST_OF_A_MESSAGE), attempt)
