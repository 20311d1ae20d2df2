"""`stats` and `top`, `pause` and `resume`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from jobs_service import JobsService
from jobs_service.cli import output
from tests.cli.conftest import Invoke
from tests.cli.support import HANG, PROGRAM, arrange, environment, without_escapes


@pytest.fixture
def counted(store: str) -> str:
    """A store with jobs in several states, and a type without any."""

    async def fill(jobs: JobsService) -> None:
        await jobs.set_type_timeout("email", 60)
        await jobs.set_type_timeout("video", 60)
        for id in ("a", "b", "c"):
            await jobs.add("email", id)
        first, _ = await jobs.accept_many("email", 2, timeout=0)
        await first.finish()
        await jobs.add("email", "later", run_at=4e9)
        await jobs.pause("video")

    arrange(store, fill)
    return store


def test_stats_count_jobs_by_state_with_their_average_times(invoke: Invoke, counted: str) -> None:
    heading, email, video = invoke("stats", "--store", counted).out.splitlines()
    assert heading.split() == ["TYPE", "READY", "SCHEDULED", "RUNNING", "SUCCEEDED", "PAUSED"]
    assert re.fullmatch(r"email( +1 \([\d.]+s\)){3} +1 +no", email)
    assert video.split() == ["video", "0", "0", "0", "0", "yes"]


def test_stats_of_one_type_are_json(invoke: Invoke, counted: str) -> None:
    email = invoke("stats", "email", "--json", "--store", counted).json
    assert email == {
        **{"type": "email", "paused": False, "pending": 1, "scheduled": 1, "running": 1, "crashed": 0, "finished": 1},
        **{name: value for name, value in email.items() if name.startswith("average_")},
        "states": {"ready": 1, "scheduled": 1, "running": 1, "succeeded": 1, "failed": 0, "canceled": 0},
    }
    assert email["average_seconds"].keys() == {"ready", "scheduled", "running"}
    assert len(email) == 13
    assert email["average_pending_seconds"] >= 0
    assert len(invoke("top", "--json", "--store", counted).json_lines) == 2


def test_stats_sum_up_what_unfinished_jobs_do(invoke: Invoke, counted: str) -> None:
    *_, heading, b, c = invoke("stats", "email", "--jobs", "2", "--store", counted).out.splitlines()
    assert heading.split() == ["TYPE", "ID", "STATE", "ATTEMPTS", "CRASHES", "SINCE"]
    assert (b.split()[:5], c.split()[:5]) == (["email", "b", "running", "1", "0"], ["email", "c", "ready", "0", "0"])
    summaries = invoke("stats", "email", "--jobs", "9", "--json", "--store", counted).json["jobs"]
    assert [(each["id"], each["status"], each["history"][0]["kind"]) for each in summaries] == [
        ("b", "running", "started"),
        ("c", "ready", "added"),
        ("later", "scheduled", "added"),
    ]
    times = [each[field] for each in summaries for field in ("added", "last_updated")]
    times += [event["at"] for each in summaries for event in each["history"]]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", time) for time in times)


def test_a_type_that_is_not_there_has_no_stats(invoke: Invoke, counted: str) -> None:
    refused = invoke("stats", "nothing", "--store", counted)
    assert (refused.code, refused.error) == (1, "there is no type nothing")


def test_top_is_one_plain_table_where_nobody_sits(invoke: Invoke, counted: str) -> None:
    lines = invoke("top", "--store", counted).out.splitlines()
    assert [line.split()[0] for line in lines] == ["TYPE", "email", "video"]
    assert "\x1b" not in "".join(lines)


def test_top_is_kept_up_to_date_on_a_terminal_until_ctrl_c(counted: str, tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    shown = ""
    with subprocess.Popen(
        [*PROGRAM, "top", "--interval", "0.05", "--store", counted],
        cwd=tmp_path,
        env=environment({"TERM": "xterm-256color", "COLUMNS": "100"}),
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as running:
        try:
            os.close(theirs)
            while "email" not in shown:
                shown = without_escapes(shown + os.read(ours, 65_536).decode())

            async def add(jobs: JobsService) -> None:
                await jobs.set_type_timeout("brandnew", 60)

            arrange(counted, add)
            while "brandnew" not in shown:
                shown = without_escapes(shown + os.read(ours, 65_536).decode())
            running.send_signal(signal.SIGINT)
            assert running.stderr is not None
            assert running.stderr.read() == b""
            assert running.wait(HANG) == 0
        finally:
            running.kill()
            os.close(ours)


def test_a_paused_type_gives_no_jobs_until_it_is_resumed(invoke: Invoke, counted: str) -> None:
    async def accepts(jobs: JobsService) -> bool:
        job = await jobs.accept("email", timeout=0)
        return job is not None and await job.release() is not None

    paused = invoke("pause", "email", "--store", counted)
    assert (paused.code, paused.out) == (0, "type email: paused; jobs that run go on, and no others begin\n")
    assert not arrange(counted, accepts)
    assert invoke("types", "--json", "--store", counted).json_lines[0]["paused"] is True
    resumed = invoke("resume", "email", "--store", counted)
    assert (resumed.code, resumed.out) == (0, "type email: its jobs are taken again\n")
    assert arrange(counted, accepts)


@pytest.mark.parametrize("verb", [["pause"], ["resume"], ["types", "clear"]])
def test_a_type_that_is_not_there_is_not_changed(invoke: Invoke, counted: str, verb: list[str]) -> None:
    refused = invoke(*verb, "typo", "--store", counted)
    assert (refused.code, refused.error) == (1, "there is no type typo")
    assert not arrange(counted, lambda jobs: jobs.paused("typo"))


def test_a_type_without_a_timeout_is_changed_as_long_as_it_has_jobs_or_is_paused(invoke: Invoke, counted: str) -> None:
    for arguments in (
        ["types", "clear", "email"],
        ["pause", "email"],
        ["types", "clear", "video"],
        ["resume", "video"],
    ):
        assert invoke(*arguments, "--store", counted).code == 0
    assert invoke("resume", "video", "--store", counted).code == 1


def test_pausing_and_resuming_print_json(invoke: Invoke, counted: str) -> None:
    assert invoke("types", "set", "json:7", "60", "--store", counted).code == 0
    assert invoke("pause", "json:7", "--json", "--store", counted).json == {"type": "json:7", "paused": True}
    assert invoke("resume", "json:7", "--json", "--store", counted).json == {"type": "json:7", "paused": False}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0s"),
        (3.21, "3.2s"),
        (59.94, "59.9s"),
        (59.96, "1m00s"),
        (725, "12m05s"),
        (3600, "1h00m"),
        (97_200, "1d03h"),
    ],
)
def test_durations_have_two_units(seconds: float, text: str) -> None:
    assert output.duration_text(seconds) == text
