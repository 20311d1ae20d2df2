"""Which ordinary test finds the defects that no seed shows: each of those tests fails when its defect is planted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests import fdb_place
from tests.cli.support import ROOT, environment
from tests.shares import ALL
from tests.simulation.mutants import EVERY
from tests.simulation.score import known_seeds
from tests.stores import FDB_VARIABLE
from tests.system.fdb_server import missing

FILE = Path(__file__).parent / "mutants" / "ordinary.json"
_FOUND: dict[str, dict[str, str]] = json.loads(FILE.read_text())
FOUND, ON_A_CLUSTER = _FOUND["anywhere"], _FOUND["on a cluster"]
"""By the mutant: the test; and those that need a FoundationDB cluster."""
EVERY_SO_MANIETH = 25
PART = 20
NAMES = sorted(FOUND)
PARTS = [NAMES[place : place + PART] for place in range(0, len(NAMES), PART)] if ALL else [NAMES[::EVERY_SO_MANIETH]]

WITHOUT = ("randomly", "cacheprovider", "unraisableexception", "threadexception")

UNFOUND: set[str] = set()
"""What neither a known seed nor an ordinary test shows, with the reason."""


def test_every_mutant_is_shown_by_a_seed_or_found_by_an_ordinary_test() -> None:
    seeds = known_seeds()
    shown = seeds["usual"].keys() | seeds["focused"].keys()
    names = {mutant.name for mutant in EVERY}
    assert FOUND.keys() | ON_A_CLUSTER.keys() <= names
    assert names - shown - FOUND.keys() - ON_A_CLUSTER.keys() == UNFOUND


def test_every_ordinary_test_that_is_named_is_there() -> None:
    """Where a file takes the tests of another by a star, the other has them."""
    for test in {*FOUND.values(), *ON_A_CLUSTER.values()}:
        file, _, name = test.partition("::")
        source = (ROOT / file).read_text()
        name = name.partition("[")[0].rpartition("::")[2]
        assert f"def {name}(" in source or " import *" in source, test


@pytest.mark.timeout(600)
@pytest.mark.parametrize("names", PARTS, ids=len)
def test_an_ordinary_test_fails_where_its_mutant_is_planted(tmp_path: Path, names: Sequence[str]) -> None:
    result = planted({name: FOUND[name] for name in names}, tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.timeout(600)
@pytest.mark.skipif(not os.environ.get(FDB_VARIABLE), reason=f"{FDB_VARIABLE} names no cluster file")
@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_an_ordinary_test_fails_on_a_cluster_where_its_mutant_is_planted(tmp_path: Path) -> None:
    result = planted(ON_A_CLUSTER, tmp_path, {FDB_VARIABLE: fdb_place.OWN})
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    "test",
    [
        "tests/test_uncancelable.py::test_work_ends_before_the_cancellation_is_raised",
        "tests/store/sqlite/test_file.py::test_what_is_no_store_is_refused_and_left_as_it_is",  # it has fixtures
    ],
)
def test_a_test_that_passes_all_the_same_is_told(test: str, tmp_path: Path) -> None:
    name = EVERY[0].name
    result = planted({name: test}, tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    assert f"{test} passes with the mutant {name!r}" in result.stdout


def planted(
    found: dict[str, str], directory: Path, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run tests in another process, each with the mutant that it is to find."""
    file = directory / "mutants.json"
    file.write_text(json.dumps(found))
    # What a test under a mutant leaves behind is no other's concern.
    without = [part for name in WITHOUT for part in ("-p", f"no:{name}")]
    arguments = (*without, "--mutants", str(file), "-q", "--timeout", "20", "--tb=native")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.simulation.planted", *arguments, *sorted(set(found.values()))],
        cwd=ROOT,
        env=environment(variables),
        capture_output=True,
        text=True,
    )
