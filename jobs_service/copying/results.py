"""The result of a copy, its progress reports, and the error of a refused copy."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from jobs_service.errors import JobsError
from jobs_service.layer.record import Record
from jobs_service.layer.record_format import READY
from jobs_service.model import JobState, JobType


class CopyRefused(JobsError):
    """The copy is refused, or cannot go on; the message says why and what to do."""


class Step(enum.StrEnum):
    """The steps of a copy, for progress."""

    REMOVING = "removing"
    """The jobs of an unfinished copy are removed from the target."""
    LOOKING = "looking"
    """All jobs of the source are read once, to count them and to check that the target can hold them."""
    COPYING = "copying"
    """Jobs are written."""
    COMPARING = "comparing"
    """The target is compared with the source."""


Progress: TypeAlias = Callable[[Step, int, int | None], object]
"""Called now and then with the step, the number of jobs done in it, and their total (None while unknown)."""


@dataclass(slots=True)
class Counts:
    """Jobs of one type by state.

    Attributes:
        type: the type of the jobs.
        ready, scheduled, running, finished: numbers of jobs.
    """

    type: JobType
    ready: int = 0
    scheduled: int = 0
    running: int = 0
    finished: int = 0

    def add(self, record: Record) -> None:
        """Count one job."""
        if record.state is JobState.RUNNING:
            self.running += 1
        elif record.state is JobState.FINISHED:
            self.finished += 1
        elif record.place == READY:
            self.ready += 1
        else:
            self.scheduled += 1

    @property
    def jobs(self) -> int:
        """The number of jobs in all states."""
        return self.ready + self.scheduled + self.running + self.finished


@dataclass(frozen=True, slots=True)
class Copied:
    """The result of a copy.

    Attributes:
        types: numbers of jobs in the source by type, types without jobs included.
        resumed: whether it continued an unfinished copy.
        complete_before: whether the target was a complete copy already; nothing was written then.
        skipped: jobs that the target already had, left unchanged (only with force).
        differing: jobs that are missing or different in the target (only with force).
        unreadable: damaged jobs of the source, left out (only with force).
        strays: entries in the source's queues without a job, left out (counted without force only).
    """

    types: tuple[Counts, ...]
    resumed: bool = False
    complete_before: bool = False
    skipped: int = 0
    differing: int = 0
    unreadable: int = 0
    strays: int = 0

    @property
    def jobs(self) -> int:
        """The number of jobs in the source."""
        return sum(counts.jobs for counts in self.types)

    @property
    def running(self) -> int:
        """The number of jobs that run in the source, and are pending in the target (only with force)."""
        return sum(counts.running for counts in self.types)
