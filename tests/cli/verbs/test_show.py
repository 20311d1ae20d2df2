"""`show`: everything about one job."""

from __future__ import annotations

import re
from datetime import datetime

from jobs_service import JobError, JobsService, Outcome
from tests.cli.conftest import Invoke
from tests.cli.support import arrange, rows

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"


def test_show_tells_everything_about_a_job(invoke: Invoke, store: str) -> None:
    async def fill(jobs: JobsService) -> None:
        await jobs.set_type_timeout("email", 60)
        await jobs.add("email", "first", {"to": ["ä", "b\a"], "n": 1}, priority=-1, run_at=1.0)
        job = await jobs.accept("email", timeout=0)
        assert job is not None
        await job.progress(3, 10, "half\a")
        await jobs.resubmit("email", "first")
        await jobs.remove("email", "first")

    arrange(store, fill)
    shown = invoke("show", "email", "first", "--store", store)
    seq = invoke("show", "email", "first", "--store", store, "-o", "json").json["seq"]
    *lines, started, added = shown.out.splitlines()
    assert lines == [
        "type      email",
        "id        first",
        "state     running",
        "priority  -1",
        "run at    1970-01-01T00:00:01Z",
        "resubmit  yes",
        "cancel    yes",
        f"seq       {seq}",
        "attempts  1",
        "progress  3/10 half\\x07",
        "data      {",
        '            "to": [',
        '              "ä",',
        '              "b\\u0007"',
        "            ],",
        '            "n": 1',
        "          }",
        "result    null",
        "error     -",
        "",
        "TIME                  EVENT    DETAIL",
    ]
    assert re.fullmatch(rf"{TIME}  started  .+", started)
    assert re.fullmatch(rf"{TIME}  added", added)


def test_show_tells_how_a_job_ended(invoke: Invoke, store: str) -> None:
    async def fill(jobs: JobsService) -> None:
        await jobs.set_type_timeout("email", 60)
        await jobs.add("email", "first")
        job = await jobs.accept("email", timeout=0)
        assert job is not None
        error = JobError("Bad", "it\nis", "File x\n  line\x1b[31m\n")
        await job.finish(outcome=Outcome.FAILED, result={"n": 1}, error=error)

    arrange(store, fill)
    shown = invoke("show", "email", "first", "--store", store).out.splitlines()
    result = shown.index("result    {")
    assert shown[result : result + 6] == [
        "result    {",
        '            "n": 1',
        "          }",
        "error     Bad: it is",
        "          File x",
        "            line\\u001b[31m",
    ]
    assert [line.split()[1] for line in shown[-3:]] == ["finished", "started", "added"]
    assert rows(invoke("list", "email", "--store", store).out)[1] == ["first", "failed", "Bad:", "it", "is"]


def test_show_prints_the_whole_job_as_json(invoke: Invoke, full: str) -> None:
    job = invoke("show", "email", "b", "-o", "json", "--store", full).json
    assert (job["state"], job["outcome"], job["data"]) == ("finished", "failed", {"n": "b"})
    assert (job["attempts"], job["progress"], job["result"], job["error"]) == (1, None, None, None)
    assert [event["kind"] for event in job["history"]] == ["finished", "started", "added"]
    assert all(datetime.fromisoformat(event["at"]).tzinfo for event in job["history"])
    assert job in invoke("list", "-o", "json", "--store", full).json_lines


def test_a_job_that_is_not_there_is_an_answer_of_no(invoke: Invoke, full: str) -> None:
    missing = invoke("show", "email", "json:1x", "--store", full)
    assert missing.code == 2
    missing = invoke("show", "email", "z\n", "--store", full)
    assert missing.code == 1
    assert missing.error == 'there is no job json:"z\\n" of type email'
