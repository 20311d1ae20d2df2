"""Pages of the jobs of a type, from either end: by an index if there is one, otherwise by id."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from jobs_service.arguments import check_state, member
from jobs_service.errors import InvalidJob, RecordDamaged, a_kind_of, shown
from jobs_service.layer.key_parts import AFTER, STAMP_CODE, TIME_BYTES, is_id, pack_id, unpack_id
from jobs_service.layer.keyspace import TypeKeys
from jobs_service.layer.listing import FIRST_CHUNK, LARGEST_CHUNK
from jobs_service.layer.record import Record
from jobs_service.layer.record_format import READY, SCHEDULED
from jobs_service.layer.strays import id_of_ready
from jobs_service.layer.unreadable_record import Unreadable
from jobs_service.model import Job, Outcome
from jobs_service.status import Status
from jobs_service.store.base import KeyValue, Snapshot

_GROWTH: Final = 4
_MOST_ROWS: Final = 2000
_MOST_BYTES: Final = 1_000_000
"""Rows, and bytes of records, that one transaction reads."""

_BY_ID: Final = b"i"
_RETRYING: Final = b"t"
_INDEXES: Final = {
    Status.READY: b"r",
    Status.SCHEDULED: b"s",
    Status.RETRYING: _RETRYING,
    Status.RUNNING: b"a",
    Status.FAILED: b"f",
}
"""The first byte of a cursor: the order of its place."""


class Terms(NamedTuple):
    """The terms of a page.

    Attributes:
        order: b"i" by id, otherwise an index's order.
        fits: whether a job found by its id is wanted.
        prefix: of packed ids; empty for all.
        newest_first: whether to read from the other end.
        after: the end of the page before, in this order; None to begin.
    """

    order: bytes
    fits: Callable[[Job], bool] | None
    prefix: bytes
    newest_first: bool
    after: bytes | None


class Page(NamedTuple):
    """The jobs that one transaction has found.

    Attributes:
        jobs: at most the wanted number.
        last: the place of the last row that was read; None at the end.
    """

    jobs: list[Job]
    last: bytes | None


def terms(state: Any, after: Any, newest_first: Any, prefix: Any, now: float) -> Terms:
    """Return the checked terms of a page.

    Raises:
        InvalidJob: one of them is invalid.
    """
    fits = check_state(state, now)
    status = member(Status, state)
    order = _BY_ID if status is None else _INDEXES.get(status, _BY_ID)
    begins = b"" if prefix is None else pack_id(prefix)[:-1]
    return Terms(order, fits, begins, bool(newest_first), None if after is None else _decoded(after, order))


def cursor(terms: Terms, place: bytes) -> str:
    """Return a place as URL-safe text."""
    return base64.urlsafe_b64encode(terms.order + place).decode().rstrip("=")


def _decoded(after: Any, order: bytes) -> bytes:
    try:
        if not issubclass(type(after), str):  # it is asked nothing, whatever it is
            raise TypeError
        place = base64.b64decode(after + "=" * (-len(after) % 4), b"-_", validate=True)
    except (TypeError, ValueError):
        refused = f"after {shown(after)}: {a_kind_of(after)}; allowed is what `next` of a page has"
        raise InvalidJob(refused) from None
    if place[:1] != order:
        refused = "it is not `next` of a page of jobs in this state; allowed is what that has, for the same state"
        raise InvalidJob(f"after {shown(after)}: {refused}")
    return place[1:]


async def page(transaction: Snapshot, keys: TypeKeys, terms: Terms, after: bytes | None, most: int) -> Page:
    """Return the next jobs, as far as a bounded look finds them.

    Args:
        transaction, keys: of the type.
        terms: of the page.
        after: the end of the look before; None to begin.
        most: most jobs.
    """
    head, end = _range(keys, terms)
    begin, start = head, len(_head(keys, terms.order))
    if after is not None:
        place = _head(keys, terms.order) + after
        begin, end = (begin, min(end, place)) if terms.newest_first else (max(begin, place + b"\x00"), end)
    jobs: list[Job] = []
    rows = size = 0
    last = b""
    chunk = min(FIRST_CHUNK + 1, most + 1)
    while True:
        found = await transaction.get_range(begin, end, limit=chunk, reverse=terms.newest_first)
        ids = [_id_in(keys, terms.order, row) for row in found]
        wanted = [id for id in ids if id is not None and id.startswith(terms.prefix)]
        raws = await _records(transaction, keys, terms.order, found, wanted)
        for (key, _), id in zip(found, ids, strict=True):
            if len(jobs) == most or size > _MOST_BYTES:
                return Page(jobs, last)
            last = key[start:]
            raw = None if id is None else raws.get(id)
            if id is not None and raw is not None:
                size += len(raw)
                jobs += _fitting(keys, terms, id, raw, last)
        rows += len(found)
        if len(found) < chunk:
            return Page(jobs, None)
        if rows >= _MOST_ROWS:
            return Page(jobs, last)
        if terms.newest_first:
            end = found[-1][0]
        else:
            begin = found[-1][0] + b"\x00"
        fitting = (_MOST_BYTES - size) * rows // max(size, 1)
        # Where all so far were wanted, the next ones probably are.
        missing = most + 1 - len(jobs) if len(jobs) == rows else LARGEST_CHUNK
        chunk = max(1, min(_GROWTH * chunk, LARGEST_CHUNK, fitting, missing))


async def _records(
    transaction: Snapshot, keys: TypeKeys, order: bytes, found: list[KeyValue], ids: list[bytes]
) -> dict[bytes, bytes | None]:
    """Return the records of jobs by packed id."""
    if order == _BY_ID:
        return {key[len(keys.data) :]: value for key, value in found}
    return dict(zip(ids, await transaction.get_many([keys.data + id for id in ids]), strict=True))


def _head(keys: TypeKeys, order: bytes) -> bytes:
    """Return the prefix of all keys of an order."""
    return {
        _BY_ID: keys.data,
        b"r": keys.ready,
        b"s": keys.scheduled,
        _RETRYING: keys.retrying,
        b"a": keys.activity,
        b"f": keys.failed,
    }[order]


def _range(keys: TypeKeys, terms: Terms) -> tuple[bytes, bytes]:
    head = _head(keys, terms.order)
    if terms.order not in (_BY_ID, _RETRYING) or not terms.prefix:
        return head, head + AFTER
    # Bytes may go on with 0xff, and no prefix consists of them alone: it begins with the code of its kind.
    kept = terms.prefix.rstrip(b"\xff")
    return head + terms.prefix, head + kept[:-1] + bytes((kept[-1] + 1,))


def _id_in(keys: TypeKeys, order: bytes, row: KeyValue) -> bytes | None:
    """Return the packed id in a row; None if it has none."""
    key, value = row
    if order == b"r":
        return id_of_ready(keys, key)
    behind = len(_head(keys, order)) + (TIME_BYTES if order == b"s" else 0)
    id = value if order in b"af" else key[behind:]
    return id if is_id(id) else None


def _fitting(keys: TypeKeys, terms: Terms, id: bytes, raw: bytes, place: bytes) -> Iterator[Job]:
    """Yield the job if it is wanted: with an index, if it is in that place."""
    record: Record | Unreadable
    try:
        record = Record.decode(raw, True)
    except RecordDamaged as error:
        if terms.order != _BY_ID:
            return
        record = Unreadable(error)
    job = Job(keys.type, unpack_id(id), record)
    if terms.order == _BY_ID:
        if terms.fits is None or terms.fits(job):
            yield job
        return
    assert isinstance(record, Record)
    is_there = {
        b"r": record.place == READY and not job.retrying,
        b"s": record.place == SCHEDULED and not job.retrying,
        _RETRYING: job.retrying,
        b"a": record.lock is not None and STAMP_CODE + _seq(record) == place,
        b"f": record.outcome is Outcome.FAILED and STAMP_CODE + _seq(record) == place,
    }
    if is_there[terms.order]:
        yield job


def _seq(record: Record) -> bytes:
    assert isinstance(record.seq, bytes)
    return record.seq
