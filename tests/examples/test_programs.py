"""The examples of programs: each as it stands there, behind a real server or as a real process."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import CodeType
from typing import Any

import httpx
import pytest
import structlog

from jobs_service.sync import JobsService
from tests.cli.support import ROOT, free_port

EXAMPLES = ROOT / "examples"
PATIENCE = 100.0


@contextmanager
def process(directory: Path, *command: str) -> Iterator[subprocess.Popen[str]]:
    """Start a program in a directory; it has ended by itself, or is ended by SIGTERM, when the block ends."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, *command], cwd=directory, env=environment, stderr=subprocess.PIPE, text=True
    ) as started:
        try:
            yield started
            if started.poll() is None:
                started.send_signal(signal.SIGTERM)
            started.communicate(timeout=PATIENCE)
        finally:
            started.kill()


@contextmanager
def served(directory: Path, *command: str) -> Iterator[httpx.Client]:
    """Start a server; its command names {port}."""
    port = free_port()
    with (
        process(directory, *(part.format(port=port) for part in command)) as server,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as client,
    ):
        until(lambda: answers(client) or server.poll() is not None)
        assert server.poll() is None, server.communicate()[1]
        yield client


def answers(client: httpx.Client) -> bool:
    with contextlib.suppress(httpx.TransportError):
        client.get("/ready")
        return True
    return False


def until(true: Any) -> None:
    """Wait until a condition of other processes is true."""
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_fastapi_application_runs_its_jobs_and_shows_their_events(tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "fastapi_app.py", tmp_path)
    command = "-m uvicorn fastapi_app:app --timeout-graceful-shutdown 2 --port {port} --log-level warning"
    with served(tmp_path, *command.split()) as client:
        until(lambda: client.get("/ready").status_code == 200)
        id = client.post("/reports", json=[0, 1, 2]).json()["id"]
        assert "EventSource" in client.get(f"/reports/{id}").text
        lines = [line for line in client.get(f"/reports/{id}/events").text.splitlines() if line]
        assert json.loads(lines[-1].removeprefix("data: ")) == {"state": "finished", "result": 3}
        assert client.get("/reports/nobody/events").text.splitlines()[0] == "event: missing"
        assert client.post("/reports", json="x").status_code == 422
        left = client.post("/reports", json=[3600]).json()["id"]
        with client.stream("GET", f"/reports/{left}/events") as stream:
            for line in stream.iter_lines():
                if '"running"' in line:
                    break
    with JobsService(f"lmdb:{tmp_path / 'jobs-data'}") as jobs:
        assert [event.kind for event in jobs.get("report", left).history] == ["stopped", "started", "added"]


def test_a_fastapi_application_whose_runner_fails_is_not_ready(tmp_path: Path) -> None:
    source = (EXAMPLES / "fastapi_app.py").read_text()
    (tmp_path / "fastapi_app.py").write_text(source.replace("jobs.run()", "jobs.run(types=['unknown'])"))
    command = "-m uvicorn fastapi_app:app --timeout-graceful-shutdown 2 --port {port} --log-level critical"
    with served(tmp_path, *command.split()) as client:
        assert client.get("/ready").status_code == 503


def test_a_flask_application_under_gunicorn_adds_jobs_in_all_its_workers(tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "flask_app.py", tmp_path)
    command = (
        "-m gunicorn --preload --workers 2 --worker-class gthread --threads 8 --bind 127.0.0.1:{port} flask_app:app"
    )
    with served(tmp_path, *command.split(), "--log-level", "warning") as client:
        assert client.get("/ready").status_code == 503
        with process(tmp_path, "-m", "jobs_service", "serve", "flask_app:jobs"):
            until(lambda: client.get("/ready").status_code == 200)
            ids = [client.post("/thumbnails", json={"image": f"{number}"}).json()["id"] for number in range(20)]
            for number, id in enumerate(ids):
                assert client.get(f"/thumbnails/{id}/events").text.endswith("data: finished\n\n")
                assert client.get(f"/thumbnails/{id}").json() == {"state": "finished", "result": f"{number}-640.png"}
        assert client.post("/thumbnails", json={"image": 7}).status_code == 422
        assert client.get("/thumbnails/nobody").status_code == 404


