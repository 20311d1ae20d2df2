"""`stats`: jobs counted by state."""

from __future__ import annotations

import re

from tests.cli.conftest import Invoke


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
        "states": {"ready": 1, "scheduled": 1, "retrying": 0, "running": 1, "succeeded": 1, "failed": 0, "canceled": 0},
    }
    assert email["average_seconds"].keys() == {"ready", "scheduled", "retrying", "running"}
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
