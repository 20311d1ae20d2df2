"""What is read from one connection and written to the other, and either side's end."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

import pytest

from jobs_service.replication.bodies import Upload
from jobs_service.replication.contract import ProtocolError


class Chunks:
    """A source that tells how far it was read, and whether it was closed."""

    def __init__(self, count: int, error: Exception | None = None, hold: asyncio.Event | None = None) -> None:
        self.given = 0
        self.closed = False
        self.begun, self.ended = asyncio.Event(), asyncio.Event()
        self._count, self._error, self._hold = count, error, hold

    async def read(self) -> AsyncGenerator[bytes, None]:
        try:
            for number in range(self._count):
                self.given += 1
                self.begun.set()
                yield b"%d" % number
                if self._hold is not None:
                    await self._hold.wait()
            if self._error is not None:
                raise self._error
        finally:
            self.closed = True
            self.ended.set()


async def test_it_reads_ahead_by_one_alone() -> None:
    chunks = Chunks(100)
    async with Upload(chunks.read()) as upload:
        body = upload.body()
        await anext(body)
        for _ in range(10):
            await asyncio.sleep(0)
        assert chunks.given == 2
        await body.aclose()
    assert chunks.closed


async def test_a_source_that_fails_ends_the_body_and_tells_why() -> None:
    chunks = Chunks(2, ProtocolError("cut off"))
    async with Upload(chunks.read()) as upload:
        with pytest.raises(ConnectionAbortedError):
            _ = [chunk async for chunk in upload.body()]
    assert isinstance(upload.error, ProtocolError)


async def test_one_that_is_canceled_ends_at_once() -> None:
    chunks = Chunks(3, hold=asyncio.Event())

    async def run() -> None:
        async with Upload(chunks.read()) as upload:
            _ = [chunk async for chunk in upload.body()]

    running = asyncio.create_task(run())
    await chunks.begun.wait()
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    await chunks.ended.wait()


async def test_a_body_that_is_still_waited_for_ends_with_the_upload() -> None:
    hold = asyncio.Event()
    async with Upload(Chunks(2, hold=hold).read()) as upload:
        body = upload.body()
        await anext(body)
        waiting = asyncio.ensure_future(anext(body))
        await asyncio.sleep(0)
        hold.set()
    with pytest.raises(ConnectionAbortedError):
        await waiting
