"""`resubmit`: a job runs again."""

from __future__ import annotations

from jobs_service import JobsService
from tests.cli.conftest import Invoke
from tests.cli.support import arrange


def test_a_finished_job_is_pending_again_after_resubmit(invoke: Invoke, running: str) -> None:
    invoke("remove", "email", "first", "--force", "--store", running)
    invoke("add", "email", "first", "--data", "1", "--store", running)

    async def run(jobs: JobsService) -> None:
        job = await jobs.accept("email", timeout=0)
        assert job is not None
        await job.finish()

    arrange(running, run)
    again = invoke("resubmit", "email", "first", "--store", running)
    assert (again.code, again.out) == (0, "job first of type email: ready\n")
    assert invoke("show", "email", "first", "-o", "json", "--store", running).json["data"] == 1


def test_a_running_job_is_flagged_by_resubmit(invoke: Invoke, running: str) -> None:
    flagged = invoke("resubmit", "email", "first", "--store", running)
    assert flagged.out == "job first of type email: running; it runs again when it has finished\n"
    assert invoke("resubmit", "email", "first", "-o", "json", "--store", running).json["resubmit"] is True


def test_resubmit_changes_what_is_given_and_nothing_else(invoke: Invoke, email: str) -> None:
    invoke("add", "email", "first", "--data", "1", "--priority", "5", "--store", email)
    job = invoke("resubmit", "email", "first", "--priority", "2", "-o", "json", "--store", email).json
    assert (job["data"], job["priority"], job["run_at"]) == (1, 2, None)
    job = invoke(
        "resubmit", "email", "first", "--data", "null", "--at", "2100-01-01T00:00Z", "-o", "json", "--store", email
    ).json
    assert (job["data"], job["priority"], job["run_at"]) == (None, 2, "2100-01-01T00:00:00.000000Z")


def test_resubmitting_what_is_not_there_is_an_answer_of_no(invoke: Invoke, email: str) -> None:
    missing = invoke("resubmit", "email", "first", "--store", email)
    assert (missing.code, missing.error) == (1, "there is no job first of type email")
