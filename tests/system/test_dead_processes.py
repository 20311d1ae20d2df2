"""A killed process is noticed at once on the embedded store, and one that lives never is: real processes, real kills.

The types' timeout is an hour: what is pending again while a test waits was not found by its passing.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from jobs_service import JobsService, JobState, NewJob, Settings
from jobs_service.layer.keyspace import pack_id
from jobs_service.run_data import HistoryKind
from jobs_service.store import Transaction
from jobs_service.store.files import SHARED
from tests.checker import assert_sound
from tests.cli.support import write_lock_held
from tests.service.support import eventually
from tests.service.unreadable import with_broken_notes
from tests.system.forking import ForkServer
from tests.system.holders import SLOW, TYPE

PATIENCE = 60.0


@pytest.fixture(scope="module")
def forks() -> Iterator[ForkServer]:
    """Processes that begin within milliseconds."""
    with ForkServer("tests.system.holders") as server:
        yield server


class Place:
    """A store, processes that hold its jobs, and a service that looks on.

    Args:
        forks: starts the processes.
        directory: for the store and the journals.
    """

    def __init__(self, forks: ForkServer, directory: Path) -> None:
        self.store = directory / "store"
        self.address = f"lmdb:{self.store}"
        self.forks = forks
        self._directory = directory
        self._started: list[int] = []
        self.children: list[int] = []

    async def start(self, what: str, **arguments: Any) -> int:
        """Start a process and return its id when it holds what it is to hold."""
        journal = self._directory / f"journal {len(self._started)}"
        arguments = {"address": self.address, "journal": str(journal), **arguments}
        pid = await asyncio.to_thread(self.forks.start, what, **arguments)
        self._started.append(pid)
        await seen(lambda: journal.exists() and journal.read_text().endswith(('"held"]\n', '"looks"]\n')))
        entries = [json.loads(line) for line in journal.read_text().splitlines()]
        self.children += [entry[1] for entry in entries if entry[0] == "child"]
        return pid

    async def kill(self, pid: int) -> None:
        """Kill a process; it is gone then."""
        self._started.remove(pid)
        await asyncio.to_thread(self.forks.kill, pid)

    @property
    def locks(self) -> list[str]:
        """The names of the lock files, that of all processes left out."""
        return sorted({*os.listdir(self.store / "processes")} - {SHARED})

    def end(self) -> None:
        """Kill what is left."""
        for pid in self.children:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in self._started:
            self.forks.kill(pid)


@pytest.fixture
def place(forks: ForkServer, tmp_path: Path) -> Iterator[Place]:
    """A store in a new directory."""
    made = Place(forks, tmp_path)
    try:
        yield made
    finally:
        made.end()


@asynccontextmanager
async def opened(place: Place, *, count: int = 1, **settings: Any) -> AsyncIterator[JobsService]:
    """Open a supervised service on the store, with so many jobs in it."""
    async with JobsService(place.address, settings=Settings(**settings)) as jobs:
        await jobs.set_type_timeout(TYPE, SLOW)
        await jobs.add_many(TYPE, [NewJob(f"{number:04}") for number in range(count)])
        yield jobs


async def until_pending(jobs: JobsService, id: str) -> None:
    """Return when a job that was running is pending."""
    await jobs.wait(TYPE, id, "pending", timeout=PATIENCE)


async def seen(condition: Callable[[], bool]) -> None:
    """Return when it holds, of what another process does in no time."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)


async def pending_at_least(jobs: JobsService, count: int) -> bool:
    """Whether so many jobs are pending."""
    return await jobs.pending_count(TYPE) >= count


async def killed_and_found(place: Place, jobs: JobsService, id: str) -> None:
    """Have another process take a job and be killed, and return when that was noticed."""
    await jobs.add(TYPE, id, priority=-1)
    await place.kill(await place.start("hold"))
    await until_pending(jobs, id)
    await jobs.remove(TYPE, id)


@pytest.mark.parametrize("supervise", [False, True])
async def test_jobs_of_a_killed_process_are_pending_long_before_their_timeout(place: Place, supervise: bool) -> None:
    async with opened(place, count=4) as jobs:
        pid = await place.start("hold", count=3, supervise=supervise)
        assert len(await jobs.active_ids(TYPE)) == 3
        with capture_logs() as logged:
            await place.kill(pid)
            for number in range(3):
                await until_pending(jobs, f"{number:04}")
        assert [entry for entry in logged if entry["event"] == "jobs_lost"] == [
            {
                "event": "jobs_lost",
                "log_level": "warning",
                "type": TYPE,
                "count": 3,
                "ids": ["0000", "0001", "0002"],
                "reason": "their process died",
            }
        ]
        job = await jobs.get(TYPE, "0000")
        assert job.attempts == 1
        assert job.history[0].kind is HistoryKind.LOST
        # They queue behind what was ready before, as lost jobs do.
        assert [job.id for job in await jobs.accept_many(TYPE, 10, timeout=0)] == ["0003", "0000", "0001", "0002"]
        await assert_sound(jobs.store)


