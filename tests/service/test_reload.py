"""Handlers' options from settings: at the start, and again while they run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from jobs_service import Handler, InvalidSettings, JobsService, RunningJob, Settings


def service(**handlers: Any) -> tuple[JobsService, Handler[Any, Any]]:
    """Return a service with these settings and a handler of two slots, whose jobs run until they are released."""
    jobs = JobsService("memory:", settings=Settings(handlers=handlers))

    @jobs.handler("work", slots=2, interval=7, grace=0.01)
    async def work(job: RunningJob) -> None:
        await asyncio.Event().wait()

    return jobs, work


def test_what_the_settings_name_no_more_is_as_it_was_registered() -> None:
    jobs, work = service()
    jobs.reload(Settings(handlers={"work": {"slots": 5, "max_history": 3}}))
    assert (work.options.slots, work.options.max_history, work.options.interval) == (5, 3, 7)
    jobs.reload(Settings(handlers={"work": {"slots": 6}}))
    assert (work.options.slots, work.options.max_history) == (6, 20)
    jobs.reload(Settings())
    assert (work.options.slots, work.options.max_history) == (2, 20)


def test_what_code_has_configured_is_what_the_settings_replace() -> None:
    jobs, work = service()
    jobs.reload(Settings(handlers={"work": {"slots": 5}}))
    jobs.configure("work", slots=3)
    assert work.options.slots == 3
    jobs.reload(Settings(handlers={"work": {"slots": 6}}))
    assert work.options.slots == 6
    jobs.reload(Settings())
    assert work.options.slots == 3


def test_types_that_are_no_strings_go_by_their_repr() -> None:
    jobs = JobsService("memory:")

    @jobs.handler(("a", 1))
    async def tuples() -> None: ...

    @jobs.handler(7)
    async def numbers() -> None: ...

    jobs.reload(Settings(handlers={"('a', 1)": {"slots": 1}, "7": {"slots": 3}}))
    assert (tuples.options.slots, numbers.options.slots) == (1, 3)


def test_settings_of_nobodys_handler_are_told() -> None:
    jobs, _ = service()
    with capture_logs() as logs:
        jobs.reload(Settings(handlers={"wrok": {"slots": 1}, "work": {}}))
    assert logs == [{"event": "settings_without_handler", "log_level": "warning", "types": ["wrok"]}]


@pytest.mark.parametrize("settings", [None, {}, "settings"])
def test_only_settings_are_settings(settings: Any) -> None:
    with pytest.raises(InvalidSettings, match="allowed are Settings"):
        service()[0].reload(settings)


async def test_the_settings_hold_from_the_start_and_new_ones_while_it_runs() -> None:
    jobs, _ = service(work={"slots": 1})
    async with jobs, asyncio.TaskGroup() as group:
        started = asyncio.Event()
        running = group.create_task(jobs.run(started=started.set))
        await started.wait()
        for id in ("a", "b", "c"):  # the type is there
            await jobs.add("work", id)
        await jobs.wait("work", "a", "running", timeout=60)
        jobs.reload(Settings(handlers={"work": {"slots": 3}}))
        await jobs.wait("work", "c", "running", timeout=60)
        assert len(await jobs.active_ids("work")) == 3
        running.cancel()
