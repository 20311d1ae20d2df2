"""`failures`: failed and retrying jobs of all types, by what went wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs_service import JobError, JobsService, Outcome
from tests.cli.conftest import Invoke
from tests.cli.support import arrange, on_terminal, rows, without_escapes

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


def test_what_is_secret_is_in_no_message(invoke: Invoke, store: str) -> None:
    async def fill(jobs: JobsService) -> None:
        await jobs.set_redaction("pay", ["card"])
        await fail(jobs, "pay", "1", JobError("E", f"{SECRET} is refused"), {"card": SECRET})

    arrange(store, fill)
    assert rows(invoke("failures", "--store", store).out)[1][-4:] == ["E:", "[redacted]", "is", "refused"]
    assert SECRET not in invoke("failures", "-o", "json", "--store", store).out


def test_on_a_terminal_an_error_has_the_whole_width_below_its_group(store: str, tmp_path: Path) -> None:
    why = "the mail server said " + "that it is much too busy at the moment and " * 4 + "gave up"
    arrange(store, lambda jobs: fail(jobs, "email", "1", JobError("TimeoutError", why)))
    code, shown = on_terminal("failures", "--store", store, cwd=tmp_path, columns=60)
    heading, group, *lines = without_escapes(shown).splitlines()
    assert (code, heading.split()) == (0, ["JOBS", "STATE", "SINCE", "LAST", "TYPES"])
    assert group.split()[:2] == ["1", "failed"]
    assert len(lines) > 1
    assert max(map(len, lines)) <= 60
    said = " ".join(map(str.strip, lines)).removesuffix("…").removeprefix("TimeoutError: ")
    assert len(said) > 150
    assert why.startswith(said)
