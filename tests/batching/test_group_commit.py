"""Group commit: what is asked for together is one transaction, and each caller learns of its own operation alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from jobs_service import InvalidJob, JobExists, StoreUnavailable
from jobs_service.actors.context import Context
from jobs_service.batching.group_commit import GroupCommit
from jobs_service.batching.operations import Call
from jobs_service.errors import TransactionTooLarge
from jobs_service.layer import creation, queue_counts, running_jobs
from jobs_service.layer.candidates import AcceptTerms
from jobs_service.layer.creation import Spec
from jobs_service.layer.entry import Entry, JobSnapshot
from jobs_service.layer.key_parts import pack_id
from jobs_service.layer.keyspace import TypeKeys
from jobs_service.layer.unit_of_work import Place, UnitOfWork
from jobs_service.store.memory import Faults, MemoryTransaction
from tests.actors.support import counted, opened, set_timeout
from tests.checker import assert_sound
from tests.virtual_time import in_virtual_time


class Group:
    """A group commit on a context, and what it does.

    Attributes:
        batches: how many operations each transaction had, counting the accepts of one group as one.
        given_back: ids of the jobs that were accepted for somebody who has gone.
    """

    def __init__(self, context: Context, *, overlaps: bool = False) -> None:
        self.context = context
        self.keys = context.keyspace.of("t")
        self.given_back: list[Any] = []
        self.runs = 0
        self.commit = GroupCommit(self._transact, self._give_back, overlaps=overlaps)

    async def _transact(
        self, function: Callable[[UnitOfWork], Awaitable[Any]], abandoned: Callable[[Any], None]
    ) -> Any:
        self.runs += 1
        return await self.context.transact(function, abandoned)

    def _give_back(self, entry: Entry) -> None:
        self.given_back.append(entry.id)

    def place(self, id: str) -> Place:
        return self.keys, id, pack_id(id)

    def add(self, id: str, data: Any = None, *, size: int = 0) -> asyncio.Future[JobSnapshot]:
        return self.commit.operate(creation.add, self.place(id), Spec(data, 0, None), "error", size=size)

    def accept(self, limit: int = 1, *, watch: bool = False) -> asyncio.Future[Any]:
        return self.commit.accept(self.keys, AcceptTerms(limit, None, None, 1, 100), watch=watch)

    async def stored(self) -> int:
        """Return how many jobs of the type are pending in the store."""
        count, _ = await self.context.read(lambda tr: queue_counts.count(tr, self.keys, None, 10_000, None))
        return count


class Held(Faults):
    """Holds every commit until `go` is set."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def before_commit(self, transaction: MemoryTransaction) -> None:
        await self.go.wait()


class Away(Faults):
    async def before_commit(self, transaction: MemoryTransaction) -> None:
        raise StoreUnavailable("away", type="t")


async def explode(unit: UnitOfWork, place: Place) -> None:
    """Fail as a bug would."""
    raise ZeroDivisionError("a bug")


def ids(answer: Any) -> list[Any]:
    """Return the ids of accepted jobs."""
    assert isinstance(answer, list)
    return [entry.id for entry in answer]


def group_of(context: Context) -> Group:
    return Group(context)


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
async def test_what_is_asked_for_later_is_another_transaction() -> None:
    async with opened() as context:
        await set_timeout(context, "t", 60)
        group = group_of(context)
        await group.add("a")
        await group.add("b")
        assert group.runs == 2


@in_virtual_time
async def test_more_operations_than_a_transaction_should_have_are_several() -> None:
    async with opened() as context:
        await set_timeout(context, "t", 60)
        group = group_of(context)
        await asyncio.gather(*(group.add(f"{number}") for number in range(1001)))
        assert group.runs == 3
        assert await group.stored() == 1001


@in_virtual_time
async def test_more_bytes_than_a_transaction_should_have_are_several() -> None:
    async with opened() as context:
        await set_timeout(context, "t", 60)
        group = group_of(context)
        await asyncio.gather(*(group.add(f"{number}", size=900_000) for number in range(5)))
        assert group.runs == 3
        await asyncio.gather(*(group.add(f"big {number}", size=3_000_000) for number in range(3)))
        assert group.runs == 6


@in_virtual_time
async def test_operations_behave_as_one_after_the_other() -> None:
    async with opened() as context:
        await set_timeout(context, "t", 60)
        group = group_of(context)
        results = await asyncio.gather(
            group.add("a", 1),
            group.commit.operate(creation.remove, group.place("a"), False),
            group.add("a", 2),
            group.add("a", 3),
            return_exceptions=True,
        )
        assert group.runs == 1
        assert isinstance(results[3], JobExists)
        assert isinstance(results[2], JobSnapshot)
        assert results[2].record is not None
        assert results[2].record.json == b"2"
        assert await group.stored() == 1


# failures


@in_virtual_time
async def test_an_operation_that_raises_concerns_no_other() -> None:
    async with opened() as context:
        await set_timeout(context, "t", 60)
        group = group_of(context)
        await group.add("there")
        results = await asyncio.gather(
            group.add("a"),
            group.add("there"),
            group.commit.operate(explode, group.place("x")),
            group.add("b"),
            return_exceptions=True,
        )
        assert [type(result) for result in results] == [JobSnapshot, JobExists, ZeroDivisionError, JobSnapshot]
        assert await group.stored() == 3


@in_virtual_time
async def test_a_transaction_that_fails_is_told_to_each_with_an_error_of_its_own() -> None:
    async with opened() as context:
        await set_timeout(context, "t", 60)
        counted(context).faults = Away()
        group = group_of(context)
        results = await asyncio.gather(group.add("a"), group.add("b"), group.accept(), return_exceptions=True)
        assert [type(result) for result in results] == [StoreUnavailable] * 3
        assert [(str(result), getattr(result, "type", None)) for result in results] == [("away", "t")] * 3
        assert len({id(result) for result in results}) == 3


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


