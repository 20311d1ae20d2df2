"""The embedded store in a simulated world: the real one, its threads interleaved with the loop by the seed.

Each simulated process has a store of its own: its own threads, watches, queues, room and lock file. They share one
LMDB environment, because LMDB opens a file once per real process; what it does for several is not what is tested.
A thread runs only while the loop waits for it, up to a named point at which it has nothing to do, may not go on, or
stands still for a moment because the seed says so. So nothing is left to chance, and an ordinary step costs little.
"""

from __future__ import annotations

import _thread
import shutil
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from queue import Empty
from types import SimpleNamespace
from typing import Any, Final

import lmdb

from jobs_service.settings import Settings
from jobs_service.store.base import Limits, Watch
from jobs_service.store.lmdb import LmdbStore, process_locks, reader, writer
from jobs_service.store.lmdb import store as opening
from jobs_service.store.lmdb.process_locks import DIRECTORY
from jobs_service.store.lmdb.state import LmdbTransaction, apply_log
from jobs_service.store.lmdb.thread_calls import Answer, Deadlines, Request
from jobs_service.store.write_log import CLEAR, SET
from jobs_service.testing import Process, World

KEY: Final = 511
"""The longest key of an embedded store, bytes."""

FAULTS: Final = {
    "thread": "a thread of an embedded store stands still between two steps, for up to 0.05 s",
    "slow thread": "the same at a point where threads often stand in this run",
    "look": "a look at what is watched takes up to 0.05 s, so that the next ones are put off",
    "batch": "what several requests write is too much for one commit, though not for one each",
    "heir": "a process that has found another one dead dies itself, before it has done much",
}
"""The kinds of fault that embedded stores have, and what each does."""

_NO_TIME: Final = 0.6
"""Of the threads that stand still so many do so for no time at all, but others go first."""
_LONGEST: Final = 0.05
_SLOW_POINTS: Final = 0.2
_HEIR: Final = 60
"""Turns of the loop within which who takes over from a dead process dies, at most."""
_LONGEST_LOOK: Final = 0.05
_STAMP: Final = 10
_SMALL: Final = 0.3
"""The share of stores that are full sooner or later."""
_SMALL_SIZES: Final = (6_000, 12_000, 20_000)
LONGEST_PERIOD: Final = 3.0
"""Between two looks for dead processes, seconds."""
_key_of: Final = attrgetter("key")


class Killed(BaseException):
    """Ends the threads of a process that was killed."""


class Mailbox:
    """What a queue is where only one thread runs at a time.

    Attributes:
        on_put: called when something was put.
    """

    def __init__(self) -> None:
        self.on_put: Callable[[], object] = lambda: None
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        """Add something."""
        self._items.append(item)
        self.on_put()

    def get(self, timeout: float | None = None) -> Any:
        """Take what is there: who would wait is stopped at the point before."""
        return self.get_nowait()

    def get_nowait(self) -> Any:
        """Take what is there.

        Raises:
            Empty: there is nothing.
        """
        if not self._items:
            raise Empty
        return self._items.popleft()

    def empty(self) -> bool:
        """Whether nothing is there."""
        return not self._items


