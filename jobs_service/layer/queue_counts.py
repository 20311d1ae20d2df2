"""Counting pending jobs: page by page, or the due ones as far as a bounded read finds them."""

from __future__ import annotations

from collections.abc import Callable

from jobs_service.layer import candidates
from jobs_service.layer.candidates import LONG_PAGE, MOST_TAKEN, is_due
from jobs_service.layer.key_parts import AFTER, pack_seconds
from jobs_service.layer.keyspace import TypeKeys
from jobs_service.store.base import Snapshot


async def count(
    transaction: Snapshot, keys: TypeKeys, due_by: float | None, limit: int, after: bytes | None
) -> tuple[int, bytes | None]:
    """Count pending jobs in one page of keys.

    Args:
        due_by: counts only jobs due by then, seconds since the epoch; None for all.
        limit: keys to read.
        after: the last key of the page before; None to begin.

    Returns:
        The number, and the last key of this page; None at the end.
    """
    counted = 0
    if after is None or after < keys.scheduled:
        begin = keys.ready if after is None else after + b"\x00"
        found = await transaction.get_range(begin, keys.ready + AFTER, limit=limit)
        counted = sum(is_due(value, due_by) for _, value in found)
        if len(found) == limit:
            return counted, found[-1][0]
        # In the same state: a job that becomes ready meanwhile would be in neither part.
        limit -= len(found)
        after = keys.scheduled
    until = AFTER if due_by is None else pack_seconds(due_by) + AFTER
    found = await transaction.get_range(after + b"\x00", keys.scheduled + until, limit=limit)
    return counted + len(found), found[-1][0] if len(found) == limit else None


async def count_due(transaction: Snapshot, keys: TypeKeys, now: float, limit: int, max_priority: bytes | None) -> int:
    """Count due jobs, up to a limit, as far as a bounded look at the queue finds them.

    Scheduled jobs that have come due are in the order of their times: at most 16,000 are passed over because their
    priority is unwanted or a clock ahead of this one made them ready. Jobs behind them are counted when they are ready.

    Args:
        now: seconds since the epoch.
        limit: jobs to count.
        max_priority: packed; the largest counted priority. None for all.
    """
    end = keys.ready + AFTER if max_priority is None else keys.ready + max_priority + AFTER
    counted = await _count(transaction, keys.ready, end, limit, lambda run_at: is_due(run_at, now))
    if counted < limit:
        until = keys.scheduled + pack_seconds(now) + AFTER
        counted += await _count(
            transaction,
            keys.scheduled,
            until,
            limit - counted,
            lambda priority: max_priority is None or priority <= max_priority,
        )
    return counted


async def _count(transaction: Snapshot, begin: bytes, end: bytes, limit: int, counts: Callable[[bytes], bool]) -> int:
    """Count the matching values between two keys, up to a limit; the number of others that are read is bounded."""
    counted = looked_at = 0
    page = min(max(limit, candidates.PAGE), LONG_PAGE)
    while True:
        found = await transaction.get_range(begin, end, limit=page)
        counted += sum(counts(value) for _, value in found)
        looked_at += len(found)
        if counted >= limit or len(found) < page or looked_at - counted >= MOST_TAKEN:
            return min(counted, limit)
        begin = found[-1][0] + b"\x00"
