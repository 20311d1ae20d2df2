"""The format of a directory, and its conversion: only on request, because programs of many machines may use it."""

from __future__ import annotations

from typing import ClassVar

from jobs_service.store.base import Store, Transaction
from jobs_service.store.fdb.directory import CONVERTING_KEY, FORMAT, FORMAT_KEY


class ConvertibleDirectory(Store):
    """The part of FdbStore that handles formats."""

    converts_when_opened: ClassVar[bool] = False

    async def needs_conversion(self) -> bool:
        prefix = await self.prefix()
        found, converting = await self.read(lambda tr: _values(tr, prefix))
        return converting is not None or (found is not None and int(found) < FORMAT)

    async def begin_conversion(self) -> None:
        prefix = await self.prefix()

        async def begin(transaction: Transaction) -> None:
            transaction.set(prefix + CONVERTING_KEY, b"")
            transaction.set(prefix + FORMAT_KEY, b"%d" % FORMAT)

        await self.transact(begin)

    async def end_conversion(self) -> None:
        prefix = await self.prefix()

        async def end(transaction: Transaction) -> None:
            transaction.clear(prefix + CONVERTING_KEY)

        await self.transact(end)


async def _values(transaction: Transaction, prefix: bytes) -> list[bytes | None]:
    return await transaction.get_many((prefix + FORMAT_KEY, prefix + CONVERTING_KEY))
