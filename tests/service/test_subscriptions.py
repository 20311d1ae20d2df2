"""What a subscriber is promised: the current state first, then true history, the last event always, and no hold-ups."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from jobs_service import (
    JobError,
    JobEvent,
    JobNotFound,
    JobsError,
    JobsService,
    JobState,
    JobTransaction,
    Outcome,
    RunningJob,
    Settings,
    Subscription,
)
from jobs_service.layer.keyspace import _MAX_CACHED_TYPES
from tests.runner.support import opened
from tests.service.support import (
    FAR_AWAY,
    J1,
    J2,
    LOST,
    PATIENCE,
    T1,
    T2,
    TIMEOUT,
    accepted,
    canceled,
    eventually,
    finished,
    kill,
    monitors_and_notifiers,
    new_jobs,
    node,
    running,
    told,
)
from tests.virtual_time import in_virtual_time

PENDING, RUNNING, FINISHED, REMOVED = JobState.PENDING, JobState.RUNNING, JobState.FINISHED, JobState.REMOVED


def seen(event: JobEvent) -> tuple[JobState, Any]:
    """Return an event's state and data."""
    return event.state, event.data


async def heard(jobs: JobsService, id: Any = J1, type: Any = T1) -> list[tuple[JobState, Any]]:
    """Return all events of a new subscription."""
    return [seen(event) async for event in jobs.subscribe(type, id)]


class Witness:
    """A running job beside the one under test: its events tell that the notifier has looked at the type's jobs."""

    def __init__(self, jobs: JobsService, worker: RunningJob) -> None:
        self._worker = worker
        self._events = jobs.subscribe(worker.type, worker.id)
        self._count = 0

    async def notifier_has_looked(self) -> None:
        """Return when all that happened before has been passed on to subscribers."""
        for _ in range(2):  # the second look comes only after the first has passed on everything
            self._count += 1
            await self._worker.update(self._count)
            while (await anext(self._events)).data != self._count:
                pass


@pytest.fixture
async def witness(jobs: JobsService) -> Witness:
    """A witness for the type T1."""
    return Witness(jobs, await running(jobs, "witness"))


# the first event


async def test_the_first_event_is_the_current_state_and_data_of_a_pending_job(jobs: JobsService) -> None:
    await jobs.add(T1, J1, {"x": 1})
    async with jobs.subscribe(T1, J1) as events:
        event = await anext(events)
    assert (event.type, event.id, event.state, event.data, event.outcome) == (T1, J1, PENDING, {"x": 1}, None)
    assert event.seq == (await jobs.get(T1, J1)).seq


async def test_the_first_event_of_a_scheduled_job_is_pending(jobs: JobsService) -> None:
    await jobs.add(T1, J1, "later", run_at=FAR_AWAY)
    async with jobs.subscribe(T1, J1) as events:
        assert seen(await anext(events)) == (PENDING, "later")


async def test_the_first_event_is_the_current_state_and_data_of_a_running_job(jobs: JobsService) -> None:
    worker = await running(jobs, data="old")
    await worker.update("new")
    async with jobs.subscribe(T1, J1) as events:
        assert seen(await anext(events)) == (RUNNING, "new")


async def test_the_first_event_of_a_finished_job_is_the_last_one(jobs: JobsService) -> None:
    worker = await running(jobs)
    await worker.finish("result", outcome=Outcome.FAILED)
    events = [event async for event in jobs.subscribe(T1, J1)]
    assert [(seen(event), event.outcome) for event in events] == [((FINISHED, "result"), Outcome.FAILED)]


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


async def test_an_update_with_new_data_is_an_event(jobs: JobsService) -> None:
    worker = await running(jobs)
    async with jobs.subscribe(T1, J1) as events:
        assert seen(await anext(events)) == (RUNNING, None)
        for progress in range(3):
            await worker.update({"done": progress})
            assert seen(await anext(events)) == (RUNNING, {"done": progress})


async def test_a_heartbeat_without_data_is_no_event(jobs: JobsService, witness: Witness) -> None:
    worker = await running(jobs, data="data")
    async with jobs.subscribe(T1, J1) as events:
        assert seen(await anext(events)) == (RUNNING, "data")
        await worker.update()
        await witness.notifier_has_looked()
        await worker.finish()
        assert seen(await anext(events)) == (FINISHED, "data")


async def test_an_update_with_the_same_data_is_no_event(jobs: JobsService, witness: Witness) -> None:
    worker = await running(jobs, data={"a": 1, "b": 2})
    async with jobs.subscribe(T1, J1) as events:
        await anext(events)
        await worker.update({"a": 1, "b": 2})
        await witness.notifier_has_looked()
        await worker.finish("result")
        assert seen(await anext(events)) == (FINISHED, "result")


