"""Typed enqueueing, waiting for results, and counts by state: what the service offers those who have jobs done."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import fdb.tuple
import pytest

from jobs_service import (
    Handler,
    InvalidJob,
    JobError,
    JobExists,
    JobFailed,
    JobNotFound,
    JobsError,
    JobsService,
    JobState,
    JobTooLarge,
    JobTransaction,
    NoTypeTimeout,
    Outcome,
    RunningJob,
)
from jobs_service.layer import running_jobs
from jobs_service.layer.keyspace import place_of
from jobs_service.layer.running_jobs import RunReport
from jobs_service.store.memory import MemoryStore
from tests.checker import assert_sound
from tests.service.support import (
    FAR_AWAY,
    J1,
    PATIENCE,
    T1,
    T2,
    accepted,
    contents,
    eventually,
    listed,
    new_jobs,
    node,
    running,
)
from tests.unsure import UNSURE_KINDS, Fates, unsure_store


@dataclass
class Picture:
    """What the handler takes."""

    path: str
    width: int = 640


def handlers() -> tuple[Handler[Picture, None], Handler[Any, None]]:
    """Return handlers that take a picture, and nothing."""
    jobs = JobsService("memory:")

    @jobs.handler("picture", timeout=77)
    async def picture(args: Picture) -> None:
        """Take a picture."""

    @jobs.handler("nothing")
    async def nothing() -> None:
        """Take nothing."""

    return picture, nothing


PICTURE, NOTHING = handlers()
CAT = Picture("cat.png", 320)


# enqueue


async def test_enqueue_adds_a_job_with_the_arguments_as_data_under_a_new_id(quiet: JobsService) -> None:
    first = await quiet.enqueue(PICTURE, CAT)
    second = await quiet.enqueue(PICTURE, CAT)
    assert (first.type, first.state, first.data) == ("picture", JobState.PENDING, {"path": "cat.png", "width": 320})
    assert isinstance(first.id, str)
    assert len(first.id) == 32
    assert first.id != second.id
    assert [job.data for job in await listed(quiet, "picture")] == [first.data, second.data]
    await assert_sound(quiet.store)


async def test_enqueue_makes_the_type_where_it_is_missing_and_leaves_it_where_it_is_not(quiet: JobsService) -> None:
    await quiet.enqueue(PICTURE, CAT)
    assert await quiet.get_type_timeout("picture") == 77
    await quiet.set_type_timeout("picture", 5)
    await quiet.enqueue(PICTURE, CAT)
    assert await quiet.get_type_timeout("picture") == 5


async def test_enqueue_takes_id_priority_and_run_at(quiet: JobsService) -> None:
    job = await quiet.enqueue(PICTURE, CAT, id="mine", priority=-3, run_at=FAR_AWAY)
    assert (job.id, job.priority) == ("mine", -3)
    assert job.run_at is not None
    assert job.run_at.timestamp() == FAR_AWAY
    with pytest.raises(JobExists) as caught:
        await quiet.enqueue(PICTURE, CAT, id="mine")
    assert (caught.value.type, caught.value.id) == ("picture", "mine")


async def test_a_handler_without_arguments_is_enqueued_without_any(quiet: JobsService) -> None:
    assert (await quiet.enqueue(NOTHING)).data is None


@pytest.mark.parametrize("unique", [True, "the cat"])
async def test_of_unique_jobs_there_is_one_until_it_has_finished(quiet: JobsService, unique: Any) -> None:
    first = await quiet.enqueue(PICTURE, CAT, unique=unique)
    before = await contents(quiet)
    again = await quiet.enqueue(PICTURE, CAT, unique=unique, priority=9)
    assert (again.id, again.priority) == (first.id, 0)
    assert await contents(quiet) == before
    worker = await accepted(quiet, "picture")
    running = await quiet.enqueue(PICTURE, CAT, unique=unique)
    assert (running.id, running.state, running.resubmit) == (first.id, JobState.RUNNING, False)
    await worker.finish(result=1)
    anew = await quiet.enqueue(PICTURE, CAT, unique=unique, priority=2)
    assert (anew.id, anew.state, anew.priority, anew.result, anew.attempts) == (first.id, JobState.PENDING, 2, None, 0)
    assert len(await listed(quiet, "picture")) == 1
    await assert_sound(quiet.store)


async def test_unique_jobs_are_told_apart_by_their_arguments_or_their_key(quiet: JobsService) -> None:
    dog = Picture("dog.png")
    ids = {
        (await quiet.enqueue(PICTURE, args, unique=unique)).id
        for args, unique in ((CAT, True), (dog, True), (CAT, "a"), (dog, "a"), (CAT, "b"), (CAT, True))
    }
    assert len(ids) == 4
    assert {"unique:a", "unique:b"} < ids


async def test_equal_arguments_are_one_unique_job_in_whatever_order_their_keys_are(quiet: JobsService) -> None:
    handler: Handler[Any, None] = Handler("anything", _anything)
    pairs: list[tuple[Any, Any]] = [
        ({"a": 1, "b": {"c": 2, "d": [{"e": 3, "f": 4}]}}, {"b": {"d": [{"f": 4, "e": 3}], "c": 2}, "a": 1}),
        ({"a": 1.0, "b": 0.0}, {"a": 1, "b": -0.0}),
    ]
    for one, other in pairs:
        first = await quiet.enqueue(handler, one, unique=True)
        assert (await quiet.enqueue(handler, other, unique=True)).id == first.id
    assert len(await listed(quiet, "anything")) == len(pairs)
    for different in ([1, 2], [2, 1], {"a": 1}, {"a": True}, {"a": "1"}):
        await quiet.enqueue(handler, different, unique=True)
    assert len(await listed(quiet, "anything")) == len(pairs) + 5


async def _anything(args: Any) -> None:
    """Take anything."""


@pytest.mark.unmeasured
def test_a_set_has_the_same_unique_job_in_every_process() -> None:
    program = (
        "from jobs_service.runner.payload import codec; from jobs_service import json_data;"
        "print(json_data.canonical(codec(set[str]).encode({'a', 'b', 'c', 'd', 'e'})))"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", program],
            check=True,
            capture_output=True,
            timeout=60,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2", "3", "4")
    }
    assert len(said) == 1


async def test_a_unique_job_that_has_finished_runs_again_with_the_new_arguments(quiet: JobsService) -> None:
    await quiet.enqueue(PICTURE, CAT, unique="a")
    await (await accepted(quiet, "picture")).finish()
    await quiet.enqueue(PICTURE, Picture("dog.png", 1), unique="a")
    assert (await accepted(quiet, "picture")).data == {"path": "dog.png", "width": 1}


async def test_of_many_who_enqueue_a_unique_job_at_once_all_get_the_same(quiet: JobsService) -> None:
    jobs = await asyncio.gather(*(quiet.enqueue(PICTURE, CAT, unique=True) for _ in range(20)))
    assert len({job.id for job in jobs}) == 1
    assert len(await listed(quiet, "picture")) == 1


async def test_within_a_transaction_enqueueing_is_the_same_and_joined_with_the_rest(quiet: JobsService) -> None:
    async def work(tx: JobTransaction) -> list[Any]:
        tx.kv[b"own/key"] = b"1"
        one = await tx.enqueue(PICTURE, CAT, unique=True)
        same = await tx.enqueue(PICTURE, CAT, unique=True)
        random = await tx.enqueue(PICTURE, CAT)
        job = await tx.accept("picture")
        assert job is not None
        await tx.finish(job)
        again = await tx.enqueue(PICTURE, CAT, unique=True)
        return [one.id, same.id, job.id, again.id, again.state, random.id != one.id, await tx.types()]

    one, same, taken, again, state, differ, types = await quiet.transact(work)
    assert one == same == taken == again
    assert (state, differ) == (JobState.PENDING, True)
    assert set(types) == {T1, T2, "picture"}
    assert len(await listed(quiet, "picture")) == 2
    await assert_sound(quiet.store)


async def test_what_is_enqueued_in_a_transaction_that_fails_is_not_there(quiet: JobsService) -> None:
    before = await contents(quiet)

    async def work(tx: JobTransaction) -> None:
        await tx.enqueue(PICTURE, CAT)
        raise LookupError

    with pytest.raises(LookupError):
        await quiet.transact(work)
    assert await contents(quiet) == before


async def test_many_of_which_one_is_refused_leave_neither_jobs_nor_their_type(quiet: JobsService) -> None:
    before = await contents(quiet)

    async def work(tx: JobTransaction) -> list[JobState]:
        with pytest.raises(JobTooLarge):
            await tx.enqueue_many(PICTURE, [CAT, Picture("x" * 100_000)])
        assert "picture" not in await tx.types()
        with pytest.raises(NoTypeTimeout):
            await tx.add("picture", "j1")
        return [job.state async for job in tx.list()]

    assert await quiet.transact(work) == []
    assert await contents(quiet) == before


async def test_many_in_a_transaction_make_their_type_and_tell_which_are_new(quiet: JobsService) -> None:
    async def work(tx: JobTransaction) -> list[bool | None]:
        jobs = await tx.enqueue_many(PICTURE, [CAT, CAT, Picture("dog.png")], unique=True)
        assert "picture" in await tx.types()
        return [job.created for job in jobs]

    assert await quiet.transact(work) == [True, False, True]
    assert await quiet.get_type_timeout("picture") == 77


@pytest.mark.parametrize("kind", UNSURE_KINDS)
@pytest.mark.parametrize("fate", ["unanswered", "lost"])
async def test_a_commit_of_unknown_outcome_enqueues_one_job(kind: str, fate: Any) -> None:
    fates = Fates()
    async with JobsService(unsure_store(kind, fates), supervise=False) as jobs:
        for how in (jobs.enqueue, lambda *args: jobs.transact(lambda tx: tx.enqueue(*args))):
            fates.plan([fate])
            await how(PICTURE, CAT)
        assert len(await listed(jobs, "picture")) == 2
        assert not fates.coming
        await assert_sound(jobs.store)


async def watched(jobs: JobsService) -> bool:
    """Return whether an activity monitor runs for the handler's type."""
    monitors = node(jobs, "monitors")["children"]
    return any("'picture'" in child["name"] and child["state"] == "running" for child in monitors)


