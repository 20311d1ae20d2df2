"""`serve` of applications: those that fail as they are imported, those without handlers, some of several handlers."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from jobs_service import JobsService
from tests.cli.conftest import Invoke
from tests.cli.support import HANG, arrange, serving

BROKEN = {
    "def f():\n    return 1 / 0\nf()\n": (2, "ZeroDivisionError: division by zero", ["f()", "return 1 / 0"]),
    "import json\nimport nobody_has_this\n": (2, "ModuleNotFoundError: No module named", ["import nobody_has_this"]),
    "import json\njson.loads('{')\n": (2, "JSONDecodeError: Expecting property name", ["json.loads('{')"]),
    "x = 1\ndef f(:\n": (2, "SyntaxError: invalid syntax", ["def f(:"]),
    "import sys\nsys.exit('no \\x1b[31m\\nway')\n": (2, "SystemExit: no \\u001b[31m way", ["sys.exit("]),
    "from jobs_service import JobsService\njobs = JobsService('memory:')\njobs.handler('x', slots=-1)\n": (
        3,
        "InvalidSettings: option slots=-1",
        ["jobs.handler('x', slots=-1)"],
    ),
    "def __getattr__(name):\n    return 1 / 0\n": (2, "ZeroDivisionError: division by zero", ["return 1 / 0"]),
}

SEVERAL = """
from jobs_service import JobsService
jobs = JobsService("lmdb:store")
@jobs.handler("a")
async def a(): ...
@jobs.handler(("b", 1))
async def b(): ...
@jobs.every("1s")
async def ticks(): ...
@jobs.every("1s")
async def others(): ...
"""


@pytest.mark.parametrize("program", BROKEN)
def test_an_application_that_fails_is_shown_where_it_is_the_users(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    line, error, shown = BROKEN[program]
    name = f"broken_{list(BROKEN).index(program)}"
    (tmp_path / f"{name}.py").write_text(program)
    refused = invoke("serve", f"{name}:jobs")
    *trace, last = refused.err.splitlines()
    assert (refused.code, refused.out) == (2, "")
    assert last.startswith(f"jobs-service: Invalid value for MODULE:ATTR: importing {name} failed at ")
    assert f"{tmp_path / name}.py:{line}: {error}" in last
    files = [part for part in trace if part.startswith("  File ")]
    assert all(str(tmp_path) in part for part in files)
    assert len(files) == len(shown)
    for part in shown:
        assert any(part in each for each in trace)


def test_only_handlers_of_some_types_are_run(tmp_path: Path) -> None:
    (tmp_path / "application.py").write_text(SEVERAL)
    with serving("application:jobs", "--types", "a,ticks", "--types", 'json:["b",1]', cwd=tmp_path) as daemon:

        async def work(jobs: JobsService) -> set[str]:
            async with JobsService(jobs.store) as watching:
                for type in ("a", ("b", 1)):
                    await jobs.add(type, "x")
                    await watching.wait(type, "x", "finished", timeout=HANG)
            while not [job async for job in jobs.list("ticks", state="finished")]:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.05)
            return {str(type) for type in await jobs.types()}

        assert "others" not in arrange(f"lmdb:{tmp_path / 'store'}", work)
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(HANG) == 0


def test_a_store_beside_an_application_is_refused_with_what_names_its_store(invoke: Invoke) -> None:
    refused = invoke("--store", "lmdb:other", "serve", "application:jobs")
    assert refused.code == 2
    assert "application:jobs brings its own store; JOBS_SERVICE_STORE is that of a JobsService()" in refused.error


@pytest.mark.parametrize(
    ("types", "complaint"),
    [
        ("a,typo", 'type typo has no handler; there are: a, json:["b",1], ticks'),
        (",", "no type is named; there are: a, "),
        ("json:{", "behind json: is not JSON"),
    ],
)
def test_types_without_a_handler_are_refused_before_the_store_is_made(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, types: str, complaint: str
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "application_of_several.py").write_text(SEVERAL)
    refused = invoke("serve", "application_of_several:jobs", "--types", types)
    assert refused.code == 2
    assert complaint in refused.error
    assert not (tmp_path / "store").exists()