@in_virtual_time
async def test_an_operation_that_is_too_much_alone_learns_so() -> None:
    async with opened() as context:
        await set_timeout(context, "t", 60)
        group = group_of(context)

        async def flood(unit: UnitOfWork, place: Place) -> None:
            for number in range(120):
                unit.transaction.set(b"own/%d" % number, b"x" * 90_000)

        results = await asyncio.gather(
            group.add("a"), group.commit.operate(flood, group.place("x")), group.add("b"), return_exceptions=True
        )
        assert [type(result) for result in results] == [JobSnapshot, TransactionTooLarge, JobSnapshot]
        assert await group.stored() == 2


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


# accepts


@in_virtual_time
async def test_workers_on_the_same_terms_share_one_look_and_each_gets_its_own_jobs() -> None:
    async with opened() as context:
        await set_timeout(context, "t", 60)
        group = group_of(context)
        await asyncio.gather(*(group.add(f"{number}") for number in range(7)))
        answers = await asyncio.gather(*(group.accept(limit=2) for _ in range(5)))
        assert [ids(answer) for answer in answers] == [["0", "1"], ["2", "3"], ["4", "5"], ["6"], []]
        assert group.runs == 2
        await assert_sound(context.store, now=context.sources.wall_time())


@in_virtual_time
async def test_an_accept_finds_what_is_added_in_the_same_turn() -> None:
    async with opened() as context:
        await set_timeout(context, "t", 60)
        group = group_of(context)
        answer, _ = await asyncio.gather(group.accept(), group.add("a"))
        assert ids(answer) == ["a"]
        assert group.runs == 1


@in_virtual_time
async def test_of_those_who_go_without_only_the_first_gets_a_watch() -> None:
    async with opened() as context:
        await set_timeout(context, "t", 60)
        group = group_of(context)
        await group.add("a")
        first, second, third = await asyncio.gather(*(group.accept(watch=True) for _ in range(3)))
        assert ids(first) == ["a"]
        watch, due_in = second
        assert (watch is not None, due_in) == (True, None)
        assert third == (None, None)
        await group.add("b")
        await asyncio.wait_for(watch.wait(), 10)


@in_virtual_time
async def test_nobody_watches_when_all_got_a_job_or_have_gone() -> None:
    async with opened() as context:
        await set_timeout(context, "t", 60)
        faults = counted(context).faults = Held()
        group = group_of(context)
        faults.go.set()
        await group.add("a")
        faults.go.clear()
        first, second = group.accept(watch=True), group.accept(watch=True)
        await asyncio.sleep(1)
        second.cancel()
        faults.go.set()
        assert ids(await first) == ["a"]
        await group.commit.drain()
        assert not counted(context)._watches


@in_virtual_time
async def test_a_job_accepted_for_somebody_who_has_gone_is_given_back() -> None:
    async with opened() as context:
        await set_timeout(context, "t", 60)
        faults = counted(context).faults = Held()
        faults.go.set()
        group = group_of(context)
        await asyncio.gather(*(group.add(f"{number}") for number in range(6)))
        faults.go.clear()
        accepts = [group.accept(limit=2) for _ in range(3)]
        await asyncio.sleep(1)
        accepts[1].cancel()
        faults.go.set()
        assert ids(await accepts[0]) == ["0", "1"]
        assert ids(await accepts[2]) == ["4", "5"]
        assert group.given_back == ["2", "3"]


@in_virtual_time
async def test_accepts_that_are_all_canceled_before_they_have_begun_take_nothing() -> None:
    async with opened() as context:
        await set_timeout(context, "t", 60)
        group = group_of(context)
        await group.add("a")
        accepts = [group.accept() for _ in range(3)]
        for accept in accepts:
            accept.cancel()
        await group.commit.drain()
        assert (group.runs, group.given_back) == (1, [])
        assert await group.stored() == 1


@in_virtual_time
async def test_one_look_takes_a_bounded_number_of_jobs() -> None:
    async with opened() as context:
        await set_timeout(context, "t", 60)
        group = group_of(context)
        for start in range(0, 1500, 500):
            await asyncio.gather(*(group.add(f"{start + number:04}") for number in range(500)))
        answers = await asyncio.gather(*(group.accept(limit=400) for _ in range(4)))
        taken = [id for answer in answers for id in ids(answer)]
        assert sorted(taken) == [f"{number:04}" for number in range(1500)]
        await assert_sound(context.store, now=context.sources.wall_time())


@in_virtual_time
async def test_an_accept_that_is_too_much_or_refused_tells_each_caller() -> None:
    async with opened() as context:
        await set_timeout(context, "t", 60)

        async def refuse(function: Callable[[UnitOfWork], Awaitable[Any]], abandoned: Callable[[Any], None]) -> Any:
            raise TransactionTooLarge("too much")

        commit = GroupCommit(refuse, lambda entry: None)
        keys: TypeKeys = context.keyspace.of("t")
        accepts = [commit.accept(keys, AcceptTerms(1, None, None, 1, 100), watch=False) for _ in range(3)]
        gone = commit.accept(keys, AcceptTerms(1, None, None, 1, 100), watch=False)
        await asyncio.sleep(0)
        gone.cancel()
        for accept in accepts:
            with pytest.raises(TransactionTooLarge, match="too much"):
                await accept


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
async def test_an_argument_that_no_job_can_have_never_reaches_the_store() -> None:
    async with opened() as context:
        group = group_of(context)
        with pytest.raises(InvalidJob):
            group.add("\ud800")
        await group.commit.drain()
        assert group.runs == 0
