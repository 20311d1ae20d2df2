"""Leaving a service that others go on using: whenever that is, they are told so, and not that the store is closed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from itertools import count

import pytest

from jobs_service import JobsError, JobsService, JobTransaction, NewJob, ServiceClosed
from jobs_service.sources import Sources
from jobs_service.store import Store
from jobs_service.store.memory import Faults, MemoryStore
from jobs_service.testing import Choices, Cluster, Plan, Process, SimulatedStore, World
from tests.service.support import J1, T1, T2
from tests.shares import share
from tests.stores import settings_with
from tests.virtual_time import VirtualTimeLoop, run_virtual

User = Callable[[JobsService, Iterator[int]], Awaitable[object]]

SETTINGS = settings_with(add_batch=2)


async def work(number: int) -> None:
    """Do nothing."""


async def add(jobs: JobsService, numbers: Iterator[int]) -> None:
    await jobs.add(T1, str(next(numbers)))


async def add_many(jobs: JobsService, numbers: Iterator[int]) -> None:
    await jobs.add_many(T1, (NewJob(str(number)) for number in numbers))


async def add_many_again(jobs: JobsService, numbers: Iterator[int]) -> None:
    await jobs.add_many(T1, (NewJob(str(number % 10)) for number in numbers), if_exists="resubmit")


async def enqueue_many(jobs: JobsService, numbers: Iterator[int]) -> None:
    await jobs.enqueue_many("worked", numbers)


async def enqueue_many_unique(jobs: JobsService, numbers: Iterator[int]) -> None:
    await jobs.enqueue_many("worked", numbers, unique=True)


async def accept(jobs: JobsService, numbers: Iterator[int]) -> None:
    await jobs.accept(T2)


async def wait(jobs: JobsService, numbers: Iterator[int]) -> None:
    await jobs.wait(T1, J1, "removed")


async def stop_and_remove(jobs: JobsService, numbers: Iterator[int]) -> None:
    await jobs.stop_and_remove(T1, "running", timeout=1000)


async def list_all(jobs: JobsService, numbers: Iterator[int]) -> None:
    assert [job async for job in jobs.list(page_size=1)]
    await jobs.active_ids(T1)
    await jobs.types()


async def transact(jobs: JobsService, numbers: Iterator[int]) -> None:
    async def both(tx: JobTransaction) -> None:
        await tx.add(T1, str(next(numbers)))

    await jobs.transact(both)


async def change_type(jobs: JobsService, numbers: Iterator[int]) -> None:
    await jobs.set_type_timeout(T2, 10 + next(numbers))


def a_memory_store() -> Store:
    return MemoryStore(settings=SETTINGS, sources=Sources(0))


class Slow(Faults):
    """Every transaction takes a while, as on a disk."""

    async def before_begin(self) -> None:
        await asyncio.sleep(0.001)


def a_slow_store() -> Store:
    store = MemoryStore(settings=SETTINGS, sources=Sources(0))
    store.faults = Slow()
    return store


def a_cluster() -> Store:
    choices = Choices(Plan(0), rates={"suspend": 0.5})
    return SimulatedStore(Cluster(asyncio.get_running_loop(), choices), None, settings=SETTINGS, sources=Sources(0))


USERS: list[User] = [
    add,
    add_many,
    add_many_again,
    enqueue_many,
    enqueue_many_unique,
    accept,
    wait,
    stop_and_remove,
    list_all,
    transact,
    change_type,
]


@pytest.mark.parametrize("use", USERS)
@pytest.mark.parametrize("make", [a_memory_store, a_slow_store, a_cluster])
def test_who_goes_on_using_a_service_that_is_left_is_told_so(make: Callable[[], Store], use: User) -> None:
    async def leave_after(steps: int) -> type[JobsError]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)

        async def on_and_on() -> type[JobsError]:
            numbers = count()
            try:
                while True:
                    await use(jobs, numbers)
            except JobsError as error:
                return type(error)

        jobs = JobsService(make(), settings=SETTINGS, sources=Sources(0))
        jobs.handler("worked")(work)
        async with jobs:
            await jobs.set_type_timeout(T1, 10)
            await jobs.set_type_timeout(T2, 10)
            await jobs.add(T1, "running")
            assert await jobs.accept(T1)
            await jobs.add(T1, J1)
            user = asyncio.create_task(on_and_on())
            for _ in range(steps):
                await asyncio.sleep(0)
        return await user

    turns = share(range(24), 2, first=USERS.index(use) % 2)
    assert {run_virtual(leave_after(steps)) for steps in turns} == {ServiceClosed}


@pytest.mark.parametrize("seed", share(range(10), 3))
@pytest.mark.parametrize("use", [accept, wait, stop_and_remove])
def test_who_waits_in_a_service_that_is_left_is_told_so_though_its_store_stays_open(use: User, seed: int) -> None:
    """Whatever the order in which callbacks run: an answer may come when those who wait have been woken already."""

    async def main(process: Process) -> None:
        async with process.service(supervise=False) as other:
            await other.set_type_timeout(T1, 1000)
            await other.set_type_timeout(T2, 1000)
            await other.add(T1, "running")
            assert await other.accept(T1)
            await other.add(T1, J1)
            for _ in range(20):
                async with process.service() as jobs:
                    user = asyncio.create_task(_told(use(jobs, count())))
                    await asyncio.sleep(0)
                    await asyncio.sleep(process.world.choices.stream("leave").uniform(0.0, 0.01))
                async with asyncio.timeout(1):
                    assert await user is ServiceClosed

    async def _told(using: Awaitable[object]) -> type[JobsError] | None:
        try:
            await using
        except JobsError as error:
            return type(error)
        return None

    async def run(world: World) -> None:
        process = world.start("p", main)
        await process.ended()
        assert process.failure is None, process.failure

    World(seed, disorder=1.0, latency=0.005).run(run)


def test_leaving_waits_for_the_handlers_and_not_for_what_their_caller_does_afterwards() -> None:
    async def main() -> None:
        async with asyncio.timeout(100):
            left, begun = asyncio.Event(), asyncio.Event()
            jobs = JobsService("memory:")
            ended: list[str] = []

            @jobs.handler("worked", grace=5)
            async def worked() -> None:
                begun.set()
                try:
                    await asyncio.sleep(1000)
                finally:
                    await asyncio.sleep(1)
                    ended.append("handler")

            async def background() -> None:
                try:
                    await jobs.run()
                finally:
                    ended.append("run")
                    with pytest.raises(ServiceClosed, match="is being left"):
                        await jobs.run()
                    await left.wait()

            async with jobs:
                await jobs.enqueue(worked)
                task = asyncio.create_task(background())
                await begun.wait()
            assert ended == ["handler", "run"]
            left.set()
            await asyncio.wait([task])
            assert task.cancelled()

    run_virtual(main())
