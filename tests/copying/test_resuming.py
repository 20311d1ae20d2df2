"""A copy that is stopped at any moment and begun again ends as one that was not stopped."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs_service import JobsService, NewJob
from jobs_service.copying import Batch, Copied, CopyRefused, copy_jobs
from jobs_service.errors import StoreError
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
    Stopped,
    accepted,
    copied,
    everything,
    memory,
    note_of,
    opened,
    populate,
    portrait,
    reached,
    stop_at,
    with_jobs,
)
from tests.stores import plain_settings
from tests.system.forking import ForkServer


async def test_a_copy_that_dies_after_any_of_its_transactions_goes_on_where_it_was() -> None:
    source = memory()
    async with opened(source):
        await populate(source)
        wanted = await portrait(source)
        commits = 0
        while True:
            commits += 1
            target = memory()
            async with opened(target):
                target.faults = DiesAfter(commits)
                try:
                    await copy_jobs(source, target, sources=Sources(1), batch=Batch(jobs=7))
                except StoreError:
                    target.faults = None
                    await assert_sound(target)
                    result = await copied(source, target, batch=SMALL)
                    # The last transaction of all leaves nothing to go on with.
                    assert result.resumed or result.complete_before
                    assert await portrait(target) == wanted
                else:
                    assert target.faults.left > 0
                    break
    assert commits > 10


async def test_a_copy_that_dies_after_every_single_transaction_ends_all_the_same() -> None:
    source, target = memory(), memory()
    async with opened(source, target):
        await populate(source)
        deaths = 0
        while True:
            target.faults = DiesAfter(1)
            try:
                result = await copy_jobs(source, target, sources=Sources(1), batch=SMALL)
                break
            except StoreError:
                deaths += 1
        target.faults = None
        assert deaths > 15
        assert result.complete_before
        assert await portrait(target) == await portrait(source)


async def test_many_types_are_opened_in_bounded_transactions_and_none_twice() -> None:
    source, target = memory(), memory()
    async with opened(source, target):

        async def fill(jobs: JobsService) -> None:
            for number in range(10):
                await jobs.set_type_timeout(number, 1)
                await jobs.add(number, "job")

        await with_jobs(source, fill)
        # The note, four batches of jobs, and the first three types; then programs begin to use these.
        target.faults = DiesAfter(6)
        with pytest.raises(StoreError):
            await copy_jobs(source, target, sources=Sources(1), batch=SMALL)
        target.faults = None
        assert await accepted(target, 0) == ["job"]
        assert await accepted(target, 9) == []
        await with_jobs(target, lambda jobs: jobs.set_type_timeout(1, 77))
        await copied(source, target, batch=SMALL)
        assert await with_jobs(target, lambda jobs: jobs.get_type_timeout(1)) == 77
        assert await accepted(target, 9) == ["job"]


async def test_of_two_copies_at_the_same_time_one_ends_and_the_other_steps_back() -> None:
    source, target = memory(), memory()
    async with opened(source, target):
        await populate(source)
        with pytest.raises(Stopped):
            await copied(source, target, batch=SMALL, progress=stop_at(4))
        results = await asyncio.gather(
            *(copy_jobs(source, target, sources=Sources(1), batch=SMALL) for _ in range(2)), return_exceptions=True
        )
        refused = [result for result in results if isinstance(result, CopyRefused)]
        assert len(refused) == 1
        assert str(refused[0]) == "another process copies jobs to memory:: it goes on, this one has ended"
        assert await portrait(target) == await portrait(source)


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


@pytest.mark.parametrize("seed", range(5))
def test_in_a_storm_and_killed_again_and_again_it_ends_as_in_calm_weather(seed: int) -> None:
    source, look = memory(), memory()
    wanted = asyncio.run(_populated(source))
    world = World(seed, rates=STORMY, latency=0.01)
    choose = random.Random(seed)
    copies: list[Copied] = []

    async def program(process: Process) -> None:
        await process.store.open()
        copies.append(await copy_jobs(source, process.store, sources=process.sources, batch=SMALL))

    async def main(world: World) -> int:
        await source.open()
        lives = 0
        while not copies:
            lives += 1
            process = world.start("copy", program)
            killing = asyncio.get_running_loop().call_later(choose.uniform(0, 0.3 * lives), process.kill)
            await process.ended()
            killing.cancel()
            assert process.failure is None or isinstance(process.failure, StoreError)
        return lives

    assert world.run(main) > 2
    look.versions = world.cluster.versions
    assert asyncio.run(_portrait_of(look)) == wanted
    assert copies[0].resumed or copies[0].complete_before


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


def test_killed_at_random_moments_the_command_goes_on_and_nothing_is_missing_twice_or_in_another_order(
    forks: ForkServer, tmp_path: Path
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    choose = random.Random(seed)
    source, target = (LmdbStore(tmp_path / name, settings=plain_settings()) for name in ("from", "to"))

    async def kill_again_and_again() -> list[int]:
        """Kill each process as soon as it has copied some more jobs; return how many there were at each death."""
        deaths = []
        async with opened(source, target):
            await with_jobs(source, _fill)
            before = await everything(source)
            note = await note_of(target)
            while note is not None or not await everything(target):
                wanted = (0 if note is None else note.jobs) + choose.randrange(JOBS // 4)
                pid = forks.start(
                    "copy", source=str(source.path), target=str(target.path), jobs=choose.randrange(5, 40)
                )
                await reached(target, wanted)
                forks.kill(pid)
                await assert_sound(target)
                note = await note_of(target)
                deaths.append(JOBS if note is None else note.jobs)
            assert await everything(source) == before
            assert await portrait(target) == await portrait(source)
            assert (await copied(source, target)).complete_before
        return deaths

    deaths = asyncio.run(kill_again_and_again())
    print(deaths)
    assert len([jobs for jobs in deaths if 0 < jobs < JOBS]) > 2


JOBS = 1000


async def _fill(jobs: JobsService) -> None:
    for type in ("a", "b"):
        await jobs.set_type_timeout(type, 5)
        names = [f"{n * 7919 % 1000}" for n in range(JOBS // 2)]
        await jobs.add_many(type, [NewJob(name, {"n": n}, n % 3) for n, name in enumerate(names)])
    for job in await jobs.accept_many("a", 100, timeout=0):
        await job.finish(result=1)
