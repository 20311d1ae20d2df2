"""Units of work within the limits of a store, and run again."""

from __future__ import annotations

import pytest

from jobs_service import JobTooLarge, run_data
from jobs_service.layer import creation, queue, running_jobs
from jobs_service.layer.creation import Spec
from jobs_service.layer.keyspace import pack_id
from jobs_service.layer.queue import AcceptTerms
from jobs_service.layer.record import READY, Entry, Record
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model import UNSET
from tests.layer.support import layer
from tests.layer.units import accept, lock_of
from tests.virtual_time import EPOCH, in_virtual_time

# limits


@in_virtual_time
async def test_the_longest_job_that_is_taken_can_do_everything() -> None:
    async with layer() as found:
        id = "a" * 4000
        place = found.place(id)
        priority = "p" * 5900
        biggest = 100_000 - 3_125 - 4 - 24 - 16 - 10 - 2 * 5902 - 4 - run_data.HEAD_BYTES
        await found.add(id, "x" * (biggest - 2), priority=priority)
        lock = lock_of(await found.transact(lambda unit: accept(unit, found)))
        await found.transact(lambda unit: creation.resubmit(unit, place, Spec(UNSET, UNSET, EPOCH + 5)))
        await found.transact(lambda unit: creation.remove(unit, place, False))
        await found.assert_sound()
        await found.transact(lambda unit: running_jobs.release(unit, place, lock))
        await found.assert_sound()
        with pytest.raises(JobTooLarge):
            await found.add("b" * 4000, "x" * (biggest - 1), priority=priority)


@in_virtual_time
async def test_as_many_jobs_are_taken_as_a_transaction_can_hold_and_never_none() -> None:
    async with layer() as found:
        for number in range(40):
            await found.add(f"{number:02}", "x" * 90_000)

        async def take(unit: UnitOfWork) -> int:
            taken, more = await queue.accept(unit, found.keys, AcceptTerms(1000, None, None, 1, 100))
            assert more
            return len(taken)

        assert 20 <= await found.transact(take) <= 30

        async def fit(unit: UnitOfWork) -> int:
            entry = Entry(found.keys, "a", pack_id("a"), None)
            entry.record = Record(None, READY, b"s" * 12, b"\x14", None, None, False, None, b"x" * 3_000_000)
            return len(unit.fitting([entry, entry]))

        assert await found.transact(fit) == 1
