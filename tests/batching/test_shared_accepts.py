"""Accepts of workers on the same terms share transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from jobs_service.batching import GroupCommit
from jobs_service.errors import TransactionTooLarge
from jobs_service.layer.keyspace import TypeKeys
from jobs_service.layer.queue import AcceptTerms
from jobs_service.layer.unit_of_work import UnitOfWork
from tests.actors.support import counted, opened, set_timeout
from tests.batching.grouping import Held, group_of, ids
from tests.checker import assert_sound
from tests.virtual_time import in_virtual_time


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
