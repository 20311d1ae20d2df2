"""`remove`: a job is taken out, or its worker is asked to finish it."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs_service import JobCanceled, JobNotFound, JobsService, WorkerConflict
from tests.cli.conftest import Invoke
from tests.cli.support import HANG, arrange, started
from tests.service.support import eventually


def test_a_waiting_job_is_removed(invoke: Invoke, email: str) -> None:
    invoke("add", "email", "first", "--store", email)
    removed = invoke("remove", "email", "first", "--store", email)
    assert (removed.code, removed.out) == (0, "job first of type email: removed\n")
    again = invoke("remove", "email", "first", "--store", email)
    assert (again.code, again.error) == (1, "there is no job first of type email")


def test_a_running_jobs_worker_is_asked_to_finish(invoke: Invoke, running: str) -> None:
    removed = invoke("remove", "email", "first", "--store", running)
    assert (removed.code, removed.out) == (0, "job first of type email: running; its worker is asked to finish it\n")
    assert invoke("show", "email", "first", "-o", "json", "--store", running).json["cancel"] is True


def test_force_removes_a_running_job(invoke: Invoke, running: str) -> None:
    removed = invoke("remove", "email", "first", "--force", "-o", "json", "--store", running)
    assert (removed.code, removed.json) == (0, {"type": "email", "id": "first", "removal": "removed"})
    assert invoke("list", "--store", running).out == "no jobs\n"


def test_removal_of_a_running_job_is_canceled_in_json(invoke: Invoke, running: str) -> None:
    assert invoke("remove", "email", "first", "-o", "json", "--store", running).json["removal"] == "canceled"


def test_wait_gives_up_on_time_with_an_answer_of_no(invoke: Invoke, running: str) -> None:
    late = invoke("remove", "email", "first", "--wait", "0.2", "--store", running)
    assert late.code == 1
    assert late.error == (
        "job first of type email still runs after 0.2 s; it is canceled, and stays until it is finished"
    )


def test_wait_removes_the_job_when_its_worker_has_finished(email: str, tmp_path: Path) -> None:
    async def work(jobs: JobsService) -> None:
        await jobs.add("email", "first")
        job = await jobs.accept("email", timeout=0)
        assert job is not None

        async def is_canceled() -> bool:
            return (await jobs.get("email", "first")).cancel

        with started("remove", "email", "first", "--wait", f"{HANG}", "--store", email, cwd=tmp_path) as removing:
            # To look takes no turn of those who write: one write after the other would leave the verb none.
            await eventually(is_canceled)
            with pytest.raises(JobCanceled):
                await job.update()
            await job.finish()
            out, err = removing.communicate(timeout=HANG)
        assert (removing.returncode, out, err) == (0, "job first of type email: removed\n", "")
        with pytest.raises(JobNotFound):
            await jobs.get("email", "first")
        with pytest.raises(WorkerConflict):
            await job.update()

    arrange(email, work)


def test_force_and_wait_exclude_each_other(invoke: Invoke, running: str) -> None:
    refused = invoke("remove", "email", "first", "--force", "--wait", "1", "--store", running)
    assert refused.code == 2
    assert refused.error.startswith("Invalid value for --force and --wait: give one of them")
