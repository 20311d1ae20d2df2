"""Which jobs a filter means."""

from typing import Any

import pytest

from jobs_service import Job, JobError, JobsService, NewJob, Outcome
from jobs_service.service import selection
from jobs_service.service.selection import BadFilter, Filter


async def a_failed_job(data: Any) -> Job:
    async with JobsService("memory:") as jobs:
        await jobs.set_type_timeout("email", 30)
        await jobs.add("email", "welcome-7", data)
        running = await jobs.accept("email")
        assert running is not None
        return await running.finish(outcome=Outcome.FAILED, error=JobError("TimeoutError", "No answer within 3 s"))


@pytest.mark.parametrize(
    ("given", "holds"),
    [
        ({}, True),
        ({"state": "failed"}, True),
        ({"state": "ready"}, False),
        ({"prefix": "welcome-"}, True),
        ({"prefix": "elcome"}, False),
        ({"error": "TimeoutError"}, True),
        ({"error": "Timeout"}, False),
        ({"text": "no ANSWER"}, True),
        ({"text": "mailbox"}, False),
        ({"worker": ":"}, True),
        ({"worker": "elsewhere:1"}, False),
        ({"older": "1h"}, False),
        ({"younger": "1h"}, True),
        ({"attempts": "1"}, True),
        ({"attempts": "2"}, False),
        ({"attempts": 1}, True),
        ({"younger": 0}, False),
        ({"older": 0.5}, True),
        ({"data": ["to.name=ada"]}, True),
        ({"data": ["to.name=bob"]}, False),
        ({"data": ["to.name~AD"]}, True),
        ({"data": ["n=9007199254740993"]}, True),
        ({"data": ["n=9007199254740992"]}, False),
        ({"data": ["list.1=b"]}, True),
        ({"data": ["list.9=b"]}, False),
        ({"data": ["nothing=null"]}, True),
        ({"data": ["missing=null"]}, False),
        ({"data": {"to.name": "ada", "n": 2**53 + 1, "list.1": "b", "nothing": None}}, True),
        ({"data": {"n": float(2**53)}}, False),
        ({"data": {"list": ["a"]}}, False),
        ({"signature": "TimeoutError: No answer within … s"}, True),
        ({"signature": "TimeoutError: No answer"}, False),
        ({"state": "finished"}, True),
        ({"state": "pending"}, False),
        ({"state": "unreadable"}, False),
        ({"added_before": 4_000_000_000, "added_after": "1970-01-01T00:00:00Z"}, True),
        ({"added_after": 4_000_000_000}, False),
        ({"state": "failed", "text": "answer", "data": ["to.name=ada", "list.0=a"]}, True),
    ],
)
async def test_all_that_is_given_has_to_hold(given: dict[str, Any], holds: bool) -> None:
    data = {"to": {"name": "ada"}, "n": 2**53 + 1, "list": ["a", "b"], "nothing": None}
    job = await a_failed_job(data)
    found = Filter.of(given)
    assert found.holds(job, job.history[0].at + 60) is holds
    assert Filter.of(found.to_dict()) == found


@pytest.mark.parametrize(
    "given", [{"state": "odd"}, {"older": "soon"}, {"attempts": "many"}, {"attempts": "-1"}, {"data": ["nosign"]}]
)
def test_what_is_no_filter_says_so(given: dict[str, Any]) -> None:
    with pytest.raises(BadFilter):
        Filter.of(given)


@pytest.mark.parametrize(
    "given",
    [
        {"stat": "failed"},
        {"added_before": "2026-11-22T22:00:00"},
        {"added_after": True},
        {"older": -1},
        {"older": float("inf")},
        {"attempts": 1.5},
        {"prefix": ""},
        {"prefix": "  "},
        {"prefix": None},
        {"error": None},
        {"signature": ""},
        {"data": None},
        {"data": []},
        {"data": {}},
        {"data": {"": 1}},
        {"error": ""},
        {"text": " "},
        {"worker": ""},
        {"state": ""},
        {"text": False},
        {"error": ["TimeoutError"]},
        {"data": [""]},
        {"data": [7]},
        {"data": ""},
        None,
    ],
)
def test_what_is_misspelled_or_empty_does_not_mean_more_jobs(given: Any) -> None:
    with pytest.raises(BadFilter):
        Filter.of(given)


async def test_a_running_job_that_shows_life_meanwhile_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "READ_AT_ONCE", 2)
    async with JobsService("memory:") as jobs:
        await jobs.set_type_timeout("email", 30)
        await jobs.add_many("email", [NewJob(id) for id in "abcd"])
        held = {job.id: job for job in await jobs.accept_many("email", 4)}
        found = []
        async for job in selection.matching(jobs, "email", Filter(state="running")):
            found.append(job.id)
            if len(found) == 1:
                await held[job.id].update()
        assert sorted(map(str, found)) == [*"abcd"]


def test_the_address_of_a_page_says_a_filter_and_browsers_send_empty_fields() -> None:
    sent = {"type": "email", "state": "failed", "prefix": "", "older": "1h30m", "error": " TimeoutError "}
    found = Filter.of_address(sent, ["", "n=1"])
    assert found.to_dict() == {"state": "failed", "error": "TimeoutError", "older": 5400.0, "data": ["n=1"]}
    assert not Filter.of_address({"type": "email", "prefix": ""}, [""])
    for empty in (("prefix", ""), ("data", ""), ("state", " ")):
        with pytest.raises(BadFilter):
            Filter.of_form([("type", "email"), ("action", "remove"), empty])
