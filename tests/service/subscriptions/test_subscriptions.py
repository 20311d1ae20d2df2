"""How subscriptions begin, go on and end: nobody is held up by them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from jobs_service import JobEvent, JobNotFound, JobsError, JobsService, JobState, Subscription
from jobs_service.layer.keyspace import _MAX_CACHED_TYPES
from tests.service.subscriptions.support import FINISHED, PENDING, REMOVED, RUNNING, heard, seen
from tests.service.support import (
    J1,
    J2,
    PATIENCE,
    T1,
    T2,
    TIMEOUT,
    accepted,
    eventually,
    kill,
    monitors_and_notifiers,
    node,
    running,
    told,
)

# slow subscribers


async def test_a_slow_subscriber_gets_the_newest_state_and_holds_nobody_up(jobs: JobsService) -> None:
    worker = await running(jobs, data=0)
    async with jobs.subscribe(T1, J1) as slow, jobs.subscribe(T1, J1) as fast:
        assert seen(await anext(slow)) == (RUNNING, 0)
        await anext(fast)
        for number in range(1, 30):
            await worker.update(number)
            assert seen(await anext(fast)) == (RUNNING, number)
        assert seen(await anext(slow)) == (RUNNING, 29)
        await worker.update(30)
        assert seen(await anext(slow)) == (RUNNING, 30)


# leaving


async def test_a_subscription_that_was_left_gives_no_more_events(jobs: JobsService) -> None:
    worker = await running(jobs)
    async with jobs.subscribe(T1, J1) as events:
        await anext(events)
    await worker.finish()
    with pytest.raises(StopAsyncIteration):
        await anext(events)


async def test_a_canceled_subscriber_disturbs_nobody(jobs: JobsService) -> None:
    worker = await running(jobs)
    async with jobs.subscribe(T1, J1) as events:
        await anext(events)
        leaving = [asyncio.create_task(heard(jobs)) for _ in range(10)]
        await told(jobs, 11)
        for task in leaving:
            task.cancel()
        results = await asyncio.gather(*leaving, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results)
        await worker.finish("result")
        assert seen(await anext(events)) == (FINISHED, "result")


# subscribe_many


async def test_one_iterator_gives_the_events_of_many_jobs_and_ends_after_all_last_events(jobs: JobsService) -> None:
    await jobs.add(T1, J1)
    await jobs.add(T1, J2)
    await jobs.add(T2, J1)
    told: dict[tuple[Any, Any], list[JobState]] = {}

    async def listen() -> None:
        async for event in jobs.subscribe_many([(T1, J1), (T1, J2), (T2, J1)]):
            told.setdefault((event.type, event.id), []).append(event.state)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(listen())

        async def all_are_subscribed() -> bool:
            return len(told) == 3

        await eventually(all_are_subscribed)
        assert set(map(tuple, told.values())) == {(PENDING,)}
        for type in (T1, T1, T2):
            await (await accepted(jobs, type)).finish()
            if type == T1 and await jobs.pending_count(T1) == 0:
                await jobs.remove(T1, J2)
    assert told[T1, J1][-1] is FINISHED
    assert told[T1, J2][-1] in (FINISHED, REMOVED)
    assert told[T2, J1][-1] is FINISHED
    for states in told.values():
        assert sum(state in (FINISHED, REMOVED) for state in states) == 1


# restarts

VICTIMS = {
    "notifier": f"notifier {T1!r}",
    "type monitor": f"notifier {T1!r}/type monitor",
    "type server": "type server",
    "activity monitor": f"activity monitor {T1!r}",
}
every_victim = pytest.mark.parametrize("victim", VICTIMS.values(), ids=VICTIMS.keys())


async def whole_again(jobs: JobsService, restarts: int) -> None:
    """Return when the type server has been restarted so often and runs the actors of the type T1."""

    async def is_whole() -> bool:
        return node(jobs, "type server")["restarts"] == restarts and monitors_and_notifiers(jobs) == (1, 1)

    await eventually(is_whole)


@every_victim
async def test_the_last_event_comes_when_the_job_finishes_after_a_restart(jobs: JobsService, victim: str) -> None:
    worker = await running(jobs)
    async with jobs.subscribe(T1, J1) as events:
        await anext(events)
        await whole_again(jobs, restarts=0)
        kill(victim)
        await whole_again(jobs, restarts=1)
        await worker.finish("result")
        assert seen(await anext(events)) == (FINISHED, "result")


# services that cannot


async def test_subscribing_without_a_supervisor_tree_is_an_error(quiet: JobsService) -> None:
    await quiet.add(T1, J1)
    with pytest.raises(JobsError, match="supervise"):
        await heard(quiet)
    with pytest.raises(JobsError, match="supervise"):
        await quiet.wait(T1, J1, FINISHED, timeout=1)
    with pytest.raises(JobsError, match="supervise"):
        await anext(quiet.subscribe_many([(T1, J1)]))


async def test_closing_the_service_ends_its_subscriptions_with_an_error(jobs: JobsService) -> None:
    await jobs.add(T1, J1)
    told: asyncio.Queue[JobEvent] = asyncio.Queue()

    async def listen(service: JobsService) -> None:
        async for event in service.subscribe(T1, J1):
            told.put_nowait(event)

    async def listen_to_many(service: JobsService) -> None:
        async for event in service.subscribe_many([(T1, J1)]):
            told.put_nowait(event)

    async with JobsService(jobs.store) as closing:
        tasks = [
            asyncio.create_task(listen(closing)),
            asyncio.create_task(listen_to_many(closing)),
            asyncio.create_task(closing.wait(T1, J1, FINISHED)),
        ]
        for _ in range(2):
            assert (await told.get()).state is PENDING
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(result, JobsError) for result in results] == [True, True, True]


async def test_an_iterator_that_has_failed_ends_instead_of_hanging(jobs: JobsService) -> None:
    await jobs.add(T1, J1)
    async with JobsService(jobs.store) as closed:
        missing = closed.subscribe(T1, J2)
        with pytest.raises(JobNotFound):
            await anext(missing)
        with pytest.raises((StopAsyncIteration, JobsError)):
            await anext(missing)
        late = closed.subscribe(T1, J1)
    for _ in range(2):
        with pytest.raises((StopAsyncIteration, JobsError)):
            await anext(late)


@pytest.mark.unmeasured
async def test_a_subscription_and_its_service_survive_very_many_names_of_types_that_were_asked_for() -> None:
    async with JobsService("memory:") as jobs:
        await jobs.set_type_timeout(T1, TIMEOUT)
        await jobs.add(T1, J1)
        async with jobs.subscribe(T1, J1) as events:
            assert (await anext(events)).state is PENDING
            for number in range(_MAX_CACHED_TYPES + 1_000):
                jobs.subscribe(f"no type {number}", J1).close()
            worker = await accepted(jobs)
            async with jobs.subscribe(T1, J1) as others:
                assert (await anext(others)).state is RUNNING
            await worker.finish()
            assert [event.state async for event in events][-1] is FINISHED
        assert all(child["restarts"] == 0 for child in jobs.supervision()["children"])


# on other loops


async def test_subscribing_on_another_event_loop_is_an_error_that_says_so(jobs: JobsService) -> None:
    await jobs.add(T1, J1)
    jobs.handler("here")(_nothing)

    def refusal(call: Callable[[], Coroutine[Any, Any, Any]]) -> str:
        with pytest.raises(JobsError) as caught:
            asyncio.run(asyncio.wait_for(call(), PATIENCE))
        return str(caught.value)

    begun = jobs.subscribe(T1, J1)
    assert (await anext(begun)).state == PENDING
    calls: list[Callable[[], Coroutine[Any, Any, Any]]] = [
        lambda: heard(jobs),
        lambda: jobs.wait(T1, J1, FINISHED),
        lambda: jobs.result(T1, J1),
        lambda: _next(begun),
        lambda: jobs.run(),
    ]
    for call in calls:
        assert "another event loop; use it there (in a thread: " in await asyncio.to_thread(refusal, call)
    await (await accepted(jobs)).finish()
    assert (await anext(begun)).state in {RUNNING, FINISHED}


async def _next(events: Subscription) -> JobEvent:
    return await anext(events)


async def _nothing() -> None:
    pass
