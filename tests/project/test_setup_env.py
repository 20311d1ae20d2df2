"""The set-up of the environment on a bare machine: once, whoever asks, and one line says what is missing.

Tests that set up environments take long, and are marked: they run when a script has changed (see conftest.py).
"""

from __future__ import annotations

import pytest

from tests.project.small_project import PYPROJECT, Copy

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
