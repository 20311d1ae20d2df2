"""The files of docs/deployment, as far as they can be tried without a container engine."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.support import IMPATIENT, environment, process
from tests.docs.pages import ROOT, examples, read

[BACKUP] = examples("docs/deployment.md", "sh")
FILES = ROOT / "docs/deployment"
APPLICATION = "from jobs_service import JobsService\n\njobs = JobsService()\n"


def loaded(name: str) -> Any:
    return yaml.safe_load((FILES / name).read_text())


def unit() -> dict[str, list[str]]:
    """The settings of the unit by name."""
    lines = [line.partition("=") for line in (FILES / "jobs-service.service").read_text().splitlines()]
    settings: dict[str, list[str]] = {}
    for name, equals, value in lines:
        if equals and not name.startswith("#"):
            settings.setdefault(name, []).append(value)
    return settings


def image() -> list[list[str]]:
    return [line.split(maxsplit=1) for line in (FILES / "Dockerfile").read_text().splitlines() if line[:1].isupper()]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    text = (FILES / "jobs-service.service").read_text()
    assert "/srv/app/.venv/bin/jobs-service" in text
    there = tmp_path / "jobs-service.service"
    there.write_text(text.replace("/srv/app/.venv/bin/jobs-service", sys.executable).replace("User=app", "User=root"))
    checked = subprocess.run(["systemd-analyze", "verify", there], capture_output=True, text=True, check=False)
    mistakes = [line for line in checked.stderr.splitlines() if "jobs-service.service" in line]
    assert mistakes == []


def commands() -> list[list[str]]:
    """Every command line of this package that the files have run."""
    (dockerfile,) = [words for name, words in image() if name == "CMD"]
    services = loaded("compose.yml")["services"]
    containers = loaded("kubernetes.yaml")["spec"]["template"]["spec"]["containers"]
    found = [
        shlex.split(unit()["ExecStart"][0]),
        yaml.safe_load(dockerfile),
        services["worker"]["healthcheck"]["test"][1:],
        *(container["command"] for container in containers),
    ]
    return [command[1:] for command in found if command[0].endswith("jobs-service")]


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_a_command_of_the_files_is_one_that_the_program_takes(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APPLICATION)
    store = {"JOBS_SERVICE_STORE": f"lmdb:{tmp_path / 'jobs'}", **IMPATIENT}
    shown = process(*command, "--help", cwd=tmp_path, env=store)
    assert (shown.code, shown.err) == (0, "")
    options = [word for word in command if word.startswith("--")]
    assert all(option in shown.out for option in options)


def test_the_backup_is_a_store(tmp_path: Path) -> None:
    (tmp_path / "restored").mkdir()
    store = {"JOBS_SERVICE_STORE": "lmdb:jobs"}
    assert process("types", "set", "email", "60", cwd=tmp_path, env=store).code == 0
    typed = subprocess.run(
        BACKUP,
        shell=True,
        cwd=tmp_path,
        env=environment({**store, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}),
    )
    assert typed.returncode == 0
    (copy,) = tmp_path.glob("backup-*.mdb")
    copy.rename(tmp_path / "restored/data.mdb")
    shown = process("types", cwd=tmp_path, env={"JOBS_SERVICE_STORE": "lmdb:restored"})
    assert "email" in shown.out


def test_containers_share_the_volume_of_the_store_and_nothing_else() -> None:
    services = loaded("compose.yml")["services"]
    assert {name for name, service in services.items() if "jobs:/var/lib/app" in service["volumes"]} == {
        "web",
        "worker",
    }
    assert not any({"pid", "ipc", "network_mode"} & {*service} for service in services.values())
    pod = loaded("kubernetes.yaml")["spec"]["template"]["spec"]
    assert all(
        container["volumeMounts"] == [{"name": "jobs", "mountPath": "/var/lib/app"}] for container in pod["containers"]
    )


def test_the_store_is_on_the_volume_and_there_is_time_to_end() -> None:
    variables = dict(words.split("=", 1) for name, words in image() if name == "ENV")
    assert variables["JOBS_SERVICE_STORE"] == "sqlite:/var/lib/app/app.db"
    assert ["VOLUME", "/var/lib/app"] in image()
    assert unit()["Environment"] == ["JOBS_SERVICE_STORE=lmdb:/var/lib/app/jobs"]
    assert unit()["StateDirectory"] == ["app"]
    services = loaded("compose.yml")["services"]
    assert {service["stop_grace_period"] for service in services.values()} == {"30s"}
    assert loaded("kubernetes.yaml")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 30
    assert int(unit()["TimeoutStopSec"][0]) == 30


def test_the_page_links_each_file() -> None:
    linked = set(re.findall(r"\(deployment/([^)]+)\)", read("docs/deployment.md") + read("docs/http.md")))
    assert linked == {path.name for path in FILES.iterdir()}
