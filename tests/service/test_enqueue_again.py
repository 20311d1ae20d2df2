"""A job that is enqueued and was there already: what becomes of it, and what the caller is told."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from jobs_service import InvalidJob, JobExists, JobsService, JobState, Outcome, RunningJob
from jobs_service.model import Enqueued, HistoryKind, Progress
from tests.runner.support import add, opened, running
from tests.service.enqueuing import CAT, Picture, picture
from tests.service.support import accepted
from tests.stores import QUICKEST_AND_CLUSTER, one_of
from tests.virtual_time import EPOCH, in_virtual_time

# What they do is above the stores, which keep their contract: one, and the cluster, are enough.
store_kind = one_of(QUICKEST_AND_CLUSTER)


DOG = Picture("dog.png")
NEW, AGAIN, THERE = Enqueued.NEW, Enqueued.AGAIN, Enqueued.THERE


async def done(jobs: JobsService, outcome: Outcome = Outcome.SUCCEEDED) -> None:
    await (await accepted(jobs, "picture")).finish(outcome=outcome)


async def test_a_unique_job_tells_whether_it_is_new_again_or_there(quiet: JobsService) -> None:
    assert (await quiet.enqueue(picture, CAT, unique="cat")).enqueued is NEW
    assert (await quiet.enqueue(picture, CAT, unique="cat")).enqueued is THERE
    worker = await accepted(quiet, "picture")
    assert (await quiet.enqueue(picture, CAT, unique="cat")).enqueued is THERE
    await worker.finish()
    again = await quiet.enqueue(picture, CAT, unique="cat")
    assert (again.enqueued, again.created, again.state) == (AGAIN, False, JobState.PENDING)
    assert (await quiet.get("picture", again.id)).enqueued is None
    many = await quiet.enqueue_many(picture, [CAT, CAT], unique=True)
    assert [job.enqueued for job in many] == [NEW, THERE]


async def test_a_job_that_is_put_to_work_again_has_nothing_of_an_earlier_call(quiet: JobsService) -> None:
    await quiet.enqueue(picture, CAT, unique="cat", max_attempts=1, time_limit=5, priority=3)
    await done(quiet)
    again = await quiet.enqueue(picture, CAT, unique="cat")
    assert (again.max_attempts, again.time_limit, again.priority, again.trace_context) == (None, None, 0, {})
    await done(quiet)
    again = await quiet.enqueue(picture, DOG, unique="cat", time_limit=7)
    assert (again.max_attempts, again.time_limit, again.data) == (None, 7, {"path": "dog.png", "width": 640})
    await done(quiet)
    assert (await quiet.resubmit("picture", again.id)).time_limit == 7  # what is not given stays


async def test_a_named_job_that_is_there_is_left_put_to_work_or_refused(quiet: JobsService) -> None:
    await quiet.enqueue(picture, CAT, id="cat", max_attempts=2)
    with pytest.raises(JobExists):
        await quiet.enqueue(picture, CAT, id="cat", max_attempts=2)
    job = await quiet.enqueue(picture, CAT, id="cat", if_exists="ignore", priority=7)
    assert (job.enqueued, job.priority, job.max_attempts) == (THERE, 0, 2)
    job = await quiet.enqueue(picture, CAT, id="cat", if_exists="resubmit", priority=7)
    assert (job.enqueued, job.priority) == (THERE, 7)
    worker = await accepted(quiet, "picture")
    job = await quiet.enqueue(picture, CAT, id="cat", if_exists="resubmit")
    assert (job.enqueued, bool(job.resubmit)) == (AGAIN, True)
    await worker.finish()
    await done(quiet)
    assert (await quiet.enqueue(picture, CAT, id="cat", if_exists="ignore")).enqueued is THERE
    job = await quiet.transact(lambda tx: tx.enqueue(picture, CAT, id="cat", if_exists="resubmit"))
    assert (job.enqueued, job.state, job.max_attempts) == (AGAIN, JobState.PENDING, None)
    assert (await quiet.enqueue(picture, CAT, id="dog", if_exists="ignore")).enqueued is NEW


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({"if_exists": "ignore"}, "if_exists='ignore': it goes with id="),
        ({"if_exists": "ignore", "unique": True}, "if_exists='ignore': it goes with id=, and not with unique"),
        ({"if_exists": "replace", "id": "a"}, "if_exists"),
        ({"unique_for": 5}, "unique_for=5: it goes with unique=True or a key"),
        ({"unique_for": -5, "unique": True}, "unique_for=-5: allowed are durations from 0"),
    ],
)
async def test_options_that_do_not_go_together_are_refused(
    quiet: JobsService, options: dict[str, Any], refused: str
) -> None:
    with pytest.raises(InvalidJob, match=refused):
        await quiet.enqueue(picture, CAT, **options)


@in_virtual_time
async def test_a_unique_job_may_run_again_only_so_long_after_its_end() -> None:
    async with opened() as jobs:

        @jobs.handler("report", max_attempts=1)
        async def report(job: RunningJob) -> None:
            if job.priority:
                raise ValueError("no")

        async def ask(priority: int = 0) -> Enqueued | None:
            job = await jobs.enqueue(report, unique="daily", unique_for=timedelta(hours=1), priority=priority)
            return job.enqueued

        async with running(jobs):
            assert await ask() is NEW
            await asyncio.sleep(3599)
            assert await ask() is THERE
            await asyncio.sleep(2)
            assert await ask(1) is AGAIN
            await asyncio.sleep(10)
            assert (await jobs.get("report", "unique:daily")).outcome is Outcome.FAILED
            assert await ask() is THERE  # whatever its end
            await jobs.set_retention("report", keep=0, keep_failed=0)
            await asyncio.sleep(3600)
            assert await ask() is AGAIN
            await asyncio.sleep(10)
            assert await ask() is NEW  # a job that is not kept is forgotten


@dataclass
class Letter:
    to: str
    subject: str = "hello"
    tags: list[str] = field(default_factory=list)


@dataclass
class Stamped:
    to: str
    stamp: str = field(default_factory=lambda: uuid4().hex)


async def test_a_default_that_is_left_out_is_the_same_as_the_value_given(quiet: JobsService) -> None:
    sentinel: Any = object()

    @quiet.handler("mail")
    async def mail(to: str, subject: str = "hello", copies: int = 1, *, other: Any = sentinel) -> None: ...

    @quiet.handler("letter")
    async def letter(args: Letter) -> None: ...

    @quiet.handler("stamped")
    async def stamped(args: Stamped) -> None: ...

    @quiet.handler("sweep")
    async def sweep(days: int = 7) -> None: ...

    first = await quiet.enqueue(mail, to="ada", unique=True)
    for arguments in ({"subject": "hello"}, {"copies": 1, "subject": "hello"}):
        assert (await quiet.enqueue(mail, {"to": "ada", **arguments}, unique=True)).id == first.id
    assert (await quiet.enqueue("mail", {"copies": 1, "to": "ada"}, unique=True)).enqueued is THERE
    assert (await quiet.enqueue(mail, to="ada", copies=2, unique=True)).enqueued is NEW
    assert first.data == {"to": "ada"}  # what is stored stays as it was given

    whole = await quiet.enqueue(letter, Letter("ada"), unique=True)
    assert (await quiet.enqueue("letter", {"to": "ada"}, unique=True)).id == whole.id
    assert (await quiet.enqueue("letter", {"subject": "hello", "tags": [], "to": "ada"}, unique=True)).id == whole.id
    assert (await quiet.enqueue(sweep, unique=True)).id == (await quiet.enqueue(sweep, 7, unique=True)).id
    # A default that differs each time is none of the arguments.
    ids = {(await quiet.enqueue("stamped", {"to": "ada"}, unique=True)).id for _ in range(2)}
    assert len(ids) == 1


@in_virtual_time
async def test_a_resubmitted_job_that_waits_for_its_retry_keeps_what_is_not_given() -> None:
    async with opened() as jobs:

        @jobs.handler("work", backoff=3600)
        async def work(job: RunningJob) -> None:
            await job.progress(2)
            raise ConnectionError("away")

        async with running(jobs):
            await add(jobs, "a", type="work")
            await asyncio.sleep(5)
        for changes in ({"priority": 3}, {"run_at": None}, {"data": 5}, {"run_at": EPOCH + 900, "data": 6}):
            job = await jobs.resubmit("work", "a", **changes)
            assert (job.attempts, job.error and job.error.message, job.progress) == (1, "away", Progress(2))
        assert (job.priority, job.data, job.history[0].kind) == (3, 6, HistoryKind.ADDED)
