"""The embedded store in a simulated world: the real one, its threads interleaved with the loop by the seed.

Each simulated process has a store of its own: its own threads, watches, queues, room and lock file. On LMDB they share
one environment, because LMDB opens a file once per real process; what it does for several is not what is tested. On
SQLite each has connections of its own.
A thread runs only while the loop waits for it, up to a named point at which it has nothing to do, may not go on, or
stands still for a moment because the seed says so. So nothing is left to chance. The threads are greenlets, for no
two of them ever run at the same time: to switch to one takes no system call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from operator import attrgetter
from queue import Empty
from typing import TYPE_CHECKING, Any, Final

from greenlet import getcurrent, greenlet

from jobs_service.settings import Settings
from jobs_service.sources import go_on
from jobs_service.store import embedded
from jobs_service.store.base import Limits, Watch
from jobs_service.store.embedded import Deadlines, Engine, ThreadAnswer, ThreadCall
from jobs_service.store.files import close_file
from jobs_service.store.lmdb import LmdbStore, LmdbTransaction
from jobs_service.store.overlay import EmbeddedTransaction
from jobs_service.store.sqlite import SqliteEngine, SqliteStore, SqliteTransaction
from jobs_service.testing import Process

if TYPE_CHECKING:
    from tests.simulation.machine import Machine

_HEIR: Final = 60
"""Turns of the loop within which who takes over from a dead process dies, at most."""
_LONGEST_LOOK: Final = 0.05
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
    """A thread of a store that runs only while the loop waits for it.

    Args:
        target: what it runs, a method of its store.
        args: for that.
        name: "lmdb-writer" or "lmdb-reader".
        daemon: that a thread takes it; a greenlet keeps nothing alive.

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
        self._name = name
        self._greenlet = greenlet(self._run)
        self.is_writer = name.endswith("-writer")

    def start(self) -> None:
        """Begin, as soon as the loop comes by."""
        self.ident = id(self)
        mailbox: Any = self.store._writes if self.is_writer else self.store._reads
        mailbox.on_put = self.wake
        self.store.threads.append(self)
        self.wake()

    def join(self) -> None:
        """Wait for its end."""
        while not self.ended and self._machine.running is None and self.can_go_on():
            self._step()
        assert self.ended, f"a {self._name} is waited for that stands at {self.point!r}"

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
        """Stop here until it is its turn again.

        Raises:
            Killed: its process was killed meanwhile.
        """
        self.point = point
        loop = self._greenlet.parent
        assert loop is not None
        loop.switch()
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
        self._greenlet.parent = getcurrent()
        self._greenlet.switch()
        self._machine.running = before

    def _run(self) -> None:
        try:
            if not self.killed:
                self._target(*self._args)
        except Killed:
            pass
        except BaseException as error:
            self._machine.world.unhandled.append(f"a thread of {self.store.process} has died: {error!r}")
        finally:
            self.ended = True


class _Observed(EmbeddedTransaction):
    """A transaction that observers of the simulated cluster can look at, as they look at its own.

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
        self.number = self._state.number

    __hash__ = object.__hash__


class ObservedOnLmdb(_Observed, LmdbTransaction):
    """One on LMDB."""


class ObservedOnSqlite(_Observed, SqliteTransaction):
    """One on SQLite."""


class AtOnce(SqliteEngine):
    """SQLite, opened without a stop: another process that opens the file meanwhile would really wait for it."""

    transaction = ObservedOnSqlite

    def open(self) -> None:
        at, self.at = self.at, go_on
        super().open()
        self.at = at


class EmbeddedStore(embedded.EmbeddedStore):
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
        self.address = f"{self.scheme}:simulated"
        self.limits = limits
        self._committing: list[ThreadAnswer] = []

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
                close_file(descriptor)
            locks._own = None
            locks._dead.clear()
        engine = getattr(self, "_engine", None)
        if isinstance(engine, AtOnce) and hasattr(engine, "_turn"):
            engine.close()

    async def dead_instances(self) -> list[bytes]:
        dead = await super().dead_instances()
        if dead and (hard := self.machine.world.choices.fault("heir")) is not None:
            self._soon(int(_HEIR * hard), self.process.kill)
        elif dead and (hard := self.machine.world.choices.fault("heir leaves")) is not None:
            self._soon(int(_HEIR * hard), self.process.request_stop)
        return dead

    def _soon(self, turns: int, end: Callable[[], object]) -> None:
        """End the process after so many turns of the loop, most of which take no time."""
        if turns:
            self.machine.world.loop.call_soon(self._soon, turns - 1, end, context=self.machine.world.cluster.context)
        else:
            end()

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
            raise OSError("of all of them together")
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

    def _run(self, engine: Engine, answer: ThreadAnswer, own: Any) -> None:
        machine = self.machine
        own.process = self.process
        if own._read_only:
            own.version = machine.version_of_commit.get(own.number, 0)
        else:
            before = sum(each.stamp is not None for each in self._committing)
            own.version = machine.version_of_commit.get(own.number - 1, 0) + before
        super()._run(engine, answer, own)
        if own._read_only and answer.error is None and own._state.failure is None:
            machine.tell(own)

    def _commit(self, engine: Engine, batch: deque[ThreadCall[Any]], answers: list[ThreadAnswer]) -> list[Watch]:
        self._committing = answers
        try:
            fired = super()._commit(engine, batch, answers)
        finally:
            self.machine.release(self)
            self._committing = []
        for answer in answers:
            if answer.transaction is not None and answer.stamp is None:
                self.machine.tell(answer.transaction)
        return fired

    def _answer(self, deadlines: Deadlines, answers: list[ThreadAnswer], fired: list[Watch]) -> None:
        fired.sort(key=_key_of)  # in no order otherwise, as sets are
        super()._answer(deadlines, answers, fired)

    def _tell(self, callback: Callable[..., object], *args: Any) -> None:
        loop = self.machine.world.loop
        if not loop.is_closed():
            loop.call_soon(callback, *args, context=self.process.context)

    __hash__ = object.__hash__


class OnLmdb(EmbeddedStore, LmdbStore):
    """One on LMDB."""


class OnSqlite(EmbeddedStore, SqliteStore):
    """One on SQLite."""

    engine = AtOnce
