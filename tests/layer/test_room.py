"""What is accepted can end: whatever size a record has, every later operation of its life finds room."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from jobs_service import JobTooLarge, Outcome, run_data
from jobs_service.layer import creation, queue, running_jobs
from jobs_service.layer.creation import Spec
from jobs_service.layer.queue import AcceptTerms
from jobs_service.layer.record import Entry
from jobs_service.layer.running_jobs import RunReport
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model import UNSET
from jobs_service.run_data import JobError
from jobs_service.store.base import LONGEST_STAMPED_KEY
from tests.layer.support import Layer, add, layer
from tests.virtual_time import EPOCH, in_virtual_time

PRIORITIES = [0, "p" * 300, ("a", -1, b"x" * 2000)]
ONE = AcceptTerms(1, None, None, 1, 100, "a worker", 100)
Work = Callable[[UnitOfWork], Awaitable[Any]]


async def largest(found: Layer, work: Callable[[int], Work], most: int) -> int:
    """Return the largest size with which work is accepted, having done it with that."""
    low, high = 0, most + 1  # the first is accepted, the last is not
    while high - low > 1:
        size = (low + high) // 2

        async def attempt(unit: UnitOfWork, size: int = size) -> None:
            await work(size)(unit)
            raise LookupError

        try:
            await found.transact(attempt)
        except LookupError:
            low = size
        except JobTooLarge:
            high = size
    with pytest.raises(JobTooLarge):
        await found.transact(work(low + 1))
    await found.transact(work(low))
    return low


async def accepted(found: Layer) -> tuple[Entry, bytes]:
    """Accept the job at the front, which must be there."""
    [entry], _ = await found.transact(lambda unit: queue.accept(unit, found.keys, ONE))
    assert entry.record is not None
    assert entry.record.lock is not None
    return entry, entry.record.lock


async def live(found: Layer, id: str) -> None:
    """Have a job that can be accepted meet everything that can happen to one, to its end."""
    place = found.place(id)
    told = RunReport(
        error=run_data.error_json(JobError("E", "m" * 5000, "t" * 20_000)), reason="r" * 300, max_history=100
    )
    for _ in range(30):  # so that its history is as long as can be
        _, lock = await accepted(found)
        await found.transact(lambda unit, lock=lock: running_jobs.crash(unit, place, lock, told, EPOCH))  # type: ignore[misc]
    _, lock = await accepted(found)
    await found.transact(lambda unit: running_jobs.update(unit, place, lock, None))
    await found.transact(lambda unit: running_jobs.beat(unit, [(place, lock)]))
    await found.transact(lambda unit: running_jobs.release(unit, place, lock))
    _, lock = await accepted(found)
    await found.assert_sound()
    stamp = dict(await found.pairs())[found.keys.watch_activity]
    assert (await found.transact(lambda unit: running_jobs.re_enqueue(unit, found.keys, stamp, 10))).ids == [id]
    _, lock = await accepted(found)
    again = Spec(UNSET, UNSET, None)
    await found.transact(lambda unit: creation.resubmit(unit, place, again))
    await found.transact(lambda unit: running_jobs.finish(unit, place, lock, None, Outcome.FAILED, told))
    _, lock = await accepted(found)
    await found.transact(lambda unit: running_jobs.resubmit(unit, place, lock, again))
    await found.transact(lambda unit: running_jobs.finish(unit, place, lock, None, Outcome.SUCCEEDED))
    _, lock = await accepted(found)
    await found.transact(lambda unit: creation.remove(unit, place, False))
    entry = await found.transact(lambda unit: running_jobs.finish(unit, place, lock, None, Outcome.SUCCEEDED))
    assert entry.record is not None
    assert entry.record.outcome is Outcome.CANCELED
    await found.transact(lambda unit: creation.resubmit(unit, place, again))
    await found.assert_sound()


@pytest.mark.parametrize("priority", PRIORITIES, ids=lambda value: str(value)[:5])
@in_virtual_time
async def test_a_job_with_as_much_data_as_is_accepted_lives_its_whole_life(priority: Any) -> None:
    async with layer() as found:
        await largest(
            found, lambda size: lambda unit: add(unit, found.place("a"), "x" * size, priority=priority), 100_000
        )
        await live(found, "a")


@pytest.mark.parametrize("again", [False, True])
@in_virtual_time
async def test_a_result_that_is_accepted_leaves_room_for_the_next_run(again: bool) -> None:
    async with layer() as found:
        await found.add("a", "x" * 50_000)
        _, lock = await accepted(found)
        place = found.place("a")
        if again:
            await found.transact(lambda unit: creation.resubmit(unit, place, Spec(UNSET, UNSET, None)))

        def finishing(size: int) -> Work:
            told = RunReport(result=b'"' + b"r" * size + b'"')
            return lambda unit: running_jobs.finish(unit, place, lock, None, Outcome.SUCCEEDED, told)

        await largest(found, finishing, 100_000)
        if not again:
            await found.transact(lambda unit: creation.resubmit(unit, place, Spec(UNSET, UNSET, None)))
        await live(found, "a")


@in_virtual_time
async def test_the_longest_id_and_priority_live_a_whole_life_on_every_store() -> None:
    async with layer() as found:
        size = await largest(
            found, lambda size: lambda unit: add(unit, found.place("i" * size), priority="p" * 50), 10_000
        )
        [(key, _)] = await found.pairs(found.keys.ready, found.keys.ready + b"\xff")
        # One byte is left for the section's number, which a longer prefix than this store's would take.
        assert len(key) == LONGEST_STAMPED_KEY
        await live(found, "i" * size)


@in_virtual_time
async def test_a_smaller_record_may_not_have_a_priority_that_makes_its_key_too_long() -> None:
    """Found by simulation (seed 1086): what a resubmitted job lost in data, its key must not gain."""
    async with layer() as found:
        longest = found.store.limits.key
        place = found.place("a")
        await found.transact(lambda unit: creation.add(unit, place, Spec("x" * 50_000, 0, None), "error"))
        shorter = Spec("x", "p" * longest, None)
        with pytest.raises(JobTooLarge, match="make a key of"):
            await found.transact(lambda unit: creation.resubmit(unit, place, shorter))
        _, lock = await accepted(found)
        with pytest.raises(JobTooLarge, match="make a key of"):
            await found.transact(lambda unit: running_jobs.resubmit(unit, place, lock, shorter))
