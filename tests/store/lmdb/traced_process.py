"""A process that works on an embedded store and journals what it is told, for others to trace or to kill.

`python -m tests.store.lmdb.traced_process ADDRESS JOURNAL OPERATIONS [SETTING=VALUE ...]`, or `work_until_killed`.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import Awaitable, Callable
from itertools import count

from jobs_service import JobsService, JobTransaction, Settings
from jobs_service.sources import Sources

KIND = "kind"
MARKS = b"done/"
TASKS = 3
OPERATIONS = 12
FEW_OPERATIONS = 4

Operation = Callable[[JobTransaction], Awaitable[None]]


def mark(number: int) -> bytes:
    """Return the key that an operation writes beside what it does to jobs."""
    return MARKS + b"%03d" % number


def end_mark(number: int) -> bytes:
    """Return the key that an operation writes at its end."""
    return MARKS + b"%03d/end" % number


class Journal:
    """Lines in a file: each is there, whatever becomes of the process, before anything else is done."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)

    def write(self, *words: object) -> None:
        """Write a line."""
        os.write(self._descriptor, (" ".join(map(str, words)) + "\n").encode())


async def work(jobs: JobsService, journal: Journal, task: int, operations: int) -> None:
    """Add, finish and remove jobs, small and large ones."""
    choose = random.Random(task)
    for place in range(operations):
        number = task * operations + place
        id, size = f"{number}", choose.choice((10, 300, 3000, 20_000))

        async def add(tx: JobTransaction, id: str = id, size: int = size) -> None:
            await tx.add(KIND, id, "x" * size, priority=choose.randint(-1, 1))

        async def finish(tx: JobTransaction, number: int = number) -> None:
            job = await tx.accept(KIND)
            if job is not None:
                await tx.finish(job, "y" * 100)
                await tx.add(KIND, f"{number} after", None)

        async def remove(tx: JobTransaction) -> None:
            for id in (await tx.active_ids(KIND))[:1]:
                await tx.remove(KIND, id, force=True)

        operation: Operation = choose.choice((add, add, finish, remove)) if place > 2 else add

        async def do(tx: JobTransaction, number: int = number, rest: Operation = operation) -> None:
            tx.kv[mark(number)] = b""
            await rest(tx)
            tx.kv[end_mark(number)] = b""

        journal.write("begin", number)
        await jobs.transact(do)
        journal.write("done", number)


async def main(
    address: str, journal: Journal, options: list[str], operations: int, sources: Sources | None = None
) -> None:
    """Do all the work, and copy the store at the end."""
    settings = Settings(**dict(option.split("=", 1) for option in options))
    async with JobsService(address, settings=settings, sources=sources, supervise=False) as jobs:
        journal.write("open")
        await jobs.set_type_timeout(KIND, 60)
        async with asyncio.TaskGroup() as group:
            for task in range(TASKS):
                group.create_task(work(jobs, journal, task, operations))
        await jobs.store.backup(f"{address.partition(':')[2]}-copy")
        journal.write("copied")
    journal.write("closed")


def work_until_killed(address: str, journal: str, point: str, passage: int) -> None:
    """Do a little work, and be killed when a thread of the store comes to a point for the given time."""
    passages = count(1)

    def at(name: str) -> None:
        if name == point and next(passages) == passage:
            os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(main(address, Journal(journal), [], FEW_OPERATIONS, Sources(at=at)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Journal(sys.argv[2]), sys.argv[4:], int(sys.argv[3])))
