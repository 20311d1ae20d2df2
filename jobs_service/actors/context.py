"""The context of a service: its store, keyspace and settings, and the retries of transient errors.

Also the actors that rely on nothing but the context (the keeper of the keyspace, and the base of actors on the store);
and the gate to the store for the service's operations: only while the service is open, and never from its own
transaction functions.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Iterable, Mapping
from typing import Any, Final, TypeAlias, TypeVar

from jobs_service.errors import (
    DirectoryMoved,
    RecordDamaged,
    ServiceClosed,
    StoreDamaged,
    StoreError,
    SupervisorFailed,
    anew,
)
from jobs_service.layer import awake_types
from jobs_service.layer.keyspace import Keyspace, Place, TypeKeys, place_of
from jobs_service.layer.unit_of_work import UnitOfWork, run
from jobs_service.log import EventLog
from jobs_service.model import JobId, JobType
from jobs_service.settings import Settings
from jobs_service.sources import Sources
from jobs_service.store.base import Snapshot, Store, Transaction, TransactionFunction, Watch, foreign_await
from jobs_service.supervision import Actor

T = TypeVar("T")

log = EventLog("jobs_service.actors")

_MOST_DAMAGED: Final = 10_000
"""Unreadable jobs to remember, so that each is logged once."""
_LONGEST_PAUSE = 60.0
"""Most seconds between two attempts on a damaged file of the store."""
_TYPES_PAGE: Final = 1000

_Part: TypeAlias = tuple[T, bytes | None]
PageOfTypes: TypeAlias = Callable[[Snapshot, Keyspace, bytes | None, int], Awaitable[awake_types.TypePage]]


# The context


class OnceEach:
    """Remembers occurrences, so that each is logged once.

    Args:
        most: number of things remembered; beyond it the oldest are forgotten.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[Hashable, None] = {}

    def add(self, thing: Hashable) -> bool:
        """Remember a thing; return whether it is new."""
        if thing in self._known:
            return False
        if len(self._known) >= self._most:
            self._known.pop(next(iter(self._known)), None)
        self._known[thing] = None
        return True


class Context:
    """One service's store, keyspace, settings and sources.

    Attributes:
        keyspace: set by `open_keyspace`, before any job is read.
        own_runs: the jobs that this very service runs, by packed type and lock.
        phase: a random part of a second that offsets periodic work, so that many processes do not do it all at once.
    """

    def __init__(self, store: Store, settings: Settings, sources: Sources) -> None:
        self.store = store
        self.settings = settings
        self.sources = sources
        self.phase = sources.uniform(0.0, 1.0)
        self.keyspace = Keyspace(b"")
        self.own_runs: dict[bytes, Mapping[bytes, object]] = {}
        self._damaged = OnceEach(_MOST_DAMAGED)
        self._under_way = 0
        self._idle: asyncio.Future[None] | None = None

    async def open_keyspace(self) -> None:
        """Ask the store for the prefix of the jobs' keys."""
        prefix = await self.store.prefix()
        if prefix != self.keyspace.prefix:
            self.keyspace = Keyspace(prefix, self.store.limits.key)

    async def read(self, function: TransactionFunction[T]) -> T:
        """Run a function in a read-only transaction."""
        return await self._locating(self.store.read(function))

    async def transact(
        self, operation: Callable[[UnitOfWork], Awaitable[T]], abandoned: Callable[[T], None] | None = None
    ) -> T:
        """Run an operation on a unit of work in a transaction of its own; see Store.transact."""
        return await self._locating(self.store.transact(self._function(operation), abandoned=abandoned))

    async def transact_after(self, before: asyncio.Future[Any], operation: Callable[[UnitOfWork], Awaitable[T]]) -> T:
        """Do `transact`, but commit only after another call has taken effect; see Store.transact_after."""
        return await self._locating(self.store.transact_after(before, self._function(operation)))

    def transact_in_thread(
        self, operation: Callable[[UnitOfWork], Awaitable[T]], answered: Callable[[T], object]
    ) -> None:
        """Do `transact` in a thread, while the loop may stand still; see Store.transact_in_thread."""
        self.store.transact_in_thread(self._function(operation), answered)

    async def until_idle(self) -> None:
        """Wait until no transaction is under way."""
        while self._under_way:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    def _function(self, operation: Callable[[UnitOfWork], Awaitable[T]]) -> TransactionFunction[T]:
        keyspace = self.keyspace
        sources = self.sources
        instance = self.store.instance
        return lambda transaction: run(transaction, keyspace, sources, operation, instance, self._note_damaged)

    def _note_damaged(self, errors: Iterable[RecordDamaged]) -> None:
        for error in errors:
            if self._damaged.add((type(error.type), error.type, error.id)):
                log.error("record_unreadable", type=error.type, id=error.id, error=str(error))

    async def _locating(self, call: Awaitable[T]) -> T:
        self._under_way += 1
        try:
            return await call
        except DirectoryMoved:
            # The error still reaches the caller, who holds old keys. A caller that tries again computes new ones; an
            # actor fails, and its supervisor starts another, which begins with them.
            await self.open_keyspace()
            raise
        finally:
            self._under_way -= 1
            if self._idle is not None and not self._under_way and not self._idle.done():
                self._idle.set_result(None)

    async def retried(
        self, operation: Callable[[], Awaitable[T]], *, unless: tuple[type[StoreError], ...] = (), **fields: Any
    ) -> T:
        """Repeat an operation, with growing pauses, while it raises transient errors.

        A damaged page of the store's file does not pass, but it must not take down the service, whose other calls may
        not need that page. So it is retried as well, after longer pauses.

        Args:
            operation: called for every attempt.
            unless: errors that the caller handles itself.
            fields: for the log.

        Raises:
            Exception: any error that is not transient.
        """
        return await retried(self.settings, operation, unless=unless, **fields)


