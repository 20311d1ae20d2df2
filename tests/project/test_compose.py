"""docker-compose.yml: what it says agrees with the project, and what it runs of the project's does what it says.

There is no container engine here: the servers' images, their network and the build of ours are not run.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from jobs_service import JobsService, Settings
from jobs_service.cli.app import application
from jobs_service.cli.daemon import LAST_GRACE
from jobs_service.sample import jobs as sample
from tests.cli.support import HANG, ROOT, Ended, arrange, environment, serving
from tests.system.fdb_server import FdbServer, free_ports, missing

SERVERS = ("fdb1", "fdb2", "fdb3")
OURS = ("daemon", "client")
CLIENT = "docker compose run --rm client "


def _interpolated(value: Any) -> Any:
    """Replace variables by their defaults as Compose does, everywhere but in keys."""
    if isinstance(value, dict):
        return {key: _interpolated(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_interpolated(item) for item in value]
    if not isinstance(value, str):
        return value
    assert not re.search(r"(?<!\$)(\$\$)*\$(?![${])", value), f"a lone dollar sign: {value}"
    return re.sub(r"\$\$|\$\{[A-Z_]+:-([^}]*)\}", lambda found: found[1] or "$", value)


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    read: dict[str, Any] = _interpolated(yaml.safe_load(text))
    return read


@pytest.fixture(scope="module")
def services(compose: dict[str, Any]) -> dict[str, Any]:
    read: dict[str, Any] = compose["services"]
    return read


@pytest.fixture(scope="module")
def dockerfile(services: dict[str, Any]) -> list[list[str]]:
    """The instructions of our image, each as its words."""
    return [line.split() for line in services["daemon"]["build"]["dockerfile_inline"].splitlines()]


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    read: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return read


def _health_check(service: dict[str, Any]) -> list[str]:
    """Return what the engine runs in the container to ask for the service's health."""
    kind, *words = service["healthcheck"]["test"]
    return [*{"CMD": [], "CMD-SHELL": ["sh", "-c"]}[kind], *words]


