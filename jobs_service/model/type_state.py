"""The state of a type beside its jobs: the retention of finished jobs, and the front of its queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from jobs_service.json_types import Time
from jobs_service.model.terms import JobId, Outcome


@dataclass(frozen=True, slots=True)
class Retention:
    """Retention of a type's finished jobs.

    Attributes:
        keep: seconds for succeeded and canceled jobs; None for ever.
        keep_failed: seconds for failed jobs; None for ever.
    """

    keep: float | None
    keep_failed: float | None

    @property
    def lets_leave(self) -> bool:
        """Whether jobs leave the store when they end, all of them or only failed ones."""
        return 0 in (self.keep, self.keep_failed)

    def seconds(self, outcome: Outcome) -> float | None:
        """Return the seconds for which a job with this outcome is kept."""
        return self.keep_failed if outcome is Outcome.FAILED else self.keep

    def encode(self) -> bytes:
        """Return the stored form."""
        import fdb.tuple  # a client needs no store

        packed: bytes = fdb.tuple.pack((self.keep, self.keep_failed))
        return packed

    @classmethod
    def decode(cls, packed: bytes) -> Retention:
        """Return the retention of encoded bytes; for ever if they are invalid, to remove nothing by mistake."""
        import fdb.tuple

        try:
            kept: tuple[Any, ...] = fdb.tuple.unpack(packed)
        except Exception:  # fdb.tuple raises many kinds of errors for bytes that are no tuple
            return FOR_EVER
        good = len(kept) == 2 and all(each is None or (type(each) is float and each >= 0) for each in kept)
        return cls(*kept) if good else FOR_EVER


FOR_EVER: Final = Retention(None, None)


class TypeSettings(NamedTuple):
    """The settings of a type.

    Attributes:
        timeout: activity timeout in seconds; None for a type that does not exist.
        paused: whether workers are stopped from accepting jobs.
        retention: of its finished jobs.
    """

    timeout: float | None
    paused: bool
    retention: Retention


LATE: Final = 15.0
"""Seconds by which a scheduled job may be late. If it is later, no activity monitor can be running."""


@dataclass(frozen=True, slots=True)
class QueueState:
    """The state of a type's queue; times in seconds since the epoch.

    Attributes:
        id, ready_since: the job that has been ready for longest; None if none is ready. The time comes from the job's
            history, which may be damaged, or dropped from a record of the largest size. Such a job is named only if all
            are such, and its time is None.
        next_scheduled: when the next scheduled job is due; None if there is none.
        paused: whether workers are stopped from accepting jobs.
    """

    id: JobId | None
    ready_since: Time | None
    next_scheduled: Time | None
    paused: bool
