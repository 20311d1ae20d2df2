"""Enqueueing by name, by keyword, in bulk, later, and with limits for one job."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from jobs_service import InvalidJob, Job, JobFailed, JobsService
from tests.checker import assert_sound
from tests.runner.support import ended, opened, running, story
from tests.service.enqueuing import CAT, Picture, mail, nothing, picture
from tests.stores import QUICKEST_AND_CLUSTER, one_of
from tests.virtual_time import in_virtual_time

# What they do is above the stores, which keep their contract: one, and the cluster, are enough.
store_kind = one_of(QUICKEST_AND_CLUSTER)


# by name


async def test_a_job_is_enqueued_by_its_type_where_the_function_is_not_known(quiet: JobsService) -> None:
    await quiet.set_type_timeout("picture", 60)
    job = await quiet.enqueue("picture", {"path": "cat.png"})
    assert (job.type, job.data) == ("picture", {"path": "cat.png"})
    assert (await quiet.enqueue("picture", path="dog.png", id="a")).data == {"path": "dog.png"}
    assert (await quiet.enqueue("picture")).data is None
    first = await quiet.enqueue("picture", {"a": 1, "b": 2}, unique=True)
    assert (await quiet.enqueue("picture", {"b": 2, "a": 1}, unique=True)).id == first.id
    await assert_sound(quiet.store)


async def test_by_its_type_a_handler_that_is_known_checks_the_data_and_makes_the_type(quiet: JobsService) -> None:
    quiet._registry.register(picture)
    quiet._registry.register(mail)
    for enqueue in (quiet.enqueue, lambda *args: quiet.transact(lambda tx: tx.enqueue(*args))):
        job = await enqueue("picture", {"path": "cat.png"})
        assert job.data == {"path": "cat.png"}
        assert (await enqueue("picture", CAT)).data == {"path": "cat.png", "width": 320}
        with pytest.raises(InvalidJob, match="the data does not fit Picture: field path is missing"):
            await enqueue("picture", {"paht": "cat.png"})
        with pytest.raises(InvalidJob, match="parameter to is missing"):
            await enqueue("mail", {"subject": "ho"})
        with pytest.raises(InvalidJob, match="picture takes arguments: give them after the handler"):
            await enqueue("picture")
    assert await quiet.get_type_timeout("picture") == 77


# by keyword


@pytest.mark.parametrize(
    ("handler", "args", "arguments", "said"),
    [
        (mail, (), {"to": "ada", "subjekt": "a"}, "there is no parameter 'subjekt'; did you mean subject?"),
        # What no type checker sees, because there is an option as well, or because nobody can say it.
        (mail, (), {"to": "ada", "subjekt": "a", "id": "a"}, "there is no parameter 'subjekt'; did you mean subject?"),
        (mail, (), {"priority": 3}, "mail takes arguments: give them after the handler (to)"),
        (mail, (), {"subject": "a", "unique": True}, "parameter to is missing"),
        (mail, (), {"to": 3, "max_attempts": 3}, "parameter to: the data should be a str; it is 3"),
        (mail, ("ada",), {}, "arguments by keyword, or a dict of them, should be given (to, subject); it is 'ada'"),
        (nothing, (), {"to": "ada"}, "is not given to= by keyword: it takes no arguments; the options of enqueue are"),
        (
            mail,
            ({"to": "a"},),
            {"subject": "a"},
            "is not given subject= by keyword: its arguments are given as one val",
        ),
        (
            picture,
            (CAT,),
            {"prioritty": 3},
            "prioritty= by keyword: it takes one value, right after the handler; did you mean prior",
        ),
        (
            picture,
            (CAT,),
            {"width": 3},
            "width= by keyword: it takes one value, right after the handler; the options of enqueue are",
        ),
        (nothing, (), {"uniqe": True}, "did you mean unique?"),
    ],
)
async def test_keywords_that_do_not_fit_are_refused_in_one_line(
    quiet: JobsService, handler: Any, args: Any, arguments: Any, said: str
) -> None:
    with pytest.raises(InvalidJob) as caught:
        await quiet.enqueue(handler, *args, **arguments)
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@in_virtual_time
async def test_a_handler_is_called_with_its_arguments_by_keyword() -> None:
    async with opened() as jobs:

        @jobs.handler("mail")
        async def send(to: str, subject: str = "hi") -> list[str]:
            return [to, subject]

        @jobs.handler("later")
        async def later(job: Job, *, a: int, b: Picture | None = None) -> Any:
            return [a, b and b.path]

        async with running(jobs):
            first = await jobs.enqueue(send, to="ada", subject="ho")
            second = await jobs.enqueue("later", a=1, b={"path": "x"})
            assert await jobs.result(send, first.id) == ["ada", "ho"]
            assert await jobs.result(later, second.id) == [1, "x"]


# when


@pytest.mark.parametrize(
    "how",
    [{"delay": 90}, {"delay": timedelta(seconds=90)}, {"run_at": timedelta(seconds=90)}, {"delay": 90.0}],
    ids=str,
)
@in_virtual_time
async def test_a_job_is_enqueued_for_later(how: Any) -> None:
    async with opened() as jobs:
        began = jobs._context.sources.wall_time()
        for job in (
            await jobs.enqueue(nothing, **how),
            await jobs.transact(lambda tx: tx.enqueue(nothing, **how)),
            *(await jobs.enqueue_many(picture, [CAT], **how)),
        ):
            assert job.run_at is not None
            assert job.run_at.timestamp() == pytest.approx(began + 90, abs=1)


# limits of one job


@in_virtual_time
async def test_a_job_may_have_limits_of_its_own() -> None:
    async with opened() as jobs:

        @jobs.handler("work", max_attempts=5, backoff=1)
        async def work(args: float) -> None:
            await asyncio.sleep(args)
            if args < 1:
                raise ValueError("never")

        async with running(jobs):
            once = await jobs.enqueue(work, 0.5, max_attempts=1)
            short = await jobs.enqueue(work, 50.0, max_attempts=1, time_limit=3)
            usual = await jobs.enqueue(work, 0.5)
            assert (once.max_attempts, once.time_limit) == (1, None)
            assert (short.max_attempts, short.time_limit) == (1, 3)
            assert (usual.max_attempts, usual.time_limit) == (None, None)
            for job in (once, short, usual):
                with pytest.raises(JobFailed) as caught:
                    await jobs.result(work, job.id)
                if job is short:
                    assert "it ran longer than its time limit of 3 s" in str(caught.value)
            assert [story(await ended(jobs, str(job.id), "work")).count("started") for job in (once, short, usual)] == [
                1, 1, 5,
            ]  # fmt: skip


# options


@in_virtual_time
async def test_parameters_that_are_called_as_options_are_get_their_values_from_one_value() -> None:
    got: list[Any] = []
    async with opened() as jobs:

        @jobs.handler("ticket")
        async def ticket(job: Job, to: str, *, id: int, priority: str = "low", delay: float = 0.5) -> None:
            got.append((job.id, to, id, priority, delay))

        async with running(jobs):
            first = await jobs.enqueue(ticket, {"to": "ada", "id": 7, "delay": 2.0}, id="a", priority=3)
            second = await jobs.enqueue("ticket", {"to": "bob", "id": 8, "priority": "high"}, unique=True)
            for job in first, second:
                await ended(jobs, str(job.id), "ticket")
            assert (first.id, first.priority) == ("a", 3)
            assert sorted(got) == sorted([("a", "ada", 7, "low", 2.0), (second.id, "bob", 8, "high", 0.5)])
        enqueues: list[Any] = [jobs.enqueue, lambda *a, **k: jobs.transact(lambda tx: tx.enqueue(*a, **k))]
        for enqueue in enqueues:
            for by in ticket, "ticket":
                with pytest.raises(
                    InvalidJob, match="a parameter id, and enqueue has an option id: give its arguments"
                ):
                    await enqueue(by, to="ada", id=7)
