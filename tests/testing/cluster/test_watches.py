"""The watches of the simulated cluster."""

from __future__ import annotations

import asyncio

import pytest

from jobs_service import StoreError
from jobs_service.store import Transaction
from jobs_service.testing import Plan, World
from tests.testing.support import connected, durations, simulate, watch, write


def test_a_late_watch_fires_late_and_not_too_late() -> None:
    async def main(world: World) -> float:
        async with connected(world) as store:
            watched = await watch(store, b"a")
            await write(store, b"a", b"1")
            await watched.wait()
            return world.loop.time()

    times = durations(main, "watch_late", 0)
    assert min(times) < 0.2
    assert 4.5 < max(times) <= 5


def test_a_watch_fires_once_whatever_else_would_fire_it() -> None:
    async def main(world: World) -> None:
        async with connected(world) as store:
            watched = await watch(store, b"a")
            fired: list[float] = []
            watched.on_fire(lambda: fired.append(world.loop.time()))
            for count in range(5):
                await write(store, b"a", b"%d" % count)
            await asyncio.sleep(100)
            assert len(fired) == 1
            assert world.cluster.idle

    for seed in range(20):
        simulate(main, seed, rates={"watch_late": 1.0, "watch_spurious": 1.0, "watch_lost": 1.0})


def test_a_watch_of_a_run_whose_outcome_is_an_error_is_lost_and_that_of_the_last_run_lives() -> None:
    async def main(world: World) -> None:
        async with connected(world) as store:
            watches = []

            async def function(tr: Transaction) -> None:
                watches.append(tr.watch(b"a"))
                tr.set(b"b", b"1")

            await store.transact(function)
            assert len(watches) == 3
            for lost in watches[:2]:
                with pytest.raises(StoreError, match="did not commit"):
                    await lost.wait()
            assert not watches[2].fired
            await write(store, b"a", b"1")
            await watches[2].wait()

    faults = frozenset({"conflict:0", "commit_lost:0"})
    simulate(main, Plan(0, faults=faults), rates={"conflict": 1.0, "commit_lost": 1.0})


def test_the_watches_of_a_run_whose_commit_never_arrives_are_lost() -> None:
    """Its time was up, and it is on its way no more, or comes so late that it meets its tombstone."""

    async def main(world: World) -> int:
        async with connected(world) as store:
            watches = []

            async def function(tr: Transaction) -> None:
                watches.append(tr.watch(b"a"))
                tr.set(b"b", b"1")

            await store.transact(function)
            assert all(lost.fired and lost.error is not None for lost in watches[:-1])
            return len(watches)

    plans = [Plan(seed, faults=frozenset({"commit_timed_out:0"})) for seed in range(30)]
    assert {simulate(main, plan, rates={"commit_timed_out": 1.0}) for plan in plans} == {1, 2}
