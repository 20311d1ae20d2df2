"""LMDB environments: opened, checked, copied, and their errors as the store's. Floor: store."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

import lmdb

from jobs_service.errors import StoreError, StoreFull
from jobs_service.settings import Settings
from jobs_service.store.base import SYSTEM_KEYS

FORMAT: Final = 1
"""The version of everything in the file: the layout of keys, records and the store's own keys."""

_FORMAT_KEY: Final = SYSTEM_KEYS + b"/jobs_service/format"


def open_environment(path: Path, settings: Settings) -> lmdb.Environment:
    """Open or make the LMDB environment, and check or write its format version."""
    if path.is_file():
        raise StoreError(f"{path} is a file; an embedded store is a directory")
    try:
        path.mkdir(parents=True, exist_ok=True)
        environment = lmdb.open(
            str(path),
            map_size=settings.lmdb_map_size,
            max_readers=1024,
            max_spare_txns=1,
            metasync=settings.durable,
            meminit=False,
            readahead=False,
        )
    except OSError as error:
        raise StoreError(f"{path} cannot be opened: {error.strerror or error}") from error
    except lmdb.InvalidError as error:
        raise StoreError(f"{path / 'data.mdb'} is no embedded store: {error}") from error
    except lmdb.Error as error:
        if "already open" in str(error):
            raise StoreError(
                f"{path} is open in this process already, or was when it was forked; "
                "give that service's `store` to the second one"
            ) from error
        raise StoreError(f"{path} cannot be opened: {str(error).removeprefix(f'{path}: ')}") from error
    try:
        environment.reader_check()
        _check_format(environment, path)
    except lmdb.Error as error:
        environment.close()
        raise store_error(f"lmdb:{path}", error) from error
    except BaseException:
        environment.close()
        raise
    return environment


def _check_format(environment: lmdb.Environment, path: Path) -> None:
    with environment.begin() as transaction:
        found = transaction.get(_FORMAT_KEY)
        empty = not transaction.cursor().first()
    if found is None and empty:
        with environment.begin(write=True) as transaction:
            transaction.put(_FORMAT_KEY, b"%d" % FORMAT, overwrite=False)
            found = transaction.get(_FORMAT_KEY)
    if found is None:
        raise StoreError(f"{path} is an LMDB environment, but no store of jobs_service; choose another directory")
    if not found.isdigit() or int(found) > FORMAT:
        raise StoreError(
            f"{path} has format {found.decode('ascii', 'replace')}, made by a newer version of jobs_service; "
            f"this one reads up to format {FORMAT}: upgrade it"
        )


def store_error(address: str, error: Exception) -> StoreError:
    """Return the store's error for one of LMDB's: the one place where they are mapped."""
    code = getattr(error, "code", 0)
    if isinstance(error, lmdb.MapFullError):
        return StoreFull(
            f"store {address} is full (its map's size): nothing was written; set JOBS_SERVICE_LMDB_MAP_SIZE higher"
        )
    # EIO is what LMDB makes of a write that came out short.
    if isinstance(error, lmdb.DiskError) or code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
        return StoreFull(
            f"store {address}: the disk is full or fails ({error}): nothing was written; make room and try again"
        )
    if isinstance(error, lmdb.MapResizedError):
        return StoreError(
            f"store {address} was grown by a process with a larger map; give all the same JOBS_SERVICE_LMDB_MAP_SIZE"
        )
    return StoreError(f"store {address} failed: {error}")


def copy_environment(environment: lmdb.Environment, path: Path) -> int:
    """Write a compacted copy to a new file: to a temporary one first, so that a half-written one never has its name."""
    if path.exists():
        raise StoreError(f"{path} exists already; name a new file")
    temporary = path.with_name(path.name + ".part")
    try:
        with open(temporary, "xb") as file:
            try:
                environment.copyfd(file.fileno(), compact=True)
                os.fsync(file.fileno())
                size = os.fstat(file.fileno()).st_size
                os.rename(temporary, path)
            except BaseException:
                temporary.unlink()
                raise
    except FileExistsError as error:
        raise StoreError(f"{temporary} exists already, left by another backup; remove it") from error
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}") from error
    except lmdb.Error as error:
        raise StoreError(f"{path} cannot be written: {error}") from error
    return size