class Shop:
    """A copy of the Django project.

    Attributes:
        directory: where it is.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        shutil.copytree(EXAMPLES / "django_shop", directory, ignore=shutil.ignore_patterns("__pycache__"))
        if find_spec("django.tasks") is None:
            tasks = directory / "orders/tasks.py"
            tasks.write_text(tasks.read_text().replace("from django.tasks", "from django_tasks"))

    def manage(self, *command: str) -> str:
        """Run a command of manage.py; return what it prints."""
        done = subprocess.run(
            [sys.executable, "manage.py", *command],
            cwd=self.directory,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout


@pytest.mark.timeout(400)  # it starts seven processes
def test_a_django_project_has_a_row_and_its_job_in_one_transaction(tmp_path: Path) -> None:
    project = Shop(tmp_path / "shop")
    shop, manage = project.directory, project.manage
    manage("migrate")
    assert "No changes detected" in manage("makemigrations", "--check")
    with served(shop, "manage.py", "runserver", "--noreload", "127.0.0.1:{port}") as client:
        assert client.get("/ready").status_code == 503
        with process(shop, "-m", "jobs_service", "serve", "worker:jobs", "--outbox", "sqlite:shop.db"):
            until(lambda: client.get("/ready").status_code == 200)
            taken = client.post("/orders", data={"to": "ada"})
            assert taken.status_code == 202
            order = f"/orders/{taken.json()['order']}"
            until(lambda: client.get(order).json()["receipt"])
            assert taken.json()["job"] in client.get(order).json()["receipt"]
            insert = "from orders.models import Order; Order.objects.create(to='bob')"
            manage("shell", "-c", insert)
            assert manage("receipts") == "order 2: sent\n"
            assert manage("receipts") == ""


WAIT_FOR_A_TASK = """
import time
from orders.models import Order
from orders.tasks import invoice, take
result = invoice.get_result(take("ada"))
while not result.is_finished:
    time.sleep(0.02)
    result.refresh()
print(result.status, result.return_value, Order.objects.get(to="ada").receipt)
"""


@pytest.mark.timeout(400)
def test_a_django_project_runs_its_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "settings")
    shop = Shop(tmp_path / "shop")
    shop.manage("migrate")
    command = "-m jobs_service serve jobs_service.django:worker.default --outbox sqlite:shop.db"
    with process(shop.directory, *command.split()):
        shown = shop.manage("shell", "-v", "0", "-c", WAIT_FOR_A_TASK)
    assert shown == "SUCCESSFUL invoice 1 invoice in attempt 1\n"


def test_a_script_runs_its_jobs_and_ends(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "script.py"), "3", "4", "5"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["3 9", "4 16", "5 25"]


@pytest.mark.usefixtures("own_logging")
async def test_the_cells_of_the_notebook_run_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As IPython runs them: all in one namespace, with the value of the last expression shown, and `await` anywhere."""
    monkeypatch.chdir(tmp_path)
    structlog.reset_defaults()
    notebook = json.loads((EXAMPLES / "notebook.ipynb").read_text())
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    names: dict[str, Any] = {}
    async with asyncio.timeout(PATIENCE):
        shown = [await _shown(cell, names) for cell in cells]
    assert [value for value in shown if value is not None and not isinstance(value, tuple)] == [144, [(12, 144)]]
    assert capsys.readouterr().out == "finished 144\n"


async def _shown(cell: str, names: dict[str, Any]) -> Any:
    """Run a cell; return the value of its last line, None if that is a statement."""
    tree = ast.parse(cell)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    await _run(compile(tree, "cell", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
    if last is None:
        return None
    assert isinstance(last, ast.Expr)
    return await _run(compile(ast.Expression(last.value), "cell", "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)


async def _run(code: CodeType, names: dict[str, Any]) -> Any:
    value = eval(code, names)
    return await value if inspect.isawaitable(value) else value
