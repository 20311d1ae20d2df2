"""Handlers that run against a server elsewhere: by the same runner as beside a store, and with the role work alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from jobs_service import (
    AccessDenied,
    Handlers,
    HistoryKind,
    Job,
    JobsClient,
    JobsService,
    JobState,
    Outcome,
    Redaction,
    Retention,
    RunningJob,
    Settings,
)
from jobs_service.http.state import ServerOptions
from jobs_service.http.tokens import add_token
from tests.client.lossy import LossyTransport
from tests.client.served import listening
from tests.service.support import PATIENCE, eventually

TYPE = "mail"
NOWHERE = "lmdb:/nonexistent/jobs"
"""The store of a service of which only the handlers are wanted."""


@asynccontextmanager
async def running(app: JobsService, role: str = "work", **more: Any) -> AsyncIterator[tuple[JobsService, JobsClient]]:
    """Run the handlers of an application against a service elsewhere; yield that, and the client."""
    settings = Settings(notify_holdoff=0.01)
    async with (
        asyncio.timeout(PATIENCE),
        JobsService("memory:", settings=settings) as served,
        listening(served, ServerOptions()) as url,
    ):
        token = await add_token(served, role, role)
        async with JobsClient(url, token=token, **more) as client, asyncio.TaskGroup() as tasks:
            started = asyncio.Event()
            task = tasks.create_task(client.run(app, started=started.set))
            await started.wait()
            try:
                yield served, client
            finally:
                task.cancel()


async def ended(served: JobsService, id: str, type: str = TYPE) -> Job:
    await served.wait(type, id, JobState.FINISHED)
    return await served.get(type, id)


def story(job: Job) -> list[str]:
    return [event.kind.value for event in reversed(job.history)]


async def test_handlers_run_and_what_they_say_is_kept() -> None:
    app = JobsService(NOWHERE)

    @app.handler(TYPE, timeout=7, keep=100, redact=["to"], backoff=0.01, jitter=0, max_attempts=3)
    async def mail(job: RunningJob, to: str, fails: int = 0) -> dict[str, Any]:
        await job.progress(1, 2, "half")
        if job.attempts <= fails:
            raise ValueError(f"no {job.attempts}")
        return {"attempts": job.attempts, "is": to == "ada"}

    async with running(app) as (served, _):
        assert await served.get_type_timeout(TYPE) == 7
        assert await served.get_retention(TYPE) == Retention(100, None)
        assert await served.get_redaction(TYPE) == Redaction(["to"])
        for fails in (0, 2, 3):
            await served.add(TYPE, f"{fails}", {"to": "ada", "fails": fails})
        at_once, retried, failed = [await ended(served, f"{fails}") for fails in (0, 2, 3)]
    assert at_once.result == {"attempts": 1, "is": True}
    assert at_once.progress is not None
    assert (at_once.progress.done, at_once.progress.message) == (1, "half")
    assert story(at_once) == ["added", "started", "finished"]
    assert retried.result == {"attempts": 3, "is": True}
    assert story(retried) == ["added", *["started", "crashed"] * 2, "started", "finished"]
    assert (failed.outcome, failed.attempts) == (Outcome.FAILED, 3)
    assert failed.error is not None
    assert (failed.error.type, failed.error.message) == ("ValueError", "no 3")
    assert "raise ValueError" in failed.error.traceback
    assert [event.detail for event in failed.history if event.kind is HistoryKind.CRASHED] == [
        f"ValueError: no {attempt}" for attempt in (3, 2, 1)
    ]


class Post:
    """A resource of the handlers."""

    sent = 0


async def test_handlers_of_a_module_have_their_middleware_and_resources() -> None:
    app, part, post = JobsService(NOWHERE), Handlers(), Post()
    seen: list[str] = []

    @app.middleware
    async def around(job: RunningJob, call_next: Callable[[], Awaitable[Any]]) -> Any:
        result = await call_next()
        seen.append(f"{job.id!r}: {result}")
        return result

    @part.handler("send")
    async def send(job: RunningJob, to: str, post: Post) -> str:
        post.sent += 1
        return f"{to} {post.sent}"

    app.provide(Post, lambda: post)
    app.include(part, prefix="mail.")
    async with running(app) as (served, _):
        await served.add("mail.send", "a", "ada")
        assert (await ended(served, "a", "mail.send")).result == "ada 1"
    assert seen == ["'a': ada 1"]


async def test_a_job_that_is_canceled_ends_its_handler_at_once() -> None:
    app = JobsService(NOWHERE)
    begun = asyncio.Event()

    @app.handler(TYPE, timeout=1000)  # no heartbeat would tell within the test's time
    async def mail() -> None:
        begun.set()
        await asyncio.Event().wait()

    async with running(app) as (served, _):
        await served.add(TYPE, "a")
        await begun.wait()
        await served.remove(TYPE, "a")
        assert (await ended(served, "a")).outcome is Outcome.CANCELED


async def test_heartbeats_keep_a_job_and_follow_the_types_timeout() -> None:
    app = JobsService(NOWHERE)
    begun, go_on = asyncio.Event(), asyncio.Event()

    @app.handler(TYPE, timeout=1000)
    async def mail() -> None:
        begun.set()
        await go_on.wait()

    async with running(app) as (served, _):
        await served.add(TYPE, "a")
        await begun.wait()
        seq = (await served.get(TYPE, "a")).seq
        await served.set_type_timeout(TYPE, 3)

        async def was_renewed() -> bool:
            return (await served.get(TYPE, "a")).seq != seq

        await eventually(was_renewed)
        go_on.set()
        assert story(await ended(served, "a")) == ["added", "started", "finished"]


async def test_it_ends_with_grace_and_gives_back_what_does_not_end() -> None:
    app = JobsService(NOWHERE)
    begun = asyncio.Semaphore(0)
    last = asyncio.Event()

    @app.handler(TYPE, slots=2, grace=0.05)
    async def mail(job: RunningJob) -> None:
        begun.release()
        await (last if job.id == "ends" else asyncio.Event()).wait()

    async with JobsService("memory:") as served, listening(served) as url:
        await served.set_type_timeout(TYPE, 60)
        for id in ("ends", "goes on", "waits"):
            await served.add(TYPE, id)
        task = asyncio.create_task(JobsClient(url).run(app))
        await begun.acquire()
        await begun.acquire()
        task.cancel()
        await asyncio.sleep(0)
        last.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await served.get(TYPE, "ends")).outcome is Outcome.SUCCEEDED
        back, waits = await served.get(TYPE, "goes on"), await served.get(TYPE, "waits")
        assert (back.state, back.attempts, story(back)[-1]) == (JobState.PENDING, 0, "stopped")
        assert (waits.state, story(waits)) == (JobState.PENDING, ["added"])


@pytest.mark.parametrize("lost", ["/ends", "/accept", "/alive", "/finish"])
async def test_answers_that_are_lost_make_no_job_run_twice(lost: str) -> None:
    app = JobsService(NOWHERE)
    network = LossyTransport()
    ran: list[str] = []

    @app.handler(TYPE, timeout=60)
    async def mail(job: RunningJob) -> None:
        ran.append(str(job.id))
        if lost == "/finish":
            await job.finish(result=1)

    async with running(app, transport=network) as (served, _):
        network.path, network.lose = lost, 1
        with capture_logs() as logs:
            for number in range(10):
                await served.add(TYPE, f"{number}")
            for number in range(10):
                assert story(await ended(served, f"{number}")) == ["added", "started", "finished"]
    assert sorted(ran) == [f"{number}" for number in range(10)]
    assert [event["event"] for event in logs if event["log_level"] in ("warning", "error")] == []


async def test_periodic_handlers_tick_with_the_role_write() -> None:
    app = JobsService(NOWHERE)

    @app.every(1, type=TYPE)
    async def tick() -> int:
        return 7

    async with running(app, "write") as (served, _):

        async def has_ticked() -> bool:
            return any([job.result == 7 async for job in served.list(TYPE)])

        await eventually(has_ticked)


async def test_with_the_role_work_ticks_are_refused_and_all_else_goes_on() -> None:
    app = JobsService(NOWHERE)

    @app.every(1, type="ticks")
    async def tick() -> None: ...

    @app.handler(TYPE)
    async def mail() -> None: ...

    with capture_logs() as logs:
        async with running(app) as (served, _):

            async def was_refused() -> bool:
                return any(event["event"] == "tick_refused" for event in logs)

            await eventually(was_refused)
            await served.add(TYPE, "a")
            assert (await ended(served, "a")).outcome is Outcome.SUCCEEDED


async def test_a_token_that_may_only_read_runs_nothing() -> None:
    app = JobsService(NOWHERE)

    @app.handler(TYPE)
    async def mail() -> None: ...

    async with asyncio.timeout(PATIENCE), JobsService("memory:") as served, listening(served, ServerOptions()) as url:
        client = JobsClient(url, token=await add_token(served, "reader", "read"))
        with pytest.raises(AccessDenied, match="needs the role work"):
            await client.run(app)