async def retried(
    settings: Settings,
    operation: Callable[[], Awaitable[T]],
    *,
    unless: tuple[type[StoreError], ...] = (),
    **fields: Any,
) -> T:
    """Do what `Context.retried` does, for callers without a context."""
    pause = settings.retry_backoff
    while True:
        try:
            return await operation()
        except StoreError as error:
            is_damage = isinstance(error, StoreDamaged)
            if not (error.retryable or is_damage) or isinstance(error, unless):
                raise
            log.warning("store_retry", error=str(error), pause=pause, **fields)
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE if is_damage else settings.retry_backoff_max)


# Actors


class KeyspaceKeeper(Actor):
    """Opens the keyspace when it starts; later children rely on that."""

    def __init__(self, context: Context) -> None:
        super().__init__("keyspace")
        self._context = context

    async def init(self) -> None:
        await self._context.retried(self._context.open_keyspace)


class DutifulActor(Actor):
    """An actor that reads and writes the store, with the retries of Context.retried.

    Args:
        name: for people.
        context: the service's.
        fields: for the log.
    """

    def __init__(self, name: str, context: Context, **fields: Any) -> None:
        super().__init__(name)
        self._context = context
        self._log = log.bind(**fields)
        self._fields = fields

    async def init(self) -> None:
        """Prepare; see Actor."""
        self._time = asyncio.get_running_loop().time

    async def _read(self, function: TransactionFunction[T]) -> T:
        """Run a function in a read-only transaction, with the retries of Context.retried."""
        return await self._context.retried(lambda: self._context.read(function), **self._fields)

    async def _transact(
        self, work: Callable[[UnitOfWork], Awaitable[T]], unless: tuple[type[StoreError], ...] = ()
    ) -> T:
        """Do work in a transaction of its own, with the retries of Context.retried.

        Args:
            work: on a unit of work.
            unless: errors that the caller handles itself.
        """
        return await self._context.retried(lambda: self._context.transact(work), unless=unless, **self._fields)

    async def _page(self, page_of: PageOfTypes, transaction: Snapshot, after: bytes | None) -> awake_types.TypePage:
        return await page_of(transaction, self._context.keyspace, after, _TYPES_PAGE)

    async def _types(self, page_of: PageOfTypes, after: bytes | None = None) -> AsyncIterator[list[bytes]]:
        """Yield packed types after a given one, by pages that are read in a transaction each."""

        async def read(transaction: Snapshot) -> awake_types.TypePage:
            return await self._page(page_of, transaction, after)

        while True:
            types, more = await self._read(read)
            if types:
                yield types
            if not more:
                return
            after = types[-1]