async def test_changes_of_other_jobs_are_no_events(jobs: JobsService, witness: Witness) -> None:
    worker = await running(jobs)
    async with jobs.subscribe(T1, J1) as events:
        await anext(events)
        await finished(jobs, J2)
        await jobs.add(T2, J1)
        await accepted(jobs, T2)
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


async def test_a_running_job_removed_by_force_ends_with_removed(jobs: JobsService) -> None:
    await running(jobs)
    async with jobs.subscribe(T1, J1) as events:
        await anext(events)
        await jobs.remove(T1, J1, force=True)
        assert (await anext(events)).state is REMOVED
        with pytest.raises(StopAsyncIteration):
            await anext(events)


async def test_a_canceled_job_ends_with_its_outcome(jobs: JobsService) -> None:
    worker = await canceled(jobs)
    async with jobs.subscribe(T1, J1) as events:
        assert (await anext(events)).state is RUNNING
        await worker.finish("last word")
        event = await anext(events)
    assert (seen(event), event.outcome) == ((FINISHED, "last word"), Outcome.CANCELED)


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


async def test_new_data_of_a_pending_job_is_seen(jobs: JobsService) -> None:
    await jobs.add(T1, J1, "old")
    async with jobs.subscribe(T1, J1) as events:
        await anext(events)
        await jobs.resubmit(T1, J1, data="new")
        assert seen(await anext(events)) == (PENDING, "new")


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


async def test_everybody_is_told_the_last_event(jobs: JobsService) -> None:
    worker = await running(jobs)
    async with asyncio.TaskGroup() as tasks:
        listening = [tasks.create_task(heard(jobs)) for _ in range(50)]
        await told(jobs, 50)
        await worker.finish("result")
    assert {task.result()[-1] for task in listening} == {(FINISHED, "result")}


async def test_many_jobs_finishing_at_once_all_get_their_last_event(jobs: JobsService) -> None:
    ids = [f"{number:03}" for number in range(200)]
    await jobs.add_many(T1, new_jobs(*ids))
    async with asyncio.TaskGroup() as tasks:
        listening = [tasks.create_task(heard(jobs, id)) for id in ids]
        await told(jobs, len(ids))
        for worker in await jobs.accept_many(T1, len(ids), timeout=0):
            await worker.finish(worker.id)
    for id, task in zip(ids, listening, strict=True):
        assert task.result()[-1] == (FINISHED, id)


async def test_what_happens_through_another_service_is_heard(jobs: JobsService) -> None:
    async with JobsService(jobs.store, supervise=False) as other:
        await other.add(T1, J1)
        async with jobs.subscribe(T1, J1) as events:
            assert (await anext(events)).state is PENDING
            worker = await accepted(other)
            assert (await anext(events)).state is RUNNING
            await worker.finish("elsewhere")
            assert seen(await anext(events)) == (FINISHED, "elsewhere")


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


async def test_a_slow_subscriber_does_not_miss_the_last_event(jobs: JobsService) -> None:
    worker = await running(jobs, data=0)
    async with jobs.subscribe(T1, J1) as slow:
        await anext(slow)
        for number in range(1, 5):
            await worker.update(number)
        await worker.finish("result")
        assert await heard(jobs) == [(FINISHED, "result")]
        await jobs.wait(T1, J1, FINISHED)
        rest = [seen(event) async for event in slow]
    assert rest[-1] == (FINISHED, "result")


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


async def test_a_subscription_can_be_abandoned_in_the_middle_of_a_loop(jobs: JobsService) -> None:
    worker = await running(jobs)
    async for event in jobs.subscribe(T1, J1):
        assert event.state is RUNNING
        break
    await worker.finish("result")
    assert await heard(jobs) == [(FINISHED, "result")]


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


async def test_subscribing_to_many_of_which_one_is_missing_names_it(jobs: JobsService) -> None:
    await jobs.add(T1, J1)

    async def listen() -> None:
        async for _ in jobs.subscribe_many([(T1, J1), (T1, J2)]):
            pass

    with pytest.raises(JobNotFound) as caught:
        await listen()
    assert (caught.value.type, caught.value.id) == (T1, J2)


async def test_subscribing_to_many_that_are_finished_ends(jobs: JobsService) -> None:
    await finished(jobs, J1)
    await finished(jobs, J2)
    async with jobs.subscribe_many([(T1, J1), (T1, J2)]) as events:
        told = [(event.id, event.state) async for event in events]
    assert sorted(told, key=str) == [(J1, FINISHED), (J2, FINISHED)]


