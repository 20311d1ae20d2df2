"""Dead processes, observers, and all faults of the simulated cluster together."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from jobs_service import StoreError
from jobs_service.errors import TransactionTooOld
from jobs_service.store import Transaction
from jobs_service.testing import FAULTS, Process, SimulatedStore, World
from tests.testing.support import ActiveRuns, Commits, connected, read, simulate, watch, write, write_forever

# Dead processes


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
