"""Subscriptions that nobody closes: the garbage collector finds them, on any thread and in the midst of anything."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from jobs_service import JobsService
from jobs_service.actors.subscriptions import Hub, SubscribedJob
from tests.service.support import J1, PATIENCE, T1, eventually


class Collecting(dict[Any, Any]):
    """A mapping in whose use the garbage collector runs, as it may in any."""

    def setdefault(self, key: Any, default: Any = None) -> Any:
        found = super().setdefault(key, default)
        gc.collect()
        return found


@pytest.fixture(autouse=True)
def only_as_asked() -> Iterator[None]:
    """The garbage collector runs only when it is told to."""
    gc.disable()
    yield
    gc.enable()


async def make_garbage(jobs: JobsService) -> None:
    """Leave a subscription behind that only the garbage collector finds."""
    subscription = jobs.subscribe(T1, J1)
    await anext(subscription)
    cycle: list[object] = [subscription]
    cycle.append(cycle)


async def test_it_is_forgotten_on_the_loop_wherever_it_is_found(
    jobs: JobsService, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    discard = Hub.discard

    def noting(hub: Hub, target: SubscribedJob) -> None:
        threads.append(threading.get_ident())
        discard(hub, target)

    async def is_forgotten() -> bool:
        return not jobs._hub.types()

    await jobs.add(T1, J1)
    await make_garbage(jobs)
    monkeypatch.setattr(Hub, "discard", noting)
    thread = threading.Thread(target=gc.collect)
    thread.start()
    thread.join()
    await eventually(is_forgotten)
    assert threads == [threading.get_ident()]


async def test_whoever_subscribes_just_then_is_told_of_its_job(jobs: JobsService) -> None:
    await jobs.add(T1, J1)
    await make_garbage(jobs)
    jobs._hub._targets = Collecting(jobs._hub._targets)
    async with asyncio.timeout(PATIENCE), jobs.subscribe(T1, J1) as events:
        assert (await anext(events)).state == "pending"
