"""Lost jobs are re-enqueued in batches, which shrink and grow."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from jobs_service.actors.context import Context
from jobs_service.errors import StoreError, TransactionTooLarge, TransactionTooOld
from jobs_service.layer import creation, running_jobs
from jobs_service.layer.creation import Spec
from jobs_service.layer.keyspace import pack_id
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.store.memory import Faults, MemoryTransaction
from tests.actors.monitoring import BOUND, TIMEOUT, active, monitored, named, run_jobs
from tests.actors.support import counted, opened, set_timeout
from tests.checker import assert_sound
from tests.virtual_time import in_virtual_time


class AtMost(Faults):
    """A store that refuses transactions that write more than so many keys.

    Attributes:
        most: keys.
        sizes: how many keys each commit was to write.
    """

    def __init__(self, most: int, error: type[StoreError]) -> None:
        self.most = most
        self.sizes: list[int] = []
        self._error = error

    async def before_commit(self, transaction: MemoryTransaction) -> None:
        size = len(transaction.log)
        self.sizes.append(size)
        if size > self.most:
            raise self._error("too much")


@pytest.mark.parametrize("error", [TransactionTooLarge, TransactionTooOld])
def test_batches_shrink_until_they_fit_and_then_grow_again(error: type[StoreError]) -> None:
    @in_virtual_time
    async def scenario() -> None:
        async with opened(activity_batch=100) as context:
            await run_jobs(context, 300)
            # Three writes per job: 35 jobs fit, 50 do not.
            faults = counted(context).faults = AtMost(3 * 35 + 8, error)
            with capture_logs() as events:
                async with monitored(context):
                    await asyncio.sleep(BOUND)
            assert await active(context) == 0
            lost = [event["count"] for event in named(events, "jobs_lost")]
            assert sum(lost) == 300
            # 100 and 50 are too much; 25 and 31 fit, 37 is too much, 18 and 24 fit, and so on.
            assert lost[:6] == [25, 31, 18, 24, 30, 18]
            assert max(faults.sizes) > faults.most
            # No store error that passes by itself: nobody waits.
            assert not named(events, "store_retry")
            await assert_sound(context.store, now=context.sources.wall_time())

    scenario()


@in_virtual_time
async def test_lost_jobs_are_named_in_the_log_but_not_all_of_many() -> None:
    async with opened() as context:
        await run_jobs(context, 30)
        with capture_logs() as events:
            async with monitored(context):
                await asyncio.sleep(BOUND)
        [event] = named(events, "jobs_lost")
        assert event == {
            "event": "jobs_lost",
            "log_level": "warning",
            "type": "t",
            "count": 30,
            "ids": [f"{number:05}" for number in range(10)],
            "reason": "their workers fell silent",
        }


@in_virtual_time
async def test_of_many_large_jobs_lost_at_once_only_those_are_read_that_fit_into_a_transaction() -> None:
    async with opened() as context:
        keys = context.keyspace.of("t")
        await set_timeout(context, "t", TIMEOUT)
        large, count = b"1" * 90_000, 300

        for first in range(0, count, 30):

            async def run_some(unit: UnitOfWork, first: int = first) -> None:
                for number in range(first, first + 30):
                    id = f"{number:05}"
                    entry = await creation.add(unit, (keys, id, pack_id(id)), Spec(None, 0, None), "error")
                    assert entry.record is not None
                    unit.replace(entry, entry.record.with_json(large).running(b"l" * 16, unit.new_seq()))

            await context.transact(run_some)

        async def look(unit: UnitOfWork) -> tuple[int, int, bool]:
            batch = await running_jobs.re_enqueue(unit, keys, b"\xff" * 10, 1000)
            return len(unit.entries), len(batch.ids), batch.more

        read, lost, more = await context.transact(look)
        assert read <= unit_reads_at_most(context)
        assert (0 < lost < read, more) == (True, True)
        with capture_logs() as events:
            async with monitored(context):
                await asyncio.sleep(BOUND)
        assert await active(context) == 0
        assert sum(event["count"] for event in named(events, "jobs_lost")) == count - lost


def unit_reads_at_most(context: Context) -> int:
    """Return how many of the largest records a transaction can hold."""
    return context.store.limits.transaction // context.store.limits.value


@in_virtual_time
async def test_an_entry_of_a_job_that_does_not_run_is_cleared_and_hides_no_lost_job() -> None:
    async with opened(activity_batch=5) as context:
        await run_jobs(context, 3)
        keys = context.keyspace.of("t")

        async def leave_behind(unit: UnitOfWork) -> None:
            for number in range(20):
                unit.transaction.set(keys.activity_head + bytes(11) + bytes([number]), pack_id("gone"))

        await context.transact(leave_behind)
        async with monitored(context):
            await asyncio.sleep(BOUND)
        assert await active(context) == 0
        await assert_sound(context.store, now=context.sources.wall_time())
