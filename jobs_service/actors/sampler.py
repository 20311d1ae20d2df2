"""Reads the activity stamps of many types in one transaction. Floor: actors.

A thousand activity monitors wake on a common grid of times; those that wake together are answered by one read.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass

from jobs_service.actors.context import Context
from jobs_service.layer import activity
from jobs_service.layer.keyspace import TypeKeys

_COARSEST = 0.25
_FINEST = 2.0**-7


@dataclass(frozen=True, slots=True)
class Sample:
    """What was read of a type.

    Attributes:
        timeout: its activity timeout in seconds; None when it does not exist any more.
        stamp: 10-byte versionstamp of its last activity; None when there was none yet.
        at: the loop's time, in seconds, at which all of this was so or had been so.
    """

    timeout: float | None
    stamp: bytes | None
    at: float


class Sampler:
    """One for all activity monitors of a service."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._forming: list[tuple[TypeKeys, asyncio.Future[Sample | None]]] | None = None

    def tick(self, now: float, gap: float, timeout: float) -> float:
        """Return the last time of the grid that is at most `gap` seconds from now (at least the next one).

        Args:
            now: the loop's time.
            gap: seconds.
            timeout: the type's activity timeout; the grid is finer for shorter ones.
        """
        grid = min(_COARSEST, max(_FINEST, 2.0 ** math.floor(math.log2(timeout / 64))))
        tick = math.floor((now + gap - self._context.phase) / grid) * grid + self._context.phase
        return tick if tick > now else tick + grid

    async def sample(self, keys: TypeKeys) -> Sample:
        """Read a type's timeout and activity stamp, together with whoever asks in the same turn of the loop.

        Raises:
            StoreError: the store did not answer.
        """
        while True:
            if self._forming is None:
                return await self._lead(keys)
            answer: asyncio.Future[Sample | None] = asyncio.get_running_loop().create_future()
            self._forming.append((keys, answer))
            sample = await answer
            if sample is not None:
                return sample

    async def _lead(self, keys: TypeKeys) -> Sample:
        followers = self._forming = []
        samples: list[Sample] = []
        try:
            try:
                await asyncio.sleep(0)
            finally:
                self._forming = None
            wanted = [keys, *(each for each, _ in followers)]
            found = await self._context.read(lambda transaction: activity.samples(transaction, wanted))
            at = asyncio.get_running_loop().time()
            samples = [Sample(timeout, stamp, at) for timeout, stamp in found]
        finally:
            # Without samples (an error, a cancellation) each follower asks again for itself.
            for position, (_, answer) in enumerate(followers, 1):
                if not answer.done():
                    answer.set_result(samples[position] if samples else None)
        return samples[0]
