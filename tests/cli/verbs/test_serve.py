"""`serve`, as a real process that gets real signals."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.cli.conftest import Invoke
from tests.cli.support import HANG, event_named, serving, started

APPLICATION = """
import asyncio
from jobs_service import JobsService, Settings

class Slow(JobsService):
    async def __aexit__(self, *error):
        await asyncio.Event().wait()

class Holder:
    jobs = JobsService("lmdb:inner", settings=Settings(notify_holdoff=0.5))

slow = Slow("memory:")
number = 7
"""


def test_a_signal_drains_and_ends_with_0(store: str, tmp_path: Path) -> None:
    with serving("--store", store, cwd=tmp_path) as daemon:
        daemon.send_signal(signal.SIGINT)
        assert event_named(daemon, "draining")["signal"] == "SIGINT"
        assert event_named(daemon, "stopped")["level"] == "info"
        out, err = daemon.communicate(timeout=HANG)
    assert (daemon.returncode, out, err) == (0, "", "")


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    (tmp_path / "application.py").write_text(APPLICATION)
    with serving("application:slow", cwd=tmp_path) as daemon:
        daemon.send_signal(signal.SIGINT)
        event_named(daemon, "draining")
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(HANG) == 128 + signal.SIGTERM


def test_an_applications_service_is_served_with_its_store_and_settings(tmp_path: Path) -> None:
    (tmp_path / "application.py").write_text(APPLICATION)
    with serving("application:Holder.jobs", cwd=tmp_path) as daemon:
        assert (tmp_path / "inner" / "data.mdb").exists()
        daemon.send_signal(signal.SIGTERM)
        assert event_named(daemon, "draining")["signal"] == "SIGTERM"
        assert daemon.wait(HANG) == 0
    assert not (tmp_path / "jobs-data").exists()


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("application", "'application'; write it like package.module:jobs"),
        (":jobs", "':jobs'; write it like package.module:jobs"),
        ("application_of_nobody:jobs", "there is no module application_of_nobody"),
        ("application_of_nobody.inner:jobs", "there is no module application_of_nobody.inner"),
        ("application_a:jobs", "module application_a has no jobs"),
        ("application_a:number", "application_a:number is an int, not a JobsService"),
    ],
)
def test_an_application_that_cannot_be_served_is_one_line(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, complaint: str
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "application_a.py").write_text("number = 7\n")
    refused = invoke("serve", name)
    assert refused.code == 2
    assert complaint in refused.error


def test_a_tree_that_gives_up_is_one_line_and_code_3(tmp_path: Path) -> None:
    (tmp_path / "application.py").write_text(
        "from jobs_service import JobsService, Settings\n"
        "from jobs_service.sources import Sources\n"
        "from jobs_service.store.memory import Faults, MemoryStore\n"
        "class Broken(Faults):\n"
        "    runs = 0\n"
        "    async def before_begin(self):\n"
        "        self.runs += 1\n"
        "        if self.runs > 1:\n"
        "            raise ArithmeticError('the store computes wrongly')\n"
        "settings = Settings(max_restarts=1, type_check_period=0.001)\n"
        "store = MemoryStore(settings=settings, sources=Sources())\n"
        "store.faults = Broken()\n"
        "jobs = JobsService(store, settings=settings)\n"
    )
    with started("serve", "application:jobs", cwd=tmp_path) as daemon:
        _, err = daemon.communicate(timeout=HANG)
    *events, last = err.splitlines()
    assert daemon.returncode == 3
    assert last.startswith("jobs-service: ")
    assert "ArithmeticError" in "".join(events)
    assert all(json.loads(event)["event"] for event in events)
