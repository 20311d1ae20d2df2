"""The place of the jobs' keys in a cluster: a path of the directory layer, and the format of its keys.

Moving a directory changes FoundationDB's metadata version key, which every transaction gets without an extra request.
After such a change, one round trip of plain reads shows whether this directory has stayed in place. The directory
layer's own look-up, which blocks a thread, is only for the first time and for a directory that has gone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import fdb
import fdb.tuple

from jobs_service.errors import InvalidAddress, StoreError, StoreUnavailable, in_one_line, shown
from jobs_service.store.fdb.client import DATABASE_LOCKED

DIRECTORY: Final = ("jobs_service",)
"""The default path in the directory layer."""

METADATA_VERSION: Final = b"\xff/metadataVersion"

FORMAT: Final = b"1"
"""The format of the keys in the directory; another one is refused."""

FORMAT_KEY: Final = b"\xffformat"
"""Follows the directory's prefix; no tuple, and no mark, begins with it."""

# The directory layer's own layout: a node's entry for a subdirectory is (prefix of the node, 0, name) -> prefix.
_NODES: Final = b"\xfe"
_SUBDIRECTORIES: Final = 0

_LONGEST_PATH: Final = 1000
_PARAMETER: Final = "directory="


@dataclass(frozen=True, slots=True)
class Location:
    """The place where the directory was found.

    Attributes:
        prefix: prefix of all its keys.
        metadata: the metadata version of the look-up.
        entries: the directory layer's keys that lead to it, with their values; empty if unknown.
    """

    prefix: bytes
    metadata: bytes | None
    entries: tuple[tuple[bytes, bytes], ...]


def directory_path(text: str, what: str) -> tuple[str, ...]:
    """Return the path of a directory, given as `a/b`.

    Args:
        what: name of the path in the error.

    Raises:
        InvalidAddress: no directory can have this path.
    """
    parts = tuple(text.split("/"))
    if not all(parts) or len(text) > _LONGEST_PATH or not text.isprintable():
        raise InvalidAddress(
            f"{what}={shown(text)}: allowed are names separated by /, of printable characters, at most "
            f"{_LONGEST_PATH} in all"
        )
    return parts


def split_address(rest: str, default: str) -> tuple[str, tuple[str, ...]]:
    """Return the cluster file and the directory of an address without its `fdb:`.

    Args:
        rest: `[CLUSTER_FILE][?directory=PATH]`.
        default: the path if the address has none.

    Raises:
        InvalidAddress: something else is behind the question mark, or no directory can have this path.
    """
    file, mark, parameter = rest.rpartition("?")
    if not mark:
        return rest, directory_path(default, "setting fdb_directory")
    if not parameter.startswith(_PARAMETER):
        raise InvalidAddress(f"store address {shown(f'fdb:{rest}')}: behind the ? only {_PARAMETER}PATH is allowed")
    return file, directory_path(parameter.removeprefix(_PARAMETER), f"store address fdb:{shown(file)}: directory")


def address_of(cluster_file: str, path: tuple[str, ...]) -> str:
    """Return the address of a store, without the default directory."""
    return f"fdb:{cluster_file}" if path == DIRECTORY else f"fdb:{cluster_file}?{_PARAMETER}{'/'.join(path)}"


def look_up(native: Any, path: tuple[str, ...]) -> Location:
    """Find the directory, or make a missing one; blocks.

    Args:
        native: the client's transaction, which this commits.

    Raises:
        StoreError: the directory has another format, or the directory layer can neither find nor make it.
        fdb.FDBError: the client's error.
    """
    while True:
        try:
            metadata = native.get(METADATA_VERSION)
            prefix: bytes = _made(native, path).key()
            _check_format(native, prefix, path)
            found = Location(prefix, metadata.value, _entries(native, path, prefix))
            native.commit().wait()
        except fdb.FDBError as error:
            if error.code == DATABASE_LOCKED:
                raise StoreUnavailable("the database is locked; fdbcli unlocks it (unlock UID)") from None
            native.on_error(error).wait()
        else:
            return found


async def is_still_there(native: Any, location: Location, until: Callable[[Any], Awaitable[None]]) -> bool:
    """Return whether a transaction sees the directory in its old place; False also if only a look-up can tell.

    Args:
        native: the client's transaction.
        until: waits until one of its futures is ready.
    """
    if not location.entries:
        return False
    futures = [(native.snapshot.get(key), value) for key, value in location.entries]
    same = True
    for future, value in futures:
        await until(future)
        same = same and future.value == value
    return same


def _made(native: Any, path: tuple[str, ...]) -> Any:
    try:
        return fdb.directory.create_or_open(native, path)
    except fdb.FDBError:
        raise
    except Exception as error:  # the directory layer has no errors of its own
        reason = in_one_line(str(error), 200)
        raise StoreError(f"the directory {'/'.join(path)} can be neither opened nor made: {reason}") from None


def _check_format(native: Any, prefix: bytes, path: tuple[str, ...]) -> None:
    """Refuse another format; a directory without one is new."""
    found = native[prefix + FORMAT_KEY]
    if not found.present():
        native[prefix + FORMAT_KEY] = FORMAT
    elif (value := bytes(found.value)) != FORMAT:
        raise StoreError(
            f"the directory {'/'.join(path)} has format {shown(value.decode('ascii', 'replace'))}, made by another "
            f"version of jobs_service; this one reads format {FORMAT.decode()}: upgrade it"
        )


def _entries(native: Any, path: tuple[str, ...], prefix: bytes) -> tuple[tuple[bytes, bytes], ...]:
    entries = []
    parent = _NODES
    for name in path:
        key = _NODES + fdb.tuple.pack((parent, _SUBDIRECTORIES, name))
        value = native[key]
        if not value.present():
            return ()  # It is in a partition, whose entries are elsewhere.
        parent = bytes(value.value)
        entries.append((key, parent))
    return tuple(entries) if parent == prefix else ()
