"""The result of a copy, the progress that it reports, and the error when it is refused."""

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
    """Jobs that an unfinished copy has left in the target are removed."""
    LOOKING = "looking"
    """All jobs of the source are read once, to count them and to see whether the target can hold them."""
    COPYING = "copying"
    """Jobs are written."""
    COMPARING = "comparing"
    """The target is compared with the source."""


Progress: TypeAlias = Callable[[Step, int, int | None], object]
"""Called now and then with the step, the number of jobs done in it, and of how many (None while that is unknown)."""


@dataclass(slots=True)
class Counts:
    """Jobs of one type by state.

    Attributes:
        type: of the jobs.
        ready, scheduled, running, finished: how many.
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
        """How many in all."""
        return self.ready + self.scheduled + self.running + self.finished


@dataclass(frozen=True, slots=True)
class Copied:
    """The result of a copy.

    Attributes:
        types: of the source, with or without jobs: the jobs that each had there.
        resumed: whether it went on with an unfinished copy.
        complete_before: whether the target was a complete copy already, so that nothing was written.
        skipped: jobs that were in the target already and stayed as they were there (only with force).
        differing: jobs that are not in the target as they are in the source (only with force).
        unreadable: jobs of the source that are left out, because their records cannot be read (only with force).
        strays: entries in queues of the source that belong to no job, and are left out (counted without force only).
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
        """How many jobs the source has."""
        return sum(counts.jobs for counts in self.types)

    @property
    def running(self) -> int:
        """How many of them run in the source, and are pending in the target (only with force)."""
        return sum(counts.running for counts in self.types)
