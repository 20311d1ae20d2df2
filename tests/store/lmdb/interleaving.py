"""One store's threads, its loop and another process, interleaved by a seed, and what must hold whatever the order.

The threads stop at every named point between a commit, its note, a look and a registration (`stepping.Stepper`), and
the seed says who goes on: a thread, the loop for one turn, or the other process. Nothing else happens meanwhile, so
that a seed shows the same again.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from jobs_service.errors import StoreError
from jobs_service.settings import Settings
from jobs_service.sources import Sources
from jobs_service.store import Transaction, Watch
from jobs_service.store.lmdb import LmdbStore
from tests.contract.model import Operation, perform
from tests.contract.programs import KEYS, OWN, Run
from tests.contract.support import END
from tests.store.lmdb.foreign_process import ForeignProcess
from tests.store.lmdb.interleaved_calls import Call, Record
from tests.store.lmdb.stepping import Stepper, Stuck

ROUNDS: Final = 6
MOST_STEPS: Final = 20_000
"""Only ends a run that would never end."""
LONG: Final = 10_000.0
"""Seconds after which no look is put off any more."""
_POLLS: Final = 3
_TURNS: Final = 6
"""Turns of the loop in which everything happens that threads have told it."""

_STEPS_OF_A_LOOK: Final = 8
_TURNS_TO_AN_ANSWER: Final = 2
_THREADS: Final = ("writer", "reader")


class Refusal(Exception):
    """Raised by a transaction function on purpose."""


Result = tuple[Transaction, Run, Watch | None, bytes | None]


@dataclass
class Interleaving:
    """A run of one seed."""

    seed: int
    foreign: ForeignProcess
    directory: Path
    record: Record = field(default_factory=Record)

    def __post_init__(self) -> None:
        self.choose = Random(self.seed)
        self.stepper = Stepper()
        settings = Settings(durable=False, process_check_period=0, watch_poll=1e-5, transaction_timeout=60)
        sources = Sources(self.seed, monotonic=self.stepper.clock, at=self.stepper.at)
        self.store = LmdbStore(self.directory / "store", settings=settings, sources=sources)
        self.steps = 0
        self.programs = 0
        self.known = b""
        self.told = 0
        self.slow: dict[str, bool] = {}
        self.tasks: dict[asyncio.Task[None], Call] = {}
        self.closing: asyncio.Task[None] | None = None
        kinds = ("writer", "reader", "loop", "call", "cancel", "foreign", "time")
        usual = (5.0, 4.0, 2.0, 2.0, 1.0, 1.0, 0.2)
        # Some do much of one thing and nothing of another.
        self.weights = {
            kind: weight * self.choose.choice((0.1, 1, 1, 1, 4)) for kind, weight in zip(kinds, usual, strict=True)
        }
        self.bursts = self.choose.choice((0.0, 0.0, 0.8))
        self.looks_at_once = self.choose.choice((0.0, 0.5, 0.9))
        self.cancels = self.choose.choice((0.0, 0.3, 0.9))
        self.closes_early = self.choose.random() < 0.3

    async def play(self) -> None:
        """Do everything and check it.

        Raises:
            AssertionError: something was not as it must be.
        """
        store = self.store
        await self.stepper.open(store)
        self.foreign.open(store.path)
        try:
            for place in range(ROUNDS):
                await self._round()
                # Closing comes upon what is under way, in some runs.
                if place < ROUNDS - 1 or not self.closes_early:
                    await self._quiet()
            await self._close()
            if self.stepper.lock_is_taken:
                self._step_foreign()
            self.record.check_order()
            self.record.check_contents(self.foreign.contents())
        finally:
            await self._clean_up()

    async def _clean_up(self) -> None:
        """Leave no thread and no lock behind, whatever has failed."""
        if self.stepper.lock_is_taken:
            self.foreign.commit()
        for task in self.tasks:
            task.cancel()
        self.stepper.let_all_go()
        for queue in (self.store._writes, self.store._reads):
            queue.put(None)
        if self.closing is None:
            await self.store.close()
        else:
            await asyncio.wait([self.closing])
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.foreign.close()

    # Steps

    async def _round(self) -> None:
        """Have a few things happen at the same time: so few that one which is missed is not made up for by another."""
        events = ["call"] * self.choose.randint(1, 4) + ["foreign"] * self.choose.choice((0, 1, 1, 2))
        events += ["cancel"] * (self.choose.random() < self.cancels)
        while events:
            kind = await self._step(events)
            if kind in events:
                events.remove(kind)

    async def _step(self, events: Sequence[str] = ()) -> str:
        """Let somebody go on, or one of these things happen; return what it was."""
        self.steps += 1
        assert self.steps < MOST_STEPS
        self.stepper.now += 0.0002
        kinds = [name for name in _THREADS if self.stepper.can_go_on(name, self.store)]
        kinds += ["loop", *set(events)]
        if not any(self.stepper.where[name].endswith("function") for name in _THREADS):  # whose time is limited
            kinds.append("time")
        if "foreign" in kinds and self.stepper.writer_has_lock:
            kinds.remove("foreign")
        kinds.sort()
        weights = dict(self.weights)
        for name in _THREADS:
            if self._is_slow_at(self.stepper.where[name]):
                weights[name] *= 0.05
                weights["foreign"] *= 5
                weights["call"] *= 2
        if self.told == 1:
            weights["cancel"] *= 20
        kind = self.choose.choices(kinds, [weights[kind] for kind in kinds])[0]
        match kind:
            case "writer" | "reader":
                if self.stepper.where[kind].endswith("answers"):
                    self.told = _TURNS_TO_AN_ANSWER
                self.stepper.step(kind)
                while self.choose.random() < self.bursts and self.stepper.can_go_on(kind, self.store):
                    self.stepper.step(kind)
            case "loop":
                await self._turn()
            case "call":
                self._call()
            case "cancel":
                if waiting := [task for task in self.tasks if not task.done()]:
                    self.choose.choice(waiting).cancel()
            case "foreign":
                self._step_foreign()
                if self.choose.random() < self.looks_at_once:
                    for _ in range(_STEPS_OF_A_LOOK):
                        if self.stepper.can_go_on("reader", self.store):
                            self.stepper.step("reader")
            case _:
                self.stepper.now += self.choose.choice((0.001, 0.1, 0.5))
        return kind

    def _is_slow_at(self, point: str) -> bool:
        """Whether threads tend to stay at a point, in this run."""
        if point not in self.slow:
            self.slow[point] = self.choose.random() < 0.3
        return self.slow[point]

    async def _turn(self) -> None:
        self.told -= 1
        await asyncio.sleep(0)
        for call in self.record.calls:
            if call.watch is not None and call.watch.fired and call.fired < 0:
                call.fired = self.steps

    def _step_foreign(self) -> None:
        if self.stepper.lock_is_taken:
            self.stepper.lock_is_taken = False
            self._committed(*self.foreign.commit())
        elif self.choose.random() < 0.3:
            self.stepper.lock_is_taken = True
            self.foreign.begin(self._number(), self._program(writes=True))
        else:
            self._committed(*self.foreign.run(self._number(), self._program(writes=True)))

    def _committed(self, stamp: bytes, run: Run) -> None:
        self.record.commits.append((stamp, run))
        self.known = max(self.known, stamp)

    async def _quiet(self) -> None:
        """Go on until nothing is left to do, and check that everybody has heard what there was to hear."""
        polls = 0
        while polls < _POLLS:
            self.steps += 1
            assert self.steps < MOST_STEPS
            if self.stepper.lock_is_taken:
                self._step_foreign()
            await self._turn()
            busy = [name for name in _THREADS if not self.stepper.is_idle(name, self.store)]
            if busy:
                self.stepper.step(self.choose.choice(busy))
                continue
            for _ in range(_TURNS):
                await self._turn()
            if not all(self.stepper.is_idle(name, self.store) for name in _THREADS):
                continue
            polls += 1
            self.stepper.now += LONG
            if self.stepper.can_go_on("reader", self.store):
                self.stepper.step("reader")
        self._check_answers()
        self.record.check_watches()

    async def _close(self) -> None:
        """Close at whatever point everybody is; calls that were made before and during that get their answers."""
        self.closing = asyncio.create_task(self.store.close())
        while not self.closing.done():
            await self._step(["call"] if self.choose.random() < 0.05 else [])
            if self.stepper.lock_is_taken and self.choose.random() < 0.1:
                self._step_foreign()
            if not any(self.stepper.can_go_on(name, self.store) for name in _THREADS):
                if self.stepper.lock_is_taken:
                    continue
                for _ in range(_TURNS):
                    await self._turn()
                idle = not any(self.stepper.can_go_on(name, self.store) for name in _THREADS)
                if idle and not self.closing.done():
                    raise Stuck(f"closing does not end: {self.stepper.where}")
        await self.closing
        for _ in range(_TURNS):
            await self._turn()
        self._check_answers()
        for call in self.record.calls:
            assert not call.is_waiting or call.watch is None or call.watch.fired, "a watch outlives its store"
        assert not self.store._watches, "watches are left"

    # Calls

    def _number(self) -> int:
        self.programs += 1
        return self.programs

    def _program(self, *, writes: bool) -> list[Operation]:
        return [self._operation(writes=writes) for _ in range(self.choose.randint(1, 4))]

    def _operation(self, *, writes: bool) -> Operation:
        choose = self.choose
        low, high = sorted(choose.choices([b"", *KEYS, OWN], k=2))
        often = choose.choice(KEYS[:2])
        reading: list[Operation] = [
            ("get", choose.choice(KEYS)),
            ("get_many", choose.choices(KEYS, k=2)),
            ("get_range", low, choose.choice([high, END]), choose.choice([0, 0, 1]), choose.random() < 0.5),
        ]
        writing: list[Operation] = [
            ("set", often),
            ("set", often),
            ("clear", often),
            ("set", choose.choice(KEYS)),
            ("clear", choose.choice(KEYS)),
            ("clear_range", low, high),
            ("add", choose.choice(KEYS)),
        ]
        return choose.choice(writing if writes and choose.random() < 0.6 else reading)

    def _call(self) -> None:
        choose = self.choose
        key = choose.choice(KEYS[:2]) if choose.random() < 0.85 else None
        call = Call(self.steps, self.known, key)
        is_read, writes, refuses = choose.random() < 0.5, choose.random() < 0.7, choose.random() < 0.05
        program = [] if choose.random() < 0.2 else self._program(writes=writes and not is_read)
        number = self._number()

        async def function(tr: Transaction) -> Result:
            run = Run(number, program)
            while (operation := run.next()) is not None:
                if choose.random() < 0.2:
                    self.stepper.at("function")
                run.note(await perform(tr, operation))
            if refuses:
                raise Refusal
            value = None if key is None else await tr.get(key)
            if writes and not is_read:
                tr.set(OWN + b"%d" % number, run.digest())
            return tr, run, None if key is None else tr.watch(key), value

        def took_effect(result: Result) -> None:
            tr, call.run, call.watch, call.value = result
            call.answered = self.steps
            call.stamp = tr.stamp.value
            if call.stamp is not None:
                self._committed(call.stamp, call.run)

        def abandoned(result: Result) -> None:
            took_effect(result)
            call.canceled = True
            if call.watch is not None:
                call.watch.cancel()

        async def doing() -> None:
            try:
                if is_read:
                    took_effect(await self.store.read(function))
                else:
                    took_effect(await self.store.transact(function, abandoned=abandoned))
            except Refusal:
                assert refuses
            except asyncio.CancelledError:
                call.canceled = True
            except StoreError:
                if self.closing is None:
                    raise

        self.record.calls.append(call)
        self.tasks[asyncio.create_task(doing())] = call

    # Checks

    def _check_answers(self) -> None:
        left = [task for task in self.tasks if not task.done()]
        assert not left, f"{len(left)} calls have no answer"
        for task in self.tasks:
            if not task.cancelled():  # before it began
                task.result()


@contextmanager
def quick_directory() -> Iterator[Path]:
    """A directory in memory, if the machine has such: flushing is not what is tested."""
    memory = Path("/dev/shm")
    directory = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


def play(seed: int, foreign: ForeignProcess) -> None:
    """Play one seed in a store and on a loop of its own."""
    with quick_directory() as directory, asyncio.Runner() as runner:
        runner.run(Interleaving(seed, foreign, directory).play())
