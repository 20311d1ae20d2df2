"""The embedded store on LMDB, shared by all processes of one machine."""

from __future__ import annotations

from jobs_service.store.lmdb.store import LmdbStore

__all__ = ["LmdbStore"]
