"""The command `scripts/simulate`: its arguments, what it prints of failing seeds, and how it is stopped."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from jobs_service.testing.loop import Choices, Plan
from tests.simulation import __main__ as command
from tests.simulation.mutants import EVERY
from tests.simulation.report import Report
from tests.simulation.score import Score

ROOT = Path(__file__).parents[2]
HANG = 120  # seconds; only ends a run that would never end


def simulated(
    plan: Plan, *, profile: str | None = None, workloads: Sequence[str] | None = None, log_level: int = 30
) -> Report:
    """Run a small world: operation 6 fails with seeds 3 and 8 when it meets a conflict, or when it storms."""
    choices = Choices(plan, rates={"conflict": 0.5, "kill": 0.5})
    report = Report(plan, operations=choices.operations, faults=choices.faults, seconds=360.0, digest="d")
    for number in range(10):
        if not choices.operation():
            continue
        report.cells["add", "missing"] += 1
        report.events.append(f"operation {number}")
        conflict, kill = choices.fault("conflict"), choices.fault("kill")
        if number == 6 and plan.seed % 5 == 3 and (conflict is not None or profile == "stormy"):
            report.violations.append(f"lost job: kill is {kill}, workloads are {workloads}")
    return report


@pytest.fixture(autouse=True)
def small_world(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "simulate", simulated)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--only", "o=1"], "--only needs --seed"),
        (["--seed", "1", "--only", "x=1"], "--only: 'x=1'"),
        (["--seed", "1", "--seeds", "2"], "--seed and --seeds"),
        (["--seed", "1", "--first", "0"], "--seed and --first"),
        (["--first", "1", "--random"], "--random and --first"),
        (["--calm", "--stormy"], "not allowed with"),
        (["--seeds", "0"], "--seeds"),
        (["--minutes", "nan"], "--minutes"),
        (["--minutes", "0"], "--minutes"),
        (["--jobs", "two"], "--jobs"),
        (["--minutes", "x"], "'x' is no number of minutes above 0"),
        (["--first", "x"], "'x' is no whole number from 0 on"),
        (["--workload", "drill"], "there is no workload 'drill', did you mean 'drills'"),
        (
            ["--mutants", "nobody"],
            "there is no mutant 'nobody'; they are in tests/simulation/mutants/*.toml",
        ),
        (["7"], "7"),
    ],
)
def test_wrong_usage_is_told_in_a_line_and_is_exit_code_2(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert complaint in line


def test_a_replay_prints_every_event_and_whether_anything_was_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--seed", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:10] == [f"operation {number}" for number in range(10)]
    assert lines[10].startswith("digest d, 360.000 simulated seconds, 10 operations, ")
    assert lines[11:] == ["no violation"]


def test_a_part_of_a_seed_is_replayed_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--seed", "1", "--only", "o=2-3,5 f="]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["operation 2", "operation 3", "operation 5"]
    assert "3 operations, 0 faults" in lines[3]


def replays(output: str) -> list[list[str]]:
    """Return the arguments of the commands that replay something."""
    lines = [line.strip() for line in output.splitlines()]
    return [shlex.split(line)[2:] for line in lines if line.startswith("replay: ")]


def test_a_failing_seed_is_printed_shrunk_and_its_command_replays_it(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--stormy", "--workload", "workers", "--workload", "creators"]
    assert command.main(["--seeds", "10", "--jobs", "1", *arguments]) == 1
    output = capsys.readouterr().out
    lines = output.splitlines()
    assert "seeds 0 to 9" in lines
    assert "2 failing seeds" in lines
    assert "1.0 simulated hours" in output
    listed, first, shrunk = replays(output)
    assert listed == ["--seed", "8", *arguments], "of two failing seeds of the same kind one is shown in full"
    assert first == ["--seed", "3", *arguments]
    assert shrunk == ["--seed", "3", *arguments, "--only", "o=6 f= d="]
    violation = "violation: lost job: kill is None, workloads are ['workers', 'creators']"
    assert lines[-4:-1] == [violation, "the last events:", "  operation 6"]
    assert command.main(shrunk) == 1
    assert capsys.readouterr().out.splitlines()[-1] == violation


def test_seeds_count_on_until_the_time_is_up(capsys: pytest.CaptureFixture[str]) -> None:
    command.main(["--minutes", "0.02", "--first", "40", "--jobs", "1", "--no-shrink"])
    said = re.search(r"seeds 40 to (\d+)\n", capsys.readouterr().out)
    assert said is not None
    assert int(said[1]) >= 40


INTERRUPTED = """
import sys
from tests.simulation import __main__ as command
from tests.simulation.test_command import announced
command.simulate = announced
sys.exit(command.main(sys.argv[1:]))
"""


def announced(
    plan: Plan, *, profile: str | None = None, workloads: Sequence[str] | None = None, log_level: int = 30
) -> Report:
    """Run, and say so."""
    os.write(sys.stderr.fileno(), b"ran\n")  # at once: the processes share it
    return simulated(plan)


def test_at_ctrl_c_what_there_is_is_printed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, "--seeds", "1000000", "--jobs", "2"],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline() == "ran\n"
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of its processes
            output, errors = process.communicate(timeout=HANG)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert re.search(r"^seeds 0 to \d+ \(interrupted\)$", output, re.MULTILINE)
    assert process.returncode == (1 if "failing seeds" in output else 0)
    assert set(errors.splitlines()) <= {"ran", "simulate: waiting for the runs under way; Ctrl-C again ends at once"}


@pytest.mark.parametrize(
    ("error", "code", "complaint"),
    [(KeyboardInterrupt(), 130, ""), (LookupError("it does not fit"), 2, "scripts/simulate: it does not fit\n")],
)
def test_a_score_that_ends_early_tells_what_it_has_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, complaint: str
) -> None:
    def score(names: Sequence[str], *, seen: Callable[[Score], object], **options: int) -> None:
        seen(Score(names[0], 7, "lost job"))
        raise error

    monkeypatch.setattr(command, "score", score)
    monkeypatch.setattr(command, "keep", lambda scores, **seeds: None)
    name = EVERY[0].name
    assert command.main(["--mutants", name, EVERY[1].name]) == code
    said = capsys.readouterr()
    assert said.out.startswith(f"{name}: seed 7: lost job\n\n300 seeds show 1 of 1 mutants")
    assert said.err == complaint
