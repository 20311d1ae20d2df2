"""A network that loses answers: the request has arrived, and nobody hears what became of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import httpx


class LossyTransport(httpx.AsyncHTTPTransport):
    """Sends every request, and loses so many of the next answers to requests of one kind.

    Attributes:
        lose: how many of the next.
        path: how the path of those ends; empty for all.
        tried: requests that there were.
        sent: those that have arrived.
        meanwhile: called when an answer is lost, before the request is sent again; None for nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lose = 0
        self.path = ""
        self.tried = 0
        self.sent = 0
        self.meanwhile: Callable[[], Awaitable[object]] | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.tried += 1
        response = await super().handle_async_request(request)
        self.sent += 1
        if self.lose and request.url.path.endswith(self.path):
            self.lose -= 1
            await response.aread()
            await response.aclose()
            if self.meanwhile is not None:
                await self.meanwhile()
            raise httpx.ReadError("the connection was lost", request=request)
        return response
