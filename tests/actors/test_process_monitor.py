"""The process monitor when the store is not at its best."""

from __future__ import annotations

import pytest

from jobs_service.actors.process_monitor import ProcessMonitor
from jobs_service.errors import StoreError, TransactionTooLarge, TransactionTooOld
from jobs_service.layer import creation, queue
from jobs_service.layer.candidates import AcceptTerms
from jobs_service.layer.creation import Spec
from jobs_service.layer.keyspace import place_of
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model import JobState
from jobs_service.store.memory import Faults, MemoryTransaction
from tests.actors.support import counted, opened, set_timeout
from tests.virtual_time import in_virtual_time

INSTANCE = b"an instance.."


class Refused(Faults):
    """Refuses the next commits."""

    def __init__(self, error: type[StoreError], times: int) -> None:
        self._error = error
        self.left = times

    async def before_commit(self, transaction: MemoryTransaction) -> None:
        if self.left:
            self.left -= 1
            raise self._error("too much")


@pytest.mark.parametrize(
    ("error", "times", "count"), [(TransactionTooOld, 12, 1), (TransactionTooOld, 12, 5), (TransactionTooLarge, 2, 5)]
)
@in_virtual_time
async def test_what_a_dead_process_held_is_given_back_by_a_store_that_is_slow(
    monkeypatch: pytest.MonkeyPatch, error: type[StoreError], times: int, count: int
) -> None:
    async with opened() as context:
        monkeypatch.setattr(counted(context), "instance", INSTANCE)
        await set_timeout(context, "t", 60)
        keys = context.keyspace.of("t")
        places = [place_of(keys, str(number)) for number in range(count)]

        async def run_all(unit: UnitOfWork) -> None:
            for place in places:
                await creation.add(unit, place, Spec(None, 0, None), "error")
            taken, _ = await queue.accept(unit, keys, AcceptTerms(count, None, None, 1, 100))
            assert len(taken) == count

        async def states(unit: UnitOfWork) -> list[JobState]:
            return [entry.record.state for place in places if (entry := await unit.load(place)).record is not None]

        await context.transact(run_all)
        faults = counted(context).faults = Refused(error, times)
        await ProcessMonitor(context)._re_enqueue(places, frozenset({INSTANCE}))
        assert faults.left == 0
        assert await context.transact(states) == [JobState.PENDING] * count
