"""What operators ask: `retention`, `workers`, `handlers`, `periodic`, `health`."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from pathlib import Path

import pytest

from jobs_service import JobsService
from jobs_service.cli.verbs import health
from jobs_service.errors import JobTooLarge
from tests.cli.conftest import Invoke
from tests.cli.support import HANG, arrange, rows, serving

APPLICATION = """
import asyncio
from jobs_service import JobsService
jobs = JobsService("lmdb:store")
@jobs.handler("slow", slots=2, max_attempts=None)
async def slow(job):
    await job.progress(1, 3, "begun")
    await asyncio.Event().wait()
@jobs.every("1h30m")
async def refresh(): ...
@jobs.cron("0 3 * * *", timezone="Europe/Berlin", missed="skip")
async def nightly(): ...
"""


def test_retention_is_shown_and_changed_in_part(invoke: Invoke, email: str) -> None:
    def retention(*options: str) -> str:
        ended = invoke("retention", "email", *options, "--store", email)
        assert (ended.code, ended.err) == (0, "")
        return ended.out

    assert retention("--keep", "7d", "--keep-failed", "forever") == (
        "type email: finished jobs are kept for 7d00h, failed ones forever\n"
    )
    assert (
        retention("--keep-failed", "1h30m") == "type email: finished jobs are kept for 7d00h, failed ones for 1h30m\n"
    )
    assert invoke("retention", "email", "--json", "--store", email).json == {
        "type": "email",
        "keep": 604_800.0,
        "keep_failed": 5_400.0,
    }
    assert retention("--keep", "0").startswith("type email: finished jobs are kept for 0.0s, ")


def test_pausing_and_resuming_print_what_holds_now(invoke: Invoke, email: str) -> None:
    for verb, paused in (("pause", True), ("pause", True), ("resume", False)):
        assert invoke(verb, "email", "--json", "--store", email).json == {"type": "email", "paused": paused}


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["typo"], 1, "there is no type typo"),
        (["typo", "--keep", "1d"], 1, "there is no type typo"),
        (
            ["email", "--keep", "long"],
            2,
            "Invalid value for --keep: 'long' is no duration; write 90, 30s, 10m, 1h30m, 2d or forever",
        ),
        (["email", "--keep-failed", "99999d"], 2, "keep_failed=8639913600.0: allowed are None and seconds from 0"),
    ],
)
def test_what_cannot_be_kept_is_refused(
    invoke: Invoke, email: str, arguments: list[str], code: int, complaint: str
) -> None:
    refused = invoke("retention", *arguments, "--store", email)
    assert refused.code == code
    assert complaint in refused.error


def test_workers_are_shown_with_the_jobs_that_they_hold(invoke: Invoke, store: str) -> None:
    async def work(jobs: JobsService) -> None:
        for type in ("email", "video"):
            await jobs.set_type_timeout(type, 60)
            await jobs.add(type, "done")
            await jobs.add(type, "held")
        await jobs.add("email", "waits")
        for type in ("email", "video"):
            done, held = await jobs.accept_many(type, 2, timeout=0)
            await done.finish()
            await held.progress(1, 3, "begun")
        await jobs.remove("video", "held")

    arrange(store, work)
    heading, *lines = rows(invoke("workers", "--store", store).out)
    assert heading == ["WORKER", "TYPE", "ID", "SINCE", "CANCELED", "PROGRESS"]
    assert [[*line[1:3], *line[4:]] for line in lines] == [
        ["email", "held", "no", "1/3", "begun"],
        ["video", "held", "yes", "1/3", "begun"],
    ]
    [job] = invoke("workers", "video", "--json", "--store", store).json_lines
    assert job["worker"].endswith(f":{os.getpid()}")
    assert (job["type"], job["id"], job["attempt"], job["cancel"]) == ("video", "held", 1, True)
    assert job["progress"] == {"done": 1.0, "total": 3.0, "message": "begun"}
    assert invoke("workers", "typo", "--store", store).error == "there is no type typo"


def test_no_workers_are_said_to_people_only(invoke: Invoke, email: str) -> None:
    assert invoke("workers", "--store", email).out == "no job is running\n"
    assert invoke("workers", "--json", "--store", email).out == ""


@pytest.fixture
def application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a service with handlers."""
    (tmp_path / "operated.py").write_text(APPLICATION)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "operated:jobs"


def test_handlers_are_shown_with_the_options_that_differ(
    invoke: Invoke, application: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "settings.toml").write_text("[handlers.slow]\nslots = 3\n")
    monkeypatch.setenv("JOBS_SERVICE_SETTINGS", "settings.toml")
    slow, refresh, nightly = invoke("handlers", application, "--json").json_lines
    assert (slow["type"], slow["function"], slow["kind"], slow["comes"]) == ("slow", "operated.slow", "coroutine", None)
    assert (slow["options"]["max_attempts"], slow["options"]["grace"]) == (None, 10.0)
    assert (refresh["comes"], nightly["comes"]) == ("every 1h30m", "0 3 * * * Europe/Berlin")
    heading, first, *_ = rows(invoke("handlers", application).out)
    assert heading == ["TYPE", "FUNCTION", "COMES", "OPTIONS"]
    assert first[:2] == ["slow", "operated.slow"]
    assert "max_attempts=None" in first
    assert not (tmp_path / "store").exists()


