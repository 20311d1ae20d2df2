"""Several coroutines at the same time: the first error ends all, and is raised as it is."""

from __future__ import annotations

import asyncio

import pytest

from jobs_service.replication.checkpoints import run_together
from jobs_service.replication.contract import ProtocolError
from tests.virtual_time import in_virtual_time


async def fail(error: Exception, after: float = 0) -> None:
    await asyncio.sleep(after)
    raise error


async def hang(ended: list[str], name: str = "hung", raises: Exception | None = None) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        ended.append(name)
        if raises is not None:
            raise raises


@in_virtual_time
async def test_it_ends_when_all_have_ended_and_takes_those_beside_with_it() -> None:
    ended: list[str] = []
    await run_together(asyncio.sleep(1), asyncio.sleep(2), beside=[hang(ended, "beside")])
    assert ended == ["beside"]
    assert asyncio.get_running_loop().time() == 2


@in_virtual_time
async def test_an_error_is_raised_as_it_is_and_ends_the_others() -> None:
    ended: list[str] = []
    with pytest.raises(ProtocolError, match="broken"):
        await run_together(fail(ProtocolError("broken"), after=1), hang(ended))
    assert ended == ["hung"]


@in_virtual_time
async def test_one_that_is_canceled_is_canceled_whatever_fails_meanwhile() -> None:
    ended: list[str] = []
    running = asyncio.create_task(run_together(hang(ended, raises=ProtocolError("closed"))))
    await asyncio.sleep(1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended == ["hung"]
