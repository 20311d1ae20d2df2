"""What the contract's tests have in common: short ways to write and read, and patience."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from jobs_service.store import Store, Transaction

PATIENCE = 30.0
"""Seconds after which a test that waits for something gives up and fails."""

END = b"\xff"
"""The end of the keys that are not the store's own."""

Pairs = Mapping[bytes, bytes]


def number(value: int) -> bytes:
    """Return an operand for an atomic add."""
    return value.to_bytes(8, "little")


def placeholder(before: bytes = b"", after: bytes = b"") -> bytes:
    """Return an operand in which the versionstamp goes between the two."""
    return before + b"\xff" * 10 + after + len(before).to_bytes(4, "little")


async def write(store: Store, pairs: Pairs) -> None:
    """Write pairs in one transaction."""

    async def set_all(tr: Transaction) -> None:
        for key, value in pairs.items():
            tr.set(key, value)

    await store.transact(set_all)


async def empty(store: Store) -> None:
    """Clear the whole store."""

    async def clear(tr: Transaction) -> None:
        tr.clear_range(b"", END)

    await store.transact(clear)


async def value_of(store: Store, key: bytes) -> bytes | None:
    """Return one value."""
    return await store.read(lambda tr: tr.get(key))


async def contents(store: Store) -> dict[bytes, bytes]:
    """Return everything in the store but what it keeps for itself."""
    found = dict(await store.read(lambda tr: tr.get_range(b"", END)))
    if store.address.startswith("fdb:") and found:
        own = (b"\xfe\x01", b"\xfe\x15", await store.prefix())
        return {key: value for key, value in found.items() if not key.startswith(own)}
    return found


@asynccontextmanager
async def patience() -> AsyncIterator[None]:
    """Fail when what is done inside takes very much longer than it should."""
    async with asyncio.timeout(PATIENCE):
        yield
