"""What has changed in a type since somebody looked: how notifiers find it without reading all jobs.

A type may have a million subscriptions, and a change of one job must cost what that job costs. There are two traces:

- A job that begins to run, or shows that it is alive, gets a new row (ACTIVITY, type, seq): those behind the newest one
  that was seen last time are new.
- All else (a job that is pending again, finished or removed, or whose data is replaced while it waits) leaves no row
  that could be found by its time. While somebody follows a type, a transaction writes the ids of such jobs into a
  row (CHANGES, type, versionstamp), which conflicts with nothing.

Who follows all jobs of a type, not those that it names, wants those that are added as well: then the value of FOLLOWED
ends with another byte, and their ids are written, too.

Somebody follows a type while it has a row (FOLLOWED, type), whose value is the versionstamp of the transaction that
made it. Whoever changes a job reads that row, with a conflict, together with the job's record. So a change that a
follower does not find was committed before the row was made, and the follower reads all its jobs after that.

The rows of changes are bounded. Followers remove those that all of them should have seen a while ago; (CHANGES, type),
without a versionstamp, has the stamp up to which they did. A follower who is further behind reads all its jobs again.
The last follower does not say goodbye, and could not if it was killed: rows that nobody removes for a while are removed
by the type's activity monitor, which writes another (FOLLOWED, type) then, one that is in doubt. A follower who is
there all the same finds another value, makes it anew, and reads all its jobs. If nobody does for a while, the monitor
removes the row.

So whoever has found the type followed, and looks again in time, has missed nothing: that is what those rely on who
wait for jobs that leave with their end (see `layer/last_records.py`). Notifiers follow the types of such jobs, however
few of them they wait for. Who waits for a few jobs of another type does not follow it; whoever makes jobs of the type
leave therefore writes a FOLLOWED that is in doubt, which tells the notifiers as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from jobs_service.layer.key_parts import AFTER, STAMP_CODE
from jobs_service.layer.keyspace import TypeKeys
from jobs_service.sources import Sources
from jobs_service.store.base import STAMP_BYTES, Snapshot, Transaction

_LAST_ORDER: Final = b"\xff\xff"
_SEQ_BYTES: Final = STAMP_BYTES + 2
_ROW_BYTES: Final = 50_000
_NO_STAMP: Final = bytes(STAMP_BYTES)
_NEW: Final = b"\x01"
_IN_DOUBT: Final = b"\x02"


class Position(NamedTuple):
    """Up to where a follower has seen the changes of a type.

    Attributes:
        generation: the value of (FOLLOWED, type).
        changed: 12 bytes: rows of changes behind it are new.
        active: 12 bytes: rows of ACTIVITY behind it are new.
    """

    generation: bytes
    changed: bytes
    active: bytes


class Found(NamedTuple):
    """What is new behind a position.

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
    """Yield the values of rows for these jobs."""
    row = bytearray()
    for packed_id in packed_ids:
        if len(row) + len(packed_id) > _ROW_BYTES:
            yield bytes(row)
            row.clear()
        row += packed_id
    yield bytes(row)


async def begin(transaction: Snapshot, keys: TypeKeys, *, new: bool = False) -> Position | None:
    """Return the position of one who reads all its jobs now or later; None if nobody follows the type so yet.

    Args:
        transaction, keys: of the type.
        new: whether jobs that are added are wanted as well.
    """
    generation, stamp = await transaction.get_many((keys.followed, keys.watch_activity))
    if generation is None or not _is_followed(generation, new):
        return None
    end = (stamp or _NO_STAMP) + _LAST_ORDER
    return Position(generation, end, end)


async def follow(transaction: Transaction, keys: TypeKeys, *, new: bool = False) -> None:
    """Have changes of the type noted, those of jobs that are added as well if they are wanted."""
    generation = await transaction.get(keys.followed)
    if generation is None or not _is_followed(generation, new):
        transaction.stamp_value(keys.followed, b"", _NEW if new else b"")


def _is_followed(generation: bytes, new: bool) -> bool:
    return not is_in_doubt(generation) and (wants_new(generation) or not new)


def wants_new(generation: bytes) -> bool:
    """Return whether somebody follows all jobs of a type, given the value of its row FOLLOWED."""
    return generation[STAMP_BYTES:] == _NEW


def is_in_doubt(generation: bytes) -> bool:
    """Return whether perhaps nobody follows a type any more, given the value of its row FOLLOWED."""
    return generation[STAMP_BYTES:] == _IN_DOUBT


def doubt(transaction: Transaction, keys: TypeKeys, sources: Sources) -> bytes:
    """Have changes of the type noted, but not for long unless somebody follows it; return the value of FOLLOWED."""
    # No versionstamp: others may have to read it in the same transaction.
    generation = sources.token(STAMP_BYTES) + _IN_DOUBT
    transaction.set(keys.followed, generation)
    return generation


async def since(transaction: Snapshot, keys: TypeKeys, position: Position, limit: int) -> Found | None:
    """Return the jobs that have changed behind a position; None if that cannot be told any more.

    Args:
        transaction, keys: of the type.
        position: of the follower.
        limit: rows that are read of each kind.
    """
    generation, removed, stamp = await transaction.get_many((keys.followed, keys.changes, keys.watch_activity))
    end = (stamp or _NO_STAMP) + _LAST_ORDER
    # Removed are all rows of a stamp, of which this follower may have seen the first ones only.
    if generation != position.generation or (removed is not None and removed + _LAST_ORDER > position.changed):
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
    return Found([*found], Position(generation, changed, lively), more, bool(rows))


async def remove_seen(transaction: Transaction, keys: TypeKeys, position: Position) -> None:
    """Remove the rows of changes up to a position that followers have left behind a while ago."""
    generation, removed = await transaction.get_many((keys.followed, keys.changes))
    stamp = position.changed[:STAMP_BYTES]
    if generation == position.generation and (removed is None or removed < stamp):
        head = keys.changes + STAMP_CODE
        transaction.clear_range(head, head + stamp + _LAST_ORDER + b"\x00")
        transaction.set(keys.changes, stamp)


async def oldest(transaction: Snapshot, keys: TypeKeys) -> bytes | None:
    """Return the key of the oldest row of changes, None when there is none."""
    found = await transaction.get_range(keys.changes + STAMP_CODE, keys.changes + AFTER, limit=1)
    return found[0][0] if found else None


async def give_up(transaction: Transaction, keys: TypeKeys, sources: Sources, unseen: bytes) -> None:
    """Doubt that the type is followed if a row is still there that followers would have removed long ago."""
    if await oldest(transaction, keys) == unseen:
        doubt(transaction, keys, sources)
        transaction.clear_range(keys.changes, keys.changes + AFTER)
        # If there is a follower all the same, it looks, and follows anew.
        transaction.stamp_value(keys.watch_activity, b"", b"")


async def forget(transaction: Transaction, keys: TypeKeys, doubted: bytes) -> None:
    """Have changes of the type noted no more if it is in doubt as before whether anybody follows it."""
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
