"""A service that is used on another event loop, in another thread: whoever does so is told, and disturbs nobody."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from jobs_service import Job, JobsError, JobsService
from tests.service.support import J1, T1, T2

PATIENCE = 30.0


def refused(call: Callable[[], Coroutine[Any, Any, Any]]) -> str:
    """Make a call on an event loop of its own, and return the error's message."""
    with pytest.raises(JobsError) as caught:
        asyncio.run(asyncio.wait_for(call(), PATIENCE))
    return str(caught.value)


def elsewhere(call: Callable[[], Coroutine[Any, Any, Any]]) -> str:
    """Do the same in a thread, while this one's event loop stands still."""
    said: list[str] = []
    thread = threading.Thread(target=lambda: said.append(refused(call)))
    thread.start()
    thread.join()
    return said[0]


async def begun(call: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Begin a call; it has asked for a transaction, which is not begun yet."""
    task = asyncio.create_task(call)
    await asyncio.sleep(0)
    return task


async def test_a_call_on_another_loop_does_not_join_a_transaction_of_the_services_own(jobs: JobsService) -> None:
    """Nothing would wake its loop with the answer."""
    calls: list[Callable[[], Coroutine[Any, Any, Any]]] = [
        lambda: jobs.add(T1, "elsewhere"),
        lambda: jobs.remove(T1, "elsewhere"),
        lambda: jobs.accept(T1, timeout=0),
        lambda: jobs.accept(T2),
    ]
    for number, call in enumerate(calls):
        adding = await begun(jobs.add(T1, str(number)))
        accepting = await begun(jobs.accept(T2, timeout=0))
        assert "another event loop; use it there (in a thread: " in elsewhere(call)
        assert (await adding).id == str(number)
        assert await accepting is None
    assert [job.id async for job in jobs.list(T1)] == ["0", "1", "2", "3"]


async def test_a_call_of_the_services_own_loop_does_not_join_a_transaction_of_another(jobs: JobsService) -> None:
    """It would be refused, although it is in its right."""
    queued, go_on = threading.Event(), threading.Event()

    async def add_elsewhere() -> Any:
        task = await begun(jobs.add(T1, "elsewhere"))
        queued.set()
        go_on.wait(PATIENCE)
        return await task

    refusal = asyncio.get_running_loop().run_in_executor(None, refused, add_elsewhere)
    queued.wait(PATIENCE)
    adding: Awaitable[Job] = await begun(jobs.add(T1, J1))
    await asyncio.sleep(0)
    go_on.set()
    async with asyncio.timeout(PATIENCE):
        assert (await adding).id == J1
        assert "another event loop" in await refusal
