"""Group commit: what is asked for together is one transaction, and each caller learns of its own operation alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence, Set

import pytest

from jobs_service import StoreDamaged
from jobs_service.batching import Call
from jobs_service.layer import creation, running_jobs
from jobs_service.layer.keyspace import Place
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.store.memory import Faults, MemoryTransaction
from tests.actors.support import counted, opened, set_timeout
from tests.batching.grouping import Group, Held, group_of, ids
from tests.checker import assert_sound
from tests.virtual_time import in_virtual_time


class DamagedPages(Faults):
    """Refuses commits that write one of some keys."""

    def __init__(self, keys: Set[bytes]) -> None:
        self._keys = keys

    async def before_commit(self, transaction: MemoryTransaction) -> None:
        if any(write[1] in self._keys for write in transaction.log):
            raise StoreDamaged("a page is damaged")


async def explode(unit: UnitOfWork, place: Place) -> None:
    """Fail as a bug would."""
    raise ZeroDivisionError("a bug")


# one transaction for many


@in_virtual_time
async def test_what_is_asked_for_in_one_turn_is_one_transaction() -> None:
    async with opened() as context:
        await set_timeout(context, "t", 60)
        group = group_of(context)
        added = await asyncio.gather(*(group.add(f"{number:03}") for number in range(400)))
        assert [entry.id for entry in added] == [f"{number:03}" for number in range(400)]
        assert group.runs == 1
        assert await group.stored() == 400
        await assert_sound(context.store, now=context.sources.wall_time())


@pytest.mark.parametrize(("count", "overlaps", "transactions"), [(3, True, 1), (500, False, 1), (500, True, 2)])
@in_virtual_time
async def test_on_a_cluster_jobs_are_accepted_while_the_ends_of_many_others_commit(
    count: int, overlaps: bool, transactions: int
) -> None:
    async with opened() as context:
        await set_timeout(context, "t", 60)
        group = Group(context, overlaps=overlaps)
        await asyncio.gather(*(group.add(f"{number:03}") for number in range(count + 2)))
        accepted = await group.accept(count)
        met: asyncio.Future[Sequence[Exception | None]] = asyncio.get_running_loop().create_future()
        calls: list[Call] = [(running_jobs.release, group.place(entry.id), (entry.record.lock,)) for entry in accepted]
        calls[1] = (explode, calls[1][1], ())
        group.runs = 0
        group.commit.operate_all(calls, met.set_result, size=0)
        assert ids(await group.accept(2)) == [f"{count:03}", f"{count + 1:03}"]
        assert [type(error) for error in await met] == [type(None), ZeroDivisionError, *[type(None)] * (count - 2)]
        assert group.runs == transactions
        assert await group.stored() == count - 1
        await group.commit.drain()
        await assert_sound(context.store, now=context.sources.wall_time())


@in_virtual_time
async def test_of_one_callers_operations_only_those_fail_that_are_too_much_by_themselves() -> None:
    async with opened() as context:
        await set_timeout(context, "t", 60)
        group = group_of(context)
        await asyncio.gather(*(group.add(f"{number:02}") for number in range(20)))
        refused = [group.place(id) for id in ("00", "07", "19")]
        counted(context).faults = DamagedPages({place[0].data + place[2] for place in refused})
        met: asyncio.Future[Sequence[Exception | None]] = asyncio.get_running_loop().create_future()
        places = [group.place(f"{number:02}") for number in range(20)]
        group.commit.operate_all([(creation.remove, place, (False,)) for place in places], met.set_result, size=0)
        failed = [number for number, error in enumerate(await met) if isinstance(error, StoreDamaged)]
        assert failed == [0, 7, 19]
        assert await group.stored() == 3


@in_virtual_time
async def test_more_operations_than_a_transaction_should_have_are_several() -> None:
    async with opened() as context:
        await set_timeout(context, "t", 60)
        group = group_of(context)
        await asyncio.gather(*(group.add(f"{number}") for number in range(1001)))
        assert group.runs == 3
        assert await group.stored() == 1001


# failures


@in_virtual_time
async def test_operations_that_are_too_much_together_are_done_in_parts() -> None:
    async with opened() as context:
        await set_timeout(context, "t", 60)
        group = group_of(context)
        # Each says that it is small, and 150 of them are over the limit of a transaction.
        results = await asyncio.gather(*(group.add(f"{number}", "x" * 90_000) for number in range(150)))
        assert len(results) == 150
        assert group.runs == 6
        assert await group.stored() == 150


# those who go away


@in_virtual_time
async def test_an_operation_that_is_canceled_before_it_has_begun_is_withdrawn() -> None:
    async with opened() as context:
        await set_timeout(context, "t", 60)
        group = group_of(context)
        kept, dropped = group.add("kept"), group.add("dropped")
        dropped.cancel()
        await kept
        assert await group.stored() == 1
        gone = group.add("gone")
        gone.cancel()
        await group.commit.drain()
        assert group.runs == 1


@in_virtual_time
async def test_an_operation_that_is_canceled_while_it_runs_takes_effect_and_answers_nobody() -> None:
    async with opened() as context:
        await set_timeout(context, "t", 60)
        faults = counted(context).faults = Held()
        group = group_of(context)
        kept, dropped = group.add("kept"), group.add("dropped")
        failing = group.commit.operate(explode, group.place("x"))
        await asyncio.sleep(1)
        dropped.cancel()
        failing.cancel()
        faults.go.set()
        assert (await kept).id == "kept"
        assert await group.stored() == 2


# the end


@in_virtual_time
async def test_draining_waits_for_what_was_begun_and_for_what_has_just_been_asked_for() -> None:
    async with opened() as context:
        await set_timeout(context, "t", 60)
        faults = counted(context).faults = Held()
        group = group_of(context)
        first = group.add("a")
        await asyncio.sleep(1)
        second = group.add("b")
        drained = asyncio.create_task(group.commit.drain())
        await asyncio.sleep(1)
        assert not drained.done()
        faults.go.set()
        await drained
        assert first.done()
        assert second.done()
        await group.commit.drain()


@in_virtual_time
async def test_a_commit_that_meets_damage_fails_only_whom_it_concerns() -> None:
    async with opened() as context:
        await set_timeout(context, "t", 60)
        group = group_of(context)
        place = group.place("3")
        counted(context).faults = DamagedPages({place[0].data + place[2]})
        added = await asyncio.gather(*(group.add(str(number)) for number in range(8)), return_exceptions=True)
        assert [number for number, found in enumerate(added) if isinstance(found, BaseException)] == [3]
        assert isinstance(added[3], StoreDamaged)
        assert await group.stored() == 7
        await assert_sound(context.store, now=context.sources.wall_time())
