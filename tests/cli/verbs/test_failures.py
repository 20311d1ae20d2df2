"""`failures`: failed and retrying jobs of all types, by what went wrong."""

from __future__ import annotations

import pytest

from jobs_service import JobError, JobsService, Outcome
from jobs_service.service import failures as grouping
from tests.cli.conftest import Invoke
from tests.cli.support import arrange, rows

SECRET = "S3cret-4111"


async def fail(jobs: JobsService, type: str, id: str, error: JobError | None, data: object = None) -> None:
    """Have a job fail."""
    await jobs.set_type_timeout(type, 60)
    await jobs.add(type, id, data)
    job = await jobs.accept(type, timeout=0)
    assert job is not None
    await job.finish(outcome=Outcome.FAILED, error=error)


@pytest.fixture
def failed(store: str) -> str:
    """A store with failed jobs of two types: three with one error, one with none."""

    async def fill(jobs: JobsService) -> None:
        await fail(jobs, "email", "none", None)
        for number, type in enumerate(("email", "email", "sms")):
            await fail(jobs, type, f"{number}", JobError("TimeoutError", f"no answer within {number} s"))

    arrange(store, fill)
    return store


def test_failures_are_grouped_across_types_those_that_failed_last_first(invoke: Invoke, failed: str) -> None:
    said = invoke("failures", "--store", failed)
    heading, first, second = said.out.splitlines()
    assert heading.split() == ["JOBS", "STATE", "SINCE", "LAST", "TYPES", "ERROR"]
    assert first.split()[:2] == ["3", "failed"]
    assert first.endswith("  email, sms  TimeoutError: no answer within … s")
    assert second.split()[:2] == ["1", "failed"]
    assert second.endswith("  no error was kept")
    assert said.code == 0


def test_a_group_has_a_filter_for_all_its_jobs(invoke: Invoke, failed: str) -> None:
    group, other = invoke("failures", "--json", "--store", failed).json_lines
    assert (group["error"], group["message"]) == ("TimeoutError", "no answer within … s")
    assert (group["count"], group["attempts"], group["read"], group["failed"]) == (3, 3, 4, 4)
    assert group["first"] <= group["last"]
    found = {"state": "failed", "signature": "TimeoutError: no answer within … s"}
    assert group["types"] == [
        {"type": "email", "count": 2, "newest": "1", "filter": found},
        {"type": "sms", "count": 1, "newest": "2", "filter": found},
    ]
    alike = ("list", "email", "--state", "failed", "--signature", found["signature"], "--json", "--store", failed)
    assert [job["id"] for job in invoke(*alike).json_lines] == ["0", "1"]
    assert (other["error"], other["message"], other["types"][0]["count"]) == (None, "", 1)


def test_it_says_when_it_looked_at_a_part_only(invoke: Invoke, failed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping, "MOST_READ", 2)
    monkeypatch.setattr(grouping, "LEAST_OF_A_TYPE", 1)
    *_, last = invoke("failures", "--store", failed).out.splitlines()
    assert last == "2 of the 4 failed and 0 retrying jobs were looked at"
    assert {
        (group["read"], group["failed"]) for group in invoke("failures", "--json", "--store", failed).json_lines
    } == {(2, 4)}


def test_no_failures_are_said_to_people_only(invoke: Invoke, email: str) -> None:
    assert invoke("failures", "--store", email).out == "no failed or retrying jobs\n"
    assert invoke("failures", "--json", "--store", email).out == ""


def test_what_is_secret_is_in_no_message(invoke: Invoke, store: str) -> None:
    async def fill(jobs: JobsService) -> None:
        await jobs.set_redaction("pay", ["card"])
        await fail(jobs, "pay", "1", JobError("E", f"{SECRET} is refused"), {"card": SECRET})

    arrange(store, fill)
    assert rows(invoke("failures", "--store", store).out)[1][-4:] == ["E:", "[redacted]", "is", "refused"]
    assert SECRET not in invoke("failures", "--json", "--store", store).out
