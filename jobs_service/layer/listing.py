"""Pages of stored jobs, bounded in number and in bytes. Jobs with unreadable records have a state of their own."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Generator, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

from jobs_service.errors import RecordDamaged
from jobs_service.layer.batch_bounds import SHARE
from jobs_service.layer.key_parts import AFTER, is_id, unpack_id
from jobs_service.layer.keyspace import DATA, Keyspace, TypeFinder, TypeKeys
from jobs_service.layer.record import Record
from jobs_service.layer.unreadable_record import Unreadable
from jobs_service.model import Job
from jobs_service.store.base import KeyValue, Limits, Snapshot

FIRST_CHUNK: Final = 16
LARGEST_CHUNK: Final = 256
"""Rows that are read at once: first and at most. A transaction can read as many, however large their records are."""
_GROWTH: Final = 4


class JobPage(NamedTuple):
    """Some jobs in key order.

    Attributes:
        jobs: (DATA key, job); may be empty although more follow.
        last: the last key that was read; None at the end.
    """

    jobs: Sequence[tuple[bytes, Job]]
    last: bytes | None


async def read_rows(
    transaction: Snapshot, begin: bytes, end: bytes, most: int, most_bytes: int
) -> tuple[list[KeyValue], bool]:
    """Return the first rows of a range, at least one if there is any, and whether these are all."""
    found: list[KeyValue] = []
    chunk, size = FIRST_CHUNK, 0
    while len(found) < most:
        limit = min(chunk, most - len(found))
        page = await transaction.get_range(begin, end, limit=limit)
        whole = size + sum(map(len, chain.from_iterable(page)))
        if whole > most_bytes:
            for row in page:
                size += len(row[0]) + len(row[1])
                if size > most_bytes and found:
                    return found, False
                found.append(row)
        else:  # as nearly always: no need to measure each row
            found += page
        size = whole
        if len(page) < limit:
            return found, True
        begin = page[-1][0] + b"\x00"
        # As many as fit if the next ones are as large as those so far.
        fitting = (most_bytes - size) * len(found) // size
        chunk = max(1, min(_GROWTH * chunk, LARGEST_CHUNK, fitting))
    return found, False


async def list_page(
    transaction: Snapshot, keyspace: Keyspace, keys: TypeKeys | None, after: bytes | None, most: int, limits: Limits
) -> JobPage:
    """Return one page of jobs, as many as a part of a transaction may hold.

    Args:
        transaction, keyspace: as everywhere.
        keys: of the type to list; None for all types.
        after: the last key of the page before; None to begin.
        most: jobs per page.
        limits: of the store.
    """
    section = keyspace.sections[DATA] if keys is None else keys.data
    begin = section if after is None else after + b"\x00"
    rows, end = await read_rows(transaction, begin, section + AFTER, most, limits.transaction // SHARE)
    last = None if end or not rows else rows[-1][0]
    if keys is not None:
        type, start = keys.type, len(keys.data)
        with contextlib.suppress(RecordDamaged, IndexError, ValueError):
            return JobPage(
                [(key, Job(type, unpack_id(key[start:]), Record.decode(raw, True))) for key, raw in rows], last
            )
    finder = TypeFinder(keyspace)
    found = ((key, _job_at(keys or _type_of(finder, key), key, raw)) for key, raw in rows)
    return JobPage([(key, job) for key, job in found if job is not None], last)


def _type_of(finder: TypeFinder, key: bytes) -> TypeKeys | None:
    """Return the keys of a DATA key's type, None if it cannot be parsed."""
    try:
        return finder.keys_of_data(key)
    except Exception:  # fdb.tuple raises many kinds of errors for bytes that are no tuple
        return None


def _job_at(keys: TypeKeys | None, key: bytes, raw: bytes) -> Job | None:
    """Return the job of a row; None if its key cannot be parsed, because the job has no name then."""
    if keys is None:
        return None
    packed_id = key[len(keys.data) :]
    try:
        id = unpack_id(packed_id)
    except (IndexError, ValueError):
        return None
    try:
        return Job(keys.type, id, Record.decode(raw, True))
    except RecordDamaged as error:
        return Job(keys.type, id, Unreadable(error)) if is_id(packed_id) else None


class Listing:
    """Jobs in key order: awaited, a list; iterated, one after the other."""

    def __init__(self, jobs: AsyncIterator[Job]) -> None:
        self._jobs = jobs

    def __aiter__(self) -> AsyncIterator[Job]:
        return self._jobs

    def __await__(self) -> Generator[Any, None, list[Job]]:
        return self._all().__await__()

    async def _all(self) -> list[Job]:
        return [job async for job in self._jobs]
