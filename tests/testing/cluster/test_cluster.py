"""The time that the simulated cluster takes, and the marks of its commits."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from jobs_service import StoreError, StoreUnavailable
from jobs_service.errors import TransactionTooOld
from jobs_service.store import Limits, Transaction
from jobs_service.testing import Plan, SimulatedStore, World
from tests.testing.support import ActiveRuns, connected, durations, read, simulate, write


def test_a_stale_read_sees_what_was_when_its_transaction_began() -> None:
    async def main(world: World) -> float:
        async with connected(world) as store, connected(world) as other:
            await write(other, b"a", b"1")
            reading = asyncio.create_task(read(store, b"a"))
            await asyncio.sleep(0.001)
            await write(other, b"a", b"2")
            began = world.loop.time()
            assert await reading == b"1"
            return world.loop.time() - began

    # The reader's is the second transaction of the three.
    waited = [simulate(main, Plan(seed, faults=frozenset({"stale:1"})), rates={"stale": 1.0}) for seed in range(30)]
    assert 0 < min(waited) < 1 < max(waited) < 2


def test_nothing_from_before_a_transaction_began_is_ever_seen() -> None:
    async def main(world: World) -> None:
        async with connected(world) as store, connected(world) as other:
            for count in range(20):
                await write(store, b"a", b"%d" % count)
                assert await read(other, b"a") == b"%d" % count

    for seed in range(20):
        simulate(main, seed, rates={"stale": 0.5, "suspend": 0.5}, latency=0.05)


@pytest.mark.parametrize("kind", ["slow_read", "slow_commit"])
def test_what_is_slow_takes_up_to_two_seconds_and_seldom_too_long(kind: str) -> None:
    async def main(world: World) -> float:
        async with connected(world, transaction_timeout=10) as store:

            async def function(tr: Transaction) -> None:
                tr.set(b"a", await tr.get(b"a") or b"1")

            try:
                await store.transact(function)
            except StoreUnavailable:
                assert world.loop.time() == 10
            else:
                assert await world_read(world, store) == b"1"
        assert world.cluster.idle
        return world.loop.time()

    async def world_read(world: World, store: SimulatedStore) -> bytes | None:
        world.choices.calm()
        return await read(store, b"a")

    times = durations(main, kind, 0)
    usual = [time for time in times if time <= 2]
    assert min(usual) < 0.1
    assert max(usual) > 1.8
    assert 0 < len(times) - len(usual) < 20
    assert max(times) >= 10


def test_a_caller_that_is_gone_when_its_commit_happens_is_told_otherwise() -> None:
    async def main(world: World) -> list[int]:
        async with connected(world, transaction_timeout=0.5) as store:
            told: list[int] = []
            runs = ActiveRuns()
            try:
                told.append(await store.transact(runs, abandoned=told.append))
            except StoreUnavailable:
                assert told == []
                await asyncio.sleep(20)
            assert len(told) == world.cluster.commits
            return told

    late = [simulate(main, seed, rates={"slow_commit": 1.0}) for seed in range(200)]
    assert late.count([1]) > 180
    assert late.count([1]) + late.count([]) == 200
    assert [] in late  # A commit later than five seconds is too old.
    assert [simulate(main, seed, rates={"slow_answer": 1.0}) for seed in range(50)] == [[1]] * 50


def test_the_marks_of_commits_do_not_pile_up() -> None:
    async def main(world: World) -> None:
        async with connected(world, transaction_timeout=0.5) as store:
            for count in range(50):
                with contextlib.suppress(StoreError):
                    await write(store, b"a", b"%d" % count)
            world.choices.calm()
            await asyncio.sleep(60)
            for _ in range(20):
                await write(store, b"a", b"last")
        versions = world.cluster.versions
        assert len(list(versions.scan_at(versions.version, b"\xff", b"\xff\xff", False))) == 1

    simulate(main, rates={"slow_answer": 0.5, "commit_unknown": 0.3, "slow_read": 0.3, "commit_lost": 0.2})


def test_a_read_and_a_commit_on_their_way_wait_for_a_cluster_that_goes_away() -> None:
    async def main(world: World) -> None:
        async with connected(world) as store:

            async def function(tr: Transaction) -> None:
                world.cluster.go_away(1)
                await tr.get(b"a")
                assert world.loop.time() == 1
                tr.set(b"a", b"1")
                world.cluster.go_away(2)

            await store.transact(function)
            assert world.loop.time() == 3

            async def unlucky(tr: Transaction) -> None:
                world.cluster.go_away(60)
                tr.set(b"a", b"2")

            with pytest.raises(StoreUnavailable, match="within 10 s"):
                await store.transact(unlucky)
            assert world.loop.time() == 13

    simulate(main)


def test_a_transaction_that_lasts_longer_than_the_limit_is_too_old() -> None:
    async def main(world: World) -> None:
        async with connected(world) as store:

            async def reading(tr: Transaction) -> None:
                await asyncio.sleep(2.5)
                await tr.get(b"a")

            async def writing(tr: Transaction) -> None:
                await asyncio.sleep(2.5)
                tr.set(b"a", b"1")

            for function in (reading, writing):
                with pytest.raises(TransactionTooOld, match="2 s"):
                    await store.transact(function)
            assert await read(store, b"a") is None

    simulate(main, limits=Limits(seconds=2))
