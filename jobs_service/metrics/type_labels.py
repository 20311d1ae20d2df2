"""Types as labels: a text for each type, and a limit on the types with series of their own."""

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
"""Types with series of their own by default: each has about a hundred series."""

OTHERS: Final = "(other types)"
"""The label that all types without series of their own share."""

_LONGEST: Final = 120
_DIGEST_BYTES: Final = 8


class TypeLabels:
    """Chooses the types with series of their own; a type keeps them while it exists, so that counters never jump.

    Args:
        most: the number of types with series of their own.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._labels: dict[JobType, str] = {}
        # Each of several simultaneous scrapes calls `choose` on a thread of its own.
        self._choosing = threading.Lock()

    def choose(self, types: Iterable[JobType], weights: Mapping[JobType, int]) -> dict[JobType, str]:
        """Return the label of each type.

        Args:
            types: the existing types. A type with series of its own keeps them; free places go to other types by
                descending weight, then in this order.
            weights: the weight of each type; 0 for types that are missing here.
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
    """Return a type as a label: the form of the command line; a long one is cut and gets a digest of the whole."""
    text = names.shown(type).encode(errors="replace").decode()
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}...{blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()}"
