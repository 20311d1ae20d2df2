"""Ordered, transactional key-value stores behind one protocol, without any knowledge of jobs."""

from __future__ import annotations

from jobs_service.errors import InvalidAddress, in_one_line, shown
from jobs_service.settings import Settings
from jobs_service.sources import Sources
from jobs_service.store.base import KeySelector, Limits, Snapshot, Store, Transaction, Watch

__all__ = ["KeySelector", "Limits", "Snapshot", "Store", "Transaction", "Watch", "open_address"]


_LONGEST_PATH = 4096
_LONGEST_SHOWN = 200


def open_address(address: str, settings: Settings, sources: Sources) -> Store:
    """Return the store with an address, not yet open.

    Args:
        address: `lmdb:PATH`, `sqlite:PATH`, `memory:`, or `fdb:[CLUSTER_FILE][?directory=PATH]`.
        settings: limits and knobs of the store.
        sources: wall-clock time and randomness.

    Raises:
        InvalidAddress: the address names no known store.
    """
    scheme, colon, rest = address.partition(":")
    if "\0" in address or not _is_encodable(rest) or len(rest) > _LONGEST_PATH:
        raise InvalidAddress(f"store address {shown(address)}: no file system takes such a path")
    if scheme in ("lmdb", "sqlite") and rest.startswith("//"):
        # To other libraries sqlite:///app.db is app.db below the present directory, to a file system it is /app.db.
        path = in_one_line(rest.lstrip("/"), _LONGEST_SHOWN)
        raise InvalidAddress(
            f"store address {shown(address)} is a URL; write {scheme}:{path}, or {scheme}:/{path} from the root on"
        )
    if colon and scheme == "lmdb" and rest:
        from jobs_service.store.lmdb import LmdbStore

        return LmdbStore(rest, settings=settings, sources=sources)
    if colon and scheme == "sqlite" and rest:
        from jobs_service.store.sqlite import SqliteStore

        return SqliteStore(rest, settings=settings, sources=sources)
    if colon and scheme == "memory" and not rest:
        from jobs_service.store.memory import MemoryStore

        return MemoryStore(settings=settings, sources=sources)
    if colon and scheme == "fdb":
        from jobs_service.store.fdb import FdbStore
        from jobs_service.store.fdb.directory import split_address

        file, directory = split_address(rest, settings.fdb_directory)
        return FdbStore(file, settings=settings, sources=sources, directory=directory)
    raise InvalidAddress(
        f"store address {shown(address)} names no store; use lmdb:PATH, sqlite:PATH, memory: or fdb:[CLUSTER_FILE]"
    )


def _is_encodable(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
