"""The type server: whoever subscribes is served, whatever notifiers are being started or stopped at that moment."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from jobs_service import JobsService, JobState
from jobs_service.actors import type_server
from tests.runner.support import now, opened
from tests.service.support import J1, T1, TIMEOUT, child_of_type, running_children
from tests.virtual_time import in_virtual_time

PERIOD = 15.0
"""Virtual seconds between two checks of the types."""

TYPES = [f"type {number:02}" for number in range(20)]


@pytest.fixture(autouse=True)
def punctual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type_server, "_JITTER", 0.0)


async def add_jobs(jobs: JobsService) -> None:
    """Add a job of each type."""
    for type in TYPES:
        await jobs.set_type_timeout(type, TIMEOUT)
        await jobs.add(type, J1)


async def served_once(jobs: JobsService, type: str) -> None:
    """Subscribe, be told of a job, and unsubscribe: the type's notifier stays for a while."""
    async with jobs.subscribe(type, J1) as events:
        await anext(events)


@in_virtual_time
async def test_whoever_subscribes_while_the_notifiers_of_other_types_start_is_served_as_soon() -> None:
    async with opened(type_check_period=86_400) as jobs:
        await add_jobs(jobs)
        async with asyncio.timeout(1), AsyncExitStack() as stack:
            subscriptions = []
            for type in TYPES:
                subscriptions.append(await stack.enter_async_context(jobs.subscribe(type, J1)))
                await asyncio.sleep(0)
            for events in subscriptions:
                assert (await anext(events)).state is JobState.PENDING


@in_virtual_time
async def test_whoever_subscribes_while_an_unused_notifier_stops_is_told_of_every_change() -> None:
    async with opened(type_check_period=PERIOD) as jobs:
        await add_jobs(jobs)
        for type in TYPES:
            await served_once(jobs, type)
        await asyncio.sleep(2 * PERIOD - now())
        left = [running_children(jobs, "notifiers")]
        async with AsyncExitStack() as stack:
            subscriptions = []
            for type in TYPES:
                subscriptions.append(await stack.enter_async_context(jobs.subscribe(type, J1)))
                await asyncio.sleep(0)
                left.append(running_children(jobs, "notifiers"))
            assert left[0] == len(TYPES) > left[-1]  # some were stopped, others were not yet
            async with asyncio.timeout(1):
                for events in subscriptions:
                    assert (await anext(events)).data is None
                for type, events in zip(TYPES, subscriptions, strict=True):
                    await jobs.resubmit(type, J1, data="new")
                    assert (await anext(events)).data == "new"


@in_virtual_time
async def test_a_notifier_that_is_unused_in_one_check_and_used_in_the_next_goes_on() -> None:
    async with opened(type_check_period=PERIOD) as jobs:
        await jobs.set_type_timeout(T1, TIMEOUT)
        await jobs.add(T1, J1)
        await served_once(jobs, T1)
        await asyncio.sleep(1.5 * PERIOD)
        async with jobs.subscribe(T1, J1) as events:
            assert (await anext(events)).state is JobState.PENDING
            await asyncio.sleep(PERIOD)
            assert child_of_type(jobs, "notifiers", T1)["seconds"] > 2 * PERIOD
        await asyncio.sleep(2 * PERIOD)
        assert running_children(jobs, "notifiers") == 0