def _seconds(duration: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([sm])", duration).groups()  # type: ignore[union-attr]
    return int(number) * {"s": 1, "m": 60}[unit]


# What it says.


def test_the_coordinators_are_the_three_servers_at_their_fixed_addresses(
    compose: dict[str, Any], services: dict[str, Any]
) -> None:
    addresses = [services[name]["networks"]["default"]["ipv4_address"] for name in SERVERS]
    contents = {services[name]["environment"]["FDB_CLUSTER_FILE_CONTENTS"] for name in (*SERVERS, "configure")}
    assert contents == {"jobs:compose@" + ",".join(f"{address}:4500" for address in addresses)}
    (network,) = compose["networks"]["default"]["ipam"]["config"]
    assert {f"{address.rpartition('.')[0]}.0/24" for address in addresses} == {network["subnet"]}
    assert network["ip_range"].endswith(".128/25")
    assert all(int(address.rpartition(".")[2]) < 128 for address in addresses)


def test_the_store_is_the_cluster_file_that_configure_writes(services: dict[str, Any]) -> None:
    written = services["configure"]["environment"]["FDB_CLUSTER_FILE"]
    (shared,) = services["configure"]["volumes"]
    volume, _, directory = shared.partition(":")
    assert str(Path(written).parent) == directory
    for name in OURS:
        assert services[name]["environment"] == {"JOBS_SERVICE_STORE": f"fdb:{written}"}
        assert services[name]["volumes"] == [f"{volume}:{directory}:ro"]


def test_the_versions_are_one_and_the_project_takes_it(
    services: dict[str, Any], dockerfile: list[list[str]], project: dict[str, Any]
) -> None:
    images = {services[name]["image"] for name in (*SERVERS, "configure")}
    images |= {words[1] for words in dockerfile if words[0] == "FROM" and "AS" in words}
    (image,) = images
    name, _, version = image.partition(":")
    assert name == "foundationdb/foundationdb"
    (package,) = {word for words in dockerfile for word in words if word.startswith("foundationdb==")}
    assert package == f"foundationdb=={version}"
    (needed,) = [r for r in map(Requirement, project["project"]["dependencies"]) if r.name == "foundationdb"]
    assert version in needed.specifier
    (python,) = {words[1] for words in dockerfile if words[:2][-1].startswith("python:")}
    assert python.removeprefix("python:").removesuffix("-slim") in SpecifierSet(project["project"]["requires-python"])


def test_the_image_is_built_from_what_the_package_needs_and_runs_as_nobody_special(
    services: dict[str, Any], dockerfile: list[list[str]], project: dict[str, Any]
) -> None:
    assert services["client"]["build"] == services["daemon"]["build"]
    assert services["client"]["image"] == services["daemon"]["image"]
    copied = {source for words in dockerfile if words[0] == "COPY" and "--" not in words[1] for source in words[1:-1]}
    assert all((ROOT / source).exists() for source in copied)
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    described = {project["project"]["readme"], *project["project"]["license-files"]}
    assert copied == {"pyproject.toml", *described, *wheel["packages"]}
    assert ["USER", "jobs"] in dockerfile
    assert ["STOPSIGNAL", "SIGTERM"] in dockerfile
    (entry,) = [words for words in dockerfile if words[0] == "ENTRYPOINT"]
    assert entry[1] == '["jobs-service"]'
    assert "jobs-service" in project["project"]["scripts"]


def test_the_daemon_is_given_more_time_to_stop_than_it_takes(services: dict[str, Any]) -> None:
    graces = [handler.options.grace for handler in sample.handlers.values()]
    assert _seconds(services["daemon"]["stop_grace_period"]) > max(graces) + Settings().transaction_timeout + LAST_GRACE


# What it runs.


def _parse(arguments: list[str]) -> None:
    """Have the program's own parser read a command line; it runs nothing."""
    command: Any = typer.main.get_command(application())
    context = command.make_context("jobs-service", list(arguments))
    _, verb, rest = command.resolve_command(context, list(arguments))
    verb.make_context(verb.name, rest, parent=context)


def test_every_command_is_one_that_the_program_takes(services: dict[str, Any]) -> None:
    header = (ROOT / "docker-compose.yml").read_text(encoding="utf-8").partition("\nx-")[0]
    shown = re.findall(r"^#   " + re.escape(CLIENT) + "(.*)$", header, re.MULTILINE)
    checks = _health_check(services["daemon"])[-1].split(" && ")
    commands = [services[name]["command"] for name in OURS]
    commands += [shlex.split(line) for line in shown]
    commands += [shlex.split(line.removeprefix("jobs-service ")) for line in checks]
    assert len(commands) == 6
    for arguments in commands:
        _parse(arguments)


def _run(words: list[str], directory: Path, variables: Mapping[str, str]) -> Ended:
    """Run a command that finds `jobs-service`, and before others the programs in the directory's `bin`."""
    programs = directory / "bin"
    programs.mkdir(exist_ok=True)
    program = programs / "jobs-service"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m jobs_service "$@"\n')
    program.chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    done = subprocess.run(
        words,
        cwd=directory,
        env=environment({**variables, "PATH": path}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def served(services: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with a store on which the daemon's command runs."""
    directory = tmp_path_factory.mktemp("compose")
    verb, *arguments = services["daemon"]["command"]
    assert verb == "serve"
    with serving(*arguments, cwd=directory, env=_store(directory)):
        yield directory


def _store(directory: Path) -> dict[str, str]:
    return {"JOBS_SERVICE_STORE": f"lmdb:{directory / 'store'}"}


def test_the_health_check_passes_while_the_daemon_runs_also_after_others(
    services: dict[str, Any], served: Path
) -> None:
    async def check_once() -> None:
        async with JobsService(_store(served)["JOBS_SERVICE_STORE"]) as jobs:
            await jobs.add("health", "check", if_exists="resubmit")
            await jobs.result("health", "check", timeout=HANG)

    asyncio.run(check_once())
    assert _run(_health_check(services["daemon"]), served, _store(served)).code == 0


def test_the_health_check_fails_when_the_daemon_does_not_run_handlers(services: dict[str, Any], tmp_path: Path) -> None:
    arrange(_store(tmp_path)["JOBS_SERVICE_STORE"], lambda jobs: jobs.set_type_timeout("health", 10))
    check = [word.replace("--timeout 10", "--timeout 0.2") for word in _health_check(services["daemon"])]
    ended = _run(check, tmp_path, _store(tmp_path))
    assert ended.code == 1
    assert "job check of type health did not finish within 0.2 s" in ended.err


# What it does to the database.


def _configure(services: dict[str, Any], directory: Path, **variables: str) -> Ended:
    """Run what the one-shot service runs."""
    service = services["configure"]
    file = {"FDB_CLUSTER_FILE": str(directory / "fdb.cluster")}
    return _run(
        [*service["entrypoint"], *service["command"]], directory, {**service["environment"], **file, **variables}
    )


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
@pytest.mark.timeout(400)
def test_three_real_servers_become_a_database_which_one_of_them_may_leave(
    services: dict[str, Any], tmp_path: Path
) -> None:
    ports = free_ports(3)
    coordinators = ",".join(f"127.0.0.1:{port}" for port in ports)
    servers: list[FdbServer] = []
    with contextlib.ExitStack() as stack:
        for port in ports:
            directory = tmp_path / str(port)
            directory.mkdir()
            servers.append(FdbServer(directory, port, coordinators))
            servers[-1].start()
            stack.callback(servers[-1].kill)
        contents = {"FDB_CLUSTER_FILE_CONTENTS": f"test:test@{coordinators}"}
        made = _configure(services, tmp_path, **contents)
        assert (made.code, made.out.splitlines()) == (0, ["Database created", "the database is available"])
        assert _configure(services, tmp_path, **contents).out.splitlines()[-1] == "the database is available"
        servers[1].kill()
        file = {"FDB_CLUSTER_FILE": str(tmp_path / "fdb.cluster")}
        assert _configure(services, tmp_path, **contents).out.splitlines()[-1] == "the database is available"
        assert _run(_health_check(services["fdb1"]), tmp_path, file).code == 0
