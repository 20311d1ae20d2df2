"""The context of a service's actors: its store, keyspace and settings, and the retries of transient errors.

Also the actors that rely on nothing but the context: the keeper of the keyspace, and the base of actors with duties.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Mapping
from typing import Any, Final, TypeAlias, TypeVar

from jobs_service.errors import DirectoryMoved, RecordDamaged, StoreDamaged, StoreError
from jobs_service.layer import awake_types
from jobs_service.layer.keyspace import Keyspace
from jobs_service.layer.unit_of_work import UnitOfWork, run
from jobs_service.log import EventLog
from jobs_service.settings import Settings
from jobs_service.sources import Sources
from jobs_service.store.base import Snapshot, Store, TransactionFunction
from jobs_service.supervision import Actor

T = TypeVar("T")

log = EventLog("jobs_service.actors")

_MOST_DAMAGED: Final = 10_000
"""Unreadable jobs to remember, so that each is logged once."""
_LONGEST_PAUSE = 60.0
"""Most seconds between two attempts on a damaged file of the store."""
_TYPES_PAGE: Final = 1000

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
    """An actor that does its due duties in turns, part by part.

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
