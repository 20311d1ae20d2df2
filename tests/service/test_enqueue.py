"""Typed enqueueing, waiting for results, and counts by state: what the service offers those who have jobs done."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import fdb.tuple
import pytest

from jobs_service import Handler, InvalidJob, JobsService, JobState, JobTooLarge, JobTransaction, NoTypeTimeout
from jobs_service.store.memory import MemoryStore
from tests.checker import assert_sound
from tests.service.enqueuing import CAT, Picture, nothing, picture
from tests.service.support import T1, T2, accepted, contents, listed
from tests.stores import QUICKEST_AND_CLUSTER, one_of
from tests.unsure import UNSURE_KINDS, Fates, unsure_store

# What they do is above the stores, which keep their contract: one, and the cluster, are enough.
store_kind = one_of(QUICKEST_AND_CLUSTER)


async def test_enqueue_adds_a_job_with_the_arguments_as_data_under_a_new_id(quiet: JobsService) -> None:
    first = await quiet.enqueue(picture, CAT)
    second = await quiet.enqueue(picture, CAT)
    assert (first.type, first.state, first.data) == ("picture", JobState.PENDING, {"path": "cat.png", "width": 320})
    assert isinstance(first.id, str)
    assert len(first.id) == 32
    assert first.id != second.id
    assert [job.data for job in await listed(quiet, "picture")] == [first.data, second.data]
    await assert_sound(quiet.store)


async def test_enqueue_makes_the_type_where_it_is_missing_and_leaves_it_where_it_is_not(quiet: JobsService) -> None:
    await quiet.enqueue(picture, CAT)
    assert await quiet.get_type_timeout("picture") == 77
    await quiet.set_type_timeout("picture", 5)
    await quiet.enqueue(picture, CAT)
    assert await quiet.get_type_timeout("picture") == 5


@pytest.mark.parametrize("unique", [True, "the cat"])
async def test_of_unique_jobs_there_is_one_until_it_has_finished(quiet: JobsService, unique: Any) -> None:
    first = await quiet.enqueue(picture, CAT, unique=unique)
    before = await contents(quiet)
    again = await quiet.enqueue(picture, CAT, unique=unique, priority=9)
    assert (again.id, again.priority) == (first.id, 0)
    assert await contents(quiet) == before
    worker = await accepted(quiet, "picture")
    running = await quiet.enqueue(picture, CAT, unique=unique)
    assert (running.id, running.state, running.resubmit) == (first.id, JobState.RUNNING, False)
    await worker.finish(result=1)
    anew = await quiet.enqueue(picture, CAT, unique=unique, priority=2)
    assert (anew.id, anew.state, anew.priority, anew.result, anew.attempts) == (first.id, JobState.PENDING, 2, None, 0)
    assert len(await listed(quiet, "picture")) == 1
    await assert_sound(quiet.store)


async def test_unique_jobs_are_told_apart_by_their_arguments_or_their_key(quiet: JobsService) -> None:
    dog = Picture("dog.png")
    ids = {
        (await quiet.enqueue(picture, args, unique=unique)).id
        for args, unique in ((CAT, True), (dog, True), (CAT, "a"), (dog, "a"), (CAT, "b"), (CAT, True))
    }
    assert len(ids) == 4
    assert {"unique:a", "unique:b"} < ids


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
        for seed in ("1", "2")
    }
    assert len(said) == 1


async def test_within_a_transaction_enqueueing_is_the_same_and_joined_with_the_rest(quiet: JobsService) -> None:
    async def work(tx: JobTransaction) -> list[Any]:
        tx.kv[b"own/key"] = b"1"
        one = await tx.enqueue(picture, CAT, unique=True)
        same = await tx.enqueue(picture, CAT, unique=True)
        random = await tx.enqueue(picture, CAT)
        job = await tx.accept("picture")
        assert job is not None
        await tx.finish(job)
        again = await tx.enqueue(picture, CAT, unique=True)
        return [one.id, same.id, job.id, again.id, again.state, random.id != one.id, await tx.types()]

    one, same, taken, again, state, differ, types = await quiet.transact(work)
    assert one == same == taken == again
    assert (state, differ) == (JobState.PENDING, True)
    assert set(types) == {T1, T2, "picture"}
    assert len(await listed(quiet, "picture")) == 2
    await assert_sound(quiet.store)


async def test_many_of_which_one_is_refused_leave_neither_jobs_nor_their_type(quiet: JobsService) -> None:
    before = await contents(quiet)

    async def work(tx: JobTransaction) -> list[JobState]:
        with pytest.raises(JobTooLarge):
            await tx.enqueue_many(picture, [CAT, Picture("x" * 100_000)])
        assert "picture" not in await tx.types()
        with pytest.raises(NoTypeTimeout):
            await tx.add("picture", "j1")
        return [job.state async for job in tx.list()]

    assert await quiet.transact(work) == []
    assert await contents(quiet) == before


@pytest.mark.parametrize("kind", UNSURE_KINDS)
@pytest.mark.parametrize("fate", ["unanswered", "lost"])
async def test_a_commit_of_unknown_outcome_enqueues_one_job(kind: str, fate: Any) -> None:
    fates = Fates()
    async with JobsService(unsure_store(kind, fates), supervise=False) as jobs:
        for how in (jobs.enqueue, lambda *args: jobs.transact(lambda tx: tx.enqueue(*args))):
            fates.plan([fate])
            await how(picture, CAT)
        assert len(await listed(jobs, "picture")) == 2
        assert not fates.coming
        await assert_sound(jobs.store)


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
        await tx.enqueue(picture, CAT)
        if not meanwhile:
            meanwhile.append(1)
            transaction = store.begin()
            transaction.set(quiet._context.keyspace.of("picture").timeout, fdb.tuple.pack((5.0,)))
            transaction.commit()

    await quiet.transact(slowly)
    assert await quiet.get_type_timeout("picture") == 5


REFUSALS: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "no handler": ((len,), {}, "enqueue takes what @jobs.handler"),
    "no arguments": ((picture,), {}, "picture takes arguments"),
    "arguments too many": ((nothing, {1: 2}), {}, "data is not JSON: the key 1 of type int; object keys must be str"),
    "arguments of another kind": ((picture, {"path": 1}), {}, "the data does not fit Picture"),
    "a field of another kind": ((picture, Picture("x", "wide")), {}, "width"),  # type: ignore[arg-type]
    "id and unique": ((picture, CAT), {"id": "x", "unique": True}, "id='x' and unique=True: give one of them"),
    "a number for unique": ((picture, CAT), {"unique": 1}, "unique=1: allowed are None, True, False and a key"),
    "no text for unique": ((picture, CAT), {"unique": ""}, "unique='': allowed are None, True, False and a key"),
    "a surrogate for unique": ((picture, CAT), {"unique": "\ud800"}, "a str that is not UTF-8"),
    "an id": ((picture, CAT), {"id": 5}, "id 5: an int; allowed are str and bytes"),
    "a priority": ((picture, CAT), {"priority": 1.5}, "priority 1.5: a float; allowed are"),
    "a run_at": ((picture, CAT), {"run_at": "soon"}, "run_at 'soon': a str; allowed are"),
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