async def test_a_type_made_by_enqueueing_is_watched_over_when_its_job_runs(jobs: JobsService) -> None:
    await jobs.enqueue(PICTURE, CAT)
    assert not await watched(jobs)
    assert await jobs.accept("picture") is not None
    await eventually(lambda: watched(jobs))


async def test_a_type_that_was_removed_is_not_made_again_by_enqueueing(quiet: JobsService) -> None:
    first = await quiet.enqueue(PICTURE, CAT, unique="a")
    await quiet.clear_type_timeout("picture")
    before = await contents(quiet)
    with pytest.raises(NoTypeTimeout, match=r"type 'picture' was removed, so that no new jobs are added; set_type_tim"):
        await quiet.enqueue(PICTURE, CAT)
    with pytest.raises(NoTypeTimeout):
        await quiet.transact(lambda tx: tx.enqueue(PICTURE, CAT))
    assert await contents(quiet) == before
    # Its jobs are still there.
    assert (await quiet.enqueue(PICTURE, CAT, unique="a")).id == first.id
    await quiet.set_type_timeout("picture", 5)
    await quiet.enqueue(PICTURE, CAT)
    await assert_sound(quiet.store)


async def test_to_remove_a_type_that_was_never_there_changes_nothing(quiet: JobsService) -> None:
    before = await contents(quiet)
    await quiet.clear_type_timeout("picture")
    assert await contents(quiet) == before
    await quiet.enqueue(PICTURE, CAT)


