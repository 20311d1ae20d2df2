"""A process that signs users up and gives each a receipt until it is killed: rows and jobs in one file.

`python -m tests.store.sqlite.killed_process PATH` prints each user that it was told is there.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
from contextlib import closing, nullcontext
from itertools import count
from pathlib import Path
from typing import TextIO

from jobs_service import JobsService, JobState, JobTransaction, RunningJob, WorkerConflict
from tests.checker import assert_sound

KIND = "receipt"
_TABLES = """
create table users (mail text not null unique);
create table receipts (mail text not null);
"""
_SIGNING_UP = 2
_WORKING = 3


def make_tables(path: Path) -> None:
    """Make the application's tables."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(_TABLES)


async def check(path: Path) -> list[str]:
    """Check that rows and jobs tell the same, and return the users."""
    async with JobsService(f"sqlite:{path}", supervise=False) as jobs:
        states = {str(job.id): job.state async for job in jobs.list(KIND)}
        await assert_sound(jobs.store)
    with closing(sqlite3.connect(path)) as connection:
        users = [mail for (mail,) in connection.execute("select mail from users")]
        receipts = [mail for (mail,) in connection.execute("select mail from receipts")]
        assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
    assert sorted(users) == sorted(states), "a row is without its job, or a job without its row"
    assert sorted(receipts) == sorted(id for id, state in states.items() if state is JobState.FINISHED)
    return users


def work(path: str, pipe: str | None = None) -> None:
    """Work until killed; print into a named pipe, or the standard output."""
    with open(pipe, "w") if pipe is not None else nullcontext(sys.stdout) as output:
        asyncio.run(_work(path, output))


async def _work(path: str, output: TextIO) -> None:
    async with JobsService(f"sqlite:{path}") as jobs:
        await jobs.set_type_timeout(KIND, 60)
        own = os.urandom(4).hex()
        numbers = count()
        async with asyncio.TaskGroup() as group:
            for _ in range(_SIGNING_UP):
                group.create_task(_sign_up(jobs, own, numbers, output))
            for _ in range(_WORKING):
                group.create_task(_give_receipts(jobs))


async def _sign_up(jobs: JobsService, own: str, numbers: count[int], output: TextIO) -> None:
    while True:
        mail = f"{own}-{next(numbers)}"

        async def function(tx: JobTransaction, mail: str = mail) -> None:
            await tx.sql("insert into users values (?)", mail)
            await tx.add(KIND, mail)

        await jobs.transact(function)
        print(mail, file=output, flush=True)


async def _give_receipts(jobs: JobsService) -> None:
    while True:
        job = await jobs.accept(KIND)
        assert job is not None

        async def done(tx: JobTransaction, job: RunningJob = job) -> None:
            await tx.sql("insert into receipts values (?)", job.id)
            await tx.finish(job)

        try:
            await jobs.transact(done)
        except WorkerConflict:  # it was lost while this process stood still
            continue


if __name__ == "__main__":
    work(sys.argv[1])
