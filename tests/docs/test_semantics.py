"""The page of semantics: each cell of its table of operations is tried."""

from __future__ import annotations

import re

import pytest

from jobs_service import JobNotFound, JobsError, JobsService, RunningJob
from jobs_service.model.job import MEANT
from jobs_service.service.selection import FIELDS
from tests.docs.pages import read, rows
from tests.operations import CATALOGUE, ID, TYPE, Attempt
from tests.service.support import contents

STATES = ["missing", "pending", "running", "finished"]
TABLE = {row[0].strip("`"): row[1:] for row in rows(read("docs/semantics.md"), "operation | missing")}
CALLED = {each.row: each.attempt for each in CATALOGUE if each.attempt}


async def with_job(jobs: JobsService, state: str) -> RunningJob:
    """Bring a job into a state; return the handle of the worker who had it."""
    await jobs.set_type_timeout(TYPE, 60)
    await jobs.add(TYPE, ID, "old")
    worker = await jobs.accept(TYPE)
    assert worker is not None
    if state == "missing":
        await jobs.remove(TYPE, ID, force=True)
    elif state == "pending":
        await worker.release()
    elif state == "finished":
        await worker.finish()
    return worker


async def what_it_is(jobs: JobsService) -> str:
    try:
        return (await jobs.get(TYPE, ID)).state.value
    except JobNotFound:
        return "gone"


def test_the_rows_are_those_of_the_catalogue() -> None:
    assert [each.row for each in CATALOGUE if each.row] == [*TABLE]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(("operation", "attempt"), CALLED.items(), ids=map(str, CALLED))
async def test_a_cell_says_what_becomes_of_the_job(operation: str, attempt: Attempt, state: str) -> None:
    said = TABLE[operation][STATES.index(state)].partition(":")[0]
    async with JobsService("memory:", supervise=False) as jobs:
        worker = await with_job(jobs, state)
        before = await contents(jobs)
        error = None
        try:
            await attempt(jobs, worker)
        except JobsError as raised:
            error = raised
        after = await contents(jobs)
        if error is not None:
            assert said == f"`{type(error).__name__}`"
            assert after == before
        elif said == "unchanged":
            assert after == before
        else:
            assert said == await what_it_is(jobs)
            assert after != before


def test_the_fields_of_filters_and_the_words_for_states_are_those_of_the_code() -> None:
    found = rows(read("docs/semantics.md"), "field")
    assert sorted(name for row in found for name in re.findall(r"`(\w+)`", row[0])) == sorted(FIELDS)
    assert sorted(re.findall(r"`(\w+)`", found[0][1])) == sorted(MEANT)
