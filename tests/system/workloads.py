"""What the processes of these tests do: functions that a fork runs, and the journal that survives its death."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import lmdb

from jobs_service import (
    JobId,
    JobNotFound,
    JobsService,
    JobTransaction,
    NewJob,
    RunningJob,
    Settings,
    StoreError,
    WorkerConflict,
)
from jobs_service.store import Transaction
from jobs_service.store.base import SYSTEM_KEYS, KeyValue
from jobs_service.store.lmdb import LmdbStore

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


async def empty(jobs: JobsService) -> None:
    """Remove all jobs, and what their work has left: another soak may have used the store."""
    prefix = await jobs.store.prefix()

    async def clear(tr: Transaction) -> None:
        for begin in (prefix, effect_key("")):
            tr.clear_range(begin, begin + b"\xff")
        tr.clear(b"sum")

    await jobs.store.transact(clear)


async def finish_with_effect(jobs: JobsService, job: RunningJob, data: Any) -> None:
    """Finish a job and count that in the same transaction."""

    async def finish(tx: JobTransaction) -> None:
        tx.kv.add(effect_key(str(job.id)), ONE)
        await tx.finish(job, data)

    await jobs.transact(finish)


async def effects(jobs: JobsService) -> dict[str, int]:
    """Return how often each job's work took effect."""

    async def counts(tr: Transaction) -> list[KeyValue]:
        return await tr.get_range(effect_key(""), effect_key("\U0010ffff"))

    pairs = await jobs.store.read(counts)
    return {key[len(effect_key("")) :].decode(): int.from_bytes(value, "little") for key, value in pairs}


def live_until_killed(address: str, journal: str, seed: str) -> None:
    """Add, accept, update, finish, resubmit and remove jobs in several tasks at once, for ever."""
    asyncio.run(_live(address, Journal(journal), seed))


async def _live(address: str, journal: Journal, seed: str) -> None:
    settings = Settings(notify_holdoff=0.001)
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


def add_and_run(address: str, journal: str, name: str, seconds: float) -> None:
    """Add jobs for some time while running jobs, whoever added them; end when no job is left to run."""
    asyncio.run(_add_and_run(address, Journal(journal), name, seconds))


async def _add_and_run(address: str, journal: Journal, name: str, seconds: float) -> None:
    async with JobsService(address) as jobs:
        await jobs.set_type_timeout(KIND, 600)
        at_work: set[JobId] = set()
        choosers = [random.Random(f"{name} {n}") for n in range(4)]
        workers = [asyncio.create_task(_run_jobs(jobs, journal, choose, at_work)) for choose in choosers]
        async with asyncio.TaskGroup() as group:
            for number in range(2):
                group.create_task(_add_for(jobs, journal, f"{name}.{number}", seconds))
        # A job that has ended in the store is at work until its worker has written that.
        while await jobs.pending_count(KIND) or await jobs.active_ids(KIND) or at_work:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.05)
        for worker in workers:
            worker.cancel()
        for ended in await asyncio.gather(*workers, return_exceptions=True):
            assert isinstance(ended, asyncio.CancelledError), ended


async def _add_for(jobs: JobsService, journal: Journal, name: str, seconds: float) -> None:
    """Add jobs, now and then so many that they queue up, now and then so slowly that workers wait."""
    choose = random.Random(name)
    end = asyncio.get_running_loop().time() + seconds
    count = 0
    while asyncio.get_running_loop().time() < end:
        for _ in range(choose.choice([1, 1, 20])):
            count += 1
            await jobs.add(KIND, f"{name}.{count}", priority=choose.randint(-1, 1))
            journal.write("added", f"{name}.{count}")
        await asyncio.sleep(choose.choice([0, 0.01, 0.05]))


