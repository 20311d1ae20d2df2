"""Which accept has taken which jobs: asked again with its key it gets the same ones, and they can be given back.

The answer to an accept may be lost on its way, or nobody may want it any more when it comes. Nothing of this is stored:
after a restart of the server such jobs are pending again after their type's timeout.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final

from jobs_service.model import RunningJob

_KEPT: Final = 120.0
"""Seconds for which it is remembered what an accept has taken."""
_MOST: Final = 10_000
"""Accepts that are remembered; beyond it the oldest are forgotten."""


@dataclass(slots=True)
class Accept:
    """One accept.

    Attributes:
        at: when it was heard of, seconds of the loop's clock.
        jobs: that it has answered with.
        canceled: whether nobody wants them.
        answered: set when it is over.
    """

    at: float
    jobs: Sequence[RunningJob] = ()
    canceled: bool = False
    answered: asyncio.Event = field(default_factory=asyncio.Event)


class Accepts:
    """The accepts of the last minutes, by whose they are and their key."""

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, Accept] = OrderedDict()

    async def begin(self, key: Hashable) -> Accept:
        """Return the accept of a key, when another request for it is over; its jobs are there already if it is known.

        One that takes nothing is begun anew by the next request.
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
        """Return what an accept has answered with, once; whatever comes of it later is given back."""
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
