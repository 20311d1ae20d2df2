"""Options that a handler declares for its type: the last change counts, be it the program's or an operator's."""

from __future__ import annotations

import asyncio
from typing import Any

from structlog.testing import capture_logs

from jobs_service import JobsService
from jobs_service.model.type_state import Retention
from tests.runner.support import opened, running
from tests.virtual_time import in_virtual_time

TYPE = "work"


async def run_with(jobs: JobsService, **options: Any) -> list[dict[str, Any]]:
    """Start a program with these options of a handler, stop it, and return what it logged of them."""
    program = JobsService(jobs.store, settings=jobs.settings, sources=jobs._context.sources)

    @program.handler(TYPE, **options)
    async def work() -> None:
        """Nothing."""

    ready = asyncio.Event()
    with capture_logs() as logged:
        async with program:
            task = asyncio.create_task(program.run(started=ready.set))
            await ready.wait()
            task.cancel()
            await asyncio.wait([task])
    return [dict(entry) for entry in logged if entry["event"] == "declared_options_differ"]


async def state(jobs: JobsService) -> tuple[float, Retention]:
    """Return what the type has."""
    keys = jobs._access.keys(TYPE)
    return await jobs.get_type_timeout(TYPE), await jobs._access.transact(lambda unit: unit.retention(keys))


@in_virtual_time
async def test_a_changed_timeout_in_code_is_applied_when_handlers_start() -> None:
    async with opened() as jobs:
        await run_with(jobs, timeout=60)
        assert not await run_with(jobs, timeout=300, keep=5, keep_failed=None)
        assert await state(jobs) == (300, Retention(5, None))
        assert not await run_with(jobs, timeout=300, keep=None, keep_failed=7)
        assert await state(jobs) == (300, Retention(None, 7))


@in_virtual_time
async def test_what_an_operator_has_set_survives_restarts_and_the_log_says_so() -> None:
    async with opened() as jobs:
        await run_with(jobs, timeout=60, keep=5, keep_failed=None)
        await jobs.set_type_timeout(TYPE, 90)
        await jobs.set_retention(TYPE, keep=1, keep_failed=2)
        for _ in range(2):
            [said] = await run_with(jobs, timeout=60, keep=5, keep_failed=None)
            assert await state(jobs) == (90, Retention(1, 2))
            assert (said["timeout"], said["keep"], said["keep_failed"]) == ((60, 90), (5, 1), (None, 2))


@in_virtual_time
async def test_the_code_is_heard_again_as_soon_as_it_says_something_new() -> None:
    async with opened() as jobs:
        await run_with(jobs, timeout=60, keep=5, keep_failed=None)
        await jobs.set_type_timeout(TYPE, 90)
        await jobs.set_retention(TYPE, keep=1, keep_failed=2)
        await run_with(jobs, timeout=61, keep=5, keep_failed=None)
        assert await state(jobs) == (61, Retention(1, 2))
        await run_with(jobs, timeout=61, keep=None, keep_failed=None)
        assert await state(jobs) == (61, Retention(None, None))


@in_virtual_time
async def test_a_removed_type_is_made_again_by_the_start_of_its_handler() -> None:
    async with opened() as jobs:
        await run_with(jobs, timeout=60)
        await jobs.clear_type_timeout(TYPE)
        await run_with(jobs, timeout=60)
        assert await jobs.get_type_timeout(TYPE) == 60


@in_virtual_time
async def test_a_ticker_goes_on_while_the_type_of_one_handler_is_removed() -> None:
    async with opened() as jobs:

        @jobs.every(10, type="one")
        async def one() -> None:
            """Nothing."""

        @jobs.every(10, type="two")
        async def two() -> None:
            """Nothing."""

        with capture_logs() as logged:
            async with running(jobs) as task:
                await asyncio.sleep(15)
                await jobs.clear_type_timeout("one")
                await asyncio.sleep(30)
                counted = await jobs.counts()
                await jobs.set_type_timeout("one", 60)
                await asyncio.sleep(30)
                assert not task.done()
                later = await jobs.counts()
        assert counted["two"].succeeded - counted["one"].succeeded == 3
        assert later["one"].succeeded > counted["one"].succeeded
        assert {entry["type"] for entry in logged if entry["event"] == "tick_refused"} == {"one"}
