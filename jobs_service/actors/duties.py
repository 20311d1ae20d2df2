"""Actors with several duties, which they do in turns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, TypeAlias, TypeVar

from jobs_service.actors.context import Context, log
from jobs_service.errors import StoreError
from jobs_service.layer import awake_types
from jobs_service.layer.keyspace import Keyspace
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.store.base import Snapshot, TransactionFunction
from jobs_service.supervision import Actor

T = TypeVar("T")

_TYPES_PAGE: Final = 1000

PageOfTypes: TypeAlias = Callable[[Snapshot, Keyspace, bytes | None, int], Awaitable[awake_types.Page]]


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

    async def _page(self, page_of: PageOfTypes, transaction: Snapshot, after: bytes | None) -> awake_types.Page:
        return await page_of(transaction, self._context.keyspace, after, _TYPES_PAGE)

    async def _types(self, page_of: PageOfTypes, after: bytes | None = None) -> AsyncIterator[list[bytes]]:
        """Yield packed types after a given one, by pages that are read in a transaction each."""

        async def read(transaction: Snapshot) -> awake_types.Page:
            return await self._page(page_of, transaction, after)

        while True:
            types, more = await self._read(read)
            if types:
                yield types
            if not more:
                return
            after = types[-1]
