"""Types as labels: a text for each, and a bound on how many have series of their own."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from heapq import nlargest
from typing import Final, TypeVar

from jobs_service import names
from jobs_service.model import JobType

T = TypeVar("T")

MOST_TYPES: Final = 200
"""Types that have series of their own, unless somebody says otherwise: each has about a hundred."""

OTHERS: Final = "(other types)"
"""The label of all types together that have no series of their own."""

_LONGEST: Final = 120
_DIGEST_BYTES: Final = 8


class TypeLabels:
    """Which types have series of their own: the same ones as long as they exist, so that counters never jump.

    Args:
        most: how many types.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._labels: dict[JobType, str] = {}
        # Of several scrapes at the same time each asks on a thread of its own.
        self._choosing = threading.Lock()

    def choose(self, types: Iterable[JobType], weights: Mapping[JobType, int]) -> dict[JobType, str]:
        """Return the label of each type.

        Args:
            types: that exist now. Those that have series of their own keep them; as long as there is room, others get
                some: those of greatest weight first, then in this order.
            weights: of the types; 0 for others.
        """
        with self._choosing:
            present = [*types]
            there = set(present)
            self._labels = {type: label for type, label in self._labels.items() if type in there}
            fresh = [type for type in present if type not in self._labels]
            room = self._most - len(self._labels)
            chosen = nlargest(room, fresh, key=lambda type: weights.get(type, 0)) if room > 0 else []
            self._labels |= {type: label for type in chosen if (label := label_of(type)) != OTHERS}
            return {type: self._labels.get(type, OTHERS) for type in present}


def label_of(type: JobType) -> str:
    """Return a type as a label: as the command line writes it; a long one cut, with a digest of the whole."""
    text = names.shown(type).encode(errors="replace").decode()
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}...{blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()}"
