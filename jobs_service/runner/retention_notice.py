"""The log event about how long finished jobs are kept, so that nobody is surprised when jobs vanish."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from jobs_service.actors.context import log
from jobs_service.model import JobType
from jobs_service.runner.handler import Handler
from jobs_service.runner.options import KEEP_TICKS

_TICKS: Final = (KEEP_TICKS, None)


def log_retention(handlers: Iterable[Handler[Any, Any]], periodic: Iterable[Handler[Any, Any]]) -> None:
    """Log after which time finished jobs are removed: one event for all types that have the same times.

    Periodic handlers with the default times are left out: nobody has added their jobs, or looks for old ones.

    Args:
        handlers: those that start.
        periodic: those of them whose jobs are added by schedule.
    """
    ticking = {id(handler) for handler in periodic}
    types: dict[tuple[float | None, float | None], list[JobType]] = {}
    for handler in handlers:
        kept = handler.options.keep, handler.options.keep_failed
        if kept != (None, None) and not (kept == _TICKS and id(handler) in ticking):
            types.setdefault(kept, []).append(handler.type)
    for (keep, keep_failed), each in types.items():
        log.info("finished_jobs_expire", types=each, keep=keep, keep_failed=keep_failed)