async def test_a_refused_enqueue_makes_no_type(quiet: JobsService) -> None:
    before = await contents(quiet)
    handler: Handler[Any, None] = Handler("anything", _anything)

    async def refused(tx: JobTransaction) -> None:
        with pytest.raises(JobTooLarge):
            await tx.enqueue(handler, "x" * 100_000)

    with pytest.raises(JobTooLarge):
        await quiet.enqueue(handler, "x" * 100_000)
    await quiet.transact(refused)
    assert await contents(quiet) == before


async def test_a_timeout_that_is_set_while_a_type_is_made_stays(quiet: JobsService) -> None:
    meanwhile: list[int] = []
    store = quiet.store
    if not isinstance(store, MemoryStore):
        pytest.skip("nobody can set it meanwhile, or only in another process")

    async def slowly(tx: JobTransaction) -> None:
        await tx.enqueue(PICTURE, CAT)
        if not meanwhile:
            meanwhile.append(1)
            transaction = store.begin()
            transaction.set(quiet._context.keyspace.of("picture").timeout, fdb.tuple.pack((5.0,)))
            transaction.commit()

    await quiet.transact(slowly)
    assert await quiet.get_type_timeout("picture") == 5


async def test_a_type_is_watched_over_while_its_handler_runs_a_job(jobs: JobsService) -> None:
    go_on = asyncio.Event()

    @jobs.handler("picture")
    async def picture() -> None:
        await go_on.wait()

    task = asyncio.create_task(jobs.run())
    async with asyncio.timeout(PATIENCE):
        await jobs.enqueue("picture")
        await eventually(lambda: watched(jobs))
    go_on.set()
    task.cancel()
    await asyncio.wait([task])


