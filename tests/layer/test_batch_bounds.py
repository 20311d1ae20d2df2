"""The bounds of batches: in jobs, in bytes of whole records, and halved when a store says that it was too much."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from jobs_service.errors import StoreError, StoreUnavailable, TransactionTooLarge, TransactionTooOld
from jobs_service.layer import creation
from jobs_service.layer.batch_bounds import SHARE, Batch, Pace
from jobs_service.layer.record import rewritten_bytes
from jobs_service.layer.unit_of_work import UnitOfWork
from tests.layer.support import layer
from tests.virtual_time import in_virtual_time

LARGE = "x" * 90_000


class Attempts:
    """Notes the parts that were tried, and refuses those of more than so many."""

    def __init__(self, most: int, error: type[StoreError] = TransactionTooLarge) -> None:
        self.most = most
        self.error = error
        self.tried: list[list[int]] = []
        self.done: list[int] = []

    async def __call__(self, part: Sequence[int]) -> None:
        self.tried.append([*part])
        if len(part) > self.most:
            raise self.error("too much")
        self.done += part

    @property
    def lengths(self) -> list[int]:
        return [len(part) for part in self.tried]


# A pace


@pytest.mark.parametrize("error", [TransactionTooLarge, TransactionTooOld])
async def test_a_pace_falls_by_halves_and_rises_again(error: type[StoreError]) -> None:
    pace = Pace(Batch(jobs=100))
    tried: list[int] = []

    async def attempt(size: int) -> None:
        tried.append(size)
        if size > 30 and len(tried) < 4:
            raise error("slow")

    for _ in range(3):
        await pace.fitting(attempt)
    assert tried == [100, 50, 25, 31, 37]


async def test_a_pace_raises_what_even_one_job_meets_and_whatever_a_smaller_batch_does_not_mend() -> None:
    pace = Pace(Batch(jobs=4))

    async def never(size: int) -> None:
        raise TransactionTooLarge("one job")

    with pytest.raises(TransactionTooLarge):
        await pace.fitting(never)
    assert pace.size == 1

    async def away(size: int) -> None:
        raise StoreUnavailable("away")

    with pytest.raises(StoreUnavailable):
        await Pace(Batch()).fitting(away)


async def test_a_pace_that_knows_what_was_read_falls_by_bytes_and_rises_only_when_there_was_more_to_read() -> None:
    pace = Pace(Batch(jobs=1600, bytes=1000), first=100)
    for (count, size), then in [
        ((100, 1000), 200),
        ((150, 10), 200),  # there were no more: of larger ones there might have been
        ((200, 4000), 50),
        ((1, 9000), 1),
        ((1, 9000), 1),
        ((1, 10), 2),
    ]:

        async def attempt(_: int, count: int = count, size: int = size) -> tuple[int, int]:
            return count, size

        await pace.fitting(attempt, measure=lambda found: found)
        assert pace.size == then
    assert Pace(Batch(jobs=3), first=100).size == 3


@pytest.mark.parametrize("error", [TransactionTooLarge, TransactionTooOld])
async def test_items_go_through_in_parts_that_are_halved_and_none_is_left_out_or_done_twice(
    error: type[StoreError],
) -> None:
    attempts = Attempts(30, error)
    await Pace(Batch(jobs=100)).through(range(250), lambda item: 1, attempts)
    assert attempts.done == [*range(250)]
    assert attempts.lengths[:4] == [100, 50, 25, 31]


# On a unit of work


@in_virtual_time
async def test_of_many_large_jobs_only_those_are_read_that_fit_into_the_transaction() -> None:
    async with layer() as found:
        ids = [f"{number:03}" for number in range(150)]
        for id in ids:
            await found.add(id, LARGE)

        async def take(unit: UnitOfWork) -> tuple[list[str | bytes], int, int]:
            entries = await unit.load_fitting(found.keys, [found.place(id)[2] for id in ids])
            size = sum(rewritten_bytes(entry.record, 20) for entry in entries if entry.record)
            return [entry.id for entry in entries], len(unit.entries), size

        taken, read, size = await found.transact(take)
        limits = found.store.limits
        assert taken == ids[: len(taken)]
        assert 0.9 < size / (limits.transaction // SHARE) <= 1
        assert read == limits.transaction // limits.value


@in_virtual_time
async def test_a_unit_that_has_read_more_than_it_could_write_is_full() -> None:
    async with layer() as found:
        ids = [f"{number:03}" for number in range(120)]
        for id in ids:
            await found.add(id, LARGE)

        async def remove(unit: UnitOfWork) -> int:
            for done, id in enumerate(ids):
                if unit.is_full:
                    return done
                await creation.remove(unit, found.place(id), True)
            return len(ids)

        assert await found.transact(remove) == 112