class SteppedThread:
    """A thread of a store that runs only while the loop's thread waits for it.

    Args:
        target: what it runs, a method of its store.
        args: for that.
        name: "lmdb-writer" or "lmdb-reader".
        daemon: as for other threads.

    Attributes:
        ident: None before it was started.
        point: where it stands.
        ended: whether it has.
        poll: whether it is time to look for the commits of others.
        is_writer: which of the two of its store it is.
        killed: whether its process was.
    """

    def __init__(self, *, target: Any, name: str, daemon: bool, args: tuple[Any, ...] = ()) -> None:
        self.ident: int | None = None
        self.point = "starts"
        self.ended = False
        self.poll = False
        self.store: EmbeddedStore = target.__self__
        self._machine: Machine = self.store.machine
        self._target, self._args = target, args
        self.killed = False
        self._scheduled = False
        self._polling = False
        self._go, self._stands = _thread.allocate_lock(), _thread.allocate_lock()
        self._go.acquire()
        self._stands.acquire()
        self._thread = threading.Thread(target=self._run, name=name, daemon=daemon)
        self.is_writer = name == "lmdb-writer"

    def start(self) -> None:
        """Begin, as soon as the loop comes by."""
        self._thread.start()
        self.ident = self._thread.ident
        mailbox: Any = self.store._writes if self.is_writer else self.store._reads
        mailbox.on_put = self.wake
        self.store.threads.append(self)
        self.wake()

    def join(self) -> None:
        """Wait for its end."""
        while not self.ended and self._machine.running is None and self.can_go_on():
            self._step()
        assert self.ended, f"a {self._thread.name} is waited for that stands at {self.point!r}"

    def wake(self, delay: float = 0.0) -> None:
        """Have it go on, if it can by then."""
        loop, context = self._machine.world.loop, self.store.process.context
        if self._scheduled or self.ended or loop.is_closed():
            return
        self._scheduled = True
        if delay:
            loop.call_later(delay, self._advance, context=context)
        else:
            loop.call_soon(self._advance, context=context)

    def poll_after(self, seconds: float) -> None:
        """Have a reader that rests look for the commits of others when its time comes."""
        if not self._polling:
            self._polling = True
            self._machine.world.loop.call_later(seconds, self._poll, context=self.store.process.context)

    def _poll(self) -> None:
        self._polling = False
        self.poll = True
        self.wake()

    def can_go_on(self) -> bool:
        """Whether it would not stand still for want of something from others."""
        store = self.store
        match self.point:
            case "writer: waits":
                return not store._writes.empty()
            case "reader: waits":
                return not store._reads.empty()
            case "reader: rests":
                return self.poll or not store._reads.empty()
            case "writer: begins":
                return self._machine.lock_is_free
            case "writer: ends":
                return not any(each.is_alive() for each in store.threads if not each.is_writer)
        return True

    def stand(self, point: str) -> None:
        """Stop here, on this thread, until it is its turn again.

        Raises:
            Killed: its process was killed meanwhile.
        """
        self.point = point
        self._stands.release()
        self._go.acquire()
        if self.killed:
            raise Killed

    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return not self.ended

    def kill(self) -> None:
        """End it where it stands."""
        if not self.ended:
            self.killed = True
            self._step()

    def _advance(self) -> None:
        self._scheduled = False
        if not self.is_alive() or not self.can_go_on():
            return
        self._step()
        if not self.is_alive():
            self.store.ended(self)
        elif self.can_go_on():
            self.wake(self._machine.delay or 0.0)

    def _step(self) -> None:
        self._machine.running, before = self, self._machine.running
        self._machine.delay = None
        self._go.release()
        self._stands.acquire()
        self._machine.running = before

    def _run(self) -> None:
        self._go.acquire()
        try:
            if not self.killed:
                self._target(*self._args)
        except Killed:
            pass
        except BaseException as error:
            self._machine.world.unhandled.append(f"a thread of {self.store.process} has died: {error!r}")
        finally:
            self.ended = True
            self._stands.release()


class Observed(LmdbTransaction):
    """A transaction on LMDB that observers of the simulated cluster can look at, as they look at its own.

    Attributes:
        process, version, commit_version, written, journal: as of a SimulatedTransaction.
    """

    process: Process
    version = 0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.commit_version: int | None = None
        self.written: dict[bytes, bytes | None] = {}
        self.journal: list[Any] = []
        self.number = self._state._transaction.id()

    __hash__ = object.__hash__


