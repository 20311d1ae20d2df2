"""Transactions of low priority: a busy cluster serves them after all others.

FoundationDB calls it batch priority. It holds for all transactions within `background()`, and in tasks that are started
there. It is for work without a waiting caller and without a promise: a saturated cluster does not begin it at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

_BACKGROUND: Final[ContextVar[bool]] = ContextVar("jobs_service_background", default=False)


@contextmanager
def background() -> Iterator[None]:
    """Give low priority to the transactions that begin within the block."""
    token = _BACKGROUND.set(True)
    try:
        yield
    finally:
        _BACKGROUND.reset(token)


def in_background() -> bool:
    """Whether the present code is within `background()`."""
    return _BACKGROUND.get()
