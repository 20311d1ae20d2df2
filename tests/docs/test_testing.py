"""The page on tests of one's own workers: its examples, as they stand there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import examples

HANDLER_ALONE, HANDLER_RUN, FIXTURE, WORLD = examples("docs/testing.md")
PAGE: dict[str, Any] = {"__name__": "page"}
exec(compile(WORLD, "docs/testing.md", "exec"), PAGE)


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
    assert done.returncode == 0, done.stdout + done.stderr


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


def test_a_fixture_gives_each_test_a_service_without_jobs(application: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (application / "test_app.py").write_text(FIXTURE, encoding="utf-8")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # importing all that is installed here takes seconds
    run("import pytest; raise SystemExit(pytest.main(['-p', 'pytest_asyncio.plugin', 'test_app.py']))", application)
