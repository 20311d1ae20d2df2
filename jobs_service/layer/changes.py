"""Changes in a type since a notifier's last look, found without reading all jobs.

A type may have a million subscriptions, and the cost of a change must depend only on its job. There are two traces:

- A job that begins to run, or shows that it is alive, gets a new row (ACTIVITY, type, seq): rows behind the newest one
  seen last time are new.
- All other changes (a job is pending again, finished or removed, or its data is replaced while it waits) leave no row
  that could be found by its time. While a type is followed, a transaction writes the ids of such jobs into a row
  (CHANGES, type, versionstamp), which conflicts with nothing.

A follower of all jobs of a type, rather than of named ones, wants added jobs as well: then the value of FOLLOWED ends
with another byte, and their ids are written, too.

A type is followed while it has a row (FOLLOWED, type), whose value is the versionstamp of the transaction that made it.
Every transaction that changes a job reads that row, with a conflict, together with the job's record. So a change that a
follower does not find was committed before the row was made, and the follower reads all its jobs after that.

The rows of changes are bounded. Followers remove those that all of them should have seen a while ago; (CHANGES, type),
without a versionstamp, has the stamp up to which they did. A follower that is further behind reads all its jobs again.
The last follower does not sign off, and could not if it was killed: the type's activity monitor removes rows that stay
for a while, and then writes another (FOLLOWED, type), marked as in doubt. A follower that still exists finds another
value, makes the row anew, and reads all its jobs. If none does for a while, the monitor removes the row.

So a follower that has found the type followed, and looks again in time, has missed nothing. Waiters for jobs that leave
with their end rely on that. Notifiers follow the types of such jobs, even for few waiters. Waiters for a few jobs of
another type do not follow it; therefore the transaction that makes jobs of a type leave writes a FOLLOWED in doubt,
which tells the notifiers as well.

A job of a type that keeps its jobs for 0 seconds is gone with the transaction that ends it. Followers of the type at
that moment must still learn how it has ended: so its final record goes into a row (LAST, type, id). A type without
followers gets no such row.

- Followers look there if a changed job has no record any more. Without a row it was removed.
- A transaction that removes a job of a followed type clears the row of an earlier job with the same id. The rows of a
  type go with FOLLOWED at the latest. So a row without a record of the same job in DATA belongs to the last job with
  that id.
- The type's activity monitor removes the rows when they are old: a follower may be late by that much.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from jobs_service.errors import RecordDamaged
from jobs_service.layer.keyspace import AFTER, LAST_ORDER, STAMP_CODE, TypeKeys
from jobs_service.layer.record import Record
from jobs_service.sources import Sources
from jobs_service.store.base import STAMP_BYTES, Snapshot, Transaction

_ROW_BYTES: Final = 50_000
_NO_STAMP: Final = bytes(STAMP_BYTES)
_NEW: Final = b"\x01"
_IN_DOUBT: Final = b"\x02"

_LARGEST_READ: Final = 1_000_000
"""Bytes of rows after which a transaction removes no more of them."""


# Following


class Position(NamedTuple):
    """A follower's position in the changes of a type.

    Attributes:
        generation: the value of (FOLLOWED, type).
        changed: 12 bytes: rows of changes behind it are new.
        active: 12 bytes: rows of ACTIVITY behind it are new.
    """

    generation: bytes
    changed: bytes
    active: bytes


class ChangedJobs(NamedTuple):
    """Changes behind a position.

    Attributes:
        packed_ids: of the jobs; there may be others behind the new position if there is `more`.
        position: the new one.
        more: see above.
        logged: whether there were rows of changes.
    """

    packed_ids: list[bytes]
    position: Position
    more: bool
    logged: bool


def write(packed_ids: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the values of the rows (CHANGES, type, stamp) that name these jobs."""
    row = bytearray()
    for packed_id in packed_ids:
        if len(row) + len(packed_id) > _ROW_BYTES:
            yield bytes(row)
            row.clear()
        row += packed_id
    yield bytes(row)


async def begin(transaction: Snapshot, keys: TypeKeys, *, new: bool = False) -> Position | None:
    """Return the position of a follower that reads all its jobs now or later; None if the type is not followed so yet.

    Args:
        transaction, keys: of the type.
        new: whether added jobs are wanted as well.
    """
    generation, stamp = await transaction.get_many((keys.followed, keys.watch_activity))
    if generation is None or not _is_followed(generation, new):
        return None
    end = (stamp or _NO_STAMP) + LAST_ORDER
    return Position(generation, end, end)


async def follow(transaction: Transaction, keys: TypeKeys, *, new: bool = False) -> None:
    """Have changes of the type noted, including added jobs if wanted."""
    generation = await transaction.get(keys.followed)
    if generation is None or not _is_followed(generation, new):
        transaction.stamp_value(keys.followed, b"", _NEW if new else b"")


def _is_followed(generation: bytes, new: bool) -> bool:
    return not is_in_doubt(generation) and (wants_new(generation) or not new)


def wants_new(generation: bytes) -> bool:
    """Return whether all jobs of a type are followed, given the value of its row FOLLOWED."""
    return generation[STAMP_BYTES:] == _NEW


def is_in_doubt(generation: bytes) -> bool:
    """Return whether a type may have lost its followers, given the value of its row FOLLOWED."""
    return generation[STAMP_BYTES:] == _IN_DOUBT


def doubt(transaction: Transaction, keys: TypeKeys, sources: Sources) -> bytes:
    """Have changes of the type noted, but not for long unless a follower confirms it; return the value of FOLLOWED."""
    # No versionstamp: others may have to read it in the same transaction.
    generation = sources.token(STAMP_BYTES) + _IN_DOUBT
    transaction.set(keys.followed, generation)
    return generation


