"""Samples the activity stamps of all types, many in one transaction.

Without it each of a thousand activity monitors would read its own stamp several times per timeout, mostly to find it
unchanged. The sampler aligns the times of samples to a common grid, so that types share transactions. A monitor gets a
sample if the type's timeout or stamp has changed, or if the monitor waits for a stamp to become old enough.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jobs_service.actors.context import Context
from jobs_service.layer import activity
from jobs_service.layer.keyspace import TypeKeys

_COARSEST = 0.25
_FINEST = 2.0**-7
_MISSING_TYPE_CHECK = 5.0
_MOST_JITTER = 10.0
"""Seconds by which a sample comes sooner at random, at most: many processes must not read at the same moment."""
_MOST_TYPES = 1000
# Bounds in seconds: shorter and longer timeouts are sampled like these.
_SHORTEST = 0.001
_LONGEST = 1e7
_AT_ONCE = -math.inf


@dataclass(frozen=True, slots=True)
class Sample:
    """One read of a type's activity.

    Attributes:
        timeout: its activity timeout in seconds; None if the type no longer exists.
        stamp: 10-byte versionstamp of its last activity; None before any activity.
        at: the loop's time in seconds at the end of the read: the stamp is at least this old.
    """

    timeout: float | None
    stamp: bytes | None
    at: float


class Sampled:
    """One type that is sampled.

    Attributes:
        keys: of the type.
        quiet: whether the listener wants changes only; set by the listener.
    """

    __slots__ = ("_listener", "keys", "next_tick", "quiet", "removed", "stamp", "timeout")

    def __init__(self, keys: TypeKeys, listener: Callable[[Sample], None]) -> None:
        self.keys = keys
        self.quiet = False
        self.removed = False
        self.next_tick = _AT_ONCE
        self.timeout: float | None = None
        self.stamp: bytes | None = None
        self._listener = listener

    def take(self, sample: Sample) -> None:
        """Pass a sample to the listener, unless it is quiet and nothing has changed."""
        if self.quiet and sample.timeout == self.timeout and sample.stamp == self.stamp:
            return
        self.timeout = sample.timeout
        self.stamp = sample.stamp
        self._listener(sample)


class Sampler:
    """Samples for all activity monitors of a service; the type server runs it in a task linked to itself."""

    def __init__(self, context: Context) -> None:
        self._context = context
        # Mappings to None serve as sets that keep their order, so that a simulated run can be repeated.
        self._by_tick: dict[float, dict[Sampled, None]] = {}
        self._ticks: list[float] = []
        self._hurry: asyncio.Event = asyncio.Event()

    def add(self, keys: TypeKeys, listener: Callable[[Sample], None]) -> Sampled:
        """Sample a type from now on.

        Args:
            keys: of the type.
            listener: called with samples; must not wait.
        """
        sampled = Sampled(keys, listener)
        self.hurry(sampled)
        return sampled

    def remove(self, sampled: Sampled) -> None:
        """Stop sampling a type."""
        sampled.removed = True
        self._unschedule(sampled)

    def hurry(self, sampled: Sampled) -> None:
        """Take the type's next sample at once, and pass it on even if unchanged."""
        self._unschedule(sampled)
        self._schedule(sampled, _AT_ONCE)
        sampled.quiet = False
        self._hurry.set()

    async def run(self) -> None:
        """Take samples for ever."""
        time = asyncio.get_running_loop().time
        while True:
            self._hurry.clear()
            due = self._take_due(time())
            for start in range(0, len(due), _MOST_TYPES):
                await self._sample(due[start : start + _MOST_TYPES])
            if not due:
                await self._until_next(time())

    async def _sample(self, due: Sequence[Sampled]) -> None:
        keys = [sampled.keys for sampled in due]
        found = await self._context.retried(
            lambda: self._context.read(lambda transaction: activity.samples(transaction, keys))
        )
        now = asyncio.get_running_loop().time()
        for sampled, (timeout, stamp) in zip(due, found, strict=True):
            if sampled.removed:
                continue
            # `hurry` may have been called during the read: then the next sample stays due at once.
            if timeout != sampled.timeout and sampled.next_tick != _AT_ONCE:
                self._unschedule(sampled)
                self._schedule(sampled, self._next_tick(now, timeout))
            sampled.take(Sample(timeout, stamp, now))

    def _take_due(self, now: float) -> list[Sampled]:
        """Return the types with a due sample, and schedule the sample after it."""
        due: list[Sampled] = []
        while self._ticks and self._ticks[0] <= now:
            due += self._by_tick.pop(heapq.heappop(self._ticks))
        for sampled in due:
            self._schedule(sampled, self._next_tick(now, sampled.timeout))
        return due

    def _next_tick(self, now: float, timeout: float | None) -> float:
        """Return the time of a type's next sample: at most timeout / samples from now, less some jitter."""
        if timeout is None:
            return now + _MISSING_TYPE_CHECK
        timeout = min(max(timeout, _SHORTEST), _LONGEST)
        settings = self._context.settings
        period = timeout / settings.activity_samples
        jitter = self._context.sources.uniform(0.0, min(_MOST_JITTER, period / 4))
        grid = min(_COARSEST, max(_FINEST, 2.0 ** math.floor(math.log2(timeout / 64))))
        tick = math.floor((now + period - jitter - self._context.phase) / grid) * grid + self._context.phase
        return tick if tick > now else tick + grid

    def _schedule(self, sampled: Sampled, tick: float) -> None:
        sampled.next_tick = tick
        group = self._by_tick.get(tick)
        if group is None:
            group = self._by_tick[tick] = {}
            heapq.heappush(self._ticks, tick)
        group[sampled] = None

    def _unschedule(self, sampled: Sampled) -> None:
        group = self._by_tick.get(sampled.next_tick)
        if group is not None:
            group.pop(sampled, None)

    async def _until_next(self, now: float) -> None:
        loop = asyncio.get_running_loop()
        timer = loop.call_at(self._ticks[0], self._hurry.set) if self._ticks else None
        try:
            await self._hurry.wait()
        finally:
            if timer is not None:
                timer.cancel()
