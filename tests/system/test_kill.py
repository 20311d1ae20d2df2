"""SIGKILL at random moments of a process that does everything at once: what was answered is there, nothing is twice."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import pytest

from jobs_service import Job, JobsService, JobState
from tests.checker import assert_sound
from tests.system.forking import ForkServer
from tests.system.workloads import KIND, effects, finish_with_effect

PARTS = 2
KILLS = int(os.environ.get("KILLS", "20"))
LONGEST_LIFE = 80
"""Lines of its journal, two for each operation, after which a process is killed at the latest."""


@dataclass(frozen=True)
class Known:
    """What is known of a job.

    Attributes:
        stage: "missing", "open" (pending or running, which a lost worker changes by itself) or "finished".
        data: the job's.
        runs: how often its work took effect.
        flagged: whether it runs again after this run.
    """

    stage: str = "missing"
    data: Any = None
    runs: int = 0
    flagged: bool = False

    def after(self, operation: str, data: Any) -> Known:
        """Return what the job is after an operation; itself when the operation does not fit."""
        match self.stage, operation:
            case "missing", "add" | "add_many":
                return replace(self, stage="open", data=data)
            case "open", "update":
                return replace(self, data=data)
            case "open", "flag":
                return replace(self, flagged=True)
            case "open", "finish":
                stage = "open" if self.flagged else "finished"
                return Known(stage, data, self.runs + 1)
            case "finished", "resubmit":
                return replace(self, stage="open", data=data)
            case "finished", "remove":
                return Known(runs=self.runs)
        return self


@dataclass
class Ledger:
    """What was answered by all the processes so far, and what was under way when each was killed."""

    jobs: dict[str, Known] = field(default_factory=dict)
    under_way: dict[str, tuple[str, list[str], Any]] = field(default_factory=dict)
    answered: Counter[str] = field(default_factory=Counter)

    def read(self, journal: str) -> None:
        """Read the journal of a process that was killed."""
        for line in journal.splitlines():
            match json.loads(line):
                case ["begin", number, operation, ids, data]:
                    self.under_way[number] = (operation, [ids] if isinstance(ids, str) else ids, data)
                case ["done", number, operation, _, _]:
                    self.answered[operation] += 1
                    _, ids, data = self.under_way.pop(number)
                    for id in ids:
                        self.jobs[id] = self.known(id).after(operation, data)
                case ["refused", number, _, _, _]:
                    del self.under_way[number]
                    self.answered["refused"] += 1
                case ["accepted", id]:
                    self.answered["accept"] += 1
                    assert self.known(id).stage == "open", f"{id} was accepted, but it is {self.known(id)}"
                    # One that is flagged is accepted only when it was lost: that is the run it was to have.
                    self.jobs[id] = replace(self.known(id), flagged=False)

    def known(self, id: str) -> Known:
        return self.jobs.get(id, Known())

    def settle(self, found: dict[str, Known]) -> None:
        """Compare with what is in the store. What was under way has happened or not; then it is known which."""
        begun = list(self.under_way.values())
        self.under_way.clear()
        for operation, ids, _ in begun:
            if operation == "add_many":
                there = sum(found.get(id, Known()).stage != "missing" for id in ids)
                assert there in (0, len(ids)), f"{there} of {ids} were added: all or none"
        for id in self.jobs.keys() | found.keys() | {id for _, ids, _ in begun for id in ids}:
            mine = [(operation, data) for operation, ids, data in begun if id in ids]
            possible = []
            for happened in chain.from_iterable(combinations(mine, size) for size in range(len(mine) + 1)):
                state = self.known(id)
                for operation, data in happened:
                    state = state.after(operation, data)
                possible.append(state)
            present = found.get(id, Known())
            lost = replace(present, flagged=present.stage == "open")
            assert present in possible or lost in possible, f"{id} is {present}, not one of {possible}"
            self.jobs[id] = present


async def look(jobs: JobsService) -> dict[str, Known]:
    """Return what is in the store."""
    runs = await effects(jobs)
    found = {id: Known(runs=count) for id, count in runs.items()}
    async for job in jobs.list(KIND):
        found[str(job.id)] = _known(job, runs.get(str(job.id), 0))
    return found


def _known(job: Job, runs: int) -> Known:
    stage = "finished" if job.state is JobState.FINISHED else "open"
    return Known(stage, job.data, runs, job.resubmit)


async def settle(address: str, ledger: Ledger) -> None:
    """Open the store again and check everything in it."""
    async with JobsService(address, supervise=False) as jobs:
        ledger.settle(await look(jobs))
        await assert_sound(jobs.store)


async def work_off(address: str, ledger: Ledger) -> None:
    """Run every job that is left to its end: none is stuck, and each takes effect as often as it was to run."""
    expected = {}
    for id, known in ledger.jobs.items():
        expected[id] = known.runs + (known.stage == "open")  # those that run are lost, and flagged or not run once more
    async with JobsService(address) as jobs, asyncio.timeout(60):
        unfinished = sum(known.stage == "open" for known in ledger.jobs.values())
        while unfinished:
            job = await jobs.accept(KIND)
            assert job is not None
            await finish_with_effect(jobs, job, "end")
            unfinished -= (await jobs.get(KIND, job.id)).state is JobState.FINISHED
        found = await look(jobs)
        assert {id: known.runs for id, known in found.items() if known.runs} == {
            id: runs for id, runs in expected.items() if runs
        }
        assert await jobs.active_ids(KIND) == []
        assert await jobs.pending_count(KIND) == 0
        await assert_sound(jobs.store)


@pytest.mark.parametrize("part", range(PARTS))
def test_after_any_kill_all_that_was_answered_is_there(part: int, forks: ForkServer, tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    choose = random.Random(seed)
    address = f"lmdb:{tmp_path / 'store'}"
    ledger = Ledger()
    for kill in range(KILLS):
        journal = tmp_path / f"journal {kill}"
        lines, moment = choose.randrange(LONGEST_LIFE), choose.uniform(0, 0.01)
        pid = forks.start("live_until_killed", address=address, journal=str(journal), seed=f"{kill}")
        while lines and (not journal.exists() or journal.read_bytes().count(b"\n") < lines):
            time.sleep(0.001)
        time.sleep(moment)
        forks.kill(pid)
        if journal.exists():
            ledger.read(journal.read_text())
        asyncio.run(settle(address, ledger))
    asyncio.run(work_off(address, ledger))
    print(ledger.answered)
    # Otherwise nothing was proved: each of these was under way when a process was killed.
    for operation in ("add", "add_many", "accept", "update", "flag", "finish", "resubmit", "remove"):
        assert ledger.answered[operation] >= 5
