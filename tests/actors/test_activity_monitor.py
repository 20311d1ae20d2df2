"""The activity monitor when the store is not at its best: batches that shrink and grow, and a store that is away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from jobs_service import StoreUnavailable
from jobs_service.actors.activity_monitor import CHECK_TIMEOUT
from jobs_service.actors.context import Context
from jobs_service.errors import StoreError, TransactionTooLarge
from jobs_service.layer import creation, queue, running_jobs, type_settings
from jobs_service.layer.creation import Spec
from jobs_service.layer.keyspace import pack_id
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model import Outcome
from jobs_service.model.type_state import Retention
from jobs_service.sources import Sources
from jobs_service.store.memory import Faults, MemoryTransaction
from jobs_service.testing.world import Clock
from tests.actors.monitoring import BOUND, TIMEOUT, active, monitored, named, run_jobs
from tests.actors.support import counted, opened, set_timeout
from tests.checker import assert_sound
from tests.virtual_time import EPOCH, in_virtual_time


class Away(Faults):
    """A store that is away until it is told to come back."""

    def __init__(self) -> None:
        self.away = True
        self.refused: list[float] = []

    async def before_begin(self) -> None:
        if self.away:
            self.refused.append(asyncio.get_running_loop().time())
            raise StoreUnavailable("away")


class SlowCommits(Faults):
    """A store whose commits take their time.

    Attributes:
        attempts, commits: how many there were that wrote something.
    """

    def __init__(self, seconds: float) -> None:
        self.attempts = 0
        self.commits = 0
        self._seconds = seconds
        self._writing: set[MemoryTransaction] = set()

    async def before_commit(self, transaction: MemoryTransaction) -> None:
        if transaction.log:
            self.attempts += 1
            self._writing.add(transaction)
        await asyncio.sleep(self._seconds)

    async def after_commit(self, transaction: MemoryTransaction) -> None:
        self.commits += transaction in self._writing


async def schedule(context: Context, count: int, run_at: Callable[[int], float]) -> None:
    """Add scheduled jobs."""
    keys = context.keyspace.of("t")

    async def work(unit: UnitOfWork) -> None:
        for number in range(count):
            id = f"scheduled {number:05}"
            await creation.add(unit, (keys, id, pack_id(id)), Spec(None, 0, run_at(number)), "error")

    await context.transact(work)


async def finish_all(context: Context, count: int, keep: float) -> None:
    """Add jobs that have finished, and expire after so many seconds."""
    keys = context.keyspace.of("t")

    async def work(unit: UnitOfWork) -> None:
        await type_settings.set_retention(unit, keys, Retention(keep, keep))
        for number in range(count):
            id = f"finished {number:05}"
            entry = await creation.add(unit, (keys, id, pack_id(id)), Spec(None, 0, None), "error")
            assert entry.record is not None
            unit.replace(entry, entry.record.running(b"l" * 16, unit.new_seq()))
            await running_jobs.finish(unit, (keys, id, pack_id(id)), b"l" * 16, None, Outcome.SUCCEEDED)

    await context.transact(work)


# several duties, several services


@pytest.mark.unmeasured
@in_virtual_time
async def test_lost_jobs_are_found_in_time_however_many_come_due_and_expire() -> None:
    """Each commit takes 20 ms: the batches of any single duty would take far longer than the bound allows."""
    settings: dict[str, Any] = {"activity_batch": 50, "pending_batch": 10}
    async with opened(**settings, expiry_check_period=1.0) as context:
        await set_timeout(context, "t", TIMEOUT)
        await finish_all(context, 6000, keep=TIMEOUT)
        await schedule(context, 6000, lambda number: EPOCH + TIMEOUT)
        await run_jobs(context, 1000)
        last_active = asyncio.get_running_loop().time()
        faults = counted(context).faults = SlowCommits(0.02)
        with capture_logs() as events:
            async with monitored(context):
                await asyncio.sleep(last_active + BOUND - asyncio.get_running_loop().time())
                assert await active(context) == 0
                assert named(events, "jobs_due"), "the other duties go on meanwhile"
                assert named(events, "jobs_expired")
                before = faults.commits
                await asyncio.sleep(60)
        assert sum(event["count"] for event in named(events, "jobs_due")) == 6000
        assert sum(event["count"] for event in named(events, "jobs_expired")) == 6000
        # Alone, they take larger batches.
        assert faults.commits - before < 12000 / 50


@in_virtual_time
async def test_a_batch_that_was_too_much_is_halved_at_once_while_lost_jobs_wait_for_their_turn() -> None:
    tried: list[int] = []

    async def work(unit: UnitOfWork, size: int) -> int:
        tried.append(size)
        if size > 10:
            raise TransactionTooLarge("too much")
        return size

    async with opened() as context, monitored(context) as monitor:
        monitor._lost = bytes(10), TIMEOUT
        monitor._lost_at = 1e9
        assert await monitor._one_batch(work) == 6
        assert tried == [100, 50, 25, 12, 6]
        monitor._lost = None


@in_virtual_time
async def test_a_scheduled_job_is_made_ready_within_seconds_after_the_wall_clock_was_set_forward() -> None:
    async with opened(type_idle_after=3600) as context:
        clock = Clock(asyncio.get_running_loop())
        other = Context(context.store, context.settings, Sources(0, wall_time=clock.wall_time))
        await other.open_keyspace()
        await set_timeout(context, "t", 3600)
        await schedule(context, 1, lambda number: EPOCH + 2000)
        with capture_logs() as events:
            async with monitored(other):
                await asyncio.sleep(70)
                assert not named(events, "jobs_due")
                clock.ahead = 2000
                await asyncio.sleep(6)
        assert [event["count"] for event in named(events, "jobs_due")] == [1]


# a store that is away


@in_virtual_time
async def test_a_store_that_goes_away_while_jobs_are_re_enqueued_loses_none() -> None:
    class AwayAtCommit(Faults):
        left = 6

        async def before_commit(self, transaction: MemoryTransaction) -> None:
            if self.left:
                self.left -= 1
                raise StoreUnavailable("away")

    async with opened(activity_batch=10, retry_backoff=0.05) as context:
        await run_jobs(context, 35)
        counted(context).faults = AwayAtCommit()
        with capture_logs() as events:
            async with monitored(context):
                await asyncio.sleep(BOUND + 10)
        assert [event["count"] for event in named(events, "jobs_lost")] == [10, 10, 10, 5]
        retries = named(events, "store_retry")
        assert [event["type"] for event in retries] == ["t"] * 6
        assert await active(context) == 0


@in_virtual_time
async def test_a_timeout_that_is_made_longer_just_as_jobs_are_taken_for_lost_keeps_them_running() -> None:
    class Changing(Faults):
        """Somebody changes the type's timeout when a transaction is about to commit for the first time."""

        async def before_commit(self, transaction: MemoryTransaction) -> None:
            counted(context).faults = None
            await set_timeout(context, "t", 3600)

    async with opened() as context:
        await run_jobs(context, 5)
        counted(context).faults = Changing()
        with capture_logs() as events:
            async with monitored(context):
                await asyncio.sleep(10 * BOUND)
        assert counted(context).faults is None
        assert not named(events, "jobs_lost")
        assert await active(context) == 5


