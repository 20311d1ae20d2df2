"""Processes that do everything to one store at once, one of which is killed again and again.

`python -m tests.system.soak --minutes 5` prints what happened, and exits 1 with the reason at the first thing that must
not be. The suite has a short form of it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs_service import JobsService, JobState, Settings, WorkerConflict
from tests.checker import assert_sound
from tests.system.forking import ForkServer
from tests.system.roles import ACTIVITY_TIMEOUT, SETTINGS, follow, quiet
from tests.system.workloads import KIND, effects, empty, finish_with_effect

ROLES = ("creator", "creator", "worker", "worker", "canceler", "subscriber", "everything")
CHECK_PERIOD = 5.0
"""Seconds between two looks at all keys while everything goes on."""
FOLLOWED = 20
"""Jobs whose subscribers are not killed, at any time."""
KILLED = -9


@dataclass
class Account:
    """What was answered by all processes, and what was under way when they were killed.

    Attributes:
        answered: operation -> job -> how often it was.
        unknown: the same of what was begun and never answered.
        refused: name of the error -> how often.
        together: jobs that an unanswered operation was to add together.
    """

    answered: dict[str, Counter[str]] = field(default_factory=dict)
    unknown: dict[str, Counter[str]] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    together: list[list[str]] = field(default_factory=list)

    def read(self, journal: Path) -> None:
        """Read the journal of a process that is no more, and remove it."""
        if not journal.exists():
            return
        under_way: dict[int, tuple[str, list[str]]] = {}
        for line in journal.read_text().splitlines():
            match json.loads(line):
                case ["begin", number, operation, ids]:
                    under_way[number] = (operation, ids)
                case ["done", number]:
                    operation, ids = under_way.pop(number)
                    self.count(operation, *ids)
                case ["refused", number, error]:
                    del under_way[number]
                    self.refused[error] += 1
                case [what, id]:
                    self.count(what, id)
        for operation, ids in under_way.values():
            self.unknown.setdefault(operation, Counter()).update(ids)
            if operation == "add_many":
                self.together.append(ids)
        journal.unlink()

    def count(self, operation: str, *ids: str) -> None:
        """Note that an operation on these jobs was answered."""
        self.answered.setdefault(operation, Counter()).update(ids)

    def done(self, operation: str, id: str) -> int:
        """Return how often an operation on a job was answered."""
        return self.answered.get(operation, Counter())[id]

    def perhaps(self, operation: str, id: str) -> int:
        """Return how often an operation on a job was answered, or may have happened without an answer."""
        return self.done(operation, id) + self.unknown.get(operation, Counter())[id]

    def total(self, operation: str) -> int:
        """Return how often an operation was answered."""
        return self.answered.get(operation, Counter()).total()

    def lost_runs(self) -> int:
        """Return how many accepted jobs were neither finished nor given back, as far as was answered."""
        return sum(
            max(0, count - self.perhaps("finish", id) - self.perhaps("release", id))
            for id, count in self.answered.get("accepted", Counter()).items()
        )

    def violations(self, ended: dict[str, JobState], effects: dict[str, int]) -> Iterator[str]:
        """Say what cannot be, given the jobs that are there at the end and how often each one took effect."""
        everybody = {id for operations in (self.answered, self.unknown) for ids in operations.values() for id in ids}
        for id in sorted(everybody | ended.keys() | effects.keys()):
            happened = effects.get(id, 0)
            finishes, most_finishes = self.done("finish", id), self.perhaps("finish", id)
            runs = 1 + self.perhaps("resubmit", id)
            added = self.done("add", id) + self.done("add_many", id)
            if added and id not in ended and not self.perhaps("remove", id):
                yield f"{id} was added, and is gone"
            if id in ended and self.done("removed", id):
                yield f"{id} was removed, and is there"
            if not self.perhaps("add", id) + self.perhaps("add_many", id):
                yield f"{id} was never added"
            if id in ended and ended[id] is not JobState.FINISHED:
                yield f"{id} is {ended[id]} at the end"
            if id in ended and not happened and not self.perhaps("remove", id):
                yield f"{id} has finished without an effect"
            if not finishes <= happened <= most_finishes:
                yield f"{id} was finished {finishes} to {most_finishes} times, but took effect {happened} times"
            if happened > runs:
                yield f"{id} was to run {runs} times at most, but took effect {happened} times"
            if finishes > self.done("accepted", id):
                yield f"{id} was finished more often than accepted"
        for ids in self.together:
            there = [id in ended or self.done("accepted", id) or self.perhaps("remove", id) for id in ids]
            if any(there) and not all(there):
                yield f"of {ids} only some were added"


class Soak:
    """One run.

    Args:
        directory: for the store and the journals.
        seed: of who is killed when.
        every: seconds between two kills.
        address: of another store than an embedded one in that directory; it is emptied.
    """

    def __init__(self, directory: Path, seed: int, every: float, address: str | None = None) -> None:
        self.account = Account()
        self.figures: Counter[str] = Counter()
        self._directory = directory
        self._address = address or f"lmdb:{directory / 'store'}"
        self._seed = seed
        self._choose = random.Random(seed)
        self._every = every
        self._alive: list[tuple[int, str, Path]] = []

    async def run(self, seconds: float) -> None:
        """Let them work and be killed for so long, then run all jobs to their end and check everything.

        Raises:
            AssertionError: something that must not be; processes that fail by themselves have said why.
        """
        with ForkServer("tests.system.roles") as forks:
            async with JobsService(self._address, settings=Settings(**SETTINGS)) as jobs:
                await empty(jobs)
                await jobs.set_type_timeout(KIND, ACTIVITY_TIMEOUT)
                following: set[asyncio.Task[None]] = set()
                async with asyncio.TaskGroup() as group:
                    for role in ROLES:
                        self._start(forks, role)
                    group.create_task(self._look(jobs, seconds))
                    end = time.monotonic() + seconds
                    while time.monotonic() < end:
                        await asyncio.sleep(self._every)
                        self._kill(forks, self._choose.randrange(len(self._alive)))
                        following -= {task for task in following if task.done()}
                        if len(following) < FOLLOWED:
                            await self._follow_new(jobs, group, following)
                    while self._alive:
                        self._kill(forks, 0, again=False)
                    await self._work_off(jobs)
                    # Otherwise a subscriber has missed the end.
                    async with asyncio.timeout(60):
                        await asyncio.gather(*following)
                await self._settle(jobs)
            # What is in the file is what the process saw that had it open.
            async with JobsService(self._address, supervise=False) as jobs:
                await self._settle(jobs)

    def _start(self, forks: ForkServer, role: str) -> None:
        number = self.figures["processes"]
        self.figures["processes"] += 1
        journal = self._directory / f"journal {number}"
        pid = forks.start(role, address=self._address, journal=str(journal), name=f"{self._seed}.{number}")
        self._alive.append((pid, role, journal))

    def _kill(self, forks: ForkServer, place: int, *, again: bool = True) -> None:
        pid, role, journal = self._alive.pop(place)
        code = forks.kill(pid)
        assert code == KILLED, f"a {role} ended by itself, with exit code {code}"
        self.figures["kills"] += 1
        self.account.read(journal)
        if again:
            self._start(forks, role)

    async def _look(self, jobs: JobsService, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await asyncio.sleep(min(CHECK_PERIOD, max(0.0, end - time.monotonic())))
            await assert_sound(jobs.store)
            self.figures["checks"] += 1

    async def _follow_new(
        self, jobs: JobsService, group: asyncio.TaskGroup, following: set[asyncio.Task[None]]
    ) -> None:
        async def one(id: str) -> None:
            self.figures["events"] += await follow(jobs, id)
            self.figures["followed"] += 1

        async for job in jobs.list(KIND, state=JobState.PENDING, page_size=20):
            following.add(group.create_task(one(str(job.id))))
            if len(following) >= FOLLOWED:
                break

    async def _work_off(self, jobs: JobsService) -> None:
        """Run every job that is left to its end."""
        async with asyncio.timeout(120):
            while await jobs.pending_count(KIND) or await jobs.active_ids(KIND):
                for job in await jobs.accept_many(KIND, 10, timeout=1.0):
                    self.account.count("accepted", str(job.id))
                    with suppress(WorkerConflict):  # on a busy machine it is taken for lost
                        await finish_with_effect(jobs, job, "end")
                        self.account.count("finish", str(job.id))
                        self.figures["worked off"] += 1

    async def _settle(self, jobs: JobsService) -> None:
        await assert_sound(jobs.store)
        self.figures["checks"] += 1
        ended = {str(job.id): job.state async for job in jobs.list(KIND)}
        happened = await effects(jobs)
        self.figures["jobs at the end"] = len(ended)
        self.figures["effects"] = sum(happened.values())
        violations = [*self.account.violations(ended, happened)]
        assert not violations, "\n".join(violations[:50])

    def report(self) -> dict[str, Any]:
        """Return what happened."""
        account = self.account
        return {
            "processes killed": self.figures["kills"],
            "jobs added": account.total("add") + account.total("add_many"),
            "accepted": account.total("accepted"),
            "finished": account.total("finish"),
            "given back": account.total("release"),
            "resubmitted": account.total("resubmit"),
            "lost and run again": account.lost_runs(),
            "removed": account.total("removed"),
            "refused": dict(account.refused),
            "under way when killed": {name: ids.total() for name, ids in account.unknown.items()},
            "followed to the end": account.total("followed") + self.figures["followed"],
            "worked off at the end": self.figures["worked off"],
            "effects": self.figures["effects"],
            "checks of the store": self.figures["checks"],
        }


def main() -> None:
    """Run a soak from the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long processes are killed")
    parser.add_argument("--every", type=float, default=0.2, help="seconds between two kills")
    parser.add_argument("--seed", type=int, default=None, help="of who is killed")
    parser.add_argument("--store", help="an address, such as fdb:FILE; an embedded store by default. It is emptied")
    arguments = parser.parse_args()
    quiet()
    seed = random.randrange(1 << 32) if arguments.seed is None else arguments.seed
    with tempfile.TemporaryDirectory() as directory:
        soak = Soak(Path(directory), seed, arguments.every, arguments.store)
        try:
            asyncio.run(soak.run(60 * arguments.minutes))
        except (AssertionError, ExceptionGroup, TimeoutError) as error:
            print(f"seed {seed}: violation: {error}", flush=True)
            if isinstance(error, ExceptionGroup):
                print(*[f"{one!r}" for one in error.exceptions], sep="\n")
            sys.exit(1)
        finally:
            print(*[f"{name}: {figure}" for name, figure in soak.report().items()], sep="\n")
    print(f"seed {seed}: nothing was lost, nothing happened twice")


if __name__ == "__main__":
    main()
