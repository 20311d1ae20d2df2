"""The FoundationDB store."""

from __future__ import annotations

from jobs_service.store.fdb.store import FdbStore

__all__ = ["FdbStore"]
