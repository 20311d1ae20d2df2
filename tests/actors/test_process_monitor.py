"""The process monitor when the store, or the process that it runs in, is not at its best."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from jobs_service.actors.activity_monitor import ProcessMonitor
from jobs_service.actors.context import Context
from jobs_service.errors import StoreError, TransactionTooLarge, TransactionTooOld
from jobs_service.layer import creation, queue
from jobs_service.layer.creation import Spec
from jobs_service.layer.keyspace import Place, place_of
from jobs_service.layer.queue import AcceptTerms
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


class Silent(Faults):
    """Lets nobody commit.

    Attributes:
        asked: set when somebody has tried.
    """

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def before_commit(self, transaction: MemoryTransaction) -> None:
        self.asked.set()
        await asyncio.Event().wait()


async def held_by_instance(context: Context, monkeypatch: pytest.MonkeyPatch, count: int) -> list[Place]:
    """Have an instance accept so many jobs, and return where they are."""
    monkeypatch.setattr(counted(context), "instance", INSTANCE)
    await set_timeout(context, "t", 60)
    keys = context.keyspace.of("t")
    places = [place_of(keys, str(number)) for number in range(count)]

    async def run_all(unit: UnitOfWork) -> None:
        for place in places:
            await creation.add(unit, place, Spec(None, 0, None), "error")
        taken, _ = await queue.accept(unit, keys, AcceptTerms(count, None, None, 1, 100))
        assert len(taken) == count

    await context.transact(run_all)
    return places


async def states(context: Context, places: Sequence[Place]) -> list[JobState]:
    """Return the states of jobs."""

    async def read(unit: UnitOfWork) -> list[JobState]:
        return [entry.record.state for place in places if (entry := await unit.load(place)).record is not None]

    return await context.transact(read)


@pytest.mark.parametrize(
    ("error", "times", "count"), [(TransactionTooOld, 12, 1), (TransactionTooOld, 12, 5), (TransactionTooLarge, 2, 5)]
)
@in_virtual_time
async def test_what_a_dead_process_held_is_given_back_by_a_store_that_is_slow(
    monkeypatch: pytest.MonkeyPatch, error: type[StoreError], times: int, count: int
) -> None:
    async with opened() as context:
        places = await held_by_instance(context, monkeypatch, count)
        faults = counted(context).faults = Refused(error, times)
        await ProcessMonitor(context)._re_enqueue(places, frozenset({INSTANCE}))
        assert faults.left == 0
        assert await states(context, places) == [JobState.PENDING] * count


@in_virtual_time
async def test_when_the_finder_ends_before_it_has_taken_the_jobs_the_next_one_takes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened() as context:
        dead = {INSTANCE}

        async def found() -> list[bytes]:
            return [*dead]

        async def forget(instances: Sequence[bytes]) -> None:
            dead.difference_update(instances)

        places = await held_by_instance(context, monkeypatch, 3)
        monkeypatch.setattr(counted(context), "dead_instances", found)
        monkeypatch.setattr(counted(context), "forget_instances", forget)
        silent = counted(context).faults = Silent()
        finder = ProcessMonitor(context)
        await finder.start()
        await silent.asked.wait()
        await finder.stop()
        counted(context).faults = None
        assert await states(context, places) == [JobState.RUNNING] * 3
        next_one = ProcessMonitor(context)
        await next_one.start()
        await asyncio.sleep(1)
        await next_one.stop()
        assert await states(context, places) == [JobState.PENDING] * 3
        assert dead == set()
