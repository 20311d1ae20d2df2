"""Tests that use a shared cluster take turns, whichever process they are in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fdb_place import OWN
from tests.stores import FDB_VARIABLE
from tests.system.fdb_server import missing

CONFTEST = """
import pytest
from tests import fdb_place

def pytest_configure(config):
    fdb_place.begin(config)
"""

TOGETHER = """
import os, time
from pathlib import Path
import pytest

HERE = Path(os.environ["HERE"])

@pytest.mark.cluster
@pytest.mark.parametrize("number", range(6))
def test_alone(number):
    with (HERE / "alone").open("x"):
        time.sleep(0.02)
    (HERE / "alone").unlink()
    with (HERE / "workers").open("a") as file:
        file.write(os.environ["PYTEST_XDIST_WORKER"] + chr(10))
"""

OWN_SERVER = """
import os
from pathlib import Path

def test_own_fdb():
    assert "@127.0.0.1:" in Path(os.environ["JOBS_SERVICE_TEST_FDB"]).read_text()
    with (Path(os.environ["HERE"]) / "files").open("a") as file:
        file.write(os.environ["JOBS_SERVICE_TEST_FDB"] + chr(10))

def test_again_fdb():
    test_own_fdb()
"""


def run_tests(program: str, place: str, directory: Path) -> None:
    """Run a file of tests with two workers."""
    (directory / "conftest.py").write_text(CONFTEST)
    (directory / "test_these.py").write_text(program)
    (directory / "pytest.ini").write_text("[pytest]\n")
    root = str(Path(__file__).parent.parent)
    environment = {
        **os.environ,
        FDB_VARIABLE: place,
        "HERE": str(directory),
        "PYTHONPATH": root,
        "TMPDIR": str(directory),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "each", "-p", "no:cacheprovider", "."]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_tests_on_a_shared_cluster_take_turns(tmp_path: Path) -> None:
    cluster = tmp_path / "fdb.cluster"
    cluster.write_text(f"turns:{os.getpid()}@127.0.0.1:1")
    run_tests(TOGETHER, str(cluster), tmp_path)
    workers = (tmp_path / "workers").read_text().split()
    assert sorted(workers) == ["gw0"] * 6 + ["gw1"] * 6


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_every_process_has_a_server_of_its_own_that_ends_with_it(tmp_path: Path) -> None:
    run_tests(OWN_SERVER, OWN, tmp_path)
    files = (tmp_path / "files").read_text().split()
    assert len(files) == 4
    assert len(set(files)) == 2
    assert not any(Path(file).parent.exists() for file in files)
