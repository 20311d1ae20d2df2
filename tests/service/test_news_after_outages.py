"""Who waits for news hears of them soon after the store is back, however long it was away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from jobs_service import JobsService, Settings, StoreUnavailable
from jobs_service.dashboard.pages import OpenPages, changes
from jobs_service.http.state import ServerState
from jobs_service.http.streams import TypeFeed
from jobs_service.sources import Sources
from jobs_service.store.memory import Faults, MemoryStore
from tests.service.support import T1
from tests.virtual_time import VirtualTimeLoop, in_virtual_time

OUTAGE = 600.0
SOON = 10.0
ROUNDS = 5
ANSWERS = 8
"""An outage begins at any of so many requests."""


class Away(Faults):
    """A store that answers nobody until a moment on the loop's clock, some first requests excepted."""

    until = 0.0
    answers = 0

    async def before_begin(self) -> None:
        if asyncio.get_running_loop().time() < self.until:
            self.answers -= 1
            if self.answers < 0:
                raise StoreUnavailable("the store is away")


class Slow(Faults):
    """A store of which every read takes long."""

    seconds = 0.0

    async def before_begin(self) -> None:
        await asyncio.sleep(self.seconds)


@asynccontextmanager
async def opened(**options: Any) -> AsyncIterator[tuple[JobsService, Away]]:
    """Open a service in virtual time that does not look at its types by itself."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    settings, sources = Settings(type_check_period=86_400, **options), Sources(1, wall_time=loop.wall_time)
    store = MemoryStore(settings=settings, sources=sources)
    async with JobsService(store, settings=settings, sources=sources) as jobs:
        store.faults = away = Away()
        await jobs.set_type_timeout(T1, 3600)
        yield jobs, away


async def outage(away: Away, change: Callable[[], Awaitable[object]], answers: int) -> None:
    """Have the store be away for long right after a change, while somebody reads it who has had so many answers."""
    await asyncio.sleep(60.0)
    await change()
    away.answers = answers
    away.until = asyncio.get_running_loop().time() + OUTAGE
    await asyncio.sleep(OUTAGE + 2.0)


@pytest.mark.parametrize("answers", range(ANSWERS))
@in_virtual_time
async def test_a_subscriber_is_told_soon_after_an_outage(answers: int) -> None:
    async with opened() as (jobs, away), asyncio.timeout(10 * OUTAGE):
        await jobs.add(T1, "a", 0)
        worker = await jobs.accept(T1)
        assert worker is not None
        async with jobs.subscribe(T1, "a") as events:
            assert (await anext(events)).data == 0
            await outage(away, lambda: worker.update(1), answers)
            told = 1
            for number in range(2, 2 + ROUNDS):
                await worker.update(number)
                async with asyncio.timeout(SOON):
                    while told < number:
                        told = (await anext(events)).data
                await asyncio.sleep(0.1)


@in_virtual_time
async def test_a_slow_read_of_long_ago_delays_no_news() -> None:
    async with opened() as (jobs, _):
        await jobs.add(T1, "a", 0)
        worker = await jobs.accept(T1)
        assert worker is not None
        assert isinstance(jobs.store, MemoryStore)
        jobs.store.faults = slow = Slow()
        async with jobs.subscribe(T1, "a") as events:
            assert (await anext(events)).data == 0
            slow.seconds = 2.0
            await worker.update(1)
            assert (await anext(events)).data == 1
            slow.seconds = 0.0
            await asyncio.sleep(30.0)
            for number in range(2, 2 + ROUNDS):
                await worker.update(number)
                async with asyncio.timeout(0.5):
                    assert (await anext(events)).data == number


@pytest.mark.parametrize("answers", range(ANSWERS))
@in_virtual_time
async def test_the_events_of_a_type_over_http_come_soon_after_an_outage(answers: int) -> None:
    async with opened() as (jobs, away), asyncio.timeout(10 * OUTAGE):
        parts = TypeFeed(ServerState(jobs), jobs.remote.access.keys(T1)).parts("")
        await anext(parts)
        await outage(away, lambda: jobs.add(T1, "a"), answers)
        for number in range(ROUNDS):
            await jobs.add(T1, f"new {number}")
            async with asyncio.timeout(SOON):
                while f'"id":"new {number}"'.encode() not in await anext(parts):
                    pass
            await asyncio.sleep(0.1)
        await parts.aclose()


@in_virtual_time
async def test_open_pages_are_told_soon_after_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", asyncio.get_running_loop().time)
    async with opened() as (jobs, _):
        assert isinstance(jobs.store, MemoryStore)
        jobs.store.faults = slow = Slow()
        slow.seconds = 3600.0  # until its time limit

        async def look() -> tuple[object, float]:
            return await jobs.counts(), time.monotonic()

        async with aclosing(changes(OpenPages(), look)) as news:
            first = asyncio.ensure_future(anext(news))
            await asyncio.sleep(60.0)
            slow.seconds = 0.0
            await first
            second = asyncio.ensure_future(anext(news))
            await asyncio.sleep(12.0)
            await jobs.add(T1, "a")
            async with asyncio.timeout(SOON):
                await second