REFUSALS: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "no handler": ((len,), {}, "enqueue takes what @jobs.handler"),
    "no arguments": ((PICTURE,), {}, "picture takes arguments"),
    "arguments too many": ((NOTHING, {1: 2}), {}, "data is not JSON: the key 1 of type int; object keys must be str"),
    "arguments of another kind": ((PICTURE, {"path": 1}), {}, "the data does not fit Picture"),
    "a field of another kind": ((PICTURE, Picture("x", "wide")), {}, "width"),  # type: ignore[arg-type]
    "id and unique": ((PICTURE, CAT), {"id": "x", "unique": True}, "id='x' and unique=True: give one of them"),
    "a number for unique": ((PICTURE, CAT), {"unique": 1}, "unique=1: allowed are None, True, False and a key"),
    "no text for unique": ((PICTURE, CAT), {"unique": ""}, "unique='': allowed are None, True, False and a key"),
    "a surrogate for unique": ((PICTURE, CAT), {"unique": "\ud800"}, "a str that is not UTF-8"),
    "an id": ((PICTURE, CAT), {"id": 5}, "id 5: an int; allowed are str and bytes"),
    "a priority": ((PICTURE, CAT), {"priority": 1.5}, "priority 1.5: a float; allowed are"),
    "a run_at": ((PICTURE, CAT), {"run_at": "soon"}, "run_at 'soon': a str; allowed are"),
}


@pytest.mark.parametrize("what", REFUSALS)
async def test_enqueue_refuses_in_one_line_and_writes_nothing(quiet: JobsService, what: str) -> None:
    arguments, keywords, refused = REFUSALS[what]
    before = await contents(quiet)
    for call in (quiet.enqueue, lambda *a, **k: quiet.transact(lambda tx: tx.enqueue(*a, **k))):
        with pytest.raises(InvalidJob) as caught:
            await call(*arguments, **keywords)
        assert refused in str(caught.value)
        assert len(str(caught.value).splitlines()) == 1
    assert await contents(quiet) == before


# result


async def test_a_result_that_is_there_comes_at_once(jobs: JobsService) -> None:
    worker = await running(jobs)
    await worker.finish(result={"width": 640})
    assert await jobs.result(T1, J1, timeout=PATIENCE) == {"width": 640}


async def test_a_result_is_waited_for_and_progress_does_not_end_the_wait(jobs: JobsService) -> None:
    worker = await running(jobs)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(jobs.result(T1, J1, timeout=PATIENCE))
        await worker.progress(1, 2)
        await worker.update("more")
        await worker.finish(result=[7])
    assert waiting.result() == [7]


async def test_a_job_without_a_result_has_none(jobs: JobsService) -> None:
    await (await running(jobs)).finish()
    assert await jobs.result(T1, J1) is None


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.CANCELED])
async def test_a_job_that_did_not_succeed_is_an_error_with_what_is_stored(jobs: JobsService, outcome: Outcome) -> None:
    error = JobError("ValueError", "no\nsuch picture", "Traceback ...")
    await (await running(jobs)).finish(outcome=outcome, error=error)
    with pytest.raises(JobFailed) as caught:
        await jobs.result(T1, J1)
    failed = caught.value
    assert (failed.type, failed.id, failed.outcome, failed.error) == (T1, J1, outcome.value, error)
    assert str(failed) == f"job 't1'/'j1' ended as {outcome.value}: ValueError: no such picture"


