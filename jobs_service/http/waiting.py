"""Waits on behalf of a client, but only while it is connected."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from starlette.requests import Request

T = TypeVar("T")


class Gone(Exception):
    """The client has gone before its answer."""


class Presence:
    """Watches whether the client of a request is still connected; a context manager around the work for it.

    Args:
        request: the request, after its body has been read.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self.leaving: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Presence:
        self.leaving = asyncio.create_task(self._left())
        # Lets the task begin to wait before the first look at it.
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self.leaving is not None
        self.leaving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.leaving

    @property
    def is_gone(self) -> bool:
        """Whether the client has closed its connection."""
        return self.leaving is not None and self.leaving.done()

    async def _left(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass

    async def unless_gone(
        self, work: Coroutine[Any, Any, T], closing: asyncio.Event, give_back: Callable[[T], Awaitable[object]]
    ) -> T | None:
        """Return the result of some work; None if the server is about to end.

        Args:
            work: the work; if canceled, it gives back anything that it has taken.
            closing: set when the server is about to end.
            give_back: called with a result that comes in spite of the cancellation.

        Raises:
            Gone: the client has gone meanwhile.
        """
        assert self.leaving is not None
        doing = asyncio.create_task(work)
        ending = asyncio.create_task(closing.wait())
        try:
            await asyncio.wait((doing, ending, self.leaving), return_when=asyncio.FIRST_COMPLETED)
            if doing.done():
                return doing.result()
            if self.is_gone:
                raise Gone
            return None
        finally:
            ending.cancel()
            if not doing.done():
                doing.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await give_back(await doing)
