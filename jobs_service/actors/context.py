"""What all actors of one service share: the store, where the keys are, and how weather is waited out. Floor: actors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from jobs_service.errors import DirectoryMoved, StoreError
from jobs_service.events import EventLog
from jobs_service.layer.keyspace import Keyspace
from jobs_service.layer.unit import Unit, run
from jobs_service.settings import Settings
from jobs_service.sources import Sources
from jobs_service.store.base import Store, TransactionFunction

T = TypeVar("T")

log = EventLog("jobs_service.actors")


class Context:
    """One service's store, keyspace, settings and sources.

    Attributes:
        keyspace: set by `open_keyspace`, before anybody reads a job.
        phase: a random part of a second, so that processes do not beat in step.
    """

    def __init__(self, store: Store, settings: Settings, sources: Sources) -> None:
        self.store = store
        self.settings = settings
        self.sources = sources
        self.phase = sources.uniform(0.0, 1.0)
        self.keyspace = Keyspace(b"")

    async def open_keyspace(self) -> None:
        """Ask the store for the prefix of the jobs' keys."""
        prefix = await self.store.prefix()
        if prefix != self.keyspace.prefix:
            self.keyspace = Keyspace(prefix, self.store.limits.key)

    async def read(self, function: TransactionFunction[T]) -> T:
        """Run a function in a transaction that only reads."""
        return await self._locating(self.store.read(function))

    async def transact(
        self, operation: Callable[[Unit], Awaitable[T]], abandoned: Callable[[T], None] | None = None
    ) -> T:
        """Run an operation on a unit of work in a transaction of its own; see Store.transact."""
        return await self._locating(self.store.transact(self._function(operation), abandoned=abandoned))

    async def transact_after(self, before: asyncio.Future[Any], operation: Callable[[Unit], Awaitable[T]]) -> T:
        """Do `transact`, but only when another call has taken effect; see Store.transact_after."""
        return await self._locating(self.store.transact_after(before, self._function(operation)))

    def _function(self, operation: Callable[[Unit], Awaitable[T]]) -> TransactionFunction[T]:
        keyspace = self.keyspace
        sources = self.sources
        return lambda transaction: run(transaction, keyspace, sources, operation)

    async def _locating(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except DirectoryMoved:
            # Whoever asks again is served; an actor dies of it, and its successor begins with the new keys.
            await self.open_keyspace()
            raise

    async def retried(
        self, operation: Callable[[], Awaitable[T]], *, unless: tuple[type[StoreError], ...] = (), **fields: Any
    ) -> T:
        """Repeat an operation until it meets no error that may pass, with a growing pause in between.

        Args:
            operation: called for every attempt.
            unless: errors that the caller handles itself.
            fields: for the log.

        Raises:
            Exception: whatever does not pass by itself.
        """
        pause = self.settings.retry_backoff
        while True:
            try:
                return await operation()
            except StoreError as error:
                if not error.retryable or isinstance(error, unless):
                    raise
                log.warning("store_retry", error=str(error), pause=pause, **fields)
            await asyncio.sleep(pause)
            pause = min(2 * pause, self.settings.retry_backoff_max)
