"""How long somebody waits: the argument `timeout`, checked."""

from __future__ import annotations

import math
from typing import Any

from jobs_service.arguments import exact_seconds
from jobs_service.errors import JobsError, shown


def check_timeout(timeout: Any) -> float | None:
    """Return a wait in seconds, None for ever.

    Raises:
        JobsError: neither None nor a number of seconds from 0 up.
    """
    if timeout is None:
        return None
    try:
        seconds = exact_seconds(timeout)
    except OverflowError:  # an integer beyond every float: for ever, or below zero
        seconds = math.inf if timeout > 0 else None
    if seconds is None or not seconds >= 0:
        raise JobsError(f"timeout={shown(timeout)}: allowed are None and numbers of seconds from 0 up")
    return None if seconds == math.inf else seconds