def test_periodic_jobs_are_shown_with_their_last_and_next_tick(
    invoke: Invoke, application: str, tmp_path: Path
) -> None:
    refresh, nightly = invoke("periodic", application, "--json").json_lines
    assert (refresh["last"], refresh["missed"], nightly["missed"]) == (None, "once", "skip")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:[03]0:00\.000000Z", refresh["next"])
    assert not (tmp_path / "store").exists()

    async def tick(jobs: JobsService) -> None:
        @jobs.every("1s", type="refresh")
        async def refresh() -> None: ...

        await jobs.pause("refresh")

    arrange("lmdb:store", tick)
    assert invoke("periodic", "--store", "lmdb:store").out.startswith("no periodic jobs; ")
    assert invoke("periodic", application, "--store", "lmdb:x").code == 2


def test_what_has_ticked_is_in_the_store(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "ticking.py").write_text(
        "from jobs_service import JobsService\n"
        'jobs = JobsService("lmdb:store")\n'
        '@jobs.every("1s", type="tick")\n'
        "async def tick(): ...\n"
    )
    with serving("ticking:jobs", cwd=tmp_path):
        deadline = time.monotonic() + HANG
        while not (found := invoke("periodic", "ticking:jobs", "--json").json)["last"]:
            assert time.monotonic() < deadline
    assert found["last"] < found["next"]
    [heading, line] = rows(invoke("periodic", "--store", "lmdb:store").out)
    assert heading == ["TYPE", "LAST"]
    assert line[0] == "tick"


def test_a_served_store_is_healthy_until_nobody_serves_it(invoke: Invoke, application: str, tmp_path: Path) -> None:
    with serving(application, cwd=tmp_path) as daemon:
        for id in ("a", "b", "c"):
            invoke("add", "slow", id, "--store", "lmdb:store")
        good = invoke("health", "--store", "lmdb:store")
        assert (good.code, good.err) == (0, "")
        assert re.fullmatch(
            rf"healthy: lmdb:{tmp_path}/store: 3 types, \d jobs? running, .+, open in 1 more process\n", good.out
        )
        invoke("add", "nightly", "later", "--timeout", "60", "--in", "1h", "--store", "lmdb:store")
        assert invoke("health", "--max-wait", "1h", "--json", "--store", "lmdb:store").json["problems"] == []
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(HANG) == 0
    bad = invoke("health", "--store", "lmdb:store")
    assert bad.code == 1
    assert bad.error.startswith("nobody runs jobs or watches over them: no other process has the store open: lmdb:")


def test_jobs_that_wait_or_are_late_are_bad_health(invoke: Invoke, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait(jobs: JobsService) -> None:
        await jobs.set_type_timeout("email", 60)
        await jobs.add("email", "newer", priority=-1)
        await jobs.add("email", "due", priority=5, run_at=time.time() - 100)
        await jobs.set_type_timeout("paused", 60)
        await jobs.add("paused", "x", run_at=1.0)
        await jobs.pause("paused")

    arrange(store, wait)
    # Nobody makes what is due ready here; and it need not be late for long.
    monkeypatch.setattr(health, "TOLERATED", -1.0)
    found = invoke("health", "--max-wait", "50s", "--json", "--store", store)
    assert found.code == 1
    said = found.json
    assert not said["healthy"]
    assert (said["types"], said["paused"], said["running"]) == (2, 1, 0)
    assert any("scheduled ones are late by" in problem for problem in said["problems"])


def test_a_ready_job_that_has_no_room_to_tell_since_when_is_named(invoke: Invoke, store: str) -> None:
    async def wait(jobs: JobsService) -> None:
        await jobs.set_type_timeout("email", 60)
        size = jobs.store.limits.value
        while not (await jobs.queue_state("email")).id:
            size -= 1
            with contextlib.suppress(JobTooLarge):
                await jobs.add("email", "large", "x" * size)

    arrange(store, wait)
    assert invoke("health", "--max-wait", "50s", "--json", "--store", store).json["oldest_ready"] == {
        "type": "email",
        "id": "large",
        "seconds": None,
    }
    found = invoke("health", "--store", store)
    assert "ready for longest: job large of type email, its record tells no time" in found.out + found.error


def test_a_dead_process_whose_jobs_nobody_takes_back_is_bad_health(invoke: Invoke, email: str) -> None:
    (Path(email.removeprefix("lmdb:")) / "processes").mkdir(exist_ok=True)
    (Path(email.removeprefix("lmdb:")) / "processes" / ("0" * 16)).touch()

    async def ask(jobs: JobsService) -> tuple[int, int] | None:
        return await jobs.store.other_processes()

    assert arrange(email, ask) == (0, 1)


def test_a_store_that_cannot_be_reached_is_code_3(invoke: Invoke, tmp_path: Path) -> None:
    assert invoke("health", "--store", "lmdb:nowhere").code == 3
