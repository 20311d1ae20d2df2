"""LMDB's errors as errors of the store."""

from __future__ import annotations

import errno

import lmdb

from jobs_service.errors import StoreDamaged, StoreError, StoreFull, StoreUnavailable


def store_error(address: str, error: Exception) -> StoreError:
    """Return the store's error for an LMDB error: the only mapping between them."""
    if isinstance(error, StoreError):
        return error
    if isinstance(error, lmdb.MapFullError):
        return StoreFull(
            f"store {address} is full (its map's size): nothing was written; set JOBS_SERVICE_LMDB_MAP_SIZE higher"
        )
    if is_out_of_room(error):
        return StoreFull(
            f"store {address}: the disk is full or fails ({error}): nothing was written; make room and try again"
        )
    if isinstance(error, lmdb.MapResizedError):
        return StoreUnavailable(f"store {address} was grown by another process meanwhile; try again")
    if isinstance(error, lmdb.ReadonlyError):
        return StoreError(f"store {address} is on a read-only file system: nothing was written")
    if isinstance(error, lmdb.CorruptedError | lmdb.PageNotFoundError | lmdb.PageFullError):
        return StoreDamaged(
            f"a page of store {address} is damaged ({error}): end all programs that use it, and restore a backup "
            "(docs/stores.md, A damaged store)"
        )
    return StoreError(f"store {address} failed: {error}")


def is_out_of_room(error: Exception) -> bool:
    """Whether LMDB, or the system, had no room for a write."""
    code = error.errno if isinstance(error, OSError) else getattr(error, "code", 0)
    # EIO is what LMDB makes of a write that came out short.
    return isinstance(error, lmdb.DiskError) or code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
