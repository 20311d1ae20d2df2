"""What a subscriber is promised: the current state first, then true history, and the last event always."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jobs_service import JobNotFound, JobsService, JobState, JobTransaction, Outcome, Settings
from tests.service.subscriptions.support import FINISHED, PENDING, REMOVED, RUNNING, Witness, heard, seen
from tests.service.support import J1, LOST, T1, TIMEOUT, accepted, eventually, running

# the first event


async def test_the_first_event_is_the_current_state_and_data_of_a_pending_job(jobs: JobsService) -> None:
    await jobs.add(T1, J1, {"x": 1})
    async with jobs.subscribe(T1, J1) as events:
        event = await anext(events)
    assert (event.type, event.id, event.state, event.data, event.outcome) == (T1, J1, PENDING, {"x": 1}, None)
    assert event.seq == (await jobs.get(T1, J1)).seq


async def test_subscribing_to_a_missing_job_is_an_error(jobs: JobsService) -> None:
    with pytest.raises(JobNotFound) as caught:
        await anext(jobs.subscribe(T1, J1))
    assert (caught.value.type, caught.value.id) == (T1, J1)
    with pytest.raises(JobNotFound):
        async with jobs.subscribe(T1, J1) as events:
            await anext(events)
    with pytest.raises(JobNotFound):
        await anext(jobs.subscribe("nosuch", J1))


# history


async def test_every_change_of_state_that_is_waited_for_is_an_event(jobs: JobsService) -> None:
    await jobs.add(T1, J1, "new")
    async with jobs.subscribe(T1, J1) as events:
        assert seen(await anext(events)) == (PENDING, "new")
        worker = await accepted(jobs)
        assert seen(await anext(events)) == (RUNNING, "new")
        await worker.release()
        assert seen(await anext(events)) == (PENDING, "new")
        worker = await accepted(jobs)
        assert seen(await anext(events)) == (RUNNING, "new")
        await worker.finish("result")
        event = await anext(events)
        assert (seen(event), event.outcome) == ((FINISHED, "result"), Outcome.SUCCEEDED)
        with pytest.raises(StopAsyncIteration):
            await anext(events)
        with pytest.raises(StopAsyncIteration):
            await anext(events)


async def test_an_update_with_the_same_data_is_no_event(jobs: JobsService, witness: Witness) -> None:
    worker = await running(jobs, data={"a": 1, "b": 2})
    async with jobs.subscribe(T1, J1) as events:
        await anext(events)
        await worker.update({"a": 1, "b": 2})
        await witness.notifier_has_looked()
        await worker.finish("result")
        assert seen(await anext(events)) == (FINISHED, "result")


async def test_a_burst_is_merged_into_the_newest_state(jobs: JobsService, witness: Witness) -> None:
    worker = await running(jobs, data=0)
    async with jobs.subscribe(T1, J1) as events:
        assert seen(await anext(events)) == (RUNNING, 0)
        for number in range(1, 10):
            await worker.update(number)
        await witness.notifier_has_looked()
        assert seen(await anext(events)) == (RUNNING, 9)


async def test_a_removed_job_ends_with_removed(jobs: JobsService) -> None:
    await jobs.add(T1, J1, "data")
    async with jobs.subscribe(T1, J1) as events:
        await anext(events)
        await jobs.remove(T1, J1)
        event = await anext(events)
        assert (event.type, event.id, event.state, event.outcome) == (T1, J1, REMOVED, None)
        with pytest.raises(StopAsyncIteration):
            await anext(events)


async def test_a_lost_job_is_seen_pending_and_its_subscription_goes_on(jobs: JobsService) -> None:
    await running(jobs)
    async with jobs.subscribe(T1, J1) as events:
        assert (await anext(events)).state is RUNNING
        await jobs.set_type_timeout(T1, LOST)
        assert (await anext(events)).state is PENDING
        await jobs.set_type_timeout(T1, TIMEOUT)
        worker = await accepted(jobs)
        await worker.finish()
        while (event := await anext(events)).state is not FINISHED:
            assert event.state is RUNNING


async def test_a_flagged_job_is_seen_pending_when_it_finishes(jobs: JobsService) -> None:
    worker = await running(jobs)
    async with jobs.subscribe(T1, J1) as events:
        await anext(events)
        await jobs.resubmit(T1, J1)
        await worker.finish("once")
        assert seen(await anext(events)) == (PENDING, "once")
        worker = await accepted(jobs)
        assert seen(await anext(events)) == (RUNNING, "once")
        await worker.finish("twice")
        assert seen(await anext(events)) == (FINISHED, "twice")


async def test_a_finished_job_resubmitted_before_the_notifier_looked_goes_on(jobs: JobsService) -> None:
    worker = await running(jobs)

    async def finish_and_resubmit(tx: JobTransaction) -> None:
        await tx.finish(worker, "once")
        await tx.resubmit(T1, J1)

    async with jobs.subscribe(T1, J1) as events:
        assert (await anext(events)).state is RUNNING
        await jobs.transact(finish_and_resubmit)
        assert seen(await anext(events)) == (PENDING, "once")
        again = await accepted(jobs)
        assert seen(await anext(events)) == (RUNNING, "once")
        await again.finish("twice")
        assert seen(await anext(events)) == (FINISHED, "twice")


async def live_through(jobs: JobsService, rounds: int) -> list[tuple[JobState, Any]]:
    """Take the pending job J1 through many changes as fast as it goes, and return its history."""
    history: list[tuple[JobState, Any]] = [(PENDING, "new")]
    for number in range(rounds):
        worker = await accepted(jobs)
        history.append((RUNNING, worker.data))
        for step in range(3):
            await worker.update([number, step])
            history.append((RUNNING, [number, step]))
        if number % 2:
            await worker.release()
            history.append((PENDING, [number, 2]))
        elif number < rounds - 1:
            await worker.resubmit()
            await worker.finish([number, "done"])
            history.append((PENDING, [number, "done"]))
        else:
            await worker.finish([number, "done"])
            history.append((FINISHED, [number, "done"]))
    return history


def is_subsequence(part: list[Any], whole: list[Any]) -> bool:
    """Whether all of part occurs in whole, in its order, each place used once."""
    places = iter(whole)
    return all(item in places for item in part)


@pytest.mark.parametrize("holdoff", [0.0, 0.01])
async def test_events_are_a_subsequence_of_the_true_history_without_repeats(
    address: str, holdoff: float, jobs: JobsService
) -> None:
    async with JobsService(jobs.store, settings=Settings(notify_holdoff=holdoff)) as other:
        await jobs.add(T1, J1, "new")
        async with asyncio.TaskGroup() as tasks:
            listening = [tasks.create_task(heard(service)) for service in (jobs, jobs, other, other)]
            for _ in range(3):
                await asyncio.sleep(0)
            history = await live_through(jobs, 15)
    for task in listening:
        events = task.result()
        assert is_subsequence(events, history)
        assert events[-1] == history[-1]


async def test_the_seq_of_events_grows(jobs: JobsService) -> None:
    await jobs.add(T1, J1)
    seqs: list[bytes] = []

    async def listen() -> None:
        async for event in jobs.subscribe(T1, J1):
            assert event.seq is not None
            seqs.append(event.seq)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(listen())
        worker = await accepted(jobs)
        for number in range(5):
            before = len(seqs)
            await worker.update(number)

            async def it_is_told(before: int = before) -> bool:
                return len(seqs) > before

            if number % 2:  # so that not all of it is one burst
                await eventually(it_is_told)
        await worker.finish()
    assert seqs == sorted(set(seqs))


# the last event


async def test_what_happens_through_another_service_is_heard(jobs: JobsService) -> None:
    async with JobsService(jobs.store, supervise=False) as other:
        await other.add(T1, J1)
        async with jobs.subscribe(T1, J1) as events:
            assert (await anext(events)).state is PENDING
            worker = await accepted(other)
            assert (await anext(events)).state is RUNNING
            await worker.finish("elsewhere")
            assert seen(await anext(events)) == (FINISHED, "elsewhere")
