"""Those who use the store itself: programs over keys of their own, watches, and callers who go away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from random import Random
from typing import Any, ClassVar, Final

from jobs_service import JobTransaction, StoreError, StoreFull
from jobs_service.errors import CommitUnknown, StoreUnavailable, TransactionConflict
from jobs_service.store.base import Store
from jobs_service.store.commit_marks import LIFETIME
from jobs_service.store.memory import Faults, MemoryStore, MemoryTransaction
from jobs_service.testing import Choices, Process, SimulatedTransaction
from tests.simulation.books import FAILED, OK, UNKNOWN, Book, Line
from tests.simulation.client import Client
from tests.simulation.programs import GaveUp, Program, draw_meeting, draw_program
from tests.simulation.refusals import unfounded_end
from tests.simulation.workloads.base import Workload, patiently

_LATE: Final = 2.5
"""Seconds within which a watch fires where nothing takes time."""
_OF_MEETINGS: Final = 1 / 60
"""The share of runs in which they only meet at one key, where the threads of an embedded store often stand still."""
_RESTS: Final = ((0.0, 0.0, 0.3), (0.0, 0.0, 0.3, 3.0), (0.3, 3.0, 6.0))
"""Seconds between two steps, of which each run draws some: what is missed must stay so for a while to be noticed."""
_SOON: Final = 0.1
"""The same in memory."""


def meets(choices: Choices) -> bool:
    """Draw whether nothing else goes on than that some look at a key of an embedded store while others change it."""
    return Choices(choices.plan).stream("of meetings").random() < _OF_MEETINGS


class Scribes(Workload):
    """Read, write and watch a few keys of their own in the store of all processes, several at a time."""

    name = "scribes"
    weight: ClassVar[int] = 3

    def __init__(self, run: Any) -> None:
        super().__init__(run)
        cluster = run.world.cluster
        self._book = Book(b"scribes/", run.world.loop.time, run.complain)
        self._has_room = True
        self._book.is_strict = run.machine is not None or "watch_spurious" not in run.world.choices.rates
        # Otherwise somebody may have removed the mark that tells what has become of a commit.
        self._tells = run.machine is not None or cluster.mark_lifetime == LIFETIME
        self._rests = self.random.choice(_RESTS)
        self._meetings = self.random.choice([0.2, 0.2, 1.0])
        self._places = 2
        self.only_meets = meets(run.world.choices)
        if self.only_meets:
            self._meetings, self._places = 1.0, 1
        self._killed: set[Process] = set()
        cluster.observers.append(self)

    async def start(self, client: Client) -> None:
        await patiently(lambda: self._prepare(client))

    async def _prepare(self, client: Client) -> None:
        try:
            await client.jobs.store.transact(self._book.prepare)
        except StoreFull:  # so small a store has room for nobody's keys
            self._has_room = False

    async def step(self, client: Client) -> None:
        if not self._has_room:
            return
        if self.random.random() < self._meetings:
            calls = [self._drawn(client, each) for each in draw_meeting(self.random, self._book.keys, self._places)]
        else:
            programs = [draw_program(self.random, self._book.keys) for _ in range(self.random.randint(1, 5))]
            calls = [self._drawn(client, each) for each in programs]
        await several(self.random, calls)
        for watching in [each for each in self._book.watchings if each.owner is client.process]:
            if self.random.random() < 0.1:
                self._book.cancel(watching)
        await asyncio.sleep(self.random.choice(self._rests))

    def _drawn(self, client: Client, program: Program) -> Callable[[], Awaitable[None]]:
        random, store = self.random, client.jobs.store
        by_service = program.writes and random.random() < 0.4
        moment = random.choice([0.0, 0.03, 2 * self.run.world.cluster.latency])
        pause = random.choice([0.0, 0.0, random.uniform(0.0, moment)])
        patience = random.choice([None, None, None, random.uniform(0.0, moment)])

        async def call() -> None:
            await asyncio.sleep(pause)
            line, version = self._book.begin(program, client.process), client.version
            line.is_told = self._tells and not by_service

            async def function(tx: JobTransaction) -> int:
                return await self._book.run(line, tx.kv)

            ask = partial(client.jobs.transact, function) if by_service else partial(asked, store, self._book, line)
            error = await answered(self._book, line, ask, patience)
            if error is not None:
                complaint = unfounded_end(self.run, client.process, self.name, error, line.at, version)
                if complaint is not None:
                    self.run.complain(complaint)

        return call

    # Watches

    def ended(self, transaction: SimulatedTransaction) -> None:
        """See Observer: somebody may have to be woken."""
        self._book.committed(transaction.written)
        changed = [key for key, value in transaction.written.items() if self._book.changed(key, value)]
        if changed:
            self._look_later()

    def _look_later(self) -> None:
        loop = self.run.world.loop
        if not loop.is_closed():
            loop.call_later(_LATE, self._look, context=self.run.world.cluster.context)

    def _look(self) -> None:
        """Complain about the watches that should have fired."""
        since = self.run.world.loop.time() - _LATE
        if self.run.quiet.steady_since() > since:
            return
        for each in [*self._book.watchings]:
            is_there = each.owner.running and each.owner not in self.run.leaving
            if is_there and self._book.missed(each, since):
                values = self._book.values[each.key][-3:]
                self._book.watchings.remove(each)
                self.run.complain(
                    f"watch: the one on {each.key!r} of {each.owner}, made at {each.made:.3f} when it was "
                    f"{each.baseline!r}, has not fired; it was {values}"
                )

    def after_end(self, process: Process) -> Iterator[str]:
        task = process._task
        if task is None or not task.done():
            self._killed.add(process)
        elif process.failure is None:
            yield from self._book.left_by(process)
        self._book.watchings = [each for each in self._book.watchings if each.owner is not process]

    def open(self) -> Iterator[str]:
        now = self.run.world.loop.time()
        for each in self._book.watchings:
            if each.owner.running and self._book.missed(each, now):
                yield f"the watch on {each.key!r} of {each.owner} has not fired"

    def check(self) -> Iterator[str]:
        versions = self.run.world.cluster.versions
        version = versions.enter()
        stored = dict(versions.scan_at(version, self._book.prefix, self._book.prefix + b"\xff", False))
        versions.leave(version)
        yield from self._book.check(stored, lambda process: process not in self._killed)


class Jotters(Workload):
    """Do the same in a store in memory, one each time."""

    name = "jotters"

    async def step(self, client: Client) -> None:
        random, process, loop = self.random, client.process, self.run.world.loop
        store = MemoryStore(settings=process.settings, sources=process.sources)
        book = Book(b"", loop.time, self.run.complain)
        book.value_of = store.versions.get
        await store.open()
        await store.transact(book.prepare)
        store.faults = random.choice([None, Disturbing(random)])
        for _ in range(random.randint(1, 3)):
            await several(random, [self._drawn(store, book, process) for _ in range(random.randint(1, 5))])
            for key in book.values:
                book.changed(key, store.versions.get(key))
            for watching in [*book.watchings]:
                if random.random() < 0.1:
                    book.cancel(watching)
        moment = loop.time()
        await asyncio.sleep(_SOON)
        for each in book.watchings:
            if book.missed(each, moment):
                self.run.complain(f"watch: the one on {each.key!r} of {process} has not fired in memory")
        await store.close()
        for complaint in book.left_by(process):
            self.run.complain(f"{complaint} (in memory)")
        stored = dict(store.versions.scan_at(store.versions.version, b"", b"\xff", False))
        for complaint in book.check(stored, lambda _: True):
            self.run.complain(f"{complaint} (in memory)")

    def _drawn(self, store: Store, book: Book, process: Process) -> Callable[[], Awaitable[None]]:
        random = self.random
        program = draw_program(random, book.keys)
        pause = random.choice([0.0, 0.0, random.uniform(0.0, 0.01)])
        patience = random.choice([None, None, None, random.uniform(0.0, 0.01)])

        async def call() -> None:
            await asyncio.sleep(pause)
            line = book.begin(program, process)
            line.is_told = True
            error = await answered(book, line, partial(asked, store, book, line), patience)
            if error is not None and not self.run.quiet.quick_since():
                self.run.complain(f"error: {line} ended with {error!r} in memory")

        return call


class Disturbing(Faults):
    """Has commits in memory wait, fail, and have happened without anybody knowing."""

    def __init__(self, random: Random) -> None:
        self._random = random

    async def before_commit(self, transaction: MemoryTransaction) -> None:
        await self._wait()
        if self._random.random() < 0.1:
            raise self._random.choice([TransactionConflict, CommitUnknown])("for no reason")

    async def after_commit(self, transaction: MemoryTransaction) -> None:
        await self._wait()
        if self._random.random() < 0.1:
            raise CommitUnknown("for no reason")

    async def _wait(self) -> None:
        if self._random.random() < 0.3:
            await asyncio.sleep(self._random.uniform(0.0, 0.01))


async def asked(store: Store, book: Book, line: Line) -> int:
    """Ask a store to do what a line says."""
    function = partial(book.run, line)
    if not line.program.writes:
        return await store.read(function)
    return await store.transact(function, abandoned=line.told.append)


async def answered(
    book: Book, line: Line, ask: Callable[[], Awaitable[int]], patience: float | None
) -> StoreError | None:
    """Wait for the answer of a call, and note it; return the store's error if it has none."""
    try:
        async with asyncio.timeout(patience):
            answer = await ask()
    except GaveUp:
        book.end(line, FAILED)
    except StoreError as error:
        line.gone = isinstance(error, StoreUnavailable | CommitUnknown)
        book.end(line, UNKNOWN if line.gone else FAILED)
        return error
    except TimeoutError:
        line.gone = True
    except asyncio.CancelledError:
        line.gone = True
        raise
    else:
        book.end(line, OK, answer)
    return None


async def several(random: Random, calls: list[Callable[[], Awaitable[None]]]) -> None:
    """Make several calls at a time; sometimes, as soon as one of them is answered, all others go away."""
    is_race = random.random() < 0.3
    tasks = [asyncio.ensure_future(call()) for call in calls]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED if is_race else asyncio.ALL_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        if not task.cancelled() and task.exception() is not None:
            task.result()
