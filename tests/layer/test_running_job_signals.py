"""Heartbeats of running jobs, who is woken by their ends, and when they expire."""

from __future__ import annotations

from jobs_service import Outcome
from jobs_service.layer import creation, queue, running_jobs, type_settings
from jobs_service.layer.queue import AcceptTerms
from jobs_service.layer.running_jobs import LockStatus
from jobs_service.model.type_state import Retention
from tests.layer.moves import MOVES, accept, finish, lose_all, running
from tests.layer.support import Layer, layer
from tests.virtual_time import EPOCH, in_virtual_time


async def counter(found: Layer) -> int:
    """Return how often it was told that a running job was taken away."""
    raw = await found.store.read(lambda transaction: transaction.get(found.keys.watch_canceled))
    return int.from_bytes(raw or b"", "little")


# Heartbeats


@in_virtual_time
async def test_one_beat_renews_what_is_held_and_tells_what_is_not() -> None:
    async with layer() as found:
        for id in ("a", "b", "c"):
            await found.add(id)
        wanted = AcceptTerms(3, None, None, 1, 100)
        entries, _ = await found.transact(lambda unit: queue.accept(unit, found.keys, wanted))
        held = [(found.place(entry.id), entry.record.lock) for entry in entries if entry.record and entry.record.lock]
        await found.transact(lambda unit: creation.remove(unit, found.place("b"), False))
        await found.transact(lambda unit: creation.remove(unit, found.place("c"), True))
        [stamp] = [value for key, value in await found.pairs() if key == found.keys.watch_activity]
        told = await found.transact(lambda unit: running_jobs.beat(unit, [*held, (found.place("nobody"), b"x" * 16)]))
        assert told == [LockStatus.HELD, LockStatus.CANCELED, LockStatus.TAKEN, LockStatus.TAKEN]
        lost = await found.transact(lambda unit: running_jobs.re_enqueue(unit, found.keys, stamp, 10))
        assert lost == ([], False)
        await found.assert_sound()


# Who is told


@in_virtual_time
async def test_those_who_run_jobs_are_told_exactly_when_one_is_taken_away() -> None:
    async with layer() as found:
        lock = await running(found)
        for move in ("update", "progress", "beat"):
            operation, _, _ = MOVES[move]
            await found.transact(lambda unit, operation=operation: operation(unit, found.place("a"), lock))  # type: ignore[misc]
        assert await counter(found) == 0
        await found.transact(lambda unit: creation.remove(unit, found.place("a"), False))
        assert await counter(found) == 1
        await found.transact(lambda unit: creation.remove(unit, found.place("a"), False))  # it is canceled already
        assert await counter(found) == 1
        await found.transact(lambda unit: creation.remove(unit, found.place("a"), True))
        assert await counter(found) == 2
        await running(found)
        await lose_all(found)
        assert await counter(found) == 3
        lock = await accept(found)
        await found.transact(lambda unit: running_jobs.finish(unit, found.place("a"), lock, None, Outcome.SUCCEEDED))
        await found.transact(lambda unit: creation.remove(unit, found.place("a"), False))
        await found.add("a")
        await found.transact(lambda unit: creation.remove(unit, found.place("a"), True))
        assert await counter(found) == 3


async def expire(found: Layer, until: float, limit: int = 100) -> int:
    """Remove what has expired."""
    removed = await found.transact(lambda unit: creation.remove_expired(unit, found.keys, until, limit))
    await found.assert_sound()
    return removed


async def ids(found: Layer) -> list[str]:
    """Return the ids of the jobs that are there."""
    start = len(found.keys.data)
    return [key[start + 1 : -1].decode() for key, _ in await found.pairs(found.keys.data, found.keys.data + b"\xff")]


# Expiry


@in_virtual_time
async def test_expired_jobs_are_removed_in_batches_the_earliest_first_and_none_too_early() -> None:
    async with layer() as found:
        for keep in (50.0, 10.0, 30.0, 20.0):
            await found.transact(
                lambda unit, keep=keep: type_settings.set_retention(unit, found.keys, Retention(keep, None))  # type: ignore[misc]
            )
            await finish(found, f"{keep:.0f}")
        await finish(found, "failed", Outcome.FAILED)
        assert await found.store.read(lambda tr: creation.next_expiry(tr, found.keys)) == EPOCH + 10
        assert await expire(found, EPOCH + 9.9) == 0
        assert await expire(found, EPOCH + 40, limit=2) == 2
        assert await ids(found) == ["30", "50", "failed"]
        assert await expire(found, EPOCH + 40, limit=2) == 1
        assert await expire(found, EPOCH + 1e9) == 1
        assert await ids(found) == ["failed"]
        assert await found.store.read(lambda tr: creation.next_expiry(tr, found.keys)) is None
