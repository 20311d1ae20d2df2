"""Recent accepts and their jobs: a request with the same key gets the same jobs again, or gives them back.

The answer to an accept may be lost, or its client may have gone by then. Accepts are not stored: after a restart of the
server, such jobs become pending again after their type's timeout.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final

from jobs_service.model import RunningJob

_KEPT: Final = 120.0
"""Seconds for which an accept is remembered."""
_MOST: Final = 10_000
"""Most accepts that are remembered; beyond it the oldest are forgotten."""


@dataclass(slots=True)
class Accept:
    """One accept.

    Attributes:
        at: time of its first request, in seconds of the loop's clock.
        jobs: the jobs of its answer.
        canceled: whether its jobs are to be given back.
        answered: set when its request has ended.
    """

    at: float
    jobs: Sequence[RunningJob] = ()
    canceled: bool = False
    answered: asyncio.Event = field(default_factory=asyncio.Event)


class Accepts:
    """The accepts of the last minutes, by caller, type and key."""

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, Accept] = OrderedDict()

    async def begin(self, key: Hashable) -> Accept:
        """Return the accept of a key once no other request for it is open; a repeated accept has its jobs already.

        An accept that took no jobs is begun anew by the next request.
        """
        while (found := self._known.get(key)) is not None and not found.canceled:
            if not found.answered.is_set():
                await found.answered.wait()
            elif found.jobs:
                return found
            else:
                break
        return found if found is not None and found.canceled else self._remember(key)

    def cancel(self, key: Hashable) -> Sequence[RunningJob]:
        """Cancel an accept and return its jobs, once; jobs that it takes later are given back."""
        accept = self._known.get(key) or self._remember(key)
        accept.canceled = True
        jobs, accept.jobs = accept.jobs, ()
        return jobs

    def _remember(self, key: Hashable) -> Accept:
        now = asyncio.get_running_loop().time()
        while self._known and (len(self._known) >= _MOST or next(iter(self._known.values())).at < now - _KEPT):
            self._known.popitem(last=False)
        accept = self._known[key] = Accept(now)
        self._known.move_to_end(key)
        return accept
