"""The page of semantics: each cell of its table of operations is tried, and has its tests in that table's suite."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from jobs_service import JobNotFound, JobsError, JobsService, RunningJob
from tests.docs.pages import ROOT, read, rows
from tests.service.support import J1, T1, contents

STATES = ["missing", "pending", "running", "finished"]
TABLE = {row[0].strip("`"): row[1:] for row in rows(read("docs/semantics.md"), "operation | missing")}
SUITE = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests/service/operations").glob("*.py"))


async def nothing(tx: Any) -> None:
    """The effects of `finish_with`."""


Try = Callable[[JobsService, RunningJob], Awaitable[object]]
TRIES: dict[str, Try] = {
    "add": lambda jobs, _: jobs.add(T1, J1, "new"),
    'add(if_exists="resubmit")': lambda jobs, _: jobs.add(T1, J1, "new", if_exists="resubmit"),
    'add(if_exists="ignore")': lambda jobs, _: jobs.add(T1, J1, "new", if_exists="ignore"),
    "resubmit": lambda jobs, _: jobs.resubmit(T1, J1, data="new"),
    "remove": lambda jobs, _: jobs.remove(T1, J1),
    "remove(force=True)": lambda jobs, _: jobs.remove(T1, J1, force=True),
    "accept": lambda jobs, _: jobs.accept(T1, timeout=0),
    "job.update": lambda _, job: job.update("new"),
    "job.progress": lambda _, job: job.progress(1, 2),
    "job.finish": lambda _, job: job.finish("new"),
    "job.finish_with": lambda _, job: job.finish_with(nothing),
    "job.resubmit": lambda _, job: job.resubmit(),
    "job.release": lambda _, job: job.release(),
}
"""What the rows do."""

PARTS = {
    "resubmit": "resubmit by a creator",
    "job.resubmit": "resubmit by the holder",
    "its worker is lost": "lost",
}
"""The parts of the suite that do not go by the name of the row."""


async def with_job(jobs: JobsService, state: str) -> RunningJob:
    """Bring a job into a state; return the handle of the worker who had it."""
    await jobs.set_type_timeout(T1, 60)
    await jobs.add(T1, J1, "old")
    worker = await jobs.accept(T1)
    assert worker is not None
    if state == "missing":
        await jobs.remove(T1, J1, force=True)
    elif state == "pending":
        await worker.release()
    elif state == "finished":
        await worker.finish()
    return worker


async def what_it_is(jobs: JobsService) -> str:
    try:
        return (await jobs.get(T1, J1)).state.value
    except JobNotFound:
        return "gone"


def test_every_row_is_tried() -> None:
    assert [*TRIES, "its worker is lost"] == [*TABLE]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("operation", TRIES)
async def test_a_cell_says_what_becomes_of_the_job(operation: str, state: str) -> None:
    told = TABLE[operation][STATES.index(state)].partition(":")[0]
    async with JobsService("memory:", supervise=False) as jobs:
        worker = await with_job(jobs, state)
        before = await contents(jobs)
        error = None
        try:
            await TRIES[operation](jobs, worker)
        except JobsError as raised:
            error = raised
        after = await contents(jobs)
        if error is not None:
            assert told == f"`{type(error).__name__}`"
            assert after == before
        elif told == "unchanged":
            assert after == before
        else:
            assert told == await what_it_is(jobs)
            assert after != before


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("operation", TABLE)
def test_a_cell_has_its_tests(operation: str, state: str) -> None:
    if not TABLE[operation][STATES.index(state)]:
        return
    part = PARTS.get(operation, operation.removeprefix("job."))
    found = re.search(rf"^# {re.escape(part)}\n(.*?)(?=^# |\Z)", SUITE, re.MULTILINE | re.DOTALL)
    assert found is not None, part
    names = re.findall(r"def (test_\w+)", found[1])
    # A running job is its worker's: his calls are named by what they do to it.
    words = {
        "missing": "missing|without_jobs",
        "running": "running|canceled|run|worker|flagged|beside",
        "finished": "finished|not_the_callers",
        "pending": "pending|not_the_callers",
    }
    assert any(re.search(words[state], name) for name in names), names
