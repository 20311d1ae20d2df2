"""Histories of a few transactions, recorded or made up, for the tests of the simulation's checks."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import fdb.tuple

from jobs_service import JobsError, JobsService, JobTransaction, NewJob
from jobs_service.errors import JobExists, NoTypeTimeout, WorkerConflict
from jobs_service.layer.keyspace import pack_id
from jobs_service.layer.record import Record
from jobs_service.store import Transaction
from jobs_service.store.base import Limits
from jobs_service.testing import Process, SimulatedTransaction, World
from tests.simulation.entry import Entry
from tests.simulation.history import History
from tests.simulation.journal import recording

PREFIX: bytes = fdb.tuple.pack(("jobs_service",))


@dataclass
class Ending:
    """A transaction that has ended well: what the history is given of it, and when."""

    journal: list[Entry]
    version: int
    commit_version: int | None
    written: dict[bytes, bytes | None]
    process: str
    limits: Limits
    time: float

    def copy(self) -> Ending:
        return replace(self, journal=[replace(entry) for entry in self.journal], written={**self.written})


Fits = Callable[[Ending, Entry], Any]
"""Whether an operation is the one that is looked for."""


@dataclass
class Recorded:
    """A run: its transactions in commit order, and what was stored at its end."""

    endings: list[Ending]
    stored: dict[bytes, bytes]

    def copy(self) -> Recorded:
        return Recorded([ending.copy() for ending in self.endings], {**self.stored})

    def first(self, name: str, fits: Fits = lambda ending, entry: True) -> tuple[Ending, Entry]:
        """Return the first operation of that name that fits, and its transaction."""
        return next(
            (ending, entry)
            for ending in self.endings
            for entry in ending.journal
            if entry.name == name and fits(ending, entry)
        )


class Recorder:
    """An observer that keeps what it is told."""

    def __init__(self, world: World) -> None:
        self.endings: list[Ending] = []
        self._time = world.loop.time

    def ended(self, transaction: SimulatedTransaction) -> None:
        self.endings.append(
            Ending(
                list(transaction.journal),
                transaction.version,
                transaction.commit_version,
                {**transaction.written},
                str(transaction.process),
                transaction.limits,
                self._time(),
            )
        )


async def work(process: Process) -> None:
    """Do a bit of everything, one after the other."""
    async with process.service(supervise=False) as jobs:
        await work_with_types(jobs)
        await work_with_one_job(jobs)
        await work_with_queues(jobs, process.clock.wall_time())
        async with process.service():
            await asyncio.sleep(30)


async def work_with_types(jobs: JobsService) -> None:
    for type, seconds in (("t", 10), ("spread", 10), ("lost", 4), ("brief", 5)):
        await jobs.set_type_timeout(type, seconds)
    await jobs.clear_type_timeout("brief")


async def work_with_one_job(jobs: JobsService) -> None:
    await jobs.add("t", "a", 1)
    with contextlib.suppress(JobExists):
        await jobs.add("t", "a")
    await jobs.add("t", "b", 2, priority=1)
    await jobs.resubmit("t", "b", data=3)
    one = await accepted(jobs)
    await one.update()
    await one.update(5)
    await jobs.resubmit("t", "a", priority=2)
    await one.finish()
    with contextlib.suppress(WorkerConflict):
        await one.finish()
    two = await accepted(jobs)
    await jobs.remove("t", "b")
    with contextlib.suppress(JobsError):
        await two.update()
    await two.finish({"last": "word"})
    await jobs.remove("t", "b")
    three = await accepted(jobs)
    await three.resubmit(priority=3)
    await three.release()
    await jobs.add("t", "f", priority=-1)
    await accepted(jobs)
    await jobs.remove("t", "f", force=True)


async def work_with_queues(jobs: JobsService, now: float) -> None:
    with contextlib.suppress(NoTypeTimeout):
        await jobs.add("brief", "x")
    await jobs.add_many("t", [NewJob("c"), NewJob("d")])

    async def add_what_exists(tx: JobTransaction) -> None:
        with contextlib.suppress(JobExists):
            await tx.add_many("t", [NewJob("e"), NewJob("c")])

    await jobs.transact(add_what_exists)
    assert len(await jobs.accept_many("t", 4, timeout=0)) == 3
    assert await jobs.accept_many("t", 1, timeout=0) == []
    await jobs.add_many("t", [NewJob("early", run_at=now + 1), NewJob("late", run_at=now + 2)])
    await asyncio.sleep(3)
    assert len(await jobs.accept_many("t", 2, timeout=0)) == 2
    await jobs.add_many("spread", [NewJob(id) for id in "pqrst"])
    assert await jobs.accept("spread", spread=2, timeout=0)
    await jobs.add_many("lost", [NewJob("x"), NewJob("y")])
    assert len(await jobs.accept_many("lost", 2, timeout=0)) == 2


async def accepted(jobs: JobsService) -> Any:
    job = await jobs.accept("t", timeout=0)
    assert job is not None
    return job


def run(world: World, *programs: Callable[[Process], Any]) -> dict[bytes, bytes]:
    """Run the programs to their end, one process each, and return what is stored then."""
    stored: dict[bytes, bytes] = {}

    async def read(process: Process) -> None:
        async def everything(tr: Transaction) -> list[tuple[bytes, bytes]]:
            return await tr.get_range(PREFIX, PREFIX + b"\xff")

        async with process.service(supervise=False) as jobs:
            stored.update(await jobs.store.read(everything))

    async def main(world: World) -> None:
        for process in [world.start(f"p{number}", program) for number, program in enumerate(programs)]:
            await process.ended()
            assert process.failure is None
        world.choices.calm()
        await world.start("reader", read).ended()

    with recording():
        world.run(main)
    return stored


@functools.cache
def recorded() -> Recorded:
    """Return a run in which all is well."""
    world = World(0, disorder=0.0)
    recorder = Recorder(world)
    world.cluster.observers.append(recorder)
    stored = run(world, work)
    return Recorded(recorder.endings, stored)


def replayed(run: Recorded) -> History:
    """Show a history a recorded run."""
    time = 0.0
    history = History(lambda: time)
    for ending in run.endings:
        time = ending.time
        history.ended(ending)
    history.finish(run.stored)
    return history


def stored_in(ending: Ending, entry: Entry, id: Any = None) -> tuple[bytes, Record]:
    """Return key and record of an operation's job, as its transaction has written it."""
    data_key = entry.keys.data + pack_id(id or entry.id)
    raw = ending.written[data_key]
    assert raw is not None
    return data_key, Record.decode(raw)


def altered(record: Record, **fields: Any) -> Record:
    """Return a copy with some fields of other values."""
    changed = record.with_json(record.json)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def gives(result: Any) -> Fits:
    return lambda ending, entry: entry.result is result


def lost(run: Recorded) -> tuple[Ending, Entry]:
    return run.first("lost", lambda _, entry: entry.type == "lost" and entry.result)
