"""Ordered, transactional key-value stores behind one protocol. Floor: the lowest that does anything; knows no jobs."""

from __future__ import annotations

from jobs_service.errors import StoreError
from jobs_service.settings import Settings
from jobs_service.sources import Sources
from jobs_service.store.base import KeySelector, Limits, Snapshot, Store, Transaction, Watch

__all__ = ["KeySelector", "Limits", "Snapshot", "Store", "Transaction", "Watch", "open_address"]


def open_address(address: str, settings: Settings, sources: Sources) -> Store:
    """Return the store, not yet open, that an address names.

    Args:
        address: `lmdb:PATH`, `memory:`, `fdb:` or `fdb:CLUSTER_FILE`.
        settings: limits and knobs of the store.
        sources: wall-clock time and randomness.

    Raises:
        StoreError: the address names no store there is.
    """
    scheme, colon, rest = address.partition(":")
    if colon and scheme == "lmdb" and rest:
        from jobs_service.store.lmdb import LmdbStore

        return LmdbStore(rest, settings=settings)
    if colon and scheme == "memory" and not rest:
        from jobs_service.store.memory import MemoryStore

        return MemoryStore(settings=settings, sources=sources)
    if colon and scheme == "fdb":
        raise StoreError(f"store address {address!r}: the FoundationDB store is not in this version; use lmdb:PATH")
    raise StoreError(f"store address {address!r} names no store; use lmdb:PATH, memory: or fdb:[CLUSTER_FILE]")
