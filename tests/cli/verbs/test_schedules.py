"""`schedules`: those in the store are shown and changed; a daemon has them tick, also after it was killed."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from datetime import datetime

import pytest

from jobs_service import JobsService
from tests.cli.conftest import Invoke
from tests.cli.support import rows


def test_they_are_made_shown_paused_and_removed(invoke: Invoke, email: str) -> None:
    store = ("--store", email)
    assert invoke("schedules", *store).out.startswith("no schedules in the store; jobs-service schedules set NAME")
    made = invoke("schedules", "set", "daily news", "email", "--data", '{"to": "ada"}', "--cron", "@daily", *store)
    assert made.code == 0
    assert made.out.startswith("schedule daily news: 0 0 * * * UTC, next at 20")
    assert invoke("schedules", "set", "often", "email", "--every", "90", "--missed", "all", *store).code == 0
    assert invoke("schedules", "pause", "often", *store).out == "schedule often: every 1m30s, paused\n"
    heading, first, second = rows(invoke("schedules", *store).out)
    assert heading == ["NAME", "TYPE", "COMES", "NEXT", "MISSED", "PAUSED"]
    assert " ".join(first).startswith("daily news email 0 0 * * * UTC 20")
    assert " ".join(second) == "often email every 1m30s all yes"
    assert "next at" in invoke("schedules", "resume", "often", *store).out
    [daily, often] = invoke("schedules", "-o", "json", *store).json_lines
    assert (daily["data"], daily["cron"], often["every"], often["paused"]) == ({"to": "ada"}, "0 0 * * *", 90.0, False)
    assert invoke("schedules", "remove", "often", "-o", "json", *store).json == {"name": "often", "removed": True}
    assert invoke("schedules", "remove", "daily news", *store).out == "schedule daily news: removed; its jobs stay\n"


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (["pause", "nightly"], 1, "there is no schedule 'nightly'"),
        (["set", "a", "email"], 2, "every=None and cron=None: give one of them"),
        (["set", "a", "email", "--every", "soon"], 2, "--every"),
        (["set", "a", "email", "--cron", "daily"], 2, "cron expression 'daily'"),
        (["set", "a", "nowhere", "--every", "1h"], 1, "nowhere"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(
    invoke: Invoke, email: str, arguments: list[str], code: int, why: str
) -> None:
    refused = invoke("schedules", *arguments, "--store", email)
    assert refused.code == code
    assert why in refused.err
    assert len(refused.err.splitlines()) == 1


def _daemon(store: str) -> subprocess.Popen[str]:
    """Start a daemon without handlers, and wait until it serves."""
    command = [sys.executable, "-m", "jobs_service", "serve", "--store", store]
    daemon = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert daemon.stderr is not None
    assert any('"serving"' in line for line in daemon.stderr)
    return daemon


def test_daemons_tick_each_second_once_although_one_is_killed_and_the_schedule_is_changed(
    invoke: Invoke, email: str
) -> None:
    async def seconds(count: int) -> list[str]:
        """Wait until there are so many jobs, and return their ids."""
        async with JobsService(email, supervise=False) as jobs:
            while True:
                found = [str(job.id) async for job in jobs.list("email")]
                if len(found) >= count:
                    return found
                await asyncio.sleep(0.05)

    set_to = ("schedules", "set", "each", "email", "--every", "1", "--overlap", "--missed", "all", "--store", email)
    assert invoke(*set_to, "--data", '"first"').code == 0
    daemons = [_daemon(email), _daemon(email)]
    try:
        before = asyncio.run(seconds(2))
        os.kill(daemons[0].pid, signal.SIGKILL)
        assert invoke(*set_to, "--data", '"second"').code == 0
        daemons.append(_daemon(email))
        ids = asyncio.run(seconds(len(before) + 3))
    finally:
        for daemon in daemons:
            daemon.kill()
            daemon.communicate()

    async def data() -> list[str]:
        async with JobsService(email, supervise=False) as jobs:
            return [str(job.data) async for job in jobs.list("email")]

    assert len(set(ids)) == len(ids)
    assert [key for key, _ in itertools.groupby(asyncio.run(data()))] == ["first", "second"]
    times = [datetime.fromisoformat(id.removeprefix("each@")).timestamp() for id in ids]
    assert [later - earlier for earlier, later in itertools.pairwise(times)] == [1.0] * (len(times) - 1)