class EmbeddedStore(LmdbStore):
    """The embedded store of one simulated process.

    Args:
        machine: on which it is.
        process: whose store it is.
        settings: of the process.
        limits: of transactions.

    Attributes:
        threads: those that were started.
    """

    def __init__(self, machine: Machine, process: Process, settings: Settings, limits: Limits) -> None:
        self.machine = machine
        self.process = process
        self.threads: list[SteppedThread] = []
        self._ahead = 0.0
        process.sources.at = self._reach
        process.sources.monotonic = self._time
        super().__init__(machine.directory, settings=settings, sources=process.sources)
        self.address = "lmdb:simulated"
        self.limits = limits
        self._committing: list[Answer] = []

    @property
    def location(self) -> str:
        return self.address

    def ended(self, thread: SteppedThread) -> None:
        """One of its threads has ended: the writer waits for the reader."""
        for each in self.threads:
            if each.point == "writer: ends":
                each.wake()

    def die(self) -> None:
        """End as the system ends a process: threads, and LMDB's lock, and the lock of its file are gone."""
        for thread in self.threads:
            thread.kill()
        self.machine.release(self)
        self.machine.stores.pop(self, None)
        locks = getattr(self, "_processes", None)
        if locks is not None and locks._own is not None:
            self.machine.has_died(locks.instance)
            for descriptor in (locks._own, *locks._dead.values()):
                process_locks._close(descriptor)
            locks._own = None
            locks._dead.clear()

    async def dead_instances(self) -> list[bytes]:
        dead = await super().dead_instances()
        if dead and (hard := self.machine.world.choices.fault("heir")) is not None:
            self._kill_soon(int(_HEIR * hard))
        return dead

    def _kill_soon(self, turns: int) -> None:
        """Kill the process after so many turns of the loop, most of which take no time."""
        if turns:
            self.machine.world.loop.call_soon(self._kill_soon, turns - 1, context=self.machine.world.cluster.context)
        else:
            self.process.kill()

    # What its threads do

    def _time(self) -> float:
        return self.machine.world.loop.time() + self._ahead

    def _reach(self, point: str) -> None:
        """Stop at a point, if there is a reason to."""
        machine = self.machine
        thread = machine.running
        if thread is None or thread.killed:
            return
        thread.point = point
        if point == "writer: has committed":
            machine.release(self)
            machine.committed(self, self._committing)
        elif point == "reader: has looked up watched keys":
            hard = machine.world.choices.fault("look")
            self._ahead += 0.0 if hard is None else _LONGEST_LOOK * hard
        elif point == "writer: commits" and self._is_too_much():
            raise lmdb.MapFullError("MDB_MAP_FULL: of all of them together")
        machine.delay = machine.pause_at(point)
        if machine.delay is not None:
            thread.stand(point)
        if point == "reader: rests" and machine.newest != self._seen_commit:
            machine.poll(thread)
        while not thread.can_go_on():
            thread.stand(point)
        thread.poll = False
        if point == "writer: begins":
            machine.holder = self

    def _is_too_much(self) -> bool:
        """Whether there is not room for all that several requests have written together."""
        return len(self._committing) > 1 and self.machine.world.choices.fault("batch") is not None

    def _run(self, answer: Answer, own: Any) -> None:
        machine = self.machine
        own.process = self.process
        if own._read_only:
            own.version = machine.version_of_commit.get(own.number, 0)
        else:
            before = sum(each.stamp is not None for each in self._committing)
            own.version = machine.version_of_commit.get(own.number - 1, 0) + before
        super()._run(answer, own)
        if own._read_only and answer.error is None and not own._state.is_spoiled:
            machine.tell(own)

    def _commit(self, environment: lmdb.Environment, batch: deque[Request[Any]], answers: list[Answer]) -> list[Watch]:
        self._committing = answers
        try:
            fired = super()._commit(environment, batch, answers)
        finally:
            self.machine.release(self)
            self._committing = []
        for answer in answers:
            if answer.transaction is not None and answer.stamp is None:
                self.machine.tell(answer.transaction)
        return fired

    def _answer(self, deadlines: Deadlines, answers: list[Answer], fired: list[Watch]) -> None:
        fired.sort(key=_key_of)  # in no order otherwise, as sets are
        super()._answer(deadlines, answers, fired)

    def _tell(self, callback: Callable[..., object], *args: Any) -> None:
        loop = self.machine.world.loop
        if not loop.is_closed():
            loop.call_soon(callback, *args, context=self.process.context)

    __hash__ = object.__hash__


