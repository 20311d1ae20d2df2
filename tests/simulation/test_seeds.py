"""The seeds that every run of the tests tries, and that equal seeds are equal runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobs_service.testing.choices import Plan
from tests.simulation.printing import failure_lines
from tests.simulation.run import simulate

ROOT = Path(__file__).parents[2]
SEEDS = 300
PART = 25
HANG = 600  # seconds; only ends a run that would never end

pytestmark = pytest.mark.timeout(HANG)


def command(*arguments: str, **environment: str) -> list[str]:
    """Return what `scripts/simulate` prints for these arguments."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", *arguments, "--no-shrink"],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("first", range(0, SEEDS, PART))
def test_no_seed_of_a_part_violates_anything(first: int) -> None:
    for seed in range(first, first + PART):
        report = simulate(Plan(seed))
        assert not report.violations, "\n".join(failure_lines(report))


@pytest.mark.parametrize("profile", ["calm", "stormy"])
def test_a_seed_is_the_same_run_event_for_event_in_another_process_with_other_hashes(profile: str) -> None:
    one, other = (command("--seed", "7", f"--{profile}", PYTHONHASHSEED=hashes) for hashes in ("1", "2"))
    assert one == other
    assert len(one) > 20
    assert [line for line in one if line.startswith("digest ")]


def test_many_seeds_are_the_same_runs_in_other_processes_with_other_hashes_and_in_another_order() -> None:
    digests = [
        line
        for jobs, hashes in (("2", "3"), ("1", "4"))
        for line in command("--seeds", "12", "--first", "1000", "--jobs", jobs, PYTHONHASHSEED=hashes)
        if line.startswith("digest of all runs ")
    ]
    assert len(digests) == 2
    assert digests[0] == digests[1]


def test_another_seed_is_another_run() -> None:
    assert simulate(Plan(1)).digest != simulate(Plan(2)).digest


def test_naming_all_that_a_run_used_is_the_same_run() -> None:
    """Shrinking depends on it."""
    for seed in range(5):
        report = simulate(Plan(seed))
        named = Plan(seed, frozenset(report.operations), frozenset(report.faults), frozenset(report.deviations))
        again = simulate(named)
        assert (again.digest, again.events) == (report.digest, report.events)


@pytest.mark.skipif(Path(sys.prefix).resolve() != ROOT / ".venv", reason="the script would set up an environment")
def test_the_script_runs_seeds_in_parallel_and_says_what_they_add_up_to() -> None:
    done = subprocess.run(
        [ROOT / "scripts/simulate", "--seeds", "3", "--jobs", "2", "--no-shrink"],
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    lines = done.stdout.splitlines()
    assert "seeds 0 to 2" in lines
    assert [line for line in lines if line.startswith("3 seeds in ") and line.endswith(" seeds/s of one core")]
    assert [line for line in lines if " simulated hours, " in line]
    assert [line for line in lines if line.split()[:3] == ["accept", "–", "–"]]
    assert lines[-1] == "no violation"
