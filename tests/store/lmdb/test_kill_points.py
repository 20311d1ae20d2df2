"""SIGKILL at each point of the embedded store's threads: what was answered is there, and nothing is half there."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from pathlib import Path

import fdb.tuple

from jobs_service.sources import Sources
from tests.checker import complaints_about
from tests.store.lmdb.interleaving import quick_directory
from tests.store.lmdb.threadless import ThreadlessStore
from tests.store.lmdb.traced_process import FEW_OPERATIONS, MARKS, TASKS, Journal, end_mark, main, mark
from tests.system.forking import ForkServer

OFTEN = {
    "writer: begins",
    "writer: has begun",
    "writer: has run all",
    "writer: commits",
    "writer: has committed",
    "writer: has noted its commit",
    "writer: answers",
}
"""Points that every commit comes to: one is killed there at the first, one at the third."""

PREFIX = fdb.tuple.pack(("jobs_service",))


def check(store: Path, journal: Path) -> None:
    """Check what a killed process left of its store, and that it can be used."""
    lines = [line.split() for line in journal.read_text().splitlines()]
    begun, done = ({int(line[1]) for line in lines if line[0] == word} for word in ("begin", "done"))
    left = ThreadlessStore(store)
    try:
        state = left.contents()
    finally:
        left.end()
    there = {number for number in range(TASKS * FEW_OPERATIONS) if mark(number) in state}
    assert done <= there <= begun
    assert all(end_mark(number) in state for number in there)
    assert len([key for key in state if key.startswith(MARKS)]) == 2 * len(there)
    pairs = sorted((key, value) for key, value in state.items() if key.startswith(PREFIX))
    assert complaints_about(PREFIX, b"\xff" * 10, time.time(), pairs) == []


def test_a_kill_at_any_point_loses_nothing_that_was_answered() -> None:
    points: set[str] = set()
    with quick_directory() as directory, ForkServer("tests.store.lmdb.traced_process") as forks:
        whole = main(f"lmdb:{directory}/whole", Journal(str(directory / "journal")), [], 4, Sources(at=points.add))
        asyncio.run(whole)
        assert len(points) > 20
        for number, point in enumerate(sorted(points)):
            store, journal = directory / f"{number}", directory / f"{number}.journal"
            passage = 3 if number % 2 and point in OFTEN else 1
            pid = forks.start(
                "work_until_killed", address=f"lmdb:{store}", journal=str(journal), point=point, passage=passage
            )
            # Whether the reader comes by before the work is done is a matter of luck.
            assert forks.wait(pid) == -signal.SIGKILL or point.startswith("reader"), point
            check(store, journal)
            copy = directory / f"{number}-copy"
            if copy.exists():
                (directory / f"{number}.directory").mkdir()
                copy.rename(directory / f"{number}.directory" / "data.mdb")
                check(directory / f"{number}.directory", journal)


def test_what_a_kill_left_of_a_new_store_is_in_nobodys_way(tmp_path: Path) -> None:
    """In a container the next process may have the same ids, and choose the same name."""
    left = tmp_path / f"data.mdb.{os.getpid()}.{threading.get_ident()}.new"
    left.mkdir()
    (left / "data.mdb").write_bytes(b"half of a page")
    ThreadlessStore(tmp_path).end()
    assert not left.exists()
