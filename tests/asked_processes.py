"""What somebody has asked of processes: of none that is not there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import fdb.tuple

from jobs_service.store.base import KeyValue

_PROCESSES: Final[bytes] = fdb.tuple.pack((50,))
_REQUESTS: Final[bytes] = fdb.tuple.pack((51,))


def asked_of_nobody(start: int, pairs: list[KeyValue]) -> Iterator[str]:
    """Yield what is wrong with rows of requests.

    Args:
        start: bytes of the prefix of all keys.
        pairs: the keys and values.
    """
    keys = [key[start:] for key, _ in pairs]
    there = {key[len(_PROCESSES) :] for key in keys if key.startswith(_PROCESSES)}
    for key in keys:
        if key.startswith(_REQUESTS) and key[len(_REQUESTS) :] not in there:
            yield f"PROCESS_REQUESTS {key!r}: nobody of that id is there to be asked"