async def since(transaction: Snapshot, keys: TypeKeys, position: Position, limit: int) -> ChangedJobs | None:
    """Return the jobs that have changed behind a position; None if that is no longer known.

    Args:
        transaction, keys: of the type.
        position: of the follower.
        limit: rows read of each kind.
    """
    generation, removed, stamp = await transaction.get_many((keys.followed, keys.changes, keys.watch_activity))
    end = (stamp or _NO_STAMP) + LAST_ORDER
    # All rows of a stamp are removed at once; this follower may have seen only the first of them.
    if generation != position.generation or (removed is not None and removed + LAST_ORDER > position.changed):
        return None
    if end < max(position.changed, position.active):  # the store is older than it was: a backup was put back
        return None
    # Not beyond the newest activity: a follower that met an entry there, which belongs to no job, would pass over all
    # that comes before it.
    behind = end + b"\x00"
    head = keys.changes + STAMP_CODE
    rows = await transaction.get_range(head + position.changed + b"\x00", head + behind, limit=limit)
    begin = keys.activity_head + position.active + b"\x00"
    active = await transaction.get_range(begin, keys.activity_head + behind, limit=limit)
    changed = rows[-1][0][len(head) :] if len(rows) == limit else end
    lively = active[-1][0][len(keys.activity_head) :] if len(active) == limit else end
    found = {packed_id: None for _, value in rows for packed_id in _ids(value)}
    found |= {packed_id: None for _, packed_id in active}
    more = len(rows) == limit or len(active) == limit
    return ChangedJobs([*found], Position(generation, changed, lively), more, bool(rows))


async def remove_seen(transaction: Transaction, keys: TypeKeys, position: Position) -> None:
    """Remove the rows of changes up to a position that followers passed a while ago."""
    generation, removed = await transaction.get_many((keys.followed, keys.changes))
    stamp = position.changed[:STAMP_BYTES]
    if generation == position.generation and (removed is None or removed < stamp):
        head = keys.changes + STAMP_CODE
        transaction.clear_range(head, head + stamp + LAST_ORDER + b"\x00")
        transaction.set(keys.changes, stamp)


async def oldest(transaction: Snapshot, keys: TypeKeys) -> bytes | None:
    """Return the key of the oldest row of changes, None if there is none."""
    found = await transaction.get_range(keys.changes + STAMP_CODE, keys.changes + AFTER, limit=1)
    return found[0][0] if found else None


async def give_up(transaction: Transaction, keys: TypeKeys, sources: Sources, unseen: bytes) -> None:
    """Mark the type's following as in doubt if a row still exists that followers would have removed long ago."""
    if await oldest(transaction, keys) == unseen:
        doubt(transaction, keys, sources)
        transaction.clear_range(keys.changes, keys.changes + AFTER)
        # If there is a follower all the same, it looks, and follows anew.
        transaction.stamp_value(keys.watch_activity, b"", b"")


async def forget(transaction: Transaction, keys: TypeKeys, doubted: bytes) -> None:
    """Stop noting changes of the type if its following is still in the same doubt."""
    if await transaction.get(keys.followed) == doubted:
        transaction.clear(keys.followed)
        transaction.clear_range(keys.changes, keys.changes + AFTER)
        transaction.clear_range(keys.last, keys.last + AFTER)
        transaction.stamp_value(keys.watch_activity, b"", b"")


def _ids(value: bytes) -> Iterator[bytes]:
    """Yield the packed ids of a row: each ends with a zero byte that is not followed by 0xff."""
    start = end = 0
    while (end := value.find(b"\x00", end)) >= 0:
        end += 1
        if value[end : end + 1] == b"\xff":
            continue
        yield value[start:end]
        start = end


# Last records of jobs that have left with their end


class Removed(NamedTuple):
    """One transaction's part of a long removal.

    Attributes:
        looked_at: number of rows.
        behind: the last of them; None if none follow.
    """

    looked_at: int
    behind: bytes | None


async def has_last_records(transaction: Snapshot, keys: TypeKeys) -> bool:
    """Whether the type has last records."""
    return bool(await transaction.get_range(keys.last, keys.last + AFTER, limit=1))


async def remove_last_records(
    transaction: Transaction, keys: TypeKeys, until: bytes, behind: bytes, limit: int
) -> Removed:
    """Remove last records that were written up to a versionstamp.

    Args:
        transaction, keys: of the type.
        until: the versionstamp.
        behind: the key of the last row looked at; the type's prefix to begin.
        limit: most rows to look at.
    """
    page = max(1, transaction.limits.transaction // transaction.limits.value)
    looked_at = size = 0
    while looked_at < limit and size < _LARGEST_READ:
        wanted = min(page, limit - looked_at)
        found = await transaction.snapshot.get_range(behind + b"\x00", keys.last + AFTER, limit=wanted)
        for key, raw in found:
            if _is_old(raw, until):
                # A job of the same id may leave just now: its row stays.
                transaction.add_read_conflict_key(key)
                transaction.clear(key)
            size += len(raw)
        looked_at += len(found)
        if len(found) < wanted:
            return Removed(looked_at, None)
        behind = found[-1][0]
    return Removed(looked_at, behind)


def _is_old(raw: bytes, until: bytes) -> bool:
    try:
        seq = Record.decode(raw).seq_bytes
    except RecordDamaged:
        return True
    return seq is not None and seq[:STAMP_BYTES] <= until
