"""The set-up of the environment on a bare machine: once, whoever asks, and one line says what is missing.

Tests that set up environments take long, and are marked: they run when a script has changed (see conftest.py).
"""

from __future__ import annotations

import fcntl
import os
import re
import signal

import pytest

from tests.project.small_project import HANG, PYPROJECT, Copy

pytestmark = pytest.mark.timeout(300)  # some of these make environments, which takes long on a busy machine


def test_without_a_recent_python_one_line_says_what_to_install(copy: Copy) -> None:
    done = copy.run("scripts/setup-env")
    assert done.returncode == 3
    assert len(done.stderr.splitlines()) == 1
    assert "found no Python 3.11 or newer" in done.stderr
    assert not (copy.root / ".venv").exists()


def test_a_python_that_cannot_make_environments_gives_one_line_that_names_the_package(copy: Copy) -> None:
    (copy.elsewhere / "ensurepip.py").write_text("raise ModuleNotFoundError('ensurepip')\n")
    copy.add_python("python3.12", prelude=f'export PYTHONPATH="{copy.elsewhere}"')
    done = copy.run("scripts/setup-env")
    assert done.returncode == 3
    assert len(done.stderr.splitlines()) == 1
    assert "python3.12 cannot make virtual environments" in done.stderr
    assert "apt-get install python3-venv" in done.stderr
    assert not (copy.root / ".venv").exists()


def test_an_unknown_profile_is_wrong_usage(copy: Copy) -> None:
    done = copy.run("scripts/setup-env", "everything")
    assert (done.returncode, done.stderr) == (2, "setup-env: usage: scripts/setup-env [runtime|dev|docs]\n")


@pytest.mark.scripts
def test_continuous_integration_installs_python_where_there_is_none_and_then_checks(copy: Copy) -> None:
    copy.add_python("python-from-apt")
    copy.add_command("id", "echo 0")
    copy.add_command("strace", "true")
    copy.add_command("chromium", "true")
    copy.add_command("promtool", "true")
    copy.add_command("nginx", "true")
    copy.add_command("npm", f'echo "$@" >>"{copy.root}/npm"')
    copy.add_command("apt-get", f'echo "$@" >>"{copy.root}/apt"; cd "{copy.path}"; cp python-from-apt python3.12')
    checks = 'scripts/setup-env dev && echo "checked $1 with $(.venv/bin/pip --version)"'
    copy.write("scripts/test", f"#!/bin/sh\n{checks}\n")
    copy.write("scripts/docs", "#!/bin/sh\necho built\n")
    done = copy.run(".ci/run")
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^built|^checked .*? with pip", done.stdout, re.MULTILINE) == [
        "checked  with pip",
        "built",
        "checked --long with pip",
        "checked --long with pip",
    ]
    assert f"{copy.root.resolve()}/.venv/" in done.stdout
    assert (copy.root / "apt").read_text().splitlines() == [
        "-q update",
        "-q -y install --no-install-recommends python3 python3-venv",
    ]
    assert "pouchdb-server@4.2.0" in (copy.root / "npm").read_text()
    assert copy.builds == 1


def test_continuous_integration_without_python_and_without_root_fails_with_the_one_line(copy: Copy) -> None:
    copy.add_command("id", "echo 1000")
    done = copy.run(".ci/run")
    assert (done.returncode, len(done.stderr.splitlines())) == (3, 1)


@pytest.mark.scripts
def test_an_environment_whose_python_is_gone_is_made_anew(copy: Copy) -> None:
    copy.add_environment()
    assert copy.run("scripts/setup-env").returncode == 0
    for name in (copy.root / ".venv/bin").glob("python*"):
        name.unlink()
    (copy.root / ".venv/bin/python").symlink_to(copy.path / "gone")
    done = copy.run("scripts/quickstart")
    assert done.returncode == 7, done.stderr
    assert "making the virtual environment .venv with python3" in done.stderr
    assert copy.builds == 2


@pytest.mark.scripts
def test_two_set_ups_at_once_install_once(copy: Copy) -> None:
    copy.add_environment()
    with copy.start("scripts/setup-env") as one, copy.start("scripts/setup-env") as other:
        errors = [process.communicate(timeout=HANG)[1] for process in (one, other)]
    assert [one.returncode, other.returncode] == [0, 0], errors
    assert copy.builds == 1


@pytest.mark.scripts
def test_a_set_up_waits_while_another_one_works(copy: Copy) -> None:
    copy.add_environment()
    with (copy.root / ".venv/setup.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = copy.start("scripts/setup-env")
        assert process.stderr is not None
        assert process.stderr.readline() == "setup-env: waiting for another set-up of this directory\n"
        assert copy.builds == 0
    _, errors = process.communicate(timeout=HANG)
    assert process.returncode == 0, errors
    assert copy.builds == 1


@pytest.mark.scripts
def test_an_installation_that_was_killed_is_repeated(copy: Copy) -> None:
    copy.add_environment()
    gate = copy.root / "gate"
    os.mkfifo(gate)
    process = copy.start("scripts/setup-env")
    with gate.open("w"):  # opens when the backend has begun to read, in the middle of the installation
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=HANG)
    gate.unlink()
    done = copy.run("scripts/quickstart")
    assert done.returncode == 7, done.stderr
    assert copy.builds == 2


@pytest.mark.scripts
def test_an_installation_that_failed_says_so_and_is_repeated(copy: Copy) -> None:
    copy.add_environment()
    copy.write("broken", "")
    failed = copy.run("scripts/setup-env")
    assert failed.returncode == 1
    assert "broken on purpose" in failed.stderr
    assert failed.stderr.splitlines()[-1].startswith("setup-env: installing failed")
    (copy.root / "broken").unlink()
    assert copy.run("scripts/setup-env").returncode == 0
    assert copy.builds == 2


@pytest.mark.scripts
def test_what_is_installed_is_installed_again_only_when_it_must_be(copy: Copy) -> None:
    copy.add_environment()
    assert copy.run("scripts/setup-env", "runtime").returncode == 0
    again = copy.run("scripts/setup-env", "runtime")
    assert (again.returncode, again.stdout, again.stderr, copy.builds) == (0, "", "", 1)
    assert copy.run("scripts/setup-env", "dev").returncode == 0
    assert copy.builds == 2, "what development needs was missing"
    assert copy.run("scripts/setup-env", "runtime").returncode == 0
    assert copy.builds == 2, "development has all that running needs"
    copy.write("pyproject.toml", PYPROJECT + "# changed\n")
    assert copy.run("scripts/setup-env", "runtime").returncode == 0
    assert copy.builds == 3, "pyproject.toml has changed"
    moved = copy.root.with_name("moved")
    copy.root = copy.root.rename(moved)
    assert copy.run("scripts/quickstart").returncode == 7
    assert copy.builds == 4, "the directory has moved"
