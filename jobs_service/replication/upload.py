"""The body of an upload: bytes read from one connection are written to another.

The target may answer before it has the whole body, or the source may fail in the middle; either side then stops in
good order, so that the source's answer can still be read after the attachment.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import Self


class Upload:
    """Reads `chunks` ahead by one. An asynchronous context manager around the request that sends `body`."""

    def __init__(self, chunks: AsyncGenerator[bytes, None]) -> None:
        self.error: Exception | None = None
        """The error of the source, if it failed."""
        self._chunks = chunks
        self._chunk: bytes | None = None
        self._filled, self._wanted = asyncio.Event(), asyncio.Event()
        self._stopped = False
        self._reader: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._reader is not None
        self._stopped = True
        self._filled.set()
        self._wanted.set()
        if isinstance(error, asyncio.CancelledError):
            self._reader.cancel()
        try:
            # Not canceled otherwise: that would end the source's answer, and its rest may still be needed.
            await asyncio.wait([self._reader])
        except asyncio.CancelledError:
            self._reader.cancel()
            raise

    async def body(self) -> AsyncGenerator[bytes, None]:
        """Yield the bytes. Raises `ConnectionAbortedError` if the source fails or the upload is stopped."""
        while True:
            await self._filled.wait()
            self._filled.clear()
            chunk = self._chunk
            if self._stopped or self.error is not None:
                raise ConnectionAbortedError("the upload was given up")
            if chunk is None:
                return
            self._wanted.set()
            yield chunk

    async def _read(self) -> None:
        try:
            async with aclosing(self._chunks) as chunks:
                async for chunk in chunks:
                    self._chunk = chunk
                    self._filled.set()
                    await self._wanted.wait()
                    self._wanted.clear()
                    if self._stopped:
                        return
        except Exception as error:
            self.error = error
        self._chunk = None
        self._filled.set()
