"""Who iterates over a subscription: all of them end with it, however it ends."""

from __future__ import annotations

import asyncio

from jobs_service import JobsService, JobState
from tests.service.subscriptions.support import FINISHED, PENDING, REMOVED
from tests.service.support import J1, PATIENCE, T1, accepted, eventually, told


async def test_all_who_iterate_over_one_subscription_end_with_it(jobs: JobsService) -> None:
    await jobs.add(T1, J1)

    async def states() -> list[JobState]:
        return [event.state async for event in events]

    async with asyncio.timeout(PATIENCE), jobs.subscribe(T1, J1) as events, asyncio.TaskGroup() as group:
        both = [group.create_task(states()) for _ in range(2)]
        await told(jobs)
        worker = await accepted(jobs)
        await worker.finish()
    assert sorted(state for task in both for state in task.result())[0] == FINISHED
    assert [state for task in both for state in task.result()].count(FINISHED) == 1


async def test_a_closed_subscription_ends_all_who_iterate_over_it(jobs: JobsService) -> None:
    await jobs.add(T1, J1)
    events = jobs.subscribe(T1, J1)
    assert (await anext(events)).state == PENDING
    both = [asyncio.create_task(anext(events, None)) for _ in range(2)]
    await asyncio.sleep(0)
    events.close()
    async with asyncio.timeout(PATIENCE):
        assert await asyncio.gather(*both) == [None, None]


async def test_a_closed_subscription_ends_after_the_last_event_that_was_there(jobs: JobsService) -> None:
    await jobs.add(T1, J1)
    async with jobs.subscribe(T1, J1) as events:
        assert (await anext(events)).state == PENDING
        await jobs.remove(T1, J1)

        async def is_there() -> bool:
            return bool(events._mailbox._order)

        await eventually(is_there)
    async with asyncio.timeout(PATIENCE):
        assert [event.state async for event in events] == [REMOVED]