async def test_a_job_that_failed_without_a_word_is_an_error_without_one(jobs: JobsService) -> None:
    await (await running(jobs)).finish(outcome=Outcome.FAILED)
    with pytest.raises(JobFailed, match=r"\Ajob 't1'/'j1' ended as failed\Z") as caught:
        await jobs.result(T1, J1)
    assert caught.value.error is None


async def test_a_job_that_is_missing_or_removed_meanwhile_has_no_result(jobs: JobsService) -> None:
    with pytest.raises(JobNotFound):
        await jobs.result(T1, J1)
    await jobs.add(T1, J1)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(_error(jobs.result(T1, J1, timeout=PATIENCE)))
        async with jobs.subscribe(T1, J1) as events:
            await anext(events)
            await jobs.remove(T1, J1)
            async for _ in events:
                pass
    error = waiting.result()
    assert isinstance(error, JobNotFound)
    assert (str(error), error.type, error.id) == ("job 't1'/'j1' was removed", T1, J1)


async def _error(work: Any) -> BaseException | None:
    try:
        await work
    except JobsError as error:
        return error
    return None


@pytest.mark.parametrize("timeout", [0, 0.01])
async def test_a_result_that_does_not_come_in_time_is_a_timeout(jobs: JobsService, timeout: float) -> None:
    await jobs.add(T1, J1)
    with pytest.raises(TimeoutError):
        await jobs.result(T1, J1, timeout=timeout)


async def test_a_job_that_was_resubmitted_while_it_ran_gives_the_result_of_its_last_run(jobs: JobsService) -> None:
    worker = await running(jobs)
    await worker.resubmit()
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(jobs.result(T1, J1, timeout=PATIENCE))
        await worker.finish(result="first")
        await (await accepted(jobs)).finish(result="second")
    assert waiting.result() == "second"


@pytest.mark.parametrize("timeout", [-1, "1", True])
async def test_a_time_to_wait_that_cannot_be_is_refused(jobs: JobsService, timeout: Any) -> None:
    with pytest.raises(JobsError, match="allowed are None and numbers of seconds from 0 up"):
        await jobs.result(T1, J1, timeout=timeout)


async def test_waiting_for_a_result_needs_the_supervisor_tree(quiet: JobsService) -> None:
    with pytest.raises(JobsError, match="without supervise=False"):
        await quiet.result(T1, J1)


async def test_a_job_enqueued_for_a_new_type_gives_its_result_at_once(jobs: JobsService) -> None:
    job = await jobs.enqueue(PICTURE, CAT)
    async with asyncio.timeout(PATIENCE / 3), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(jobs.result(job.type, job.id))
        await (await accepted(jobs, "picture")).finish(result=1)
    assert waiting.result() == 1


async def test_a_type_counts_as_one_that_was_enqueued_for_only_when_that_was_committed(quiet: JobsService) -> None:
    """The first job may have made the type, whose timeout is looked at then: not before, and not never."""
    runs = 0

    async def work(tx: JobTransaction) -> None:
        await tx.enqueue(PICTURE, CAT)
        await tx.enqueue_many(PICTURE, [CAT])
        if runs == 1:
            await tx.clear_type_timeout("picture")
        assert "picture" not in quiet._tree._enqueued
        if runs == 0:
            raise LookupError

    with pytest.raises(LookupError):
        await quiet.transact(work)
    assert "picture" not in quiet._tree._enqueued
    runs = 1
    await quiet.transact(work)
    assert "picture" not in quiet._tree._enqueued
    await quiet.set_type_timeout("picture", 60)
    await quiet.enqueue(PICTURE, CAT)
    assert "picture" in quiet._tree._enqueued
    with pytest.raises(LookupError):
        await quiet.transact(refuse_to_clear)
    assert "picture" in quiet._tree._enqueued


