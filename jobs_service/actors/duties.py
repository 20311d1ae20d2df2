"""Actors with several duties: a duty that meets damage in the store's file is postponed and blocks no other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from jobs_service.actors.context import Context, log
from jobs_service.errors import StoreDamaged, StoreError
from jobs_service.layer import awake_types
from jobs_service.layer.keyspace import Keyspace
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.store.base import Snapshot, TransactionFunction
from jobs_service.supervision import Actor

T = TypeVar("T")

DAMAGED_PAUSE: Final = 60.0
"""Seconds to postpone a duty after damage in the store's file, which does not pass by itself."""

_TYPES_PAGE: Final = 1000

PageOfTypes: TypeAlias = Callable[[Snapshot, Keyspace, bytes | None, int], Awaitable[awake_types.Page]]

Raw: TypeAlias = bytes | StoreDamaged | None
"""A stored value: None if missing, an error if it is on a damaged page of the file."""


async def around_damage(
    do: Callable[[Sequence[T]], Awaitable[object]],
    things: Sequence[T],
    skip: Callable[[T, StoreDamaged], object] = lambda thing, error: None,
) -> None:
    """Call a function with several things at once; after damage in the store's file, retry with each half of them.

    Args:
        do: the function; may be called more than once for the same thing.
        things: at least one.
        skip: called for each damaged thing.
    """
    try:
        await do(things)
    except StoreDamaged as error:
        if len(things) == 1:
            skip(things[0], error)
            return
        middle = len(things) // 2
        await around_damage(do, things[:middle], skip)
        await around_damage(do, things[middle:], skip)


async def read_each(transaction: Snapshot, keys: Sequence[bytes]) -> list[Raw]:
    """Read several values at once; after damage in the store's file, one by one."""
    try:
        return [*await transaction.get_many(keys)]
    except StoreDamaged:
        return [await _read_one(transaction, key) for key in keys]


async def _read_one(transaction: Snapshot, key: bytes) -> Raw:
    try:
        return await transaction.get(key)
    except StoreDamaged as error:
        return error


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

    async def _tried(self, duty: Awaitable[object], at: str | None = None) -> bool:
        """Do a duty, and return True; False after damage in the store's file.

        Args:
            duty: makes its transactions by `_read` and `_transact`.
            at: name of the attribute with the loop's time of the duty's next turn; None if there is none.
        """
        try:
            await duty
        except StoreDamaged as error:
            self._log.warning("store_retry", error=str(error), pause=DAMAGED_PAUSE)
            if at is not None:
                setattr(self, at, self._time() + DAMAGED_PAUSE)
            return False
        return True

    async def _read(self, function: TransactionFunction[T]) -> T:
        """Run a function in a read-only transaction, with the retries of Context.retried.

        Raises:
            StoreDamaged: the only error that may last and is not retried.
        """
        return await self._context.retried(lambda: self._context.read(function), unless=(StoreDamaged,), **self._fields)

    async def _transact(
        self, work: Callable[[UnitOfWork], Awaitable[T]], unless: tuple[type[StoreError], ...] = ()
    ) -> T:
        """Do work in a transaction of its own, with the retries of Context.retried.

        Args:
            work: on a unit of work.
            unless: errors that the caller handles itself.

        Raises:
            StoreDamaged: the only error that may last and is not retried.
        """
        return await self._context.retried(
            lambda: self._context.transact(work), unless=(*unless, StoreDamaged), **self._fields
        )

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

    async def _each_type(self, do: Callable[[Sequence[bytes]], Awaitable[object]]) -> None:
        """Call a function with all existing types, except damaged ones.

        For use when damage hides an index of types: each type is examined by itself.
        """
        async for types in self._types(awake_types.existing_types):
            await around_damage(do, types)
