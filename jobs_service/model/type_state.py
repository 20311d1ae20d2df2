"""What there is to know of a type beside its jobs: how long finished ones are kept, and where its queue stands."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from jobs_service.model.terms import JobId, Outcome


class Retention(NamedTuple):
    """How long finished jobs of a type are kept.

    Attributes:
        keep: seconds, of those that succeeded or were canceled; None for ever.
        keep_failed: seconds, of those that failed; None for ever.
    """

    keep: float | None
    keep_failed: float | None

    @property
    def lets_leave(self) -> bool:
        """Whether jobs leave with their end, all of them or those that failed."""
        return 0 in self

    def seconds(self, outcome: Outcome) -> float | None:
        """Return how long a job that ended so is kept."""
        return self.keep_failed if outcome is Outcome.FAILED else self.keep

    def encode(self) -> bytes:
        """Return what the store keeps."""
        import fdb.tuple  # a client needs no store

        packed: bytes = fdb.tuple.pack(tuple(self))
        return packed

    @classmethod
    def decode(cls, packed: bytes) -> Retention:
        """Return what `encode` encoded; for ever when these bytes are no retention: nothing is removed by mistake."""
        import fdb.tuple

        try:
            kept: tuple[Any, ...] = fdb.tuple.unpack(packed)
        except Exception:  # fdb.tuple raises many kinds of errors for bytes that are no tuple
            return FOR_EVER
        good = len(kept) == len(cls._fields) and all(
            each is None or (type(each) is float and each >= 0) for each in kept
        )
        return cls(*kept) if good else FOR_EVER


FOR_EVER: Final = Retention(None, None)


class QueueState(NamedTuple):
    """The state of a type's queue; times in seconds since the epoch.

    Attributes:
        id, ready_since: of the job that has been ready for longest; None when none is ready. The time comes from the
            job's history, which may be damaged, or dropped from a record of the largest size. Such a job is named only
            if all are such, and its time is None.
        next_scheduled: when the next scheduled job is due; None when there is none.
        paused: whether workers are stopped from accepting jobs.
    """

    id: JobId | None
    ready_since: float | None
    next_scheduled: float | None
    paused: bool
