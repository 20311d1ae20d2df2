"""Types, ids, times, errors and progress as plain data that every JSON encoder takes."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any

from jobs_service.run_values import JobError, Progress


def name(value: Any) -> Any:
    """Return a type, an id or a priority: bytes as {"bytes": hexadecimal}, a tuple as a list, str and int as they are.

    Other values of the tuple layer (a UUID, a number that is not finite) become {"packed": hexadecimal encoding}.
    """
    if value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, tuple | list):
        return [name(item) for item in value]
    import fdb.tuple  # a client needs no store

    return {"packed": fdb.tuple.pack((value,)).hex()}


def time(value: datetime | None) -> str | None:
    """Return a time in ISO 8601, UTC, with microseconds."""
    return None if value is None else value.isoformat(timespec="microseconds").replace("+00:00", "Z")


def error(value: JobError | None) -> dict[str, str] | None:
    """Return a run's error as an object."""
    return None if value is None else {"type": value.type, "message": value.message, "traceback": value.traceback}


def progress(value: Progress | None) -> dict[str, Any] | None:
    """Return a job's progress as an object."""
    if value is None:
        return None
    return {"done": value.done, "total": value.total, "message": value.message, "attempt": value.attempt}
