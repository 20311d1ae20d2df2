"""Commits on the simulated cluster: each call takes effect once, whatever the cluster says."""

from __future__ import annotations

import asyncio

import pytest

from jobs_service import StoreUnavailable
from jobs_service.testing import Plan, World
from tests.testing.support import ActiveRuns, connected, read, simulate, write, write_forever


@pytest.mark.parametrize(("kind", "times"), [("commit_lost", 2), ("commit_unknown", 1)])
def test_what_a_commit_of_unknown_outcome_was_to_do_is_done_once(kind: str, times: int) -> None:
    """A lost one is run again; one that has happened is found to have happened."""

    async def main(world: World) -> None:
        async with connected(world) as store:
            runs = ActiveRuns()
            assert await store.transact(runs) == 1
            assert runs.count == times
            assert len(runs.stamps) == world.cluster.commits == 1
            # In between, the tombstone of the lost one was written.
            assert runs.stamps == [times.to_bytes(8, "big") + bytes(2)]
            assert await read(store, b"count") == b"1"

    simulate(main, Plan(0, faults=frozenset({f"{kind}:0"})), rates={kind: 1.0})


def test_a_commit_whose_time_is_up_happens_at_once_or_later_or_not_at_all_and_its_function_once() -> None:
    async def main(world: World) -> int:
        async with connected(world) as store:
            runs = ActiveRuns()
            assert await store.transact(runs) == 1
            await asyncio.sleep(20)  # One that is on its way arrives, and must do nothing.
            assert len(runs.stamps) == world.cluster.commits == 1
            assert await read(store, b"count") == b"1"
            return runs.count

    plans = [Plan(seed, faults=frozenset({"commit_timed_out:0"})) for seed in range(40)]
    counts = [simulate(main, plan, rates={"commit_timed_out": 1.0}) for plan in plans]
    assert set(counts) == {1, 2}


def test_two_connections_with_the_same_memory_do_not_take_each_others_commits_for_their_own() -> None:
    async def main(world: World) -> None:
        async with connected(world) as store:
            await write(store, b"a", b"1")
            async with connected(world) as twin:
                assert world.choices.faults == ["clone:0"]
                world.choices.rates = {"commit_lost": 0.3, "commit_unknown": 0.3}
                counts = [ActiveRuns(b"own"), ActiveRuns(b"twin")]
                for _ in range(20):
                    await asyncio.gather(store.transact(counts[0]), twin.transact(counts[1]))
                world.choices.calm()
                assert await read(store, b"own") == await read(store, b"twin") == b"20"

    for seed in range(10):
        simulate(main, seed, rates={"clone": 1.0})


def test_old_marks_of_dead_processes_are_removed_and_young_ones_are_not() -> None:
    async def main(world: World) -> int:
        world.cluster.mark_lifetime = 10
        process = world.start("writer", write_forever)
        await asyncio.sleep(1)
        process.kill()

        def marks() -> list[bytes]:
            versions = world.cluster.versions
            return [key for key, _ in versions.scan_at(versions.version, b"\xff", b"\xff\xff", False)]

        left = marks()
        async with connected(world) as store:
            for _ in range(8):
                await write(store, b"b", b"1")
            world.choices.rates = {"sweep": 1.0}
            await write(store, b"b", b"1")
            assert set(left) < set(marks())
            for _ in range(8):
                await write(store, b"b", b"1")
            assert not set(left) & set(marks())
        return len(left)

    assert simulate(main) == 1


def test_of_a_commit_whose_mark_may_have_been_removed_since_nobody_says_what_became_of_it() -> None:
    async def main(world: World) -> None:
        world.cluster.mark_lifetime = 10
        async with connected(world) as store, connected(world) as other:
            calling = asyncio.create_task(write(store, b"a", b"1"))
            while not world.choices.faults:  # noqa: ASYNC110 - stops at the very step
                await asyncio.sleep(0)
            world.choices.calm()
            for _ in range(20):
                await write(other, b"b", b"1")
            with pytest.raises(StoreUnavailable, match="may have taken effect"):
                await calling
            assert await read(other, b"a") is None

    faults = frozenset({"commit_lost:0", "slow_answer:0"})
    simulate(main, Plan(3, faults=faults), rates={"commit_lost": 1.0, "slow_answer": 1.0})
