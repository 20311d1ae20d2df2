"""Transactions of low priority: a busy cluster serves them after all others.

FoundationDB calls it batch priority. All transactions within `background()`, and in tasks that are started there, have
it. It is for work that nobody waits for and no promise depends on: a saturated cluster does not begin it at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

_BACKGROUND: Final[ContextVar[bool]] = ContextVar("jobs_service_background", default=False)


@contextmanager
def background() -> Iterator[None]:
    """Give low priority to the transactions that are begun within the block."""
    token = _BACKGROUND.set(True)
    try:
        yield
    finally:
        _BACKGROUND.reset(token)


def in_background() -> bool:
    """Whether the present code is within `background()`."""
    return _BACKGROUND.get()
