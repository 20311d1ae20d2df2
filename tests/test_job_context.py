"""The context of jobs: from where they are added to the runs, their log lines and the jobs that they add."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import httpx
import pytest
import structlog

from jobs_service import BlockingJob, InvalidJob, JobsClient, JobsService, JobTransaction, NewJob, RunningJob, context
from jobs_service.http.state import ServerOptions
from jobs_service.job_context import MOST_BYTES
from tests.client.served import listening
from tests.runner.support import PATIENCE_OF_THREADS, TYPE, add, ended, lose, opened, running
from tests.virtual_time import in_virtual_time

ACME = {"tenant": "acme", "locale": "de"}


@in_virtual_time
async def test_it_goes_to_every_run_and_to_the_jobs_that_a_run_adds() -> None:
    seen: list[Mapping[str, str]] = []
    async with opened() as jobs:

        @jobs.handler("second")
        async def second() -> dict[str, str]:
            return dict(context.get())

        @jobs.handler(TYPE, backoff=1, max_attempts=2)
        async def first(job: RunningJob) -> None:
            seen.append(context.get())
            assert job.context == ACME
            if job.attempts == 1:
                raise ValueError("not yet")

            async def add_more(tx: JobTransaction) -> None:
                await tx.enqueue(second, id="b")
                await tx.add("second", "c")

            await job.finish_with(add_more)

        async with running(jobs):
            with context(ACME):
                job = await jobs.enqueue(first, id="a")
            assert context.get() == {}
            assert job.context == ACME
            await ended(jobs, "a")
            results = [(await ended(jobs, id, "second")).result for id in ("b", "c")]
    assert seen == [ACME, ACME]
    assert results == [ACME, ACME]


@in_virtual_time
async def test_every_way_of_adding_takes_it_and_jobs_without_one_stay_as_small() -> None:
    async with opened() as jobs:
        await jobs.set_type_timeout(TYPE, 60)
        plain = await jobs.add(TYPE, "plain")
        assert plain.context == {}
        assert "context" not in plain.to_dict()
        with context(tenant="acme"):
            added = [await jobs.add(TYPE, "a"), *await jobs.add_many(TYPE, [NewJob("b")])]
            added += await jobs.enqueue_many(TYPE, [1, 2])
            added += [await jobs.enqueue(TYPE, id="limited", max_attempts=3)]
            added += [await jobs.transact(lambda tx: tx.add(TYPE, "c"))]
            with context(tenant="beta", locale="de"):
                inner = await jobs.add(TYPE, "inner")
        for job in [*added, *[await jobs.get(TYPE, each.id) for each in added]]:
            assert job.context == {"tenant": "acme"}
            assert job.to_dict()["context"] == {"tenant": "acme"}
        assert added[-2].max_attempts == 3
        assert inner.context == {"tenant": "beta", "locale": "de"}
        assert len(added[0]._record.run_data) > len(plain._record.run_data) + 30


@in_virtual_time
async def test_a_job_keeps_it_until_another_one_comes() -> None:
    async with opened() as jobs:
        await jobs.set_type_timeout(TYPE, 60)
        with context(ACME):
            await jobs.enqueue(TYPE, id="a", time_limit=7)
        await jobs.accept(TYPE)
        await lose(jobs)
        assert (await jobs.get(TYPE, "a")).context == ACME
        assert (await jobs.resubmit(TYPE, "a", priority=3)).context == ACME
        with context(tenant="beta"):
            again = await jobs.resubmit(TYPE, "a", priority=4)
        assert (again.context, again.time_limit) == ({"tenant": "beta"}, 7)
        running_job = await jobs.accept(TYPE)
        assert running_job is not None
        assert running_job.context == {"tenant": "beta"}
        assert (await running_job.finish()).context == {"tenant": "beta"}
        # An enqueue begins anew.
        assert (await jobs.enqueue(TYPE, id="a", if_exists="resubmit")).context == {}


@in_virtual_time
async def test_handlers_do_not_run_in_the_context_of_who_runs_them() -> None:
    async with opened() as jobs:

        @jobs.handler(TYPE)
        async def work() -> dict[str, str]:
            return dict(context.get())

        with context(tenant="runner"):
            async with running(jobs):
                await add(jobs, "mine")
                await asyncio.create_task(jobs.add(TYPE, "also mine"), context=_empty())
                assert (await ended(jobs, "mine")).result == {"tenant": "runner"}
                assert (await ended(jobs, "also mine")).result == {}


def _empty() -> Any:
    import contextvars

    return contextvars.Context()


async def test_log_lines_of_a_run_have_its_words_also_in_a_thread() -> None:
    lines: list[dict[str, Any]] = []

    def keep(logger: Any, method: str, event: Any) -> Any:
        lines.append(dict(event))
        raise structlog.DropEvent

    structlog.configure(processors=[structlog.contextvars.merge_contextvars, keep])
    try:
        async with asyncio.timeout(PATIENCE_OF_THREADS), JobsService("memory:") as jobs:

            @jobs.handler("plain")
            def plain(job: BlockingJob) -> dict[str, str]:
                structlog.get_logger().info("in a thread")
                return dict(context.get())

            @jobs.handler(TYPE, max_attempts=1)
            async def work(job: RunningJob) -> None:
                structlog.get_logger().info("in a task")
                raise ValueError("no")

            async with running(jobs):
                with context(ACME):
                    await jobs.enqueue(plain, id="a")
                    await jobs.enqueue(work, id="b")
                await jobs.enqueue(plain, id="c")
                assert (await ended(jobs, "a", "plain")).result == ACME
                await ended(jobs, "b")
                assert (await ended(jobs, "c", "plain")).result == {}
    finally:
        structlog.reset_defaults()
    found = {(line["event"], line.get("job_id", line.get("id"))): line for line in lines}
    for event, id in (("in a thread", "a"), ("in a task", "b"), ("job_failed", "b")):
        assert ACME.items() <= found[event, id].items()
    assert "tenant" not in found["in a thread", "c"]


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"tenant": 7}, "context: tenant=7: an int; allowed is str"),
        (
            {"": "acme"},
            "context: the name '': allowed are up to 50 letters, digits, _ . and -, beginning",
        ),
        ({7: "acme"}, "context: the name 7: allowed are"),
        ({"a b": "acme"}, "context: the name 'a b': allowed are"),
        ({"job_id": "acme"}, "context: the name job_id has a meaning of its own in log lines; choose another"),
        (
            {"tenant": "a" * MOST_BYTES},
            "context: it takes 1013 bytes as JSON; allowed are 1000: give the data",
        ),
        ("acme", "context 'acme': a str; allowed is a mapping of strings"),
    ],
)
def test_what_is_no_context_is_refused_in_a_line(values: Any, why: str) -> None:
    with pytest.raises(InvalidJob) as refusal:
        context(values)
    assert str(refusal.value).startswith(why)
    assert "\n" not in str(refusal.value)


def test_it_may_grow_to_its_bound_bit_by_bit_and_not_beyond() -> None:
    with context(first="a" * 900), pytest.raises(InvalidJob, match="allowed are 1000"):
        context(second="b" * 100)


async def test_it_goes_over_http_and_back() -> None:
    async with asyncio.timeout(PATIENCE_OF_THREADS), JobsService("memory:") as served:
        await served.set_type_timeout(TYPE, 60)
        async with listening(served, ServerOptions(is_open=True)) as url, JobsClient(url) as client:
            with context(name="Zoë", **ACME):
                mine, plain = await asyncio.gather(client.add(TYPE, "mine"), _without(client, "plain"))
            wanted = {"name": "Zoë", **ACME}
            assert (mine.context, plain.context) == (wanted, {})
            assert (await served.get(TYPE, "mine")).context == wanted
            job = await client.accept(TYPE, max_priority=0)
            assert job is not None
            assert job.context in (wanted, {})
            async with httpx.AsyncClient(base_url=url) as raw:
                headers = {"Job-Context": json.dumps(ACME)}
                path = f"/v1/types/{TYPE}/jobs"
                answer = await raw.post(path, json={"id": "x"}, headers=headers)
                assert answer.json()["context"] == ACME
                lines = '{"id": "y"}\n{"id": "z"}\n'
                kind = {"Content-Type": "application/x-ndjson"}
                streamed = await raw.post(path, content=lines, headers=headers | kind)
                assert [json.loads(line)["context"] for line in streamed.text.splitlines()] == [ACME, ACME]
                for wrong in ("acme", "[1]", '{"tenant": 7}'):
                    refused = await raw.post(path, json={"id": "no"}, headers={"Job-Context": wrong})
                    assert refused.status_code == 422
                    assert "context" in refused.json()["detail"].lower()
                page = await raw.get("/job", params={"type": TYPE, "id": "x"})
                assert "tenant=acme" in page.text


async def _without(client: JobsClient, id: str) -> Any:
    async def add_it() -> Any:
        return await client.add(TYPE, id)

    return await asyncio.create_task(add_it(), context=_empty())
