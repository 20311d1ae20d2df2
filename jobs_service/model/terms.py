"""The terms of a job: type, id, priority and time; and the words for its states and its ends."""

from __future__ import annotations

import enum
from datetime import datetime
from typing import Any, Final, TypeAlias

import fdb.tuple

JobType: TypeAlias = str | bytes | int | tuple[Any, ...]
"""Names a kind of job."""

JobId: TypeAlias = str | bytes
"""Names one job within its type."""

Priority: TypeAlias = int | str | bytes | tuple[Any, ...]
"""Lower runs first, ordered as the tuple layer orders: bytes, str, tuples, int."""

RunAt: TypeAlias = datetime | float | int
"""An aware datetime, or seconds since the epoch."""


class Unset(enum.Enum):
    """The default of arguments for which None is a value: what is left out stays as it is."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return "..."


UNSET: Final = Unset.UNSET


class JobState(enum.StrEnum):
    """Where a job is in its life."""

    PENDING = "pending"
    """Waits for a worker: ready, or scheduled for later."""
    RUNNING = "running"
    """A worker holds its lock."""
    FINISHED = "finished"
    """Ran, or was canceled; `outcome` tells which."""
    REMOVED = "removed"
    """Exists no more; only events say so."""
    UNREADABLE = "unreadable"
    """Its record is damaged, or of a newer version: `error` tells why. Only lists say so; all else that asks for the
    job raises RecordDamaged."""


class Outcome(enum.StrEnum):
    """How a finished job ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"


class Enqueued(enum.StrEnum):
    """What `enqueue` did."""

    NEW = "new"
    """It has added the job."""
    AGAIN = "again"
    """The job was there, and is put to work once more: it had finished, or runs and is to run again afterwards."""
    THERE = "there"
    """The job was there already, and waits, runs, or has ended so short a time ago that it does not run again."""


class Removal(enum.StrEnum):
    """What `remove` did."""

    REMOVED = "removed"
    """The job is gone."""
    CANCELED = "canceled"
    """The job is running: its worker was asked to finish it."""


_ZERO = fdb.tuple.pack((0,))


def unpack_priority(packed: bytes) -> Priority:
    """Return the priority that the tuple layer packed."""
    if packed == _ZERO:
        return 0
    priority: Priority = fdb.tuple.unpack(packed)[0]
    return priority
