"""The log event about the retention of finished jobs, so that the removal of jobs surprises nobody."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from jobs_service.actors.context import log
from jobs_service.model import JobType
from jobs_service.runner.handler import Handler
from jobs_service.runner.options import KEEP_TICKS

_TICKS: Final = (KEEP_TICKS, None)


def log_retention(handlers: Iterable[Handler[Any, Any]], periodic: Iterable[Handler[Any, Any]]) -> None:
    """Log the retention times of finished jobs: one event for all types with the same times.

    Periodic handlers with the default times are left out: no client added their jobs, or looks for old ones.

    Args:
        handlers: the handlers that start.
        periodic: the handlers among them whose jobs a schedule adds.
    """
    ticking = {id(handler) for handler in periodic}
    types: dict[tuple[float | None, float | None], list[JobType]] = {}
    for handler in handlers:
        kept = handler.options.keep, handler.options.keep_failed
        if kept != (None, None) and not (kept == _TICKS and id(handler) in ticking):
            types.setdefault(kept, []).append(handler.type)
    for (keep, keep_failed), each in types.items():
        log.info("finished_jobs_expire", types=each, keep=keep, keep_failed=keep_failed)