async def _run_jobs(jobs: JobsService, journal: Journal, choose: random.Random, at_work: set[JobId]) -> None:
    while True:
        job = await jobs.accept(KIND, spread=choose.choice([1, 8]))
        assert job is not None
        at_work.add(job.id)
        journal.write("accepted", job.id)
        await asyncio.sleep(choose.choice([0, 0, 0.02]))
        try:
            await finish_with_effect(jobs, job, "done")
        except WorkerConflict:
            journal.write("refused", job.id)
        else:
            journal.write("ran", job.id)
        at_work.discard(job.id)


def add_and_run_until_killed(address: str, journal: str, name: str) -> None:
    """As `add_and_run`, with jobs that are soon taken for lost, for ever."""
    asyncio.run(_add_and_run_until_killed(address, Journal(journal), name))


async def _add_and_run_until_killed(address: str, journal: Journal, name: str) -> None:
    settings = Settings()
    async with JobsService(address, settings=settings) as jobs, asyncio.TaskGroup() as group:
        await jobs.set_type_timeout(KIND, 1.0)
        for number in range(3):
            group.create_task(_run_jobs(jobs, journal, random.Random(f"{name} {number}"), set()))
        group.create_task(_add_for(jobs, journal, name, 3600))


def serve(address: str) -> None:
    """Run jobs for ever: as many updates as each one's data says, each with its number, then finish."""
    asyncio.run(_serve(address))


async def _serve(address: str) -> None:
    # Nothing but the watch itself tells this process of jobs: the next look at anything else is an hour away.
    settings = Settings(type_check_period=3600)
    async with JobsService(address, settings=settings) as jobs:
        while True:
            job = await jobs.accept(KIND)
            assert job is not None
            for number in range(job.data or 0):
                await job.update(number)
                await asyncio.sleep(0.002)
            await job.finish("end")


def read_all_and_write(path: str, journal: str, count: int = 1) -> None:
    """Open a store, whatever it is, read all that is in it, write something and note how that went."""
    asyncio.run(_read_all_and_write(path, Journal(journal), count))


async def _read_all_and_write(path: str, journal: Journal, count: int) -> None:
    async def everything(tr: Transaction) -> list[KeyValue]:
        return await tr.get_range(b"", SYSTEM_KEYS)

    async def write(tr: Transaction) -> None:
        for number in range(count):
            tr.set(b"written/%06d" % number, bytes(1000))

    store = LmdbStore(path, settings=Settings())
    try:
        await store.open()
    except StoreError as error:
        journal.write("refused", type(error).__name__, str(error))
        return
    try:
        found = await store.read(everything)
        await store.transact(write)
    except StoreError as error:
        journal.write("failed", type(error).__name__, str(error))
    else:
        journal.write("read", len(found), hashlib.sha256(repr(found).encode()).hexdigest())
    finally:
        await store.close()


def write_until_killed(path: str, journal: str, seed: int, count: int | None = None) -> None:
    """Write and clear large and small values: the file grows and its pages are used again.

    Args:
        path: of the store.
        journal: gets a line for every write.
        seed: of what is written.
        count: after so many writes only keep the store open; None to go on for ever.
    """
    asyncio.run(_write_until_killed(path, Journal(journal), random.Random(seed), count))


async def _write_until_killed(path: str, journal: Journal, choose: random.Random, count: int | None) -> None:
    async def write(tr: Transaction) -> None:
        for _ in range(choose.choice([1, 5, 30])):
            tr.set(b"grown/%d" % choose.randrange(300), bytes(choose.choice([10, 2000, 9000])))
        for _ in range(10):
            tr.clear(b"grown/%d" % choose.randrange(300))

    store = LmdbStore(path, settings=Settings(durable=False))
    await store.open()
    for number in itertools.count():
        if number == count:
            journal.write("open")
            await asyncio.Event().wait()
        await store.transact(write)
        journal.write("written")


def hold_write_lock(path: str, journal: str) -> None:
    """Begin to write to an embedded store and be stopped in the middle; when continued, write nothing and end."""
    with lmdb.open(path, map_size=1 << 36) as environment, environment.begin(write=True):
        Journal(journal).write("stopped")
        os.kill(os.getpid(), signal.SIGSTOP)
