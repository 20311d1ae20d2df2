"""The seeds that every run of the tests tries, and that equal seeds are equal runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobs_service.runner import execution
from jobs_service.runner.run import describe
from jobs_service.testing.loop import Choices, Plan
from tests.shares import ALL, share
from tests.simulation.rarities import drawn_constants
from tests.simulation.run import simulate

ROOT = Path(__file__).parents[2]
PART = 60
PARTS = range(0, 1200, PART)
SAME = "12" if ALL else "6"
HANG = 600  # seconds; only ends a run that would never end

pytestmark = pytest.mark.timeout(HANG)


MODULE = (sys.executable, "-m", "tests.simulation")


def simulated(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, whose coverage is not measured: that would take three times as long."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    done = subprocess.run(
        [*MODULE, *arguments, "--no-shrink"],
        cwd=ROOT,
        env={**inherited, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert done.returncode in (0, 1), done.stderr
    return done


@pytest.mark.parametrize("first", share(PARTS, 10))
def test_no_seed_of_a_part_violates_anything(first: int) -> None:
    violations = {seed: simulate(Plan(seed)).violations for seed in range(first, first + PART)}
    assert {seed: found for seed, found in violations.items() if found} == {}


def test_a_record_has_the_same_size_wherever_the_repository_is() -> None:
    with pytest.raises(ValueError, match="wrong") as raised:
        raise ValueError("wrong")
    with drawn_constants(Choices(Plan(1))):
        told = describe(raised.value)
    assert f'File "{Path(__file__).name}", line' in told.traceback
    assert str(ROOT) not in told.traceback
    assert f'File "{__file__}", line' in describe(raised.value).traceback


def test_many_seeds_are_the_same_runs_in_other_processes_with_other_hashes_and_in_another_order() -> None:
    digests = [
        line
        for jobs, hashes in (("2", "3"), ("1", "4"))
        for line in simulated(
            "--seeds", SAME, "--first", "1000", "--jobs", jobs, PYTHONHASHSEED=hashes
        ).stdout.splitlines()
        if line.startswith("digest of all runs ")
    ]
    assert len(digests) == 2
    assert digests[0] == digests[1]


def test_naming_all_that_a_run_used_is_the_same_run() -> None:
    """Shrinking depends on it."""
    for seed in range(3):
        report = simulate(Plan(seed))
        named = Plan(seed, frozenset(report.operations), frozenset(report.faults), frozenset(report.deviations))
        again = simulate(named)
        assert (again.digest, again.events) == (report.digest, report.events)


def test_seeds_run_in_parallel_and_the_end_says_what_they_add_up_to() -> None:
    done = simulated("--seeds", "3", "--jobs", "2")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    lines = done.stdout.splitlines()
    assert "seeds 0 to 2" in lines
    assert [line for line in lines if line.startswith("3 seeds in ") and line.endswith(" seeds/s of one core")]
    assert [line for line in lines if " simulated hours, " in line]
    assert [line for line in lines if line.split()[:3] == ["accept", "–", "–"]]
    assert lines[-1] == "no violation"


def test_a_run_sees_ends_that_were_made_before_it() -> None:
    execution._succeeded_with_nothing(20)  # as a run outside of the simulation has it kept
    try:
        assert simulate(Plan(0), workloads=["handlers"]).violations == []
    finally:
        execution._succeeded_with_nothing.cache_clear()