@in_virtual_time
async def test_scheduled_jobs_come_due_after_the_store_has_come_back() -> None:
    async with opened() as context:
        keys = context.keyspace.of("t")
        await set_timeout(context, "t", TIMEOUT)

        async def schedule(unit: UnitOfWork) -> None:
            for number in range(5):
                id = str(number)
                await creation.add(unit, (keys, id, pack_id(id)), Spec(None, 0, EPOCH + 10 + number), "error")

        await context.transact(schedule)
        faults = Away()
        with capture_logs() as events:
            async with monitored(context):
                await asyncio.sleep(5)
                counted(context).faults = faults
                await asyncio.sleep(30)
                faults.away = False
                await asyncio.sleep(5)
        assert named(events, "store_retry")
        assert sum(event["count"] for event in named(events, "jobs_due")) == 5
        assert await context.read(lambda transaction: queue.next_scheduled(transaction, keys)) is None
        await assert_sound(context.store, now=context.sources.wall_time())


@in_virtual_time
async def test_an_error_that_does_not_pass_ends_the_monitor() -> None:
    class Broken(Faults):
        async def before_commit(self, transaction: MemoryTransaction) -> None:
            raise StoreError("broken for good")

    async with opened() as context:
        await run_jobs(context, 1)
        counted(context).faults = Broken()
        with capture_logs():
            async with monitored(context) as monitor:
                cause = await monitor.ended()
        assert isinstance(cause, StoreError)
        assert str(cause) == "broken for good"


# messages


@in_virtual_time
async def test_a_changed_timeout_that_it_is_told_of_counts_at_once() -> None:
    async with opened() as context:
        await run_jobs(context, 3)
        await set_timeout(context, "t", 3600)
        with capture_logs() as events:
            async with monitored(context) as monitor:
                await asyncio.sleep(1)
                await set_timeout(context, "t", 1)
                monitor.cast(CHECK_TIMEOUT)
                await asyncio.sleep(0.99)
                assert not named(events, "jobs_lost")
                await asyncio.sleep(1.51)
                assert named(events, "jobs_lost")
        assert await active(context) == 0
