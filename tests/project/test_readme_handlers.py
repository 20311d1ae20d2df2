"""The README's section "Handlers": its application is served by a process, its program waits for what it does."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import jobs_service
from jobs_service.runner.options import HandlerOptions

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
SECTION = README[README.index("## Handlers") : README.index("## Inside a web application")]
APPLICATION, PROGRAM, REPORT, INVOICE, PERIODIC = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)

INVOICES = """
import asyncio
from app import invoice, jobs

async def main():
    async with jobs:
        for total, more in ((-1, {}), (5, {}), (7, {"address": "here", "printer": "free"})):
            await jobs.enqueue(invoice, {"total": total, **more}, id=f"i{total}")
        print(await jobs.result("invoice", "i7", timeout=60))
        print((await jobs.wait("invoice", "i-1", "finished", timeout=60)).error.message)
        while not (await jobs.get("invoice", "i5")).history[0].kind == "stopped":
            await asyncio.sleep(0.05)
        print((await jobs.get("invoice", "i5")).attempts)
        print(await jobs.transact(lambda tx: tx.kv.get(b"bills/i7")))

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with the application, which a daemon serves."""
    directory = tmp_path_factory.mktemp("readme")
    (directory / "app.py").write_text("\n\n".join((APPLICATION, REPORT, INVOICE, PERIODIC)), encoding="utf-8")
    daemon = subprocess.Popen(
        [sys.executable, "-m", "jobs_service", "serve", "app:jobs"],
        cwd=directory,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert daemon.stderr is not None
    try:
        lines = []
        for line in daemon.stderr:
            lines.append(line)
            if '"serving"' in line:
                break
        assert daemon.poll() is None, "".join(lines)
        yield directory
        daemon.send_signal(signal.SIGTERM)
        rest = daemon.communicate(timeout=60)[1]
        assert daemon.returncode == 0, rest
    finally:
        daemon.kill()
        daemon.communicate()


def _run(program: str, directory: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(directory)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_program_waits_for_what_the_daemon_runs(served: Path) -> None:
    assert _run(PROGRAM, served) == ["{'file': 'cat-640.png'}", "{'file': 'dog-320.png'}"]


def test_the_ends_of_a_run_are_what_the_handler_says(served: Path) -> None:
    assert _run(INVOICES, served) == ["7", "no such total", "0", "b'paid'"]


def test_every_option_is_in_the_table() -> None:
    table = SECTION[SECTION.index("| option |") :]
    rows = re.findall(r"^\| ((?:`[a-z_]+`(?:, )?)+) \|", table, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([a-z_]+)`", row)}
    assert named == set(HandlerOptions.__dataclass_fields__)


def test_what_the_application_imports_is_public() -> None:
    [names] = re.findall(r"from jobs_service import (.*)", APPLICATION)
    assert set(names.split(", ")) <= set(jobs_service.__all__)
