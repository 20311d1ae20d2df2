"""The terms of a job: type, id, priority and time; and the words for its states and outcomes."""

from __future__ import annotations

import enum
from datetime import datetime
from typing import Annotated, Any, Final, TypeAlias

from jobs_service.json_types import AS_NAME

JobType: TypeAlias = Annotated[str | bytes | int | tuple[Any, ...], AS_NAME]
"""Names a kind of job."""

JobId: TypeAlias = Annotated[str | bytes, AS_NAME]
"""Names one job within its type."""

Priority: TypeAlias = Annotated[int | str | bytes | tuple[Any, ...], AS_NAME]
"""Lower runs first, ordered as the tuple layer orders: bytes, str, tuples, int."""

RunAt: TypeAlias = datetime | float | int
"""An aware datetime, or seconds since the epoch."""


class Unset(enum.Enum):
    """The default of arguments for which None is a value: the present value stays."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return "..."


UNSET: Final = Unset.UNSET


class JobState(enum.StrEnum):
    """The state of a job."""

    PENDING = "pending"
    """Waits for a worker: ready, or scheduled for later."""
    RUNNING = "running"
    """A worker holds its lock."""
    FINISHED = "finished"
    """Ran, or was canceled; `outcome` tells which."""
    REMOVED = "removed"
    """Exists no more; only events have this state."""
    UNREADABLE = "unreadable"
    """Its record is damaged, or a newer version wrote it: `error` tells why. Only lists have this state; other reads of
    the job raise RecordDamaged."""


class Outcome(enum.StrEnum):
    """How a finished job ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"


class Enqueued(enum.StrEnum):
    """The effect of `enqueue`."""

    NEW = "new"
    """It has added the job."""
    AGAIN = "again"
    """The job existed and is put to work once more: it had finished, or it runs and is to run again afterwards."""
    THERE = "there"
    """The job existed already, and waits, runs, or has ended too recently to run again."""


class Removal(enum.StrEnum):
    """The effect of `remove`."""

    REMOVED = "removed"
    """The job is gone."""
    CANCELED = "canceled"
    """The job is running: its worker was asked to finish it."""


_ZERO = b"\x14"
"""The tuple layer's encoding of 0."""


def unpack_priority(packed: bytes) -> Priority:
    """Return the priority that the tuple layer packed."""
    if packed == _ZERO:
        return 0
    import fdb.tuple  # a client needs no store

    priority: Priority = fdb.tuple.unpack(packed)[0]
    return priority


class ExactType(tuple[Any, ...]):
    """A tuple type as the key of a dict. In Python (1,), (True,) and (1.0,) are equal, as are (0.0,) and (-0.0,)."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, tuple) and tuple.__eq__(self, other) and tuple.__repr__(self) == tuple.__repr__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return tuple.__hash__(self)


def exact_type(type: JobType) -> JobType:
    """Return a type as a key that is equal to the same type only."""
    return ExactType(type) if isinstance(type, tuple) else type
