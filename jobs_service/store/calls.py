"""The calls in progress on a store: whether they are allowed, and the end of the last of them."""

from __future__ import annotations

import asyncio

from jobs_service.errors import OTHER_LOOP, StoreError


class Calls:
    """Counts the calls in progress, so that closing a store can wait for them."""

    __slots__ = ("_idle", "number")

    def __init__(self) -> None:
        self.number = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def enter(self) -> None:
        """A call begins."""
        self.number += 1
        self._idle.clear()

    def leave(self) -> None:
        """A call has ended."""
        self.number -= 1
        if not self.number:
            self._idle.set()

    async def ended(self) -> None:
        """Wait until no call is left."""
        await self._idle.wait()


def not_open(address: str) -> StoreError:
    """Return the error for a call on a store that is not open."""
    return StoreError(f"store {address} is not open")


def open_loop(address: str, is_open: bool, loop: asyncio.AbstractEventLoop | None) -> asyncio.AbstractEventLoop:
    """Return the event loop of a store's `open`.

    Raises:
        StoreError: the store is not open, or another loop runs on this thread.
        RuntimeError: no loop runs on this thread.
    """
    if not is_open or loop is None:
        raise not_open(address)
    if asyncio.get_running_loop() is not loop:
        raise StoreError(f"store {address} {OTHER_LOOP}")
    return loop
