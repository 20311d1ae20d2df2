"""The simulated cluster: each fault does what it says, and nothing worse than FoundationDB may do."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from jobs_service import JobsService, Settings, StoreError, StoreUnavailable
from jobs_service.errors import CommitUnknown, TransactionConflict, TransactionTooOld
from jobs_service.sources import Sources
from jobs_service.store import Limits, Transaction
from jobs_service.testing import FAULTS, Plan, Process, SimulatedStore, World
from tests.testing.support import ActiveRuns, Commits, connected, read, simulate, watch, write

# Commits


def test_without_faults_a_transaction_runs_once_and_at_once() -> None:
    async def main(world: World) -> None:
        async with connected(world) as store:
            runs = ActiveRuns()
            assert [await store.transact(runs) for _ in range(20)] == list(range(1, 21))
            assert runs.count == 20
            assert world.loop.time() == 0

    simulate(main)


def test_an_invented_conflict_has_the_function_run_again_from_a_clean_slate() -> None:
    async def main(world: World) -> None:
        async with connected(world) as store:
            runs = ActiveRuns()
            assert await store.transact(runs) == 1
            assert runs.count == 3
            assert len(runs.stamps) == 1
            assert await read(store, b"count") == b"1"
            assert world.choices.faults == ["conflict:0", "conflict:1"]

    simulate(main, Plan(0, faults=frozenset({"conflict:0", "conflict:1"})), rates={"conflict": 1.0})


def test_of_two_that_change_what_both_have_read_one_runs_again() -> None:
    async def main(world: World) -> int:
        async with connected(world) as store:
            runs = ActiveRuns()
            results = await asyncio.gather(*[store.transact(runs) for _ in range(2)])
            assert sorted(results) == [1, 2]
            return runs.count

    assert {simulate(main, seed, rates={"suspend": 0.5}) for seed in range(50)} == {2, 3}


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


def test_a_caller_who_has_gone_is_told_of_a_commit_that_happens_although_its_time_was_up() -> None:
    async def main(world: World) -> list[int]:
        told: list[int] = []
        async with connected(world) as store:
            call = asyncio.create_task(store.transact(ActiveRuns(), abandoned=told.append))
            while not world.choices.faults:  # noqa: ASYNC110 - stops at the very step
                await asyncio.sleep(0)
            call.cancel()
            results = await asyncio.gather(call, return_exceptions=True)
        told += [result for result in results if isinstance(result, int)]
        assert len(told) == world.cluster.commits
        return told

    plans = [Plan(seed, faults=frozenset({"commit_timed_out:0"})) for seed in range(60)]
    results = [simulate(main, plan, rates={"commit_timed_out": 1.0}) for plan in plans]
    assert [] in results
    assert [1] in results


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


def test_options_of_the_applications_handle_do_not_concern_the_connection() -> None:
    async def main(world: World) -> None:
        async with connected(world) as store:
            assert world.choices.faults == ["options:0"]
            assert world.cluster.shared_handle(None).time_limit is not None

            async def function(tr: Transaction) -> bytes | None:
                tr.set(b"a", b"1")
                await asyncio.sleep(1)
                return await tr.snapshot.get(b"a")

            assert await store.transact(function) == b"1"

    simulate(main, rates={"options": 1.0})


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


def test_it_is_found_out_in_bad_weather_too() -> None:
    async def main(world: World) -> None:
        async with connected(world, transaction_timeout=600) as store:
            runs = ActiveRuns()
            assert sorted(await asyncio.gather(*[store.transact(runs) for _ in range(5)])) == [1, 2, 3, 4, 5]
            assert len(runs.stamps) == 5

    rates = {"commit_lost": 0.3, "commit_unknown": 0.3, "slow_read": 0.1, "conflict": 0.2, "stale": 0.2}
    for seed in range(30):
        simulate(main, seed, rates=rates, latency=0.01)


@pytest.mark.parametrize("chance", [0, 1], ids=["when it begins", "when it commits"])
def test_a_transaction_that_is_told_it_is_too_old_has_written_nothing(chance: int) -> None:
    async def main(world: World) -> None:
        async with connected(world) as store:
            with pytest.raises(TransactionTooOld) as caught:
                await write(store, b"a", b"1")
            assert caught.value.retryable
            world.choices.calm()
            assert await read(store, b"a") is None

    simulate(main, Plan(0, faults=frozenset({f"too_old:{chance}"})), rates={"too_old": 1.0})


def test_conflicts_without_end_are_given_up_at_the_time_limit() -> None:
    async def main(world: World) -> None:
        async with connected(world, transaction_timeout=3) as store:
            with pytest.raises(StoreUnavailable, match="within 3 s"):
                await write(store, b"a", b"1")
            assert world.loop.time() == 3
        assert world.cluster.idle

    simulate(main, rates={"conflict": 1.0})


# Time


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


@pytest.mark.parametrize("rates", [{"suspend": 1.0}, {}], ids=["suspended", "not suspended"])
def test_a_function_is_suspended_at_reads_and_others_run_meanwhile(rates: dict[str, float]) -> None:
    async def main(world: World) -> int:
        async with connected(world) as store:
            steps: list[int] = []

            async def function(tr: Transaction) -> int:
                before = world.loop.steps
                await tr.get(b"a")
                await tr.get_many([b"a"])
                await tr.get_range(b"a", b"b")
                await tr.snapshot.get(b"a")
                await tr.snapshot.get_many([b"a"])
                await tr.snapshot.get_range(b"a", b"b")
                return world.loop.steps - before

            async def count() -> None:
                for step in range(100):
                    steps.append(step)
                    await asyncio.sleep(0)

            other = asyncio.create_task(count())
            own = await store.read(function)
            await other
            assert world.loop.time() == 0
            return own

    assert {simulate(main, seed, rates=rates) > 6 for seed in range(10)} == {bool(rates)}


def durations(main: Any, kind: str, number: int, seeds: int = 200) -> list[float]:
    """Return how long a program takes under one fault, in virtual seconds."""
    plans = [Plan(seed, faults=frozenset({f"{kind}:{number}"})) for seed in range(seeds)]
    return [simulate(main, plan, rates={kind: 1.0}) for plan in plans]


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


def test_a_slow_answer_comes_after_the_commit() -> None:
    async def main(world: World) -> float:
        async with connected(world, transaction_timeout=60) as store, connected(world) as other:
            writing = asyncio.create_task(write(store, b"a", b"1"))
            await asyncio.sleep(1e-6)
            assert await read(other, b"a") == b"1"
            assert not writing.done()
            await writing
            return world.loop.time()

    times = durations(main, "slow_answer", 0)
    usual = [time for time in times if time <= 2]
    assert min(usual) < 0.1
    assert max(usual) > 1.8
    assert 0 < len(times) - len(usual) < 20


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
    assert [simulate(main, seed, rates={"slow_answer": 1.0}) for seed in range(200)] == [[1]] * 200


def test_a_connection_whose_close_is_canceled_leaves_nothing_behind() -> None:
    async def main(world: World) -> None:
        async with connected(world) as store:
            writing = asyncio.create_task(write(store, b"a", b"1"))
            await asyncio.sleep(0.001)
            writing.cancel()
            await asyncio.wait([writing])
            assert world.left_behind() == ["a late commit"]
            closing = asyncio.create_task(store.close())
            for _ in range(2):
                await asyncio.sleep(0)
                closing.cancel()
            await asyncio.wait([closing])
            assert closing.cancelled()
            assert not store.is_open
            assert world.left_behind() == []
            assert world.cluster.idle

    simulate(main, rates={"slow_commit": 1.0})


@pytest.mark.parametrize("kind", ["commit_unknown", "commit_lost", "slow_answer"])
def test_a_canceled_call_tells_of_its_commit_however_it_is_answered(kind: str) -> None:
    async def main(world: World) -> list[int]:
        told: list[int] = []
        async with connected(world, transaction_timeout=600) as store:
            call = asyncio.create_task(store.transact(ActiveRuns(), abandoned=told.append))
            for _ in range(world.choices.plan.seed % 30):
                await asyncio.sleep(world.choices.plan.seed % 2 * 0.0005)
            call.cancel()
            results = await asyncio.gather(call, return_exceptions=True)
            told += [result for result in results if isinstance(result, int)]
        assert len(told) == world.cluster.commits
        return told

    faults = frozenset(f"{kind}:{number}" for number in range(3))
    results = [simulate(main, Plan(seed, faults=faults), rates={kind: 1.0, "suspend": 0.5}) for seed in range(120)]
    assert [] in results
    assert [1] in results


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


@pytest.mark.parametrize("error", [TransactionConflict("mine"), CommitUnknown("mine"), TimeoutError("mine")])
@pytest.mark.parametrize("rates", [{}, {"suspend": 0.5}], ids=["calm", "suspended"])
def test_an_error_of_the_functions_own_is_no_news_of_a_commit(error: Exception, rates: dict[str, float]) -> None:
    async def main(world: World) -> None:
        async with connected(world) as store:

            async def function(tr: Transaction) -> None:
                tr.set(b"a", b"1")
                raise error

            with pytest.raises(type(error), match="mine"):
                await store.transact(function)
            assert await read(store, b"a") is None

    simulate(main, rates=rates)


def test_latency_is_that_of_every_request() -> None:
    async def main(world: World) -> list[float]:
        async with connected(world) as store:
            times = []
            for _ in range(200):
                began = world.loop.time()
                await write(store, b"a", b"1")
                times.append(world.loop.time() - began)
            return times

    times = simulate(main, latency=0.1)
    assert 0 < min(times) < 0.03
    assert 0.17 < max(times) <= 0.2  # To begin, and to commit.


def test_a_cluster_that_is_away_answers_when_it_is_back() -> None:
    async def main(world: World) -> None:
        async with connected(world) as store:
            await write(store, b"a", b"1")
            world.cluster.go_away(3)
            world.cluster.go_away(1)
            assert await read(store, b"a") == b"1"
            assert world.loop.time() == 3
            world.cluster.go_away(60)
            with pytest.raises(StoreUnavailable):
                await write(store, b"a", b"2")
            assert world.loop.time() == 13
            world.cluster.come_back()
            assert await read(store, b"a") == b"1"

    simulate(main)


def test_who_waits_for_a_cluster_is_served_as_soon_as_it_is_back() -> None:
    async def main(world: World) -> None:
        async with connected(world) as store, connected(world) as other:
            world.cluster.go_away(8)
            calls = [asyncio.create_task(write(store, b"a", b"1")), asyncio.create_task(read(other, b"a"))]
            world.loop.call_later(2, world.cluster.come_back)
            await asyncio.gather(*calls)
            assert world.loop.time() == 2
            world.cluster.go_away(8)
            await read(store, b"a")
            assert world.loop.time() == 10

    simulate(main)


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


# Watches


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


def test_a_spurious_watch_fires_for_nothing() -> None:
    async def main(world: World) -> float:
        async with connected(world) as store:
            watched = await watch(store, b"a")
            await watched.wait()
            assert watched.error is None
            assert world.cluster.commits == 0
            return world.loop.time()

    assert max(durations(main, "watch_spurious", 0)) <= 5


def test_a_lost_watch_fails_with_an_error() -> None:
    async def main(world: World) -> float:
        async with connected(world) as store:
            watched = await watch(store, b"a")
            with pytest.raises(StoreError, match="lost"):
                await watched.wait()
            return world.loop.time()

    times = durations(main, "watch_lost", 0)
    assert min(times) < 2
    assert 50 < max(times) <= 60


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


def test_a_watch_canceled_while_it_is_being_told_of_does_not_fire() -> None:
    async def main(world: World) -> bool:
        async with connected(world) as store:
            watched = await watch(store, b"a")
            writing = asyncio.create_task(write(store, b"a", b"1"))
            while not world.cluster.commits:  # noqa: ASYNC110 - stops at the very step
                await asyncio.sleep(0)
            was_told = watched.fired
            watched.cancel()
            await writing
            await asyncio.sleep(1)
            assert watched.fired == was_told
            return was_told

    assert {simulate(main, seed) for seed in range(30)} == {False, True}


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


# Dead processes


async def write_forever(process: Process) -> None:
    """A program: write a key, note that it was answered, and wait."""
    await process.store.open()
    await write(process.store, b"a", b"1")
    await write(process.store, b"answered", b"1")
    await asyncio.Event().wait()


def test_a_commit_under_way_when_its_process_dies_happens_or_does_not() -> None:
    async def main(world: World) -> bytes | None:
        process = world.start("writer", write_forever)
        await asyncio.sleep(1e-6)
        process.kill()
        async with connected(world) as store:
            assert await read(store, b"a") is None
            await asyncio.sleep(20)
            return await read(store, b"a")

    # One in fifty arrives so late that it is too old.
    values = [simulate(main, seed, rates={"slow_commit": 1.0}) for seed in range(50)]
    assert values.count(b"1") > 45
    assert {simulate(main, seed, rates={"slow_commit": 1.0, "request_lost": 1.0}) for seed in range(50)} == {None}


def test_a_process_that_dies_at_any_step_has_written_what_it_went_on_from() -> None:
    found = set()
    for step in range(40):

        async def main(world: World, step: int = step) -> tuple[bool, bool]:
            process = world.start("writer", write_forever)
            for _ in range(step):
                await asyncio.sleep(0)
            process.kill()
            async with connected(world) as store:
                return await read(store, b"a") is not None, await read(store, b"answered") is not None

        found |= {simulate(main, seed, rates={"suspend": 0.5, "request_lost": 0.5}) for seed in range(5)}
    assert found == {(False, False), (True, False), (True, True)}


def test_what_a_dead_process_had_open_vanishes() -> None:
    async def main(world: World) -> None:
        async def program(process: Process) -> None:
            await process.store.open()
            await watch(process.store, b"a")

            async def endless(tr: Transaction) -> None:
                await tr.get(b"a")
                await asyncio.Event().wait()

            await process.store.read(endless)

        process = world.start("reader", program)
        async with connected(world) as store:
            await asyncio.sleep(1)
            await write(store, b"b", b"1")
            assert not world.cluster.idle
            process.kill()
            assert world.cluster.idle

    simulate(main)


# Observers, and what hangs together


def test_observers_are_told_in_commit_order_of_everything_that_took_effect() -> None:
    async def main(world: World) -> int:
        commits = Commits()
        world.cluster.observers.append(commits)
        async with connected(world) as store:
            runs = ActiveRuns()
            await asyncio.gather(*[store.transact(runs) for _ in range(10)])
            await read(store, b"count")
        versions = [version for _, version, _ in commits.seen if version is not None]
        assert versions == sorted(versions)
        assert len(versions) == world.cluster.commits
        assert [stamp[:8] for stamp in sorted(runs.stamps)] == [version.to_bytes(8, "big") for version in versions]
        written = [written[b"count"] for _, version, written in commits.seen if version is not None]
        assert written == [b"%d" % count for count in range(1, len(versions) + 1)]
        assert commits.seen[-1] == (versions[-1], None, {})
        return runs.count - len(versions)

    lost = [simulate(main, seed, rates={"conflict": 0.3, "commit_lost": 0.3, "suspend": 0.3}) for seed in range(10)]
    assert max(lost) > 0


def test_a_fault_left_out_does_not_hit_and_the_others_still_do() -> None:
    async def main(world: World) -> list[str]:
        async with connected(world) as store:
            for _ in range(10):
                await store.transact(ActiveRuns())
        return world.choices.faults

    rates = {"conflict": 0.3, "commit_lost": 0.3}
    whole = simulate(main, Plan(1), rates=rates)
    assert len(whole) > 3
    assert simulate(main, Plan(1, faults=frozenset(whole)), rates=rates) == whole
    assert simulate(main, Plan(1, faults=frozenset()), rates=rates) == []
    part = simulate(main, Plan(1, faults=frozenset(whole[:3])), rates=rates)
    assert part == whole[:3]


def test_in_all_weathers_together_every_kind_of_fault_hits_and_the_counter_is_right() -> None:
    async def main(world: World) -> set[str]:
        async with connected(world, transaction_timeout=3600) as store:

            async def count(number: int) -> None:
                """Add one exactly once, whatever becomes of a run: what says so is written with it."""

                async def function(tr: Transaction) -> None:
                    if await tr.get(b"done/%d" % number) is None:
                        tr.set(b"done/%d" % number, b"")
                        tr.set(b"count", b"%d" % (int(await tr.get(b"count") or 0) + 1))

                while True:
                    try:
                        await store.transact(function)
                    except TransactionTooOld:
                        continue
                    watched = await watch_patiently(store, b"count")
                    watched.cancel()
                    return

            async def program(process: Process) -> None:
                await process.store.open()
                while True:
                    with contextlib.suppress(StoreError):
                        await write(process.store, b"dying/%s" % process.name.encode(), b"1")

            for number in range(10):
                world.loop.call_later(number, world.start(f"{number}", program).kill)
            await asyncio.gather(*[count(number) for number in range(10)])
            await asyncio.sleep(60)
            world.choices.calm()
            assert await read(store, b"count") == b"10"
        return {fault.split(":")[0] for fault in world.choices.faults}

    async def watch_patiently(store: SimulatedStore, key: bytes) -> Any:
        while True:
            try:
                watched = await watch(store, key)
                await asyncio.wait_for(watched.wait(), 100)
            except (StoreError, TimeoutError):
                continue
            return watched

    rates = dict.fromkeys(FAULTS, 0.2)
    hit = set().union(*[simulate(main, seed, rates=rates, latency=0.05) for seed in range(15)])
    assert hit == set(FAULTS)


def test_a_connection_is_of_use_on_the_clusters_loop_only() -> None:
    async def elsewhere(store: SimulatedStore) -> None:
        await store.open()
        with pytest.raises(StoreError, match="loop"):
            await read(store, b"a")

    world = World()
    asyncio.run(elsewhere(SimulatedStore(world.cluster, None, settings=Settings(), sources=Sources(0))))
    simulate_nothing(world)


def simulate_nothing(world: World) -> None:
    """Run a world in which nothing happens, which disposes of it."""

    async def main(world: World) -> None:
        pass

    world.run(main)


def test_plain_code_works_in_a_transaction_without_being_suspended() -> None:
    """`JobsService.within` takes the transaction of a function that the store runs, however slow the cluster is."""

    async def main(world: World) -> None:
        async with connected(world) as store, JobsService(store, supervise=False) as jobs:
            await jobs.set_type_timeout("t", 10)
            begun: list[Transaction] = []

            async def function(transaction: Transaction) -> None:
                begun.append(transaction)
                with jobs.within(transaction) as tx:
                    tx.add("t", "j", {"n": 1})
                    assert tx.get("t", "j").data == {"n": 1}

            await store.transact(function)
            assert (await jobs.get("t", "j")).data == {"n": 1}
            for wrong in (begun[-1], object()):
                with pytest.raises(StoreError, match="takes the transaction of a function that transact runs"):
                    jobs.within(wrong)

    simulate(main, rates={"suspend": 0.9, "slow_read": 0.5})
