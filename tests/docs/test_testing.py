"""The page on tests of one's own workers: its examples, as they stand there."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jobs_service import JobsService, RunningJob, StoreError, WorkerConflict
from jobs_service.testing import FAULTS, Process, World
from tests.docs.pages import examples

ORDERS = [f"order-{number}" for number in range(5)]


async def send_bills(jobs: JobsService) -> None:
    """The worker to be tested."""
    while True:
        try:
            job = await jobs.accept("bill")
            if job is not None:
                await asyncio.sleep(1)  # the work itself
                await send_bill(jobs, job)
        except (StoreError, WorkerConflict):  # try again; or the job was taken for lost, and another worker has it
            await asyncio.sleep(0.1)


HANDLER_ALONE, HANDLER_RUN, WORLD = examples("docs/testing.md")
PAGE: dict[str, Any] = {
    "asyncio": asyncio,
    "pytest": pytest,
    **dict.fromkeys(("JobsService", "JobTransaction", "RunningJob"), Any),
    **{"FAULTS": FAULTS, "Process": Process, "World": World, "ORDERS": ORDERS, "send_bills": send_bills},
}
exec(compile("from __future__ import annotations\n" + WORLD, "docs/testing.md", "exec"), PAGE)


async def send_bill(jobs: JobsService, job: RunningJob) -> None:
    """The page's own."""
    await PAGE["send_bill"](jobs, job)


@pytest.mark.parametrize("seed", range(50))
def test_every_order_is_billed_once(seed: int) -> None:
    PAGE["test_every_order_is_billed_once"](seed)


@pytest.fixture
def application(tmp_path: Path) -> Path:
    """The directory of the application of the page of handlers."""
    (tmp_path / "app.py").write_text(examples("docs/handlers.md")[0], encoding="utf-8")
    return tmp_path


def run(program: str, application: Path) -> None:
    done = subprocess.run([sys.executable, "-c", program], cwd=application, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_handler_is_called_as_a_function(application: Path) -> None:
    run(
        HANDLER_ALONE
        + """
import asyncio

class FakeJob:
    async def progress(self, *told): ...

asyncio.run(test_the_thumbnail_has_its_width_in_its_name(FakeJob()))
test_a_checksum_adds_up_lengths()
""",
        application,
    )


def test_a_handler_is_run_as_programs_run_it(application: Path) -> None:
    run(HANDLER_RUN, application)
    assert not (application / "jobs-data").exists()
