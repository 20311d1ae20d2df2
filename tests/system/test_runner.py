"""Runners that are killed: the soak's short form, and that its account finds what must not be."""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fdb.tuple
import pytest

from jobs_service import HistoryKind, Job, Outcome, run_data
from jobs_service.layer.record import Record
from tests.system.runner_soak import RunnerSoak
from tests.system.workloads import KIND


async def test_jobs_of_runners_that_are_killed_one_by_one_all_end_and_take_effect_once(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    soak = RunnerSoak(tmp_path, seed, jobs=700, every=0.3, longest=0.2, timeout=2.0)
    await soak.run()
    print(soak.report())
    assert [*soak.late()] == []
    # Otherwise nothing was proved.
    assert soak.figures["kills"] >= 3
    assert soak.figures["crashes"] >= 5
    assert soak.losses.of_the_dead >= 10


Events = Sequence[tuple[HistoryKind, float]]
ADDED, STARTED, LOST = HistoryKind.ADDED, HistoryKind.STARTED, HistoryKind.LOST
RUN: Events = [(ADDED, 0), (STARTED, 1), (HistoryKind.FINISHED, 2)]
PID = 4711
DIED = 10.0


def job(events: Events, *, outcome: Outcome | None = Outcome.SUCCEEDED, result: str = "a by 1") -> Job:
    """Return a job that has ended, whose runs the process with that id has started."""
    packed = b""
    for kind, at in events:
        packed = run_data.with_event(packed, kind, at, f"{socket.gethostname()[:100]}:{PID}" if kind is STARTED else "")
    packed = run_data.with_part(packed, run_data.RESULT, f'"{result}"'.encode())
    return Job(KIND, "a", Record(None, 0, bytes(12), fdb.tuple.pack((0,)), None, outcome, False, None, b"", packed))


def soak_of(directory: Path, jobs: int = 1) -> RunnerSoak:
    """Return a soak of so many jobs, in which a process died."""
    soak = RunnerSoak(directory, 0, jobs=jobs, every=1, longest=1, timeout=2.0)
    soak.deaths.note(PID, at=DIED)
    return soak


@pytest.mark.parametrize(
    ("jobs", "effects", "complaint"),
    [
        ([], {}, "there are 0 jobs, not 1"),
        ([job(RUN)], {"a": 2}, "a took effect 2 times"),
        ([job(RUN)], {}, "a took effect 0 times"),
        ([job(RUN, outcome=Outcome.FAILED)], {"a": 1}, "a is finished, failed"),
        ([job(RUN, result="b by 1")], {"a": 1}, "a has the result 'b by 1'"),
    ],
)
def test_the_account_finds(jobs: list[Job], effects: dict[str, int], complaint: str, tmp_path: Path) -> None:
    [said] = soak_of(tmp_path).complaints(jobs, effects)
    assert said.startswith(complaint)


def test_the_account_has_no_complaint_about_a_job_that_was_run_once(tmp_path: Path) -> None:
    assert [*soak_of(tmp_path).complaints([job(RUN)], {"a": 1})] == []


@pytest.mark.parametrize(
    ("lost", "again", "late"),
    [
        (13.9, 13.95, []),
        (14.1, 14.2, ["a job was taken for lost 4.10 s", "a job was started again 4.20 s"]),
        (13.0, 14.1, ["a job was started again 4.10 s"]),
    ],
)
def test_a_job_that_waits_too_long_after_its_worker_has_died_is_late(
    lost: float, again: float, late: list[str], tmp_path: Path
) -> None:
    soak = soak_of(tmp_path)
    events: Any = [(ADDED, 0), (STARTED, 9), (LOST, lost), (STARTED, again), (HistoryKind.FINISHED, again + 1)]
    assert [*soak.complaints([job(events)], {"a": 1})] == []
    assert [said[: len(begin)] for said, begin in zip(soak.late(), late, strict=True)] == late
    assert (soak.losses.of_the_dead, soak.losses.of_the_living) == (1, 0)


def test_a_job_lost_before_its_process_died_was_lost_by_a_slow_one(tmp_path: Path) -> None:
    soak = soak_of(tmp_path)
    events = [(ADDED, 0), (STARTED, 1), (LOST, 8.0), (STARTED, 8.0), (HistoryKind.FINISHED, 9)]
    assert [*soak.complaints([job(events)], {"a": 1})] == []
    assert (soak.losses.of_the_dead, soak.losses.of_the_living) == (0, 1)
    assert [*soak.late()] == []
