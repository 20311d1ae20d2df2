"""Watches in another process."""

from __future__ import annotations

from jobs_service.store import Transaction, Watch
from jobs_service.store.lmdb import LmdbStore


async def watch(store: LmdbStore, key: bytes) -> Watch:
    """Return a live watch."""

    async def function(tr: Transaction) -> Watch:
        return tr.watch(key)

    return await store.read(function)