# The gate of operations


async def parts_of(
    read: Callable[[Callable[[Transaction], Coroutine[Any, Any, _Part[T]]]], Awaitable[_Part[T]]],
    part: Callable[[Transaction, bytes | None], Coroutine[Any, Any, _Part[T]]],
) -> AsyncGenerator[T, None]:
    """Yield the parts of a read that takes many transactions.

    Args:
        read: reads in a transaction of its own.
        part: takes the last key of the part before, and returns the next part with its last key; None begins and ends.
    """
    after: bytes | None = None
    while True:

        async def next_part(transaction: Transaction, after: bytes | None = after) -> _Part[T]:
            return await part(transaction, after)

        found, after = await read(next_part)
        yield found
        if after is None:
            return
        await asyncio.sleep(0)  # a store that answers at once never yields to the loop


class StoreAccess:
    """The gate between a service's operations and the store.

    Attributes:
        is_open: whether operations are admitted.
        is_leaving: whether the service is being left.
        failure: why the service has failed; raised by every operation.
        inside: the code (see `running_code`) that runs transaction functions at present.
    """

    def __init__(self, context: Context) -> None:
        self.is_open = False
        self.is_leaving = False
        self.failure: SupervisorFailed | None = None
        self._context = context
        self.inside: set[asyncio.Task[Any] | int | None] = set()
        # Watches of callers to be woken when the service is closed.
        self._watches: set[Watch] = set()

    def close(self) -> None:
        """Admit no more operations, and fire the watches of waiting callers, whose next operation then fails."""
        self.is_open = False
        for watch in [*self._watches]:
            watch.fire()

    async def until_fired(self, watch: Watch) -> None:
        """Wait for a watch, at most until the service is closed.

        Raises:
            StoreError: the watch was lost.
        """
        if not self.is_open:
            return
        self._watches.add(watch)
        try:
            await watch.wait()
        finally:
            self._watches.discard(watch)

    @property
    def keyspace(self) -> Keyspace:
        """The keyspace of all types."""
        self.check_open()
        return self._context.keyspace

    def keys(self, type: JobType) -> TypeKeys:
        """Return the keys of a type."""
        if self.inside or not self.is_open:
            self.check_open()
        return self._context.keyspace.of(type)

    def place(self, type: JobType, id: JobId) -> Place:
        """Return the place of a job: the keys of its type, its id, and its id as keys contain it."""
        if self.inside or not self.is_open:
            self.check_open()
        return place_of(self._context.keyspace.of(type), id)

    async def read(self, function: Callable[[Transaction], Coroutine[Any, Any, T]]) -> T:
        """Run a function in a read-only transaction."""
        self.check_open()
        return await self._context.read(function)

    async def transact(self, operation: Callable[[UnitOfWork], Awaitable[T]]) -> T:
        """Run an operation on a unit of work in a transaction of its own."""
        self.check_open()
        return await self._context.transact(operation)

    async def transact_after(self, before: asyncio.Future[Any], operation: Callable[[UnitOfWork], Awaitable[T]]) -> T:
        """Do `transact`, but commit only when another call has taken effect."""
        self.check_open()
        return await self._context.transact_after(before, operation)

    def check_open(self) -> None:
        """Raise an error if the service admits no operation.

        Raises:
            SupervisorFailed: the service has failed.
            ServiceClosed: the service is not open, or is being left.
            StoreError: the caller is a transaction function, which must use its transaction instead.
        """
        if self.is_open and not self.inside:
            return
        if self.failure is not None:
            raise anew(self.failure)
        if not self.is_open:
            # While the service is being left, it stays open until its handlers, which need it, have ended.
            raise (
                being_left()
                if self.is_leaving
                else ServiceClosed("the service is not open: enter it with `async with`")
            )
        # Some transaction function is running. Other code may call meanwhile, that function may not.
        if running_code() in self.inside:
            raise foreign_await("the service itself instead of the transaction that it was given")


def being_left() -> ServiceClosed:
    """Return the error for an operation on a service that is being left."""
    return ServiceClosed("the service is being left: it ends the work that it has begun, and takes nothing new")


def running_code() -> asyncio.Task[Any] | int | None:
    """Return the identity of the calling code: its task or, if no loop runs, its thread."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return threading.get_ident()
