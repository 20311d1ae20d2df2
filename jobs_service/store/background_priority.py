"""Work that can wait: transactions that a busy cluster serves after all others. Floor: store.

FoundationDB calls it batch priority. Everything that is done within `background()`, and in tasks that are started
there, has it. It is for what nobody waits for and no promise depends on; a saturated cluster does not begin it at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

_BACKGROUND: Final[ContextVar[bool]] = ContextVar("jobs_service_background", default=False)


@contextmanager
def background() -> Iterator[None]:
    """Have the transactions that are begun within the block served after others."""
    token = _BACKGROUND.set(True)
    try:
        yield
    finally:
        _BACKGROUND.reset(token)


def in_background() -> bool:
    """Whether the present code is within `background()`."""
    return _BACKGROUND.get()
