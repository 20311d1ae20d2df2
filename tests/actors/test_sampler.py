"""The sampler: many types in one read, told to whom it is of use, and never later than it must be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from structlog.testing import capture_logs

from jobs_service import StoreUnavailable
from jobs_service.actors.activity_monitor import Sample, Sampled, Sampler
from jobs_service.actors.context import Context
from jobs_service.store import Transaction
from jobs_service.store.memory import Faults
from tests.actors.support import counted, opened, set_timeout
from tests.virtual_time import in_virtual_time


class Slow(Faults):
    """A store that takes its time, and does not answer so many calls."""

    def __init__(self, pause: float = 0.0, *, away: int = 0) -> None:
        self.pause = pause
        self.away = away

    async def before_begin(self) -> None:
        await asyncio.sleep(self.pause)
        if self.away:
            self.away -= 1
            raise StoreUnavailable("away")


class Listener:
    """What is told of one type.

    Attributes:
        told: the samples.
    """

    def __init__(self, context: Context, sampler: Sampler, type: Any) -> None:
        self.told: list[Sample] = []
        self._sampler = sampler
        self.sampled: Sampled = sampler.add(context.keyspace.of(type), self.told.append)

    def hurry(self) -> None:
        self._sampler.hurry(self.sampled)

    def remove(self) -> None:
        self._sampler.remove(self.sampled)

    def gaps(self) -> list[float]:
        """Return the seconds between one sample and the next."""
        return [after.at - before.at for before, after in zip(self.told, self.told[1:], strict=False)]


@asynccontextmanager
async def running(context: Context) -> AsyncIterator[Sampler]:
    """Run a sampler."""
    sampler = Sampler(context)
    task = asyncio.create_task(sampler.run())
    try:
        yield sampler
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@in_virtual_time
async def test_types_of_like_timeouts_share_reads_whenever_they_were_added() -> None:
    async with opened() as context:
        for number in range(50):
            await set_timeout(context, number, 60)
        async with running(context) as sampler:
            for number in range(50):
                Listener(context, sampler, number)
                await asyncio.sleep(0.337)
            before = counted(context).reads
            await asyncio.sleep(600)
            # 50 types with 10 to 14 samples a minute for 10 minutes; at most four reads a second.
            assert counted(context).reads - before <= 4 * 600


@in_virtual_time
async def test_a_type_that_is_removed_is_told_of_no_more() -> None:
    async with opened() as context:
        await set_timeout(context, "t", 8)
        await set_timeout(context, "u", 8)
        async with running(context) as sampler:
            listener, other = Listener(context, sampler, "t"), Listener(context, sampler, "u")
            await asyncio.sleep(5)
            listener.remove()
            told = len(listener.told), len(other.told)
            await asyncio.sleep(5)
            assert len(listener.told) == told[0]
            assert len(other.told) > told[1]
            other.remove()
            reads = counted(context).reads
            await asyncio.sleep(100)
            assert counted(context).reads == reads


@in_virtual_time
async def test_a_quiet_listener_is_told_of_changes_only() -> None:
    async def touch(transaction: Transaction) -> None:
        transaction.set(context.keyspace.of("t").watch_activity, bytes(10))

    async with opened() as context:
        await set_timeout(context, "t", 6)
        async with running(context) as sampler:
            listener = Listener(context, sampler, "t")
            await asyncio.sleep(20)
            listener.sampled.quiet = True
            told = len(listener.told)
            await asyncio.sleep(20)
            assert len(listener.told) == told
            await context.store.transact(touch)
            await asyncio.sleep(20)
            assert [sample.stamp for sample in listener.told[told:]] == [bytes(10)]


@in_virtual_time
async def test_who_is_in_a_hurry_during_a_read_is_told_of_another_one() -> None:
    async with opened() as context:
        await set_timeout(context, "t", 3600)
        async with running(context) as sampler:
            counted(context).answer_after = 1.0
            listener = Listener(context, sampler, "t")
            await asyncio.sleep(0.5)
            # The read has seen the long timeout already; it is not answered yet.
            counted(context).answer_after = 0.0
            await set_timeout(context, "t", 0.5)
            listener.hurry()
            await asyncio.sleep(1)
            assert [sample.timeout for sample in listener.told[:2]] == [3600, 0.5]


@in_virtual_time
async def test_while_the_store_is_away_samples_are_late_and_none_is_lost() -> None:
    async with opened(retry_backoff=0.1, retry_backoff_max=0.4) as context:
        await set_timeout(context, "t", 8)
        counted(context).faults = Slow(away=5)
        with capture_logs() as events:
            async with running(context) as sampler:
                listener = Listener(context, sampler, "t")
                await asyncio.sleep(1.55)
                assert [sample.timeout for sample in listener.told] == [8]
        assert [event["event"] for event in events] == ["store_retry"] * 5
        assert [event["pause"] for event in events] == [0.1, 0.2, 0.4, 0.4, 0.4]
