"""Leaves out the tests of the scripts that take long, when they have passed with these very scripts."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.project.small_project import Copy

MARKER = "scripts"
ROOT = Path(__file__).parents[2]
PROJECT = Path(__file__).parent / "small_project.py"


def pytest_configure(config: pytest.Config) -> None:
    """Name the marker."""
    config.addinivalue_line("markers", f"{MARKER}: runs when a script has changed since it passed, and with CI=true.")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that would tell what it told last time."""
    if item.get_closest_marker(MARKER) is None or os.environ.get("CI"):
        return
    cache = getattr(item.config, "cache", None)  # not there with -p no:cacheprovider
    if cache is not None and cache.get(_key(item), None) == _state(item):
        pytest.skip("it has passed with these scripts; CI=true or --cache-clear has it run again")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember with what a test has passed."""
    report = yield
    cache = getattr(item.config, "cache", None)  # not there with -p no:cacheprovider
    if report.when == "call" and report.passed and cache is not None and item.get_closest_marker(MARKER) is not None:
        cache.set(_key(item), _state(item))
    return report


def _key(item: pytest.Item) -> str:
    return f"{MARKER}/{item.name}"


def _state(item: pytest.Item) -> str:
    """Return what a test of the scripts depends on, as a digest: they, itself, and the Python that it runs."""
    scripts = [path for place in ("scripts", ".ci") for path in (ROOT / place).iterdir() if path.is_file()]
    digest = hashlib.sha256(sys.version.encode())
    for path in sorted([*scripts, item.path, PROJECT]):
        digest.update(f"{path.name} {path.stat().st_mode} {path.stat().st_size} ".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[Copy]:
    made = Copy(tmp_path)
    yield made
    shutil.rmtree(tmp_path)
