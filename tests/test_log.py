"""Log events: details are kept from those who have not asked, and structlog's configuration is the application's."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import structlog

from jobs_service import JobFailed, JobsService, RunningJob, Settings
from jobs_service.log import EventLog

SCENARIO = """
import asyncio, sys
import structlog
from jobs_service import JobsService, Settings

async def main():
    async with JobsService("memory:", settings=Settings(notify_holdoff=0)) as jobs:
        await jobs.set_type_timeout("email", 60)
        await jobs.add("email", "the-id", {"password": "hunter2"})
        job = await jobs.accept("email")
        await job.update({"password": "hunter3"})
        await jobs.set_type_timeout("email", 0.2)
        while (await jobs.get("email", "the-id")).state == "running":
            await asyncio.sleep(0.01)
        await jobs.set_type_timeout("email", 60)
        job = await jobs.accept("email")
        await job.finish({"password": "hunter4"})
        await jobs.remove("email", "the-id")
        await jobs.clear_type_timeout("email")

"""

JSON_LINES = "structlog.configure([structlog.processors.add_log_level, structlog.processors.JSONRenderer()])\n"


def run(tmp_path: Path, configure: str = "") -> str:
    """Run a service in a process of its own, and return its standard error, where logs belong.

    Its standard output must be empty, but for what a program's own configuration sends there.
    """
    program = f"{SCENARIO}{configure}asyncio.run(main())\n"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False
    )
    assert done.returncode == 0
    assert configure == JSON_LINES or done.stdout == ""
    assert configure != JSON_LINES or done.stderr == ""
    return done.stdout + done.stderr


# of a whole program


def test_a_program_that_has_configured_nothing_is_told_of_lost_jobs_and_of_no_ordinary_work(tmp_path: Path) -> None:
    assert run(tmp_path) == ("jobs_lost type='email' count=1 ids=['the-id'] reason='their workers fell silent'\n")


def test_a_program_that_has_configured_logging_gets_events_its_way_down_to_its_level(tmp_path: Path) -> None:
    configure = """
import logging
logging.basicConfig(level="INFO", format="%(levelname)s %(name)s %(event)s %(fields)s %(filename)s")
logging.getLogger("jobs_service.actors").setLevel("DEBUG")
"""
    lines = run(tmp_path, configure).splitlines()
    assert "DEBUG jobs_service.actors type_served {'type': 'email'} type_server.py" in lines
    [lost] = [line for line in lines if "jobs_lost" in line]
    assert lost.startswith("WARNING jobs_service.actors jobs_lost {'type': 'email', 'count': 1, 'ids': ['the-id']")
    assert not any(line.startswith("DEBUG jobs_service ") for line in lines)


def test_a_program_that_has_configured_structlog_gets_details_its_way_and_never_data(
    tmp_path: Path,
) -> None:
    output = run(tmp_path, JSON_LINES)
    assert "hunter" not in output
    assert "password" not in output
    events = [json.loads(line) for line in output.splitlines()]
    by_name = {event["event"]: event for event in events}
    assert by_name["type_served"]["type"] == "email"
    assert by_name["type_served"]["level"] == "debug"
    assert by_name["jobs_lost"]["type"] == "email"
    assert by_name["jobs_lost"]["ids"] == ["the-id"]
    assert by_name["jobs_lost"]["level"] == "warning"


FAILING = """
import asyncio
from jobs_service import JobsService, RunningJob

jobs = JobsService("memory:")

@jobs.handler("email")
async def email(job: RunningJob, args: dict[str, str]) -> None:
    await job.finish()
    raise ValueError("after its end")

async def main():
    async with jobs:
        running = asyncio.create_task(jobs.run())
        job = await jobs.enqueue(email, {"password": "hunter2"})
        await jobs.result(email, job.id)
        running.cancel()
        await asyncio.wait([running])

asyncio.run(main())
"""


def test_a_traceback_shows_no_data_where_structlog_is_not_configured(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FAILING], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("handler_failed_after_end type='email' ")
    assert "ValueError: after its end" in done.stderr
    assert "Traceback (most recent call last):" in done.stderr
    assert "hunter2" not in done.stderr


def test_importing_the_library_configures_nothing_and_prints_nothing(tmp_path: Path) -> None:
    program = (
        "import jobs_service, structlog, logging\nassert not structlog.is_configured() and not logging.root.handlers"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# of one source


def test_an_event_that_cannot_be_logged_fails_nobody_and_is_named(caplog: pytest.LogCaptureFixture) -> None:
    log = EventLog("tests")
    with failing():
        for method in (log.debug, log.info, log.warning, log.error):
            method("event", id="a")
        try:
            raise ValueError("inner")
        except ValueError:
            log.exception("event")
    line = "the event event could not be logged: OSError(28, 'No space left on device')"
    assert [(record.name, record.getMessage()) for record in caplog.records] == [("tests", line)] * 5


async def test_a_service_goes_on_and_ends_when_nothing_can_be_logged() -> None:
    settings = Settings(type_check_period=0.05)
    async with asyncio.timeout(60), JobsService("memory:", settings=settings) as jobs:

        @jobs.handler("failing", max_attempts=1)
        async def fail(job: RunningJob) -> None:
            raise ValueError

        @jobs.handler("lost", timeout=0.2)
        async def succeed(job: RunningJob) -> int:
            return 1

        with failing():
            await jobs.set_type_timeout("lost", 0.2)
            lost = await jobs.add("lost", "1")
            await jobs.accept("lost")
            running = asyncio.create_task(jobs.run())
            failed = await jobs.enqueue(fail)
            with pytest.raises(JobFailed):
                await jobs.result(fail, failed.id)
            assert await jobs.result(succeed, lost.id) == 1
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running


@contextmanager
def failing(**options: Any) -> Iterator[None]:
    """Have whatever is logged fail, as it does on a full disk."""
    before = structlog.get_config() if structlog.is_configured() else {}
    structlog.configure(processors=[no_space], cache_logger_on_first_use=False, **options)
    try:
        yield
    finally:
        structlog.reset_defaults()
        if before:
            structlog.configure(**before)


def no_space(*_: object) -> Any:
    raise OSError(28, "No space left on device")