async def test_subscribing_to_none_ends_at_once(jobs: JobsService) -> None:
    assert [event async for event in jobs.subscribe_many([])] == []


# wait


async def test_progress_alone_is_an_event(jobs: JobsService) -> None:
    worker = await running(jobs)
    async with asyncio.timeout(PATIENCE), jobs.subscribe(T1, J1) as events:
        assert (await anext(events)).progress is None
        for done in (1, 2):
            await worker.progress(done, 10, "on it")
            progress = (await anext(events)).progress
            assert progress is not None
            assert (progress.done, progress.total, progress.message) == (done, 10, "on it")


async def test_what_replaces_an_untaken_event_of_the_same_state_is_told(jobs: JobsService) -> None:
    worker = await running(jobs, data=1)
    async with asyncio.timeout(PATIENCE), jobs.subscribe(T1, J1) as events:
        assert (await anext(events)).data == 1
        [target] = events._targets
        for data in (2, 3):
            await worker.update(data)

            async def is_told(data: int = data) -> bool:
                return target.told is not None and target.told.data == data

            await eventually(is_told)
        assert (await anext(events)).data == 3


async def test_a_new_time_alone_is_an_event(jobs: JobsService) -> None:
    await jobs.add(T1, J1, run_at=FAR_AWAY)
    async with asyncio.timeout(PATIENCE), jobs.subscribe(T1, J1) as events:
        await anext(events)
        await jobs.resubmit(T1, J1, run_at=FAR_AWAY + 1)
        run_at = (await anext(events)).run_at
        assert run_at is not None
        assert run_at.timestamp() == FAR_AWAY + 1


async def test_an_event_has_result_error_and_data_of_the_job(jobs: JobsService) -> None:
    worker = await running(jobs, data="data")
    error = JobError("Refused", "no such address")
    await worker.finish(outcome=Outcome.FAILED, result="result", error=error)
    event = await jobs.wait(T1, J1, FINISHED)
    assert (event.data, event.result, event.error, event.attempts) == ("data", "result", error, 1)


async def test_wait_for_a_state_that_the_job_is_in_returns_at_once(jobs: JobsService) -> None:
    await jobs.add(T1, J1, "data")
    assert seen(await jobs.wait(T1, J1, PENDING)) == (PENDING, "data")
    worker = await accepted(jobs)
    assert seen(await jobs.wait(T1, J1, FINISHED, RUNNING)) == (RUNNING, "data")
    await worker.finish("result")
    assert seen(await jobs.wait(T1, J1, FINISHED)) == (FINISHED, "result")


async def test_wait_returns_when_the_job_comes_into_one_of_the_states(jobs: JobsService) -> None:
    worker = await running(jobs)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(jobs.wait(T1, J1, PENDING, FINISHED, timeout=30))
        await told(jobs)
        await worker.update("on the way")
        await worker.finish("result")
    assert seen(waiting.result()) == (FINISHED, "result")


async def test_wait_without_states_returns_at_the_next_change(jobs: JobsService) -> None:
    worker = await running(jobs)
    waiting = asyncio.create_task(jobs.wait(T1, J1))
    number = 0
    while not waiting.done():
        number += 1
        await worker.update(number)
        await asyncio.sleep(0.005)
    event = await waiting
    assert event.state is RUNNING
    assert isinstance(event.data, int)


@in_virtual_time
async def test_wait_without_states_does_not_return_the_current_state() -> None:
    async with opened() as jobs:
        await jobs.set_type_timeout(T1, TIMEOUT)
        await jobs.add(T1, J1)
        with pytest.raises(TimeoutError):
            await jobs.wait(T1, J1, timeout=100)


async def test_wait_without_states_returns_at_once_for_a_job_that_has_finished(jobs: JobsService) -> None:
    await finished(jobs)
    assert (await jobs.wait(T1, J1)).state is JobState.FINISHED


async def test_wait_for_a_state_that_does_not_come_times_out(jobs: JobsService) -> None:
    await jobs.add(T1, J1)
    with pytest.raises(TimeoutError):
        await jobs.wait(T1, J1, FINISHED, timeout=0.05)
    with pytest.raises(TimeoutError):
        await jobs.wait(T1, J1, FINISHED, timeout=0)


