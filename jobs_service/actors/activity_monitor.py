"""The activity monitor of one type: re-enqueues lost jobs, makes scheduled ones ready, removes those that expired.

Floor: actors. It samples the type's activity stamp several times per timeout. An ACTIVITY entry at or below a stamp
that was sampled at least one timeout ago belongs to a job that was silent for at least the timeout. With two samples at
most timeout / 4 apart, it is noticed before 1.5 timeouts have passed.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from typing import Final

from jobs_service.actors.context import Context, log
from jobs_service.actors.sampler import Sample, Sampler
from jobs_service.errors import TransactionTooLarge, TransactionTooOld
from jobs_service.layer import activity, pending
from jobs_service.layer.keyspace import TypeKeys
from jobs_service.layer.unit import Unit
from jobs_service.model import JobId
from jobs_service.store.base import Transaction, Watch
from jobs_service.supervision import Actor

LOOK_AGAIN: Final = "look again"
"""The message that the type's timeout may have changed."""

_PENDING_CHANGED: Final = "pending changed"
_SAMPLED: Final = "sampled"
_CLOCK_CHECK = 5.0
_QUEUE_HOLDOFF = 0.05
_SHOWN_IDS = 10
_NEVER = math.inf
_TOO_MUCH = (TransactionTooLarge, TransactionTooOld)


