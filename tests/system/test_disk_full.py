"""No room in the middle of everything: a small map, a full disk, a limit, while several processes add and run jobs."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from jobs_service import JobsService, JobState, Settings, StoreFull
from jobs_service.store import files
from tests.checker import assert_sound
from tests.shares import share
from tests.system.forking import ForkServer
from tests.system.workloads import KIND, effects

PATIENCE = 60.0
"""Seconds after which what should have happened has not."""
PROCESSES = 2


@pytest.fixture(scope="module")
def forks() -> Iterator[ForkServer]:
    """Processes that begin within milliseconds."""
    with ForkServer("tests.system.without_room") as server:
        yield server


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 32 MiB."""
    directory = tmp_path / "disk"
    directory.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    mounting = ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(directory)]
    mounted = subprocess.run(mounting, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"no small file system can be mounted here: {mounted.stderr.strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", str(directory)], check=True)


class Work:
    """Processes that work on one store while there is no room, and what they were answered.

    Args:
        forks: starts them.
        address: the store's.
        directory: for journals and signs.
    """

    def __init__(self, forks: ForkServer, address: str, directory: Path) -> None:
        self.address = address
        self._forks = forks
        self._directory = directory
        self._signs = directory / "signs"
        self._signs.mkdir()
        self._pids: list[int] = []
        self._journals: list[Path] = []

    def start(self, **limits: int) -> None:
        """Start the processes."""
        for sign in self._signs.iterdir():
            sign.unlink()
        for _ in range(PROCESSES):
            name = f"{len(self._journals)}"
            journal = self._directory / f"journal {name}"
            self._journals.append(journal)
            arguments = {"address": self.address, "journal": str(journal), "name": name, "signs": str(self._signs)}
            self._pids.append(self._forks.start("work_without_room", **arguments, **limits))

    def sign(self, name: str) -> None:
        """Have all processes see a sign."""
        (self._signs / name).touch()

    def answers(self, journal: Path) -> list[list[str]]:
        """Return what one process was answered so far."""
        if not journal.exists():
            return []
        return [json.loads(line) for line in journal.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def count(self, what: str, journal: Path) -> int:
        """Return how often one process was answered this."""
        return sum(entry[0] == what for entry in self.answers(journal))

    def wait_until_each(self, what: str, more: int) -> None:
        """Return when each process that runs has been answered this so many times more."""
        journals = self._journals[-PROCESSES:]
        wanted = {journal: self.count(what, journal) + more for journal in journals}
        deadline = time.monotonic() + PATIENCE
        while any(self.count(what, journal) < number for journal, number in wanted.items()):
            assert time.monotonic() < deadline, f"a process has not had {more} times {what!r}"
            time.sleep(0.02)

    def join(self) -> None:
        """Wait until the processes have ended, all of them well."""
        codes = [self._forks.wait(pid) for pid in self._pids]
        self._pids.clear()
        assert codes == [0] * PROCESSES

    def kill(self) -> None:
        """Kill what is left."""
        for pid in self._pids:
            self._forks.kill(pid)

    async def check(self) -> None:
        """Check that what was answered is there, and nothing else, and that each job has run once."""
        total = Counter(entry[0] for journal in self._journals for entry in self.answers(journal))
        print(total)
        added = {entry[1] for journal in self._journals for entry in self.answers(journal) if entry[0] == "added"}
        async with JobsService(self.address, supervise=False) as jobs:
            assert {str(job.id): job.state async for job in jobs.list(KIND)} == dict.fromkeys(added, JobState.FINISHED)
            assert await effects(jobs) == dict.fromkeys(added, 1)
            await assert_sound(jobs.store)
        assert total["ran"] <= len(added)
        assert total["full"] >= 20


@pytest.fixture
def work(forks: ForkServer, tmp_path: Path) -> Iterator[Callable[[str], Work]]:
    """Makes the processes' work on a store."""
    made: list[Work] = []

    def make(address: str) -> Work:
        made.append(Work(forks, address, tmp_path))
        return made[-1]

    yield make
    for each in made:
        each.kill()


@pytest.mark.parametrize("scheme", ["lmdb", "sqlite"])
def test_everything_goes_on_when_there_is_room_on_the_disk_again(
    work: Callable[[str], Work], small_disk: Path, scheme: str
) -> None:
    filling = small_disk / "filling"
    # What it gives back must last until the slowest process has done its part: the others do not wait for it.
    filling.write_bytes(bytes(30 << 20))
    full = work(f"{scheme}:{small_disk / 'store'}")
    full.start()
    full.wait_until_each("full", 10)
    filling.unlink()
    full.wait_until_each("added", 20)
    full.wait_until_each("followed", 2)
    full.sign("enough")
    full.join()
    asyncio.run(full.check())


@pytest.mark.parametrize("scheme", ["lmdb", "sqlite"])
def test_everything_goes_on_when_files_may_grow_again(work: Callable[[str], Work], tmp_path: Path, scheme: str) -> None:
    full = work(f"{scheme}:{tmp_path / 'store'}")
    full.start(file_size=1 << 20)
    full.wait_until_each("full", 10)
    full.sign("room")
    full.wait_until_each("added", 20)
    full.wait_until_each("followed", 2)
    full.sign("enough")
    full.join()
    asyncio.run(full.check())


def opened(forks: ForkServer, disk: Path, journal: Path, leave: int) -> list[str]:
    """Fill the disk but for some pages, open a store on it and return what became of that."""
    journal.unlink(missing_ok=True)
    pid = forks.start("open_without_room", path=str(disk / "store"), journal=str(journal), leave=leave)
    assert forks.wait(pid) == 0
    return list(json.loads(journal.read_text()))


BEFORE = ["nothing", "store", "store without its lock file", "empty directory"]


@pytest.mark.parametrize("before", BEFORE)
def test_opening_where_there_is_no_room_says_so_and_works_when_there_is(
    forks: ForkServer, small_disk: Path, tmp_path: Path, before: str
) -> None:
    """However much is missing: the file, the lock file, parts of them."""
    store = small_disk / "store"
    outcomes: Counter[str] = Counter()
    pages = share(range(30), 4, first=BEFORE.index(before))
    for leave in [*pages, 60, 100, 700]:  # the last one is more than the reserve
        if before.startswith("store"):
            assert opened(forks, small_disk, tmp_path / "journal", 900)[0] == "read"
        if before == "store without its lock file":
            (store / "lock.mdb").unlink()
        elif before == "empty directory":
            store.mkdir()
        what, *more = opened(forks, small_disk, tmp_path / "journal", leave)
        outcomes[what] += 1
        if what != "read":
            assert more[0] == "StoreFull"
            assert "the disk is full" in more[1]
        (small_disk / "store.filling").unlink()
        assert opened(forks, small_disk, tmp_path / "journal", 900)[0] == "read"
        assert set(os.listdir(store)) - {"processes"} == {"data.mdb", "lock.mdb"}
        shutil.rmtree(store)
        (small_disk / "store.filling").unlink()
    print(outcomes)
    assert outcomes["read"]
    assert outcomes["refused"] or outcomes["failed"]


async def _until_full(jobs: JobsService) -> int:
    """Add jobs until there is no room; return their number."""
    for number in range(1000):
        try:
            await jobs.add(KIND, str(number), "x" * 60_000)
        except StoreFull:
            return number
    raise AssertionError("the store does not fill")


async def test_a_log_that_a_reader_kept_can_be_written_back_and_the_store_be_emptied(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_RECENTLY", 1e9)  # as on a machine that fills the disk between two looks at it
    path = small_disk / "app.db"
    async with JobsService(f"sqlite:{path}", settings=Settings(durable=False), supervise=False) as jobs:
        await jobs.set_type_timeout(KIND, 60)
        with closing(sqlite3.connect(path)) as reader:
            reader.execute("begin")
            reader.execute("select count(*) from jobs_service_keys").fetchone()
            added = await _until_full(jobs)
        while (job := await jobs.accept(KIND, timeout=0)) is not None:
            await job.finish()
            added -= 1
        assert added == 0
