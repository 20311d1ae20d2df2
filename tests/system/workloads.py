"""What the processes of these tests do: functions that a fork runs, and the journal that survives its death."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from jobs_service import JobNotFound, JobsService, JobTransaction, NewJob, RunningJob, Settings, WorkerConflict

KIND = "work"
ONE = (1).to_bytes(8, "little")


class Journal:
    """A file that holds every line which was written before the process died: each is one system call."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, *entry: Any) -> None:
        """Append one entry."""
        os.write(self._file, json.dumps(entry).encode() + b"\n")

    @asynccontextmanager
    async def around(self, operation: str, id: str, data: Any = None) -> AsyncIterator[None]:
        """Note that an operation begins, and that it was answered, or refused because the job is another worker's."""
        number = f"{os.getpid()}/{id}/{operation}/{data}"
        self.write("begin", number, operation, id, data)
        try:
            yield
        except WorkerConflict:
            self.write("refused", number, operation, id, data)
        else:
            self.write("done", number, operation, id, data)


def effect_key(id: str) -> bytes:
    """Return the key of the application's own that counts how often a job's work took effect."""
    return b"effects/" + id.encode()


async def finish_with_effect(jobs: JobsService, job: RunningJob, data: Any) -> None:
    """Finish a job and count that in the same transaction."""

    async def finish(tx: JobTransaction) -> None:
        tx.kv.add(effect_key(str(job.id)), ONE)
        await tx.finish(job, data)

    await jobs.transact(finish)


def live_until_killed(address: str, journal: str, seed: str) -> None:
    """Add, accept, update, finish, resubmit and remove jobs in several tasks at once, for ever."""
    asyncio.run(_live(address, Journal(journal), seed))


async def _live(address: str, journal: Journal, seed: str) -> None:
    settings = Settings(activity_max_jitter=0.01, notify_holdoff=0.001)
    ended: list[str] = []
    async with JobsService(address, settings=settings) as jobs, asyncio.TaskGroup() as group:
        await jobs.set_type_timeout(KIND, 0.5)
        journal.write("open")
        for number in range(3):
            group.create_task(_create(jobs, journal, f"{seed}.{number}"))
            group.create_task(_work(jobs, journal, ended, random.Random(f"{seed} worker {number}")))
        group.create_task(_tidy(jobs, journal, ended, random.Random(f"{seed} tidier")))


async def _create(jobs: JobsService, journal: Journal, name: str) -> None:
    """Add jobs one by one and several at once, faster than they are worked off at first, then as fast."""
    choose = random.Random(name)
    count = 0
    while True:
        ids = [f"{name}.{count + place}" for place in range(choose.choice([1, 1, 1, 5]))]
        count += len(ids)
        if len(ids) == 1:
            async with journal.around("add", ids[0], "new"):
                await jobs.add(KIND, ids[0], "new", priority=choose.randint(-1, 1))
        else:
            journal.write("begin", ids[0] + "...", "add_many", ids, "new")
            await jobs.add_many(KIND, [NewJob(id, "new") for id in ids])
            journal.write("done", ids[0] + "...", "add_many", ids, "new")
        if await jobs.pending_count(KIND, limit=30) == 30:
            await asyncio.sleep(0.005)


async def _work(jobs: JobsService, journal: Journal, ended: list[str], choose: random.Random) -> None:
    count = 0
    while True:
        job = await jobs.accept(KIND)
        assert job is not None
        id = str(job.id)
        journal.write("accepted", id)
        # Unique among all runs of the job, in all processes.
        mark = f"{os.getpid()}.{choose.random()}.{count}"
        count += 1
        if choose.random() < 0.5:
            async with journal.around("update", id, mark + " updated"):
                await job.update(mark + " updated")
        if choose.random() < 0.2:
            async with journal.around("flag", id):
                await job.resubmit()
        if choose.random() < 0.05:
            async with journal.around("release", id):
                await job.release()
            continue
        async with journal.around("finish", id, mark):
            await finish_with_effect(jobs, job, mark)
            ended.append(id)


async def _tidy(jobs: JobsService, journal: Journal, ended: list[str], choose: random.Random) -> None:
    """Resubmit and remove jobs that have finished."""
    while True:
        await asyncio.sleep(0.002)
        if not ended:
            continue
        id = ended.pop(choose.randrange(len(ended)))
        try:
            job = await jobs.get(KIND, id)
        except JobNotFound:
            continue  # It had finished more than once.
        if job.outcome is None:
            continue
        if choose.random() < 0.3:
            async with journal.around("resubmit", id, "again"):
                await jobs.resubmit(KIND, id, data="again")
        else:
            async with journal.around("remove", id):
                await jobs.remove(KIND, id)
