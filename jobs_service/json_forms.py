"""Types, ids and errors as plain data that every JSON encoder takes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobs_service.run_values import JobError


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


def error(value: JobError | None) -> dict[str, str] | None:
    """Return a run's error as an object."""
    return None if value is None else {"type": value.type, "message": value.message, "traceback": value.traceback}
