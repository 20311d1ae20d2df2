"""`stats`: jobs counted by state."""

from __future__ import annotations

import re

from tests.cli.conftest import Invoke


def test_stats_count_jobs_by_state_and_show_the_oldest_ready_job(invoke: Invoke, counted: str) -> None:
    heading, email, video = invoke("stats", "--store", counted).out.splitlines()
    states = ["READY", "SCHEDULED", "RUNNING", "SUCCEEDED"]
    assert heading.split() == ["TYPE", *states, "PAUSED", "READY", "FOR", "OLDEST", "READY"]
    assert re.fullmatch(r"email( +1){4} +no +[\d.]+s +c", email)
    assert video.split() == ["video", "0", "0", "0", "0", "yes"]


def test_stats_of_one_type_are_the_json_of_its_counts_and_queue(invoke: Invoke, counted: str) -> None:
    email = invoke("stats", "email", "-o", "json", "--store", counted).json
    states = {name: email[name] for name in ("ready", "scheduled", "retrying", "running", "succeeded", "failed")}
    assert states == {"ready": 1, "scheduled": 1, "retrying": 0, "running": 1, "succeeded": 1, "failed": 0}
    assert (email["type"], email["paused"], email["queue"]["id"]) == ("email", False, "c")
    assert email["totals"]["added"] == 4
    assert len(invoke("top", "-o", "json", "--store", counted).json_lines) == 2


def test_a_type_that_is_not_there_has_no_stats(invoke: Invoke, counted: str) -> None:
    refused = invoke("stats", "nothing", "--store", counted)
    assert (refused.code, refused.error) == (1, "there is no type nothing")


def test_what_has_happened_is_told_by_the_minute_or_by_the_hour(invoke: Invoke, counted: str) -> None:
    for since, seconds in (("1h", 60), ("1d", 3600)):
        found = invoke("stats", "email", "--since", since, "-o", "json", "--store", counted).json_lines
        assert {each["seconds"] for each in found} == {seconds}
        assert [sum(each["totals"][name] for each in found) for name in ("added", "started")] == [4, 2]
    heading, *_ = invoke("stats", "email", "--since", "1h", "--store", counted).out.splitlines()
    assert heading.split()[:3] == ["FROM", "ADDED", "STARTED"]
    assert invoke("stats", "video", "--since", "0s", "--store", counted).code == 0
    assert "name its TYPE" in invoke("stats", "--since", "1h", "--store", counted).error
