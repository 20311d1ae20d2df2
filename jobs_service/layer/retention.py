"""How long finished jobs of a type are kept."""

from __future__ import annotations

from typing import Final, NamedTuple

import fdb.tuple

from jobs_service.layer.key_parts import unpacked
from jobs_service.model import Outcome


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
        packed: bytes = fdb.tuple.pack(tuple(self))
        return packed

    @classmethod
    def decode(cls, packed: bytes) -> Retention:
        """Return what `encode` encoded; for ever when these bytes are no retention: nothing is removed by mistake."""
        kept = unpacked(packed)
        good = len(kept) == len(cls._fields) and all(
            each is None or (type(each) is float and each >= 0) for each in kept
        )
        return cls(*kept) if good else FOR_EVER


FOR_EVER: Final = Retention(None, None)
