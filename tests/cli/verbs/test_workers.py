"""`workers`: which worker holds which job."""

from __future__ import annotations

import os

from jobs_service import JobsService
from tests.cli.conftest import Invoke
from tests.cli.support import arrange, rows


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
    [job] = invoke("workers", "video", "-o", "json", "--store", store).json_lines
    assert job["worker"].endswith(f":{os.getpid()}")
    assert (job["type"], job["id"], job["attempt"], job["cancel"]) == ("video", "held", 1, True)
    assert job["progress"] == {"done": 1, "total": 3, "message": "begun", "attempt": 1}
    assert invoke("workers", "typo", "--store", store).error == "there is no type typo"


def test_no_workers_are_said_to_people_only(invoke: Invoke, email: str) -> None:
    assert invoke("workers", "--store", email).out == "no job is running\n"
    assert invoke("workers", "-o", "json", "--store", email).out == ""
