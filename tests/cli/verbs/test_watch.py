"""`watch`, as a process beside the program that runs the job."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from jobs_service import JobError, JobsService, Outcome, RunningJob
from tests.cli.conftest import Invoke
from tests.cli.support import HANG, arrange, started
from tests.cli.verbs.test_top import shown

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"


def next_line(watching: subprocess.Popen[str]) -> str:
    """Return the line that the watcher prints next."""
    assert watching.stdout is not None
    return watching.stdout.readline()


def next_event(watching: subprocess.Popen[str]) -> dict[str, Any]:
    """Return the event that the watcher prints next."""
    event: dict[str, Any] = json.loads(next_line(watching))
    return event


async def _accepted(jobs: JobsService) -> RunningJob:
    job = await jobs.accept("email", timeout=0)
    assert job is not None
    return job


@pytest.mark.parametrize("outcome", list(Outcome))
def test_every_event_is_printed_as_it_happens_until_the_job_has_finished(
    email: str, tmp_path: Path, outcome: Outcome
) -> None:
    async def live(jobs: JobsService) -> None:
        await jobs.add("email", "first", {"n": 0})
        with started("watch", "email", "first", "-o", "json", "--store", email, cwd=tmp_path) as watching:
            event = next_event(watching)
            assert (event["state"], event["data"], event["outcome"]) == ("pending", {"n": 0}, None)
            job = await _accepted(jobs)
            assert next_event(watching)["state"] == "running"
            await job.update({"n": 1})
            event = next_event(watching)
            assert (event["state"], event["data"]) == ("running", {"n": 1})
            await job.progress(3, 10, "half")
            assert next_event(watching)["progress"]["message"] == "half"
            await job.finish({"n": 2}, outcome=outcome, result=[1], error=JobError("Bad", "it is"))
            event = next_event(watching)
            assert (event["result"], event["error"]) == ([1], {"type": "Bad", "message": "it is", "traceback": ""})
            assert (event["state"], event["data"], event["outcome"]) == ("finished", {"n": 2}, outcome.value)
            out, err = watching.communicate(timeout=HANG)
        assert (watching.returncode, out, err) == (0, "", "")

    arrange(email, live)


def test_people_read_a_time_a_state_and_the_data(email: str, tmp_path: Path) -> None:
    async def live(jobs: JobsService) -> None:
        await jobs.add("email", "first", {"text": "x\a" * 100})
        with started("watch", "email", "first", "--store", email, cwd=tmp_path) as watching:
            line = next_line(watching).rstrip("\n")
            assert re.fullmatch(TIME + r'  ready      \{"text":"(x\\u0007){100}"\}', line)
            await (await _accepted(jobs)).finish(None, outcome=Outcome.FAILED, error=JobError("Bad", "it\nis"))
            out, _ = watching.communicate(timeout=HANG)
        assert watching.returncode == 0
        assert re.fullmatch(rf"({TIME}  running .*\n)?{TIME}  failed     Bad: it is\n", out)

    arrange(email, live)


def test_a_job_that_does_not_finish_in_time_is_an_answer_of_no(invoke: Invoke, email: str) -> None:
    invoke("add", "email", "first", "--store", email)
    late = invoke("watch", "email", "first", "--timeout", "0.5", "--store", email)
    assert late.code == 1
    assert late.err == "jobs-service: job first of type email did not finish within 0.5 s\n"


def test_a_job_that_is_not_there_is_an_answer_of_no(invoke: Invoke, email: str) -> None:
    missing = invoke("watch", "email", "first", "--store", email)
    assert (missing.code, missing.error) == (1, "there is no job first of type email")


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (Outcome.SUCCEEDED, ""),
        (Outcome.FAILED, "jobs-service: job first of type email failed: Bad: it is\n"),
        (Outcome.CANCELED, "jobs-service: job first of type email canceled: Bad: it is\n"),
    ],
)
def test_the_exit_status_is_the_jobs_when_asked_for(invoke: Invoke, email: str, outcome: Outcome, error: str) -> None:
    async def finish(jobs: JobsService) -> None:
        await jobs.add("email", "first")
        failure = None if outcome is Outcome.SUCCEEDED else JobError("Bad", "it\nis")
        await (await _accepted(jobs)).finish(outcome=outcome, error=failure)

    arrange(email, finish)
    ended = invoke("watch", "email", "first", "--exit-status", "--store", email)
    assert (ended.code, ended.err) == (1 if error else 0, error)
    assert invoke("watch", "email", "first", "--store", email).code == 0


def test_all_jobs_of_a_type_are_watched_until_ctrl_c(email: str, tmp_path: Path) -> None:
    async def live(jobs: JobsService) -> None:
        await jobs.add("email", "first")
        running = await _accepted(jobs)
        await jobs.add("email", "waits")
        with started("watch", "email", "-o", "json", "--store", email, cwd=tmp_path) as watching:

            def event() -> tuple[str, str]:
                told = next_event(watching)
                return told["id"], told["outcome"] or told["state"]

            assert event() == ("first", "running")
            await jobs.add("email", "second")
            assert event() == ("second", "pending")
            await running.progress(1, 2, "half")
            assert next_event(watching)["progress"]["message"] == "half"
            await running.finish(outcome=Outcome.FAILED)
            assert event() == ("first", "failed")
            await jobs.remove("email", "first")  # it has ended: nothing that anybody waits for
            await jobs.remove("email", "second")
            assert event() == ("second", "removed")
            watching.send_signal(signal.SIGINT)
            out, err = watching.communicate(timeout=HANG)
        assert (watching.returncode, out, err) == (0, "", "")

    arrange(email, live)


@pytest.mark.parametrize("watched", [["email", "first"], ["email"]])
def test_a_reader_who_goes_away_ends_it_although_nothing_happens_any_more(
    email: str, tmp_path: Path, watched: list[str]
) -> None:
    async def live(jobs: JobsService) -> None:
        await jobs.add("email", "first")
        await _accepted(jobs)
        with started("watch", *watched, "--store", email, cwd=tmp_path) as watching:
            assert next_line(watching)
            assert watching.stdout is not None
            watching.stdout.close()
            assert watching.stderr is not None
            assert watching.stderr.read() == ""
        assert watching.returncode == 141

    arrange(email, live)


def test_on_a_terminal_progress_is_one_live_bar(email: str, tmp_path: Path) -> None:
    async def live(jobs: JobsService) -> None:
        await jobs.add("email", "first")
        job = await _accepted(jobs)
        with shown("watch", "email", "first", "--store", email, cwd=tmp_path) as screen:
            await asyncio.to_thread(screen.until, "running")
            for done in range(1, 5):
                await job.progress(done, 4, f"part {done}")
                await asyncio.to_thread(screen.until, f"part {done} ")
            await job.finish()
            await asyncio.to_thread(screen.until, rf"{TIME}  succeeded")
            await asyncio.to_thread(screen.ends, 0)

    arrange(email, live)