@in_virtual_time
async def test_who_has_waited_in_vain_is_told_what_the_job_is() -> None:
    async with opened() as jobs:
        await jobs.set_type_timeout(T1, TIMEOUT)
        await jobs.add(T1, J1)
        with pytest.raises(TimeoutError, match=r"^job .*/.* was not finished within 0\.05 s; it is pending$"):
            await jobs.result(T1, J1, timeout=0.05)
        with pytest.raises(TimeoutError, match=r"^job .*/.* did not change within 0\.05 s; it is pending$"):
            await jobs.wait(T1, J1, timeout=0.05)


async def test_wait_for_a_missing_job_is_an_error(jobs: JobsService) -> None:
    with pytest.raises(JobNotFound):
        await jobs.wait(T1, J1, FINISHED)


async def test_wait_for_removed_returns_when_the_job_is_removed(jobs: JobsService) -> None:
    await jobs.add(T1, J1)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(jobs.wait(T1, J1, REMOVED, timeout=30))
        async with jobs.subscribe(T1, J1) as events:  # behind the other, which is subscribed when this one is
            await anext(events)
        await jobs.remove(T1, J1)
    assert waiting.result().state is REMOVED


async def test_wait_ends_when_the_job_is_removed_meanwhile(jobs: JobsService) -> None:
    await jobs.add(T1, J1)
    waiting = asyncio.create_task(jobs.wait(T1, J1, FINISHED))
    await told(jobs)
    await jobs.remove(T1, J1)
    with pytest.raises(JobsError):
        await waiting


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


@every_victim
async def test_the_last_event_comes_when_the_job_finishes_during_a_restart(jobs: JobsService, victim: str) -> None:
    worker = await running(jobs)
    async with jobs.subscribe(T1, J1) as events:
        await anext(events)
        await whole_again(jobs, restarts=0)
        kill(victim)
        await worker.finish("result")
        assert seen(await anext(events)) == (FINISHED, "result")


@every_victim
async def test_removed_comes_when_the_job_is_removed_during_a_restart(jobs: JobsService, victim: str) -> None:
    await running(jobs, J2)
    await jobs.add(T1, J1)
    async with jobs.subscribe(T1, J1) as events:
        await anext(events)
        await whole_again(jobs, restarts=0)
        kill(victim)
        await jobs.remove(T1, J1)
        assert (await anext(events)).state is REMOVED


@every_victim
async def test_no_event_is_repeated_after_a_restart(jobs: JobsService, victim: str) -> None:
    worker = await running(jobs, data="before")
    async with jobs.subscribe(T1, J1) as events:
        assert seen(await anext(events)) == (RUNNING, "before")
        await whole_again(jobs, restarts=0)
        kill(victim)
        await whole_again(jobs, restarts=1)
        await worker.update("after")
        assert seen(await anext(events)) == (RUNNING, "after")


async def test_a_subscription_survives_several_restarts(jobs: JobsService) -> None:
    worker = await running(jobs)
    async with jobs.subscribe(T1, J1) as events:
        await anext(events)
        for restarts, victim in enumerate(list(VICTIMS.values())[:3]):
            await whole_again(jobs, restarts)
            kill(victim)
            await worker.update(victim)
            assert seen(await anext(events)) == (RUNNING, victim)


@pytest.mark.parametrize("finishes", ["before it is set again", "after it was set again"])
async def test_a_subscription_survives_that_its_type_is_cleared_and_set_again(jobs: JobsService, finishes: str) -> None:
    worker = await running(jobs)
    async with jobs.subscribe(T1, J1) as events:
        assert (await anext(events)).state is RUNNING
        await whole_again(jobs, restarts=0)
        await jobs.clear_type_timeout(T1)
        if finishes == "before it is set again":
            await worker.finish("result")
        await jobs.set_type_timeout(T1, TIMEOUT)
        if finishes == "after it was set again":
            await worker.finish("result")
        assert seen(await anext(events)) == (FINISHED, "result")


async def test_a_job_of_a_cleared_type_can_be_subscribed_to(jobs: JobsService) -> None:
    worker = await running(jobs)
    await finished(jobs, J2)
    await jobs.clear_type_timeout(T1)
    assert await heard(jobs, J2) == [(FINISHED, None)]
    async with jobs.subscribe(T1, J1) as events:
        assert (await anext(events)).state is RUNNING
        await jobs.set_type_timeout(T1, TIMEOUT)
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


async def test_subscribing_to_a_closed_service_is_an_error(jobs: JobsService) -> None:
    await jobs.add(T1, J1)
    async with JobsService(jobs.store) as closed:
        pass
    with pytest.raises(JobsError):
        await anext(closed.subscribe(T1, J1))


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


# who iterates


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
