"""Copies beside other processes, and copies that are cut off at any moment and begun anew."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs_service import JobsService, NewJob, Settings
from jobs_service.copying import Batch, Copied, CopyRefused, copy_jobs
from jobs_service.errors import StoreError
from jobs_service.layer.keyspace import Keyspace
from jobs_service.layer.rows import mark_key
from jobs_service.sources import Sources
from jobs_service.store.base import Store
from jobs_service.store.lmdb import LmdbStore
from jobs_service.store.memory import MemoryStore
from jobs_service.testing import Process, World
from tests.checker import assert_sound
from tests.copying.support import (
    SMALL,
    DiesAfter,
    Portrait,
    copied,
    everything,
    memory,
    opened,
    populate,
    portrait,
    with_jobs,
)
from tests.system.forking import ForkServer


async def is_marked(store: Store) -> bool:
    """Return whether a store is half a copy."""
    key = mark_key(Keyspace(await store.prefix()))
    return await store.read(lambda tr: tr.get(key)) is not None


async def test_a_copy_that_dies_after_any_of_its_transactions_is_begun_anew() -> None:
    source = memory()
    async with opened(source):
        await populate(source)
        wanted = await portrait(source)
        commits, is_done = 0, False
        while not is_done:
            commits += 1
            target = memory()
            async with opened(target):
                target.faults = DiesAfter(commits)
                try:
                    await copy_jobs(source, target, sources=Sources(1), batch=Batch(jobs=7))
                    is_done = True
                except StoreError:
                    target.faults = None
                    if await is_marked(target):
                        # It dies once more, perhaps while it removes what is there.
                        target.faults = DiesAfter(2)
                        with pytest.raises(StoreError):
                            await copy_jobs(source, target, sources=Sources(2), batch=SMALL, anew=True)
                        target.faults = None
                        await copied(source, target, batch=SMALL, anew=True)
                assert await portrait(target) == wanted
    assert commits > 9


STORMY = {
    "conflict": 0.1,
    "commit_lost": 0.1,
    "commit_unknown": 0.1,
    "too_old": 0.05,
    "stale": 0.2,
    "suspend": 0.3,
    "slow_commit": 0.02,
    "slow_answer": 0.02,
    "request_lost": 0.5,
}


@pytest.mark.parametrize("seed", range(3))
def test_in_a_storm_and_killed_again_and_again_it_ends_as_in_calm_weather(seed: int) -> None:
    source, look = memory(), memory()
    wanted = asyncio.run(_populated(source))
    world = World(seed, rates=STORMY, latency=0.01)
    choose = random.Random(seed)
    copies: list[Copied] = []

    async def program(process: Process) -> None:
        await process.store.open()
        copies.append(await copy_jobs(source, process.store, sources=process.sources, batch=SMALL, anew=True))

    async def main(world: World) -> int:
        await source.open()
        lives = 0
        while not copies:
            lives += 1
            process = world.start("copy", program)
            killing = asyncio.get_running_loop().call_later(choose.uniform(0, 0.3 * lives), process.kill)
            await process.ended()
            killing.cancel()
            if isinstance(process.failure, CopyRefused):
                # The end was not known, and has come all the same.
                assert "is not empty" in str(process.failure)
                break
            assert process.failure is None or isinstance(process.failure, StoreError)
        return lives

    assert world.run(main) > 2
    look.versions = world.cluster.versions
    assert asyncio.run(_portrait_of(look)) == wanted


async def _populated(store: MemoryStore) -> Portrait:
    async with opened(store):
        await populate(store)
        return await portrait(store)


async def _portrait_of(store: Store) -> Portrait:
    async with opened(store):
        return await portrait(store)


@pytest.fixture(scope="module")
def forks() -> Iterator[ForkServer]:
    """Processes that begin within milliseconds."""
    with ForkServer("tests.copying.processes") as server:
        yield server


@pytest.mark.parametrize("used", [0, 1])
async def test_an_embedded_store_is_refused_while_another_process_has_it_open(
    forks: ForkServer, tmp_path: Path, used: int
) -> None:
    stores = [LmdbStore(tmp_path / name, settings=Settings()) for name in ("from", "to")]
    async with opened(*stores):
        await populate(stores[0])
        pid = forks.start("hold", path=str(stores[used].path))
        while await stores[used].other_processes() != (1, 0):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.01)
        with pytest.raises(CopyRefused, match=r"is in use \(processes: 1\): end the programs that use it, then copy"):
            await copied(*stores)
        assert not await is_marked(stores[1])
        forks.kill(pid)
        await copied(*stores)


def test_processes_killed_at_random_moments_leave_half_a_copy_and_the_next_one_is_whole(
    forks: ForkServer, tmp_path: Path
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    choose = random.Random(seed)
    source, target = (LmdbStore(tmp_path / name, settings=Settings()) for name in ("from", "to"))

    async def look() -> bool:
        """Return whether there is half a copy, which nobody uses, instead of a whole one."""
        async with opened(source, target):
            if await is_marked(target):
                with pytest.raises(StoreError, match="is half a copy"):
                    await with_jobs(target, lambda jobs: jobs.counts())
                return True
            await assert_sound(target)
            assert await portrait(target) == await portrait(source)
            return False

    async def fill() -> dict[bytes, bytes]:
        async with opened(source):
            await with_jobs(source, _fill)
            return await everything(source)

    before = asyncio.run(fill())
    for steps in (1, *(choose.randrange(2, 25) for _ in range(6))):
        paths = {"source": str(source.path), "target": str(target.path)}
        pid = forks.start("copy", **paths, steps=steps, seconds=choose.uniform(0, 0.003))
        assert forks.wait(pid) == -9
        assert asyncio.run(look())
    pid = forks.start("copy", source=str(source.path), target=str(target.path), steps=-1, seconds=0)
    assert forks.wait(pid) == 0
    assert not asyncio.run(look())

    async def unchanged() -> bool:
        async with opened(source):
            return await everything(source) == before

    assert asyncio.run(unchanged())


async def _fill(jobs: JobsService) -> None:
    for type in ("a", "b"):
        await jobs.set_type_timeout(type, 5)
        names = [f"{n * 7919 % 1000}" for n in range(500)]
        await jobs.add_many(type, [NewJob(name, {"n": n}, n % 3) for n, name in enumerate(names)])
    for job in await jobs.accept_many("a", 100, timeout=0):
        await job.finish(result=1)
