"""A schedule that was made at runtime, as applications see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jobs_service.json_types import Time, Unchanged, plain
from jobs_service.model.job import JobType


@dataclass(frozen=True, slots=True)
class StoredSchedule:
    """A schedule that is kept in the store.

    Attributes:
        name: its name.
        type, data: of its jobs.
        every: seconds between two ticks; None for a cron expression.
        cron: a cron expression; None for a period.
        timezone: of the cron expression; None for a period.
        missed: what happens to missed ticks: "skip", "once" or "all".
        overlap: whether a tick's job is added before the previous tick's job has finished.
        paused: whether its ticks are held up.
        changed: when it was set or paused last, seconds since the epoch.
        last: its last tick, seconds since the epoch; None before its first one.
        next: its next tick; None while it is paused, or if it never ticks again.
    """

    name: str
    type: JobType
    data: Unchanged
    every: float | None
    cron: str | None
    timezone: str | None
    missed: str
    overlap: bool
    paused: bool
    changed: Time
    last: Time | None
    next: Time | None

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data that any JSON encoder takes; times are ISO 8601 in UTC with microseconds."""
        return {**plain(self), "data": self.data}
