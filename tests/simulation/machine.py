"""What the simulated processes of one machine share: its directory, LMDB's environment and lock, and who is dead."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from jobs_service.settings import Settings
from jobs_service.store import embedded, process_locks
from jobs_service.store import lmdb as lmdb_store
from jobs_service.store.base import Limits
from jobs_service.store.embedded import ThreadAnswer
from jobs_service.store.files import FileUse, close_file, open_file
from jobs_service.store.lmdb import PROCESSES, LmdbEngine, SharedEnvironment
from jobs_service.store.overlay import CLEAR, SET, apply_log
from jobs_service.testing import Process, World
from tests.simulation.embedded import EmbeddedStore, Killed, Mailbox, ObservedOnLmdb, OnLmdb, OnSqlite, SteppedThread

KEY: Final = 511
"""The longest key of an embedded store, bytes."""

_NO_TIME: Final = 0.6
"""Of the threads that stand still so many do so for no time at all, but others go first."""
_LONGEST: Final = 0.05
_SLOW_POINTS: Final = 0.2
_LOOK: Final = frozenset(
    {"reader: looks for commits", "reader: has counted its own", "reader: has looked up watched keys"}
)
"""Where a reader measures how long its look takes: it rests ten times as long. The fault "look" is what draws that."""
_STAMP: Final = 10
_SMALL: Final = 0.3
"""The share of stores that are full sooner or later."""
_SMALL_SIZES: Final = (6_000, 12_000, 20_000)
_SQLITE: Final = 0.33
"""The share of stores that are SQLite files."""
_HALF: Final = 0.5
_SLOWEST_LOCK: Final = 2.5
"""Seconds after which a process that starts locks its file at the latest."""
LONGEST_PERIOD: Final = 3.0
"""Between two looks for dead processes, seconds."""


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
        self.directory = self.processes = Path()
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
        self._late = set[bytes]()
        self._environment: SharedEnvironment | None = None
        self._shared = SimpleNamespace()
        self._slow: dict[str, bool] = {}
        self._random = world.choices.stream("embedded")
        self._store = OnSqlite if world.choices.stream("engine").random() < _SQLITE else OnLmdb
        drawn, size = self._random.random(), self._random.choice(_SMALL_SIZES)
        self.map_size = size if drawn < _SMALL else None
        self._durable = world.choices.stream("durable").random() < _HALF
        self._watch_poll = self._random.choice([0.008, 0.1, 0.25])
        # What checks allow for each request: here that is how late the commits of others are noticed.
        world.cluster.latency = 2 * self._watch_poll + _LONGEST

    @contextmanager
    def running_world(self) -> Iterator[None]:
        """Have stores be of this machine until left; then nothing is left of it."""
        stand_ins: list[tuple[Any, str, Any]] = [
            (embedded, "threading", SimpleNamespace(Thread=SteppedThread, Lock=threading.Lock)),
            (embedded, "SimpleQueue", Mailbox),
            (embedded, "apply_log", _apply_log),
            (lmdb_store, "open_environment", self._open),
            (LmdbEngine, "transaction", ObservedOnLmdb),
            (process_locks, "lock_file", self._lock),
        ]
        before = [(module, name, getattr(module, name)) for module, name, _ in stand_ins]
        self._really_open = vars(lmdb_store)["open_environment"]
        self._really_lock = vars(process_locks)["lock_file"]
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
        self.processes = temporary / "store-processes" if self._store is OnSqlite else self.directory / PROCESSES
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
                self._use.end()
            shutil.rmtree(temporary)

    def connect(self, process: Process) -> None:
        """Have a process that was just started use a store of this machine."""
        process.store = store = self._store(self, process, process.settings, self.limits)
        self.stores[store] = None

    def pause_at(self, point: str) -> float | None:
        """Return for how many seconds a thread stands at a point, None for not at all."""
        if point not in self._slow:
            # Some points are where threads often stand in a run: so something else happens there again and again.
            self._slow[point] = self._random.random() < _SLOW_POINTS
        hard = self.world.choices.fault("slow thread" if self._slow[point] else "thread")
        if hard is None:
            return None
        if point in _LOOK:
            return 0.0
        return _LONGEST * ((hard - _NO_TIME) / (1 - _NO_TIME)) ** 2 if hard > _NO_TIME else 0.0

    def draw_rates(self) -> dict[str, float]:
        """Draw how likely each of MACHINE_FAULTS is; processes die more often than elsewhere: others notice that."""
        choose, starts = self._random.choice, self.world.choices.stream("slow locks")
        kills = max(self.world.choices.rates.get("kill", 0.0), choose([0.0, 0.05, 0.15]))
        return {
            "thread": choose([0.0, 0.02, 0.1]),
            "slow thread": choose([0.0, 0.1, 0.6]),
            "look": choose([0.0, 0.3]),
            "batch": choose([0.0, 0.3, 1.0]),
            "kill": kills,
            "heir": choose([0.0, 0.0, 0.5, 0.8]) if kills else 0.0,
            "slow lock": starts.choice([0.0, 0.0, 0.5]),
            "heir leaves": starts.choice([0.0, 0.0, 0.5]) if kills else 0.0,
        }

    def draw_processes(self) -> int:
        """Draw how many processes there are at least: mostly several, for what is noticed is what others do."""
        return self._random.choice([1, 2, 2, 3])

    def draw_settings(self) -> dict[str, Any]:
        """Draw the settings of a process that concern its store."""
        settings: dict[str, Any] = {
            "durable": self._durable,
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

    def committed(self, store: EmbeddedStore, answers: Sequence[ThreadAnswer]) -> None:
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
        for instance in self.died:
            if (self.processes / instance.hex()).exists():
                yield instance

    def version_of(self, stamp: bytes) -> int:
        """Return the version of the commit with this versionstamp, -1 if there is none."""
        return self.version_of_stamp.get(stamp[:_STAMP], -1)

    @property
    def next_stamp(self) -> bytes:
        """A versionstamp later than all that there are."""
        newest = next(reversed(self.version_of_stamp), bytes(_STAMP))
        return (int.from_bytes(newest, "big") + 1).to_bytes(_STAMP, "big")

    def unguarded(self) -> Iterator[str]:
        """Yield what is wrong with the files of open stores: others take a process without a locked file for dead."""
        for store in self.stores:
            instance = store.instance
            if store.is_open and instance and store.process.alive and self._is_unlocked(instance):
                yield f"{store.process} is there, but its file {instance.hex()} is gone or not locked"

    def _is_unlocked(self, instance: bytes) -> bool:
        try:
            descriptor = open_file(str(self.processes / instance.hex()), os.O_RDONLY)
        except OSError:
            return True
        try:
            return bool(self._really_lock(descriptor))
        finally:
            close_file(descriptor)

    def _note_late(self, descriptor: int) -> None:
        """Note whose file is locked late: others may take that instance for dead, and then it never lives."""
        number = os.fstat(descriptor).st_ino
        for file in self.processes.iterdir():
            if file.stat().st_ino == number:
                self._late.add(bytes.fromhex(file.name))

    def _lock(self, descriptor: int) -> bool:
        """Have a process that starts stand still between making its file and locking it."""
        thread = self.running
        if thread is not None and thread.is_writer and not thread.store.is_open:
            hard = self.world.choices.fault("slow lock")
            if hard is not None:
                self.delay = _SLOWEST_LOCK * hard
                self._note_late(descriptor)
                try:
                    thread.stand("opening: is about to lock its file")
                except Killed:
                    close_file(descriptor)
                    raise
        return bool(self._really_lock(descriptor))

    def is_dead(self, instance: bytes) -> bool:
        """Whether the process of an instance has died."""
        never_lived = instance in self._late and all(store.instance != instance for store in self.stores)
        return instance in self.died or never_lived

    def _threads(self) -> Iterator[SteppedThread]:
        for store in self.stores:
            yield from store.threads

    def _open(self, path: Path, settings: Settings, use: FileUse, at: object) -> Any:
        if self._environment is None:
            self._use = FileUse(path, "simulated", [], processes=path / PROCESSES, gate=path)
            self._environment = environment = self._really_open(path, settings, self._use)
            flags = environment.flags()
            if settings.durable and not (flags["sync"] and flags["metasync"]):
                self.world.unhandled.append(f"a durable store is opened without its flushes: {flags}")
            for name in ("begin", "reader_check", "stat", "info", "readers", "copyfd", "uses"):
                setattr(self._shared, name, getattr(environment, name))
            self._shared.close = lambda: None
        return self._shared


def _apply_log(transaction: Any, own: Any, stamp: bytes, written: dict[bytes, bytes | None]) -> None:
    """Write a transaction's log, and keep what it has written by itself."""
    own.written = {}
    apply_log(transaction, own, stamp, own.written)
    written.update(own.written)
