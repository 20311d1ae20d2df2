"""The page of handlers: its application is served by a process, its program waits for what it does."""

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
from tests.docs.pages import examples, rows, section

APPLICATION, SERVER, PROGRAM, INVOICE, MAIL, CONTEXT, SCAN, REPORT, RENDER = examples("docs/handlers.md")
PERIODIC, SCHEDULES = examples("docs/periodic.md")

INVOICES = """
import asyncio
from app import address, invoice, jobs, render, scan

async def main():
    async with jobs:
        for total in (-1, 5, 7):
            await jobs.enqueue(invoice, {"total": total, "printer": "free"}, id=f"i{total}")
        await address("i7", "here")  # whether it waits, runs or has not begun
        print(await jobs.result("invoice", "i7", timeout=60))
        print((await jobs.wait("invoice", "i-1", "finished", timeout=60)).error.message)
        while not (await jobs.get("invoice", "i5")).history[0].kind == "stopped":
            await asyncio.sleep(0.05)
        print((await jobs.get("invoice", "i5")).attempts)
        await address("i5", "there")
        print(await jobs.result("invoice", "i5", timeout=60))
        print(await jobs.transact(lambda tx: tx.kv.get(b"bills/i7")))
        scanned = await jobs.enqueue(scan, ["cat", "dog"])
        print(await jobs.result(scan, scanned.id, timeout=60))
        rendered = await jobs.enqueue(render, [1, 2, 3])
        print(await jobs.result(render, rendered.id, timeout=60))

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with the application, which a daemon serves."""
    directory = tmp_path_factory.mktemp("readme")
    (directory / "app.py").write_text(
        "\n\n".join((APPLICATION, REPORT, INVOICE, SCAN, RENDER, PERIODIC)), encoding="utf-8"
    )
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


def test_a_program_that_runs_handlers_itself_ends_by_a_signal_with_exit_code_0(tmp_path: Path) -> None:
    says = "\n\n@jobs.every('1s')\nasync def say():\n    print('serves', flush=True)\n"
    (tmp_path / "app.py").write_text(APPLICATION + says, encoding="utf-8")
    (tmp_path / "server.py").write_text(SERVER, encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, "server.py"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            assert "serves\n" in iter(server.stdout.readline, "")
            server.send_signal(signal.SIGTERM)
            errors = server.communicate(timeout=60)[1]
        finally:
            server.kill()
    assert server.returncode == 0, errors
    assert "Traceback" not in errors


MAILS = """
import asyncio
from mail import jobs, welcome

async def main():
    async with jobs:
        running = asyncio.create_task(jobs.run())
        job = await jobs.enqueue(welcome, "ada", id="a")
        print(job.type, await jobs.result(welcome, job.id, timeout=60))
        running.cancel()
        await asyncio.wait([running])

asyncio.run(main())
"""


def test_a_module_of_handlers_has_its_middleware_and_resources(tmp_path: Path) -> None:
    (tmp_path / "mail.py").write_text(MAIL, encoding="utf-8")
    said = _run(MAILS, tmp_path)
    assert said == ["connected", "a sent to ada", "mail.welcome sent to ada", "closed"]


CONTEXTS = """
import asyncio
from app import invoice, jobs, ordered

async def main():
    async with jobs:
        running = asyncio.create_task(jobs.run())
        await ordered(17)
        print(await jobs.result(invoice, "i17", timeout=60))
        running.cancel()
        await asyncio.wait([running])

asyncio.run(main())
"""


SCHEDULED = """
import asyncio

async def main():
    async with JobsService() as jobs:
        await jobs.set_type_timeout("report", 60)
        await jobs.set_type_timeout("clean", 60)
        await set_up(jobs)
        print([(each.name, each.paused) for each in await jobs.schedules.list()])

asyncio.run(main())
"""


def test_schedules_are_made_at_runtime(tmp_path: Path) -> None:
    said = _run(SCHEDULES + SCHEDULED, tmp_path)
    assert [line.rpartition(" ")[0] for line in said[:2]] == ["cleaning clean", "report of acme report"]
    assert said[2] == "[('cleaning', True)]"


def test_a_context_goes_with_a_job_to_its_log_lines(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(CONTEXT, encoding="utf-8")
    logged, result = _run(CONTEXTS, tmp_path)[-2:]
    assert result == "17 for acme"
    plain = re.sub(r"\x1b\[[0-9;]*m", "", logged)
    assert "invoiced" in plain
    for word in ("tenant=acme", "request=r-17", "job_id=i17", "job_type=invoice", "number=17"):
        assert word in plain


def test_the_ends_of_a_run_are_what_the_handler_says(served: Path) -> None:
    assert _run(INVOICES, served) == ["7", "no such total", "0", "5", "b'paid'", "2", "36"]


def test_every_option_is_in_the_table() -> None:
    table = rows(section("docs/handlers.md", "Options"), "option")
    defaults = {
        name.strip("`"): default.strip("`")
        for names, some, *_ in table
        for name, default in zip(names.split(", "), some.split(", "), strict=True)
    }
    words = {str(None): "for ever", str(7 * 86_400.0): "7 days; of periodic jobs 1 day"}
    assert set(defaults) == set(HandlerOptions.__dataclass_fields__)
    for name, field in HandlerOptions.__dataclass_fields__.items():
        value = field.default
        said = words.get(str(value), str(value)) if name.startswith("keep") else str(value)
        if name in ("time_limit", "redact", "memory_limit"):
            said = "none"
        assert defaults[name] == (f"{value:g}" if type(value) is float and said == str(value) else said), name


def test_every_argument_of_enqueue_is_in_the_table() -> None:
    told = rows(section("docs/handlers.md", "Adding jobs"), "argument of `enqueue`")
    named = {name.strip("`=") for row in told for name in row[0].split(", ")}
    assert named == {*vars(jobs_service.JobsService)["enqueue"].__kwdefaults__, "handler"}


def test_what_the_application_imports_is_public() -> None:
    [names] = re.findall(r"from jobs_service import (.*)", APPLICATION)
    assert set(names.split(", ")) <= set(jobs_service.__all__)
