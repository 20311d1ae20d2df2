"""Which fields are secret is kept with the type: who says so when, and that logs do not tell."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import fdb.tuple
import pytest
import structlog
from structlog.testing import LogCapture

from jobs_service import Discard, InvalidSettings, JobsService, Redaction, Retry, RunningJob
from jobs_service.layer import type_settings
from tests.service.support import eventually

SECRET = "S3cret-4111-1111"


@pytest.fixture
def captured() -> Iterator[LogCapture]:
    before = structlog.get_config()
    capture = LogCapture()
    structlog.configure(processors=[structlog.processors.format_exc_info, capture])
    yield capture
    structlog.configure(**before)


async def test_what_cannot_be_read_hides_everything() -> None:
    async with JobsService("memory:", supervise=False) as jobs:
        keys = jobs._context.keyspace.of("pay")
        for value in (b"\x99", fdb.tuple.pack((("a..b",), None)), fdb.tuple.pack((7, 8)), fdb.tuple.pack(((7,), None))):

            async def write(tx: Any, value: bytes = value) -> None:
                tx.kv[keys.redaction] = value

            await jobs.transact(write)
            assert (await jobs.get_redaction("pay")).data({"anything": 1}) == "[redacted]"


@pytest.mark.parametrize("many", [False, True])
async def test_a_handler_says_it_with_the_first_job_that_is_enqueued(many: bool) -> None:
    jobs = JobsService("memory:", supervise=False)

    @jobs.handler("pay", redact=["card"])
    async def pay(args: dict[str, str]) -> None: ...

    async with jobs:
        if many:
            await jobs.enqueue_many(pay, [{"card": SECRET}])
        else:
            await jobs.enqueue("pay", {"card": SECRET})
        assert await jobs.get_redaction("pay") == Redaction(["card"])
        await jobs.set_redaction("pay", ["other"])
        await jobs.enqueue(pay, {"card": SECRET})
        assert await jobs.get_redaction("pay") == Redaction(["other"])


async def test_the_log_does_not_say_what_is_secret(captured: LogCapture) -> None:
    jobs = JobsService("memory:")

    @jobs.handler("pay", redact=["card"], max_attempts=2)
    async def pay(job: RunningJob, args: dict[str, str]) -> None:
        if args["how"] == "discard":
            raise Discard(f"{args['card']} is refused")
        if args["how"] == "retry":
            raise Retry(1000, args["card"])
        if args["how"] == "afterwards":
            await job.finish()
        raise ValueError(f"no such card: {args['card']}")

    @jobs.handler("operator", max_attempts=1)
    async def operator(args: dict[str, str]) -> None:
        raise ValueError(f"no such card: {args['card']}")

    async with jobs:
        for how in ("discard", "retry", "crash", "afterwards"):
            await jobs.enqueue(pay, {"card": SECRET, "how": how}, id=how)
        await jobs.set_redaction("operator", ["card"])
        await jobs.enqueue(operator, {"card": SECRET}, id="1")
        task = asyncio.create_task(jobs.run())
        wanted = {"job_failed": 2, "job_retrying": 1, "job_crashed": 1, "handler_failed_after_end": 1}

        async def all_said() -> bool:
            return all(sum(each["event"] == name for each in captured.entries) >= n for name, n in wanted.items())

        await eventually(all_said)
        task.cancel()
        await asyncio.wait([task])
        error = (await jobs.get("pay", "crash")).error
    assert error is not None
    assert SECRET in error.message  # programs see it
    for entry in captured.entries:
        assert SECRET not in repr(entry), entry
    assert sum("[redacted]" in repr(entry) for entry in captured.entries) >= 5


async def test_a_change_is_heard_by_handlers_that_run(captured: LogCapture) -> None:
    jobs = JobsService("memory:")

    @jobs.handler("pay", max_attempts=1)
    async def pay(args: dict[str, str]) -> None:
        raise ValueError(f"no such card: {args['card']}")

    async with jobs:
        await jobs.set_redaction("pay", ["nothing"])
        ready = asyncio.Event()
        task = asyncio.create_task(jobs.run(started=ready.set))
        await ready.wait()
        await jobs.set_redaction("pay", ["card"])
        runs = jobs._registry.runner._runs[jobs.handlers["pay"].packed]  # type: ignore[union-attr]

        async def heard() -> bool:
            return runs._execution.redaction.paths == ("card",)

        await eventually(heard)
        await jobs.enqueue(pay, {"card": SECRET}, id="1")
        await jobs.wait("pay", "1", "finished", timeout=20)
        task.cancel()
        await asyncio.wait([task])
    assert any(entry["event"] == "job_failed" for entry in captured.entries)
    assert SECRET not in repr(captured.entries)


def test_a_handler_with_a_path_that_cannot_be_is_refused() -> None:
    jobs = JobsService("memory:")
    with pytest.raises(InvalidSettings, match="redact"):
        jobs.handler("pay", redact="card")


def test_the_row_is_read_again_only_when_it_has_changed() -> None:
    assert type_settings._decoded(fdb.tuple.pack((("a",), None))) is type_settings._decoded(
        fdb.tuple.pack((("a",), None))
    )
