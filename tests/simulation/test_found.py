"""What the simulation has found in the service, each as a small world that shows it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from jobs_service import JobEvent, JobNotFound, JobsService, JobState, JobTransaction, Settings, StoreError
from jobs_service.testing import Process, World
from tests.shares import share
from tests.simulation.checks import held_after

T = TypeVar("T")

SETTINGS = Settings.model_construct(None, notify_holdoff=0.0)


@pytest.mark.parametrize("seed", share(range(20), 3))
def test_a_subscription_is_not_told_what_was_read_before_it_began(seed: int) -> None:
    """Seed 38, stormy: the notifier was reading for another subscriber, and told the new one what it found."""

    async def live(process: Process) -> None:
        async with process.service() as jobs:
            await jobs.set_type_timeout("t", 600)
            await jobs.add("t", "j", 0)
            async with asyncio.TaskGroup() as group:
                listener = group.create_task(_listen_to_all(jobs))
                changer = group.create_task(_count_up(jobs))
                for _ in range(8):
                    await asyncio.sleep(process.sources.uniform(0.1, 2.0))
                    known = (await _patiently(lambda: jobs.get("t", "j"))).data
                    async with jobs.subscribe("t", "j") as events:
                        first = await anext(events)
                    assert first.data >= known, f"told {first.data} of a job that was seen as {known} before"
                changer.cancel()
                listener.cancel()

    world = World(seed, rates={"slow_read": 0.3}, disorder=0.2)
    world.run(lambda world: _whole(world, live))


async def _listen_to_all(jobs: JobsService) -> None:
    async for _ in jobs.subscribe("t", "j"):
        pass


async def _count_up(jobs: JobsService) -> None:
    for number in range(1, 1000):
        await asyncio.sleep(0.1)
        await _patiently(lambda number=number: jobs.resubmit("t", "j", data=number))  # type: ignore[misc]


async def _patiently(call: Callable[[], Awaitable[T]]) -> T:
    while True:
        with contextlib.suppress(StoreError):
            return await call()


def test_a_slow_subscriber_is_not_told_again_what_it_was_told_last() -> None:
    """Seed 26, stormy: between two looks of the subscriber the job was given back and accepted again."""
    told: list[JobEvent] = []

    async def live(process: Process) -> None:
        async with process.service() as jobs:
            await jobs.set_type_timeout("t", 600)
            await jobs.add("t", "j")
            job = await jobs.accept("t")
            assert job is not None
            async with jobs.subscribe("t", "j") as events:
                told.append(await anext(events))
                await job.release()
                await asyncio.sleep(1)  # The notifier has seen that it is pending.
                job = await jobs.accept("t")
                assert job is not None
                await asyncio.sleep(1)
                later = asyncio.create_task(job.finish("end"))
                told.extend([event async for event in events])
                await later

    World().run(lambda world: _whole(world, live))
    assert [event.state for event in told] == [JobState.RUNNING, JobState.FINISHED]


def test_others_call_the_service_while_a_transaction_function_is_suspended() -> None:
    """Seen as the world was built: they were told that they call from inside of a transaction."""

    async def live(process: Process) -> None:
        async with process.service() as jobs:
            await jobs.set_type_timeout("t", 600)

            async def slow(tx: JobTransaction) -> None:
                await tx.add("t", "a")
                with pytest.raises(JobNotFound):
                    await tx.get("t", "b")

            adding = asyncio.create_task(jobs.transact(slow))
            await asyncio.sleep(0)
            while not adding.done():
                await jobs.get_type_timeout("t")
            await adding

    World(rates={"suspend": 1.0}, latency=0.05).run(lambda world: _whole(world, live))


@pytest.mark.parametrize("seed", share(range(10), 3))
def test_a_service_that_is_left_waits_for_a_commit_whose_caller_has_gone(seed: int) -> None:
    """Seed 25655: its job was to be given back by a task that outlived the service."""

    async def live(process: Process) -> None:
        jobs = process.service()
        async with jobs:
            await jobs.set_type_timeout("t", 600)
            await jobs.add("t", "j")
            process.world.choices.rates["slow_commit"] = 1.0
            with contextlib.suppress(StoreError):
                await jobs.accept("t", timeout=0)
        assert [*held_after(jobs)] == []

    settings = Settings.model_construct(None, transaction_timeout=0.2)
    World(seed, settings=settings).run(lambda world: _whole(world, live, settings))


async def _whole(world: World, program: object, settings: Settings = SETTINGS) -> None:
    process = world.start("p", program, settings=settings)  # type: ignore[arg-type]
    await process.ended()
    if process.failure is not None:
        raise process.failure
