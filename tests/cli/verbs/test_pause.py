"""`pause` and `resume`."""

from __future__ import annotations

import pytest

from jobs_service import JobsService
from tests.cli.conftest import Invoke
from tests.cli.support import arrange


def test_a_paused_type_gives_no_jobs_until_it_is_resumed(invoke: Invoke, counted: str) -> None:
    async def accepts(jobs: JobsService) -> bool:
        job = await jobs.accept("email", timeout=0)
        return job is not None and await job.release() is not None

    paused = invoke("pause", "email", "--store", counted)
    assert (paused.code, paused.out) == (0, "type email: paused; jobs that run go on, and no others begin\n")
    assert not arrange(counted, accepts)
    assert invoke("types", "-o", "json", "--store", counted).json_lines[0]["paused"] is True
    resumed = invoke("resume", "email", "--store", counted)
    assert (resumed.code, resumed.out) == (0, "type email: its jobs are taken again\n")
    assert arrange(counted, accepts)


@pytest.mark.parametrize("verb", [["pause"], ["resume"], ["types", "clear"]])
def test_a_type_that_is_not_there_is_not_changed(invoke: Invoke, counted: str, verb: list[str]) -> None:
    refused = invoke(*verb, "typo", "--store", counted)
    assert (refused.code, refused.error) == (1, "there is no type typo")
    assert not arrange(counted, lambda jobs: jobs.paused("typo"))


def test_pausing_and_resuming_print_json(invoke: Invoke, counted: str) -> None:
    assert invoke("types", "set", "json:7", "60", "--store", counted).code == 0
    assert invoke("pause", "json:7", "-o", "json", "--store", counted).json == {"type": 7, "paused": True}
    assert invoke("resume", "json:7", "-o", "json", "--store", counted).json == {"type": 7, "paused": False}


def test_pausing_and_resuming_print_what_holds_now(invoke: Invoke, email: str) -> None:
    for verb, paused in (("pause", True), ("pause", True), ("resume", False)):
        assert invoke(verb, "email", "-o", "json", "--store", email).json == {"type": "email", "paused": paused}
