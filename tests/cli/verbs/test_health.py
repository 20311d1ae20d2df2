"""`health`: one line and an exit code for operators."""

from __future__ import annotations

import asyncio
import re
import signal
import time
from pathlib import Path

import pytest

from jobs_service import JobsService
from jobs_service.model import type_state
from tests.cli.conftest import Invoke
from tests.cli.support import HANG, arrange, serving
from tests.service.support import eventually


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
        assert invoke("health", "--max-wait", "1h", "-o", "json", "--store", "lmdb:store").json["problems"] == []
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
    monkeypatch.setattr(type_state, "LATE", -1.0)
    found = invoke("health", "--max-wait", "50s", "-o", "json", "--store", store)
    assert found.code == 1
    said = found.json
    assert not said["healthy"]
    assert (said["types"], said["paused"], said["running"]) == (2, 1, 0)
    assert any("scheduled ones are late by" in problem for problem in said["problems"])


def test_a_dead_process_whose_jobs_nobody_takes_back_is_bad_health(invoke: Invoke, email: str) -> None:
    (Path(email.removeprefix("lmdb:")) / "processes").mkdir(exist_ok=True)
    (Path(email.removeprefix("lmdb:")) / "processes" / ("0" * 16)).touch()

    async def ask(jobs: JobsService) -> tuple[int, int] | None:
        return await jobs.store.other_processes()

    assert arrange(email, ask) == (0, 1)


def test_a_store_all_of_whose_runs_crash_is_in_bad_health_while_they_are_tried_again(
    invoke: Invoke, store: str
) -> None:
    async def crash(jobs: JobsService) -> None:
        @jobs.handler("email")
        async def email() -> None:
            raise ConnectionError("smtp does not answer")

        async def all_wait() -> bool:
            return (await jobs.counts("email"))["email"].retrying == 40

        run = asyncio.create_task(jobs.run())
        for _ in range(40):
            await jobs.enqueue(email)
        await eventually(all_wait)
        run.cancel()
        await asyncio.wait([run])

    arrange(store, crash)
    bad = invoke("health", "--store", store)
    assert bad.code == 1
    assert "40 of 40 runs of type email crashed within the last 2 minutes" in bad.error
    assert "40 jobs waiting for another attempt" in bad.error
    said = invoke("health", "-o", "json", "--store", store).json
    assert (said["healthy"], said["retrying"]) == (False, 40)
    assert said["crashing"] == [{"type": "email", "crashed": 40, "ended": 40, "minutes": 2}]
    [group] = invoke("failures", "-o", "json", "--store", store).json_lines
    assert (group["state"], group["error"], group["count"]) == ("retrying", "ConnectionError", 40)
    listed = invoke("list", "email", "--state", "retrying", "-o", "json", "--store", store).json_lines
    assert {job["retrying"] for job in listed} == {True}
    assert len(listed) == 40
    heading, counts = invoke("stats", "--store", store).out.splitlines()
    assert heading.split() == ["TYPE", "READY", "RETRYING", "RUNNING", "SUCCEEDED"]
    assert counts.split()[:3] == ["email", "0", "40"]
    assert invoke("top", "-o", "json", "--store", store).json["retrying"] == 40
