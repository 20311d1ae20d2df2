"""Heartbeats of running jobs, and who is woken by their ends."""

from __future__ import annotations

from jobs_service import Outcome
from jobs_service.layer import creation, queue, running_jobs
from jobs_service.layer.queue import AcceptTerms
from jobs_service.layer.running_jobs import LockStatus
from tests.layer.moves import accept, lose_all, running
from tests.layer.support import Layer, layer
from tests.virtual_time import in_virtual_time


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
        place = found.place("a")
        await found.transact(lambda unit: running_jobs.update(unit, place, lock, b"1"))
        await found.transact(lambda unit: running_jobs.update(unit, place, lock, None, b'[1,2,"",null]'))
        await found.transact(lambda unit: running_jobs.beat(unit, [(place, lock)]))
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
