"""The stand-in for an unreadable record in lists of jobs."""

from __future__ import annotations

from typing import Final

from jobs_service import run_data as runs_of
from jobs_service.errors import RecordDamaged
from jobs_service.layer.record_format import ZERO_PRIORITY
from jobs_service.model import JobState
from jobs_service.run_data import ERROR
from jobs_service.run_values import JobError


class Unreadable:
    """Stands in for an unreadable record in lists of jobs: it has a state of its own, and its error says why.

    Args:
        why: the error met.
    """

    __slots__ = ("run_data",)

    state: Final = JobState.UNREADABLE
    lock: Final = None
    priority: Final = ZERO_PRIORITY
    named_priority: Final = 0
    run_at: Final = None
    outcome: Final = None
    cancel: Final = False
    resubmit: Final = False
    next: Final = None
    seq_bytes: Final = None
    json: Final = b""

    def __init__(self, why: RecordDamaged) -> None:
        error = JobError(type(why).__name__, str(why))
        self.run_data = runs_of.with_part(b"", ERROR, runs_of.error_json(error))

    def size(self) -> int:
        """Return 0: it is never rewritten."""
        return 0