async def test_a_process_that_lives_keeps_its_jobs_however_stopped_it_is(place: Place) -> None:
    async with opened(place) as jobs:
        pid = await place.start("hold")
        with write_lock_held(place.address):  # it must not be stopped with the store's lock
            os.kill(pid, signal.SIGSTOP)
        for number in range(5):  # each is found by a look that has met the stopped process's lock as well
            await killed_and_found(place, jobs, f"killed {number}")
        assert (await jobs.get(TYPE, "0000")).state is JobState.RUNNING
        assert len(place.locks) == 2
        await place.kill(pid)
        await until_pending(jobs, "0000")


@pytest.mark.parametrize("how", ["hold_and_fork", "hold_and_execute"])
async def test_children_that_outlive_a_killed_process_do_not_hide_its_death(place: Place, how: str) -> None:
    async with opened(place) as jobs:
        pid = await place.start(how)
        await place.kill(pid)
        await until_pending(jobs, "0000")
        [child] = place.children
        os.kill(child, 0)  # it lives


async def test_a_process_that_closed_its_service_lives_and_its_jobs_wait_for_their_timeout(place: Place) -> None:
    async with opened(place) as jobs:
        pid = await place.start("close_without_giving_back")
        assert len(place.locks) == 1
        await place.kill(pid)
        await killed_and_found(place, jobs, "killed")
        assert (await jobs.get(TYPE, "0000")).state is JobState.RUNNING
        await jobs.set_type_timeout(TYPE, 0.1)
        await until_pending(jobs, "0000")


async def test_what_died_while_nobody_looked_is_found_by_the_first_who_does(place: Place) -> None:
    async with JobsService(place.address, supervise=False) as jobs:
        await jobs.set_type_timeout(TYPE, SLOW)
        await jobs.add_many(TYPE, [NewJob("0"), NewJob("1")])
        for _ in range(2):
            await place.kill(await place.start("hold", supervise=True))
    assert len(place.locks) >= 1
    async with JobsService(place.address) as jobs:
        await until_pending(jobs, "0")
        await until_pending(jobs, "1")


async def test_thousands_of_files_that_were_left_behind_are_cleared_away(place: Place) -> None:
    (place.store / "processes").mkdir(parents=True)
    for number in range(3000):
        (place.store / "processes" / f"{number:016x}").touch()
    (place.store / "processes" / "README").touch()
    (place.store / "processes" / f"{1 << 40:016x}").mkdir()
    async with opened(place) as jobs:
        await killed_and_found(place, jobs, "killed")
        await seen(lambda: len(place.locks) == 3)  # its own one, and what is none
        assert "README" in place.locks


async def test_when_the_finder_dies_in_the_middle_the_next_one_goes_on(place: Place) -> None:
    count = 2000
    async with JobsService(place.address, supervise=False) as jobs:
        await jobs.set_type_timeout(TYPE, SLOW)
        await jobs.add_many(TYPE, [NewJob(f"{number:04}") for number in range(count)])
        for _ in range(3):
            pid = await place.start("hold", count=count)
            finder = await place.start("look_for_the_dead")
            await place.kill(pid)
            await eventually(lambda: pending_at_least(jobs, 1))
            await place.kill(finder)
            async with JobsService(jobs.store):
                await eventually(lambda: pending_at_least(jobs, count))
                await seen(lambda: len(place.locks) == 1)
        await assert_sound(jobs.store)


async def test_a_job_that_cannot_be_read_does_not_keep_the_others_of_a_killed_process(place: Place) -> None:
    async with opened(place, count=2) as jobs:
        pid = await place.start("hold", count=2)
        key = jobs._context.keyspace.of(TYPE).data + pack_id("0000")

        async def damage(tr: Transaction) -> None:
            raw = await tr.get(key)
            assert raw is not None
            tr.set(key, with_broken_notes(raw))

        await jobs.store.transact(damage)
        with capture_logs() as logged:
            await place.kill(pid)
            await until_pending(jobs, "0001")
            await seen(lambda: len(place.locks) == 1)  # the dead one's is gone
        assert not [entry for entry in logged if entry["event"] == "child_crashed"]
        assert await jobs.active_ids(TYPE) == []
        await jobs.remove(TYPE, "0000", force=True)