class Machine:
    """What the simulated processes of one machine share: a directory, LMDB's environment and its lock.

    Args:
        world: they live in; its cluster's state is what is committed here.
        limits: of transactions.

    Attributes:
        stores: those that are open, or were not closed yet.
        running: the thread that runs just now.
        delay: seconds for which the thread that stands now is to stand; None if it only waits.
        holder: whose writer has LMDB's lock.
        newest: the number of LMDB's newest transaction.
        version_of_commit: the world's version after each of LMDB's transactions.
        version_of_stamp: the world's version by versionstamp.
        died: when the instances of stores have died, seconds.
        map_size: bytes that the store may hold; None for as many as by default.
        on_death: called with each instance whose process has died.
    """

    def __init__(self, world: World, limits: Limits) -> None:
        self.directory = Path()
        self.world = world
        self.limits = replace(limits, key=min(limits.key, KEY))
        self.stores: dict[EmbeddedStore, None] = {}
        self.running: SteppedThread | None = None
        self.delay: float | None = None
        self.holder: EmbeddedStore | None = None
        self.newest = 0
        self.version_of_commit: dict[int, int] = {}
        self.version_of_stamp: dict[bytes, int] = {}
        self.died: dict[bytes, float] = {}
        self.on_death: Callable[[bytes], object] = lambda instance: None
        self._environment: lmdb.Environment | None = None
        self._shared = SimpleNamespace()
        self._slow: dict[str, bool] = {}
        self._random = world.choices.stream("embedded")
        drawn, size = self._random.random(), self._random.choice(_SMALL_SIZES)
        self.map_size = size if drawn < _SMALL else None
        self._watch_poll = self._random.choice([0.008, 0.1, 0.25])
        # What checks allow for each request: here that is how late the commits of others are noticed.
        world.cluster.latency = 2 * self._watch_poll + _LONGEST

    @contextmanager
    def running_world(self) -> Iterator[None]:
        """Have stores be of this machine until left; then nothing is left of it."""
        stand_ins: list[tuple[Any, str, Any]] = [
            (opening, "threading", SimpleNamespace(Thread=SteppedThread)),
            (opening, "SimpleQueue", Mailbox),
            (writer, "open_environment", self._open),
            (writer, "LmdbTransaction", Observed),
            (reader, "LmdbTransaction", Observed),
            (writer, "apply_log", _apply_log),
        ]
        before = [(module, name, getattr(module, name)) for module, name, _ in stand_ins]
        self._really_open = vars(writer)["open_environment"]
        cluster = self.world.cluster
        disconnect = cluster.disconnect

        def ended(process: Process) -> None:
            disconnect(process)
            if isinstance(process.store, EmbeddedStore):
                process.store.die()

        come_back = cluster.come_back

        def came_back() -> None:
            come_back()
            self.wake_writers()

        cluster.disconnect = ended  # type: ignore[method-assign]
        cluster.come_back = came_back  # type: ignore[method-assign]
        memory = Path("/dev/shm")
        temporary = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
        self.directory = temporary / "store"
        for module, name, stand_in in stand_ins:
            setattr(module, name, stand_in)
        try:
            yield
        finally:
            for module, name, original in before:
                setattr(module, name, original)
            for store in [*self.stores]:
                store.die()
            if self._environment is not None:
                self._environment.close()
            shutil.rmtree(temporary)

    def connect(self, process: Process) -> None:
        """Have a process that was just started use a store of this machine."""
        process.store = store = EmbeddedStore(self, process, process.settings, self.limits)
        self.stores[store] = None

    def pause_at(self, point: str) -> float | None:
        """Return for how many seconds a thread stands at a point, None for not at all."""
        if point not in self._slow:
            # Some points are where threads often stand in a run: so something else happens there again and again.
            self._slow[point] = self._random.random() < _SLOW_POINTS
        hard = self.world.choices.fault("slow thread" if self._slow[point] else "thread")
        if hard is None:
            return None
        return _LONGEST * ((hard - _NO_TIME) / (1 - _NO_TIME)) ** 2 if hard > _NO_TIME else 0.0

    def draw_rates(self) -> dict[str, float]:
        """Draw how likely each kind of fault is: processes die more often than elsewhere, for here others notice."""
        choose = self._random.choice
        kills = max(self.world.choices.rates.get("kill", 0.0), choose([0.0, 0.05, 0.15]))
        return {
            "thread": choose([0.0, 0.02, 0.1]),
            "slow thread": choose([0.0, 0.1, 0.6]),
            "look": choose([0.0, 0.3]),
            "batch": choose([0.0, 0.3, 1.0]),
            "kill": kills,
            "heir": choose([0.0, 0.0, 0.5, 0.8]) if kills else 0.0,
        }

    def draw_processes(self) -> int:
        """Draw how many processes there are at least: mostly several, for what is noticed is what others do."""
        return self._random.choice([1, 2, 2, 3])

    def draw_settings(self) -> dict[str, Any]:
        """Draw the settings of a process that concern its store."""
        settings: dict[str, Any] = {
            "durable": False,
            "watch_poll": self._watch_poll,
            "process_check_period": self._random.choice([0.0, 1.0, 1.0, LONGEST_PERIOD]),
        }
        if self.map_size is not None:
            settings["lmdb_map_size"] = self.map_size
        return settings

    @property
    def lock_is_free(self) -> bool:
        """Whether a writer may begin."""
        return self.holder is None and self.world.cluster._back.is_set()

    def release(self, store: EmbeddedStore) -> None:
        """Let the next writer begin, if this store's was the one."""
        if self.holder is store:
            self.holder = None
            self.wake_writers()

    def wake_writers(self) -> None:
        """Have the writers go on that wait for the lock."""
        for thread in self._threads():
            if thread.point == "writer: begins":
                thread.wake()

    def committed(self, store: EmbeddedStore, answers: Sequence[Answer]) -> None:
        """Take note of what a store has committed, in the order of the versionstamps."""
        versions = self.world.cluster.versions
        number = 0
        for answer in answers:
            own: Any = answer.transaction
            if own is None or answer.stamp is None:
                continue
            written = [
                (CLEAR, key, None, None) if value is None else (SET, key, value, None)
                for key, value in own.written.items()
            ]
            versions.apply(written)
            own.commit_version = versions.version
            number = own.number
            self.version_of_stamp[answer.stamp] = versions.version
            self.tell(own)
        self.newest = number
        self.version_of_commit[number] = versions.version
        for thread in self._threads():
            if thread.point == "reader: rests":
                self.poll(thread)

    def tell(self, own: Any) -> None:
        """Tell the observers of a transaction that has ended well."""
        cluster = self.world.cluster
        if own.commit_version is not None:
            cluster.commits += 1
        for observer in cluster.observers:
            observer.ended(own)

    def poll(self, thread: SteppedThread) -> None:
        """Have a reader that rests look for the commits of others when its time comes."""
        thread.poll_after(self._random.uniform(0.0, 2 * thread.store._settings.watch_poll))

    def has_died(self, instance: bytes) -> None:
        """The process of an instance has died."""
        self.died[instance] = self.world.loop.time()
        if not self.world.loop.is_closed():
            self.on_death(instance)

    def unburied(self) -> Iterator[bytes]:
        """Yield the instances whose process has died, of which there are still files."""
        directory = self.directory / DIRECTORY
        for instance in self.died:
            if (directory / instance.hex()).exists():
                yield instance

    def version_of(self, stamp: bytes) -> int:
        """Return the version of the commit with this versionstamp, -1 if there is none."""
        return self.version_of_stamp.get(stamp[:_STAMP], -1)

    @property
    def next_stamp(self) -> bytes:
        """A versionstamp later than all that there are."""
        newest = next(reversed(self.version_of_stamp), bytes(_STAMP))
        return (int.from_bytes(newest, "big") + 1).to_bytes(_STAMP, "big")

    def is_dead(self, instance: bytes) -> bool:
        """Whether the process of an instance has died."""
        return instance in self.died

    def _threads(self) -> Iterator[SteppedThread]:
        for store in self.stores:
            yield from store.threads

    def _open(self, path: Path, settings: Settings, at: object) -> Any:
        if self._environment is None:
            self._environment = environment = self._really_open(path, settings)
            for name in ("begin", "reader_check", "stat", "info", "readers", "copyfd"):
                setattr(self._shared, name, getattr(environment, name))
            self._shared.close = lambda: None
        return self._shared


def _apply_log(transaction: Any, own: Any, stamp: bytes, written: dict[bytes, bytes | None]) -> None:
    """Write a transaction's log, and keep what it has written by itself."""
    own.written = {}
    apply_log(transaction, own, stamp, own.written)
    written.update(own.written)