class ActivityMonitor(Actor):
    """Watches over the running and the scheduled jobs of one type.

    Args:
        context: the service's.
        keys: of the type.
        sampler: shared by all monitors.
    """

    def __init__(self, context: Context, keys: TypeKeys, sampler: Sampler) -> None:
        super().__init__(f"activity monitor {keys.type!r}")
        self._context = context
        self._keys = keys
        self._sampler = sampler
        self._log = log.bind(type=keys.type)
        self._timeout: float | None = None
        self._history: deque[Sample] = deque()
        self._clean = b""
        self._batch = float(context.settings.activity_batch)
        self._sample: Sample | None = None
        self._watch: Watch | None = None

    async def init(self) -> None:
        self._sampled = self._sampler.add(self._keys, self._keep_sample)

    async def run(self) -> None:
        time = asyncio.get_running_loop().time
        wall_time = self._context.sources.wall_time
        look_at_queue = look_at_expired = expired_at = time()
        next_run_at = _NEVER
        period = self._context.settings.expiry_check_period
        stamp: bytes | None = None
        while True:
            # Wall clocks jump: what waits for one looks at it now and then.
            until_due = _NEVER if next_run_at == _NEVER else min(next_run_at - wall_time(), _CLOCK_CHECK)
            wait = min(look_at_queue - time(), look_at_expired - time(), until_due)
            message = await self.receive(None if wait == _NEVER else wait)
            if message is not None:
                if message.body == _SAMPLED:
                    sample, self._sample = self._sample, None
                    assert sample is not None
                    if sample.stamp != stamp:
                        # Something has happened, and may have left what expires.
                        stamp = sample.stamp
                        look_at_expired = min(look_at_expired, expired_at + period)
                    await self._check(sample)
                elif message.body == _PENDING_CHANGED:
                    look_at_queue = min(look_at_queue, time() + _QUEUE_HOLDOFF)
                elif message.body == LOOK_AGAIN:
                    self._sampler.hurry(self._sampled)
                else:
                    await self.handle(message.body)
            if next_run_at <= wall_time():
                await self._make_ready()
                look_at_queue = time()
            if look_at_queue <= time():
                next_run_at = await self._look_at_queue()
                look_at_queue = _NEVER
            if look_at_expired <= time():
                next_expiry = await self._remove_expired()
                expired_at = time()
                look_at_expired = _NEVER if next_expiry == _NEVER else expired_at + period

    async def terminate(self) -> None:
        self._sampler.remove(self._sampled)
        if self._watch is not None:
            self._watch.cancel()

    # Lost jobs

    def _keep_sample(self, sample: Sample) -> None:
        """Keep the newest sample only: while the monitor waits for the store to take a write, samples go on."""
        if self._sample is None:
            self.cast(_SAMPLED)
        self._sample = sample

    async def _check(self, sample: Sample) -> None:
        """Re-enqueue what a sample shows to be lost."""
        history = self._history
        if sample.timeout != self._timeout:
            self._timeout = sample.timeout
            history.clear()
        if sample.timeout is None:
            return
        # An unchanged stamp was sampled earlier: that older sample says more.
        if sample.stamp is not None and (not history or history[-1].stamp != sample.stamp):
            history.append(sample)
        silent_since = sample.at - sample.timeout
        while len(history) > 1 and history[1].at <= silent_since:
            history.popleft()
        if history and history[0].at <= silent_since:
            stamp = history[0].stamp
            assert stamp is not None
            if stamp > self._clean:
                await self._re_enqueue(stamp, sample.timeout)
        # With nothing at or below the newest stamp there is nothing to wait for.
        self._sampled.quiet = not history or (history[-1].stamp or b"") <= self._clean

    async def _re_enqueue(self, until: bytes, timeout: float) -> None:
        """Re-enqueue every job silent since the stamp, in batches that shrink when too much and grow when they fit."""
        settings = self._context.settings
        while True:
            size = int(self._batch)
            try:
                lost = await self._take_for_lost(until, timeout, size)
            except _TOO_MUCH as error:
                if size == 1:
                    raise
                self._batch = max(1.0, size * settings.activity_batch_factor)
                self._log.warning("activity_batch_shrunk", size=int(self._batch), error=str(error))
                continue
            if lost is None:
                return  # The timeout has changed meanwhile: the measurement starts anew.
            if lost:
                self._log.warning("jobs_lost", count=len(lost), ids=lost[:_SHOWN_IDS])
            if len(lost) < size:
                # Entries only ever get newer stamps: none at or below this one will come up again.
                self._clean = until
                return
            self._batch += settings.activity_batch_increment

    async def _take_for_lost(self, until: bytes, timeout: float, size: int) -> list[JobId] | None:
        """Re-enqueue one batch and return its ids; None when the type's timeout is not the one measured with."""
        keys = self._keys

        async def take(unit: Unit) -> list[JobId] | None:
            # The stamp is not read: whoever is active meanwhile would be a conflict, on a busy type for ever.
            present = await activity.timeout_if_any(unit.transaction, keys)
            return await activity.re_enqueue(unit, keys, until, size) if present == timeout else None

        return await self._context.retried(lambda: self._context.transact(take), unless=_TOO_MUCH, type=keys.type)

    # Scheduled jobs

    async def _look_at_queue(self) -> float:
        """Watch the type's queue, and return when the next scheduled job comes due, seconds since the epoch."""
        if self._watch is not None:
            self._watch.cancel()

        async def look(transaction: Transaction) -> tuple[float | None, Watch]:
            watch = transaction.watch(self._keys.watch_pending)
            return await pending.next_scheduled(transaction, self._keys), watch

        run_at, watch = await self._context.retried(lambda: self._context.read(look), type=self._keys.type)
        self._watch = watch
        watch.on_fire(lambda: self.cast(_PENDING_CHANGED))
        return _NEVER if run_at is None else run_at

    async def _make_ready(self) -> None:
        limit = self._context.settings.pending_batch
        keys = self._keys
        while moved := await self._context.retried(
            lambda: self._context.transact(lambda unit: pending.make_ready(unit, keys, unit.now, limit)),
            type=keys.type,
        ):
            self._log.debug("jobs_due", count=moved)

    # Finished jobs

    async def _remove_expired(self) -> float:
        """Remove what has expired, and return when the next finished job does, seconds since the epoch.

        It looks first, because most of the time there is nothing.
        """
        limit = self._context.settings.pending_batch
        keys = self._keys
        wall_time = self._context.sources.wall_time

        async def next_expiry() -> float:
            expiry = await self._context.retried(
                lambda: self._context.read(lambda transaction: activity.next_expiry(transaction, keys)), type=keys.type
            )
            return _NEVER if expiry is None else expiry

        while (expiry := await next_expiry()) <= wall_time():
            removed = await self._context.retried(
                lambda: self._context.transact(lambda unit: activity.remove_expired(unit, keys, unit.now, limit)),
                type=keys.type,
            )
            self._log.debug("jobs_expired", count=removed)
        return expiry
