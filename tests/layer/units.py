"""Units of work with a few jobs, for their tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from jobs_service.layer import queue
from jobs_service.layer.queue import AcceptTerms
from jobs_service.layer.record import Entry
from jobs_service.layer.unit_of_work import UnitOfWork
from tests.layer.support import Layer

ONE = AcceptTerms(1, None, None, 1, 100)
Work = Callable[[UnitOfWork], Awaitable[Any]]


async def accept(unit: UnitOfWork, found: Layer) -> Entry:
    """Accept the job at the front."""
    [entry], _ = await queue.accept(unit, found.keys, ONE)
    return entry


def lock_of(entry: Entry) -> bytes:
    """Return the lock of a running job."""
    assert entry.record is not None
    assert entry.record.lock is not None
    return entry.record.lock
