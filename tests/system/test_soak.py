"""The soak's short form, and that its account finds what must not be."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from jobs_service import JobState
from tests.system.soak import Account, Soak


async def test_processes_that_work_on_one_store_and_are_killed_one_by_one_lose_nothing(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    soak = Soak(tmp_path, seed, every=0.2)
    await soak.run(2.0)
    report = soak.report()
    print(report)
    # Otherwise nothing was proved.
    assert report["processes killed"] >= 4
    for what in ("jobs added", "accepted", "finished", "removed", "resubmitted", "followed to the end"):
        assert report[what] >= 3


ADDED = [["begin", 0, "add", ["a"]], ["done", 0]]
RUN = [["accepted", "a"], ["begin", 1, "finish", ["a"]], ["done", 1]]
FINISHED = {"a": JobState.FINISHED}


@pytest.mark.parametrize(
    ("journal", "ended", "effects", "violation"),
    [
        (ADDED + RUN, {}, {"a": 1}, "a was added, and is gone"),
        ([*ADDED, ["removed", "a"]], FINISHED, {}, "a was removed, and is there"),
        ([], FINISHED, {"a": 1}, "a was never added"),
        (ADDED, {"a": JobState.RUNNING}, {}, "a is running at the end"),
        (ADDED, FINISHED, {}, "a has finished without an effect"),
        (ADDED + RUN, FINISHED, {"a": 2}, "a was finished 1 to 1 times, but took effect 2 times"),
        (ADDED + RUN + RUN, FINISHED, {"a": 2}, "a was to run 1 times at most, but took effect 2 times"),
        (ADDED + RUN[1:], FINISHED, {"a": 1}, "a was finished more often than accepted"),
        ([["begin", 0, "add_many", ["a", "b"]]], FINISHED, {}, "of ['a', 'b'] only some were added"),
    ],
)
def test_the_account_finds(
    journal: list[object], ended: dict[str, JobState], effects: dict[str, int], violation: str, tmp_path: Path
) -> None:
    account = Account()
    file = tmp_path / "journal"
    file.write_text("".join(json.dumps(entry) + "\n" for entry in journal))
    account.read(file)
    assert violation in [*account.violations(ended, effects)]


def test_the_account_has_no_complaint_about_what_may_have_happened(tmp_path: Path) -> None:
    account = Account()
    file = tmp_path / "journal"
    file.write_text("".join(json.dumps(entry) + "\n" for entry in [*ADDED, *RUN[:2]]))
    account.read(file)
    for effects in ({}, {"a": 1}):
        assert [*account.violations({}, effects)] == ["a was added, and is gone"]
    assert [*account.violations(FINISHED, {"a": 1})] == []