async def refuse_to_clear(tx: JobTransaction) -> None:
    await tx.clear_type_timeout("picture")
    raise LookupError


# Progress


async def test_events_carry_progress_result_and_error(jobs: JobsService) -> None:
    worker = await running(jobs)
    told = []
    async with asyncio.timeout(PATIENCE), jobs.subscribe(T1, J1) as events:
        await anext(events)
        await worker.progress(3, 10, "resizing")
        event = await anext(events)
        told.append((event.state, event.progress and (event.progress.done, event.progress.message)))
        await worker.finish(result=7, error=JobError("E", "but"))
        event = [event async for event in events][-1]
        told.append((event.state, (event.result, event.error and event.error.type)))  # type: ignore[arg-type]
    assert told == [(JobState.RUNNING, (3, "resizing")), (JobState.FINISHED, (7, "E"))]


async def test_progress_of_a_canceled_or_lost_job_says_so(quiet: JobsService) -> None:
    worker = await running(quiet)
    await quiet.remove(T1, J1)
    with pytest.raises(JobsError, match="was canceled: finish it now"):
        await worker.progress(1)
    await quiet.remove(T1, J1, force=True)
    with pytest.raises(JobsError, match="is no longer this worker's"):
        await worker.progress(1)


# finish_with


async def test_effects_and_finish_take_place_together_or_not_at_all(quiet: JobsService) -> None:
    worker = await running(quiet)

    async def effects(tx: JobTransaction) -> dict[str, int]:
        tx.kv[b"own/effect"] = b"1"
        await tx.add(T2, "next", if_exists="ignore")
        return {"done": 1}

    job = await worker.finish_with(effects)
    assert (job.state, job.result, job.outcome) == (JobState.FINISHED, {"done": 1}, Outcome.SUCCEEDED)
    assert [each.id for each in await listed(quiet, T2)] == ["next"]
    before = await contents(quiet)
    with pytest.raises(JobsError, match="no longer this worker's"):
        await worker.finish_with(effects)
    assert await contents(quiet) == before


async def test_what_an_operation_on_another_job_returns_is_no_result(quiet: JobsService) -> None:
    worker = await running(quiet)
    job = await worker.finish_with(lambda tx: tx.add(T2, "next"))
    assert (job.state, job.result) == (JobState.FINISHED, None)
    assert (await quiet.get(T2, "next")).state is JobState.PENDING


# stats


async def crash(jobs: JobsService, job: RunningJob, run_at: float) -> None:
    """Have a run fail, as the runner does."""
    place = place_of(jobs._context.keyspace.of(job.type), job.id)
    await jobs._context.transact(lambda unit: running_jobs.crash(unit, place, job.lock, RunReport(reason="no"), run_at))


async def test_stats_count_the_jobs_of_each_type_by_state(quiet: JobsService) -> None:
    await quiet.add_many(T1, new_jobs("a", "b", "c", "d"))
    first, _, third = await quiet.accept_many(T1, 3, timeout=0)
    await first.finish()
    await crash(quiet, third, FAR_AWAY)
    await quiet.add(T1, "later", run_at=FAR_AWAY)
    await quiet.add(T2, "only")
    stats = await quiet.stats()
    assert {type: {state: each[state] for state in each if "average" not in state} for type, each in stats.items()} == {
        T1: {"pending": 1, "scheduled": 1, "running": 1, "crashed": 1, "finished": 1},
        T2: {"pending": 1, "scheduled": 0, "running": 0, "crashed": 0, "finished": 0},
    }
    assert [*await quiet.stats(T2)] == [T2]
    assert all(value >= 0 for each in stats.values() for value in each.values())
    assert await quiet.stats("nosuch") == {}
    summaries = (await quiet.stats(T1, jobs=2))[T1]["jobs"]
    assert [(each["id"], each["state"], each["attempts"]) for each in summaries] == [
        ("b", "running", 1),
        ("c", "crashed", 1),
    ]
    assert [event["kind"] for event in summaries[1]["history"]] == ["crashed", "started", "added"]
    assert summaries[1]["error_count"] == 1
    with pytest.raises(InvalidJob, match="limit"):
        await quiet.stats(jobs=-1)
