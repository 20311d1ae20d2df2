"""Actors: inbox, timeouts, the end and its causes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jobs_service.supervision import Actor, UnknownMessage
from tests.supervision.probes import Crash, Probe, Trace, running, settled
from tests.virtual_time import in_virtual_time


class Collector(Actor):
    """Overrides the main loop: keeps what `receive(timeout)` returned and when, until it is told to stop."""

    def __init__(self, timeout: float | None) -> None:
        super().__init__("collector")
        self.timeout = timeout
        self.received: list[tuple[float, Any]] = []

    async def run(self) -> None:
        while True:
            message = await self.receive(self.timeout)
            self.received.append((asyncio.get_running_loop().time(), message))
            if message == "last":
                return


@in_virtual_time
async def test_receive_returns_none_when_nothing_comes_in_time() -> None:
    actor = Collector(10)
    async with running(actor):
        await asyncio.sleep(14)
        actor.cast("a")
        actor.cast("b")
        await asyncio.sleep(11)
    assert actor.received == [(10, None), (14, "a"), (14, "b"), (24, None)]


@in_virtual_time
async def test_an_actor_can_wait_for_its_own_stop_without_a_deadlock() -> None:
    class Suicidal(Actor):
        async def run(self) -> None:
            await self.stop()

    actor = Suicidal("suicidal")
    await actor.start()
    assert await actor.ended() is None
    assert actor.state == "stopped"


@in_virtual_time
async def test_a_second_task_that_waits_for_messages_is_told_so() -> None:
    actor = Actor("busy")
    async with running(actor):
        await settled()
        with pytest.raises(RuntimeError, match="two tasks wait"):
            await actor.receive()


@in_virtual_time
async def test_messages_sent_while_it_initialises_are_handled_afterwards_and_an_ended_actor_drops_them() -> None:
    actor = Probe("slow", Trace(), pause=5)
    starting = asyncio.create_task(actor.start())
    await settled()
    actor.cast("crash")
    await starting
    assert isinstance(await actor.ended(), Crash)
    actor.cast("crash")


@in_virtual_time
async def test_an_unknown_message_kills_the_actor() -> None:
    actor = Actor("plain")
    await actor.start()
    actor.cast("what?")
    cause = await actor.ended()
    assert isinstance(cause, UnknownMessage)
    assert "'what?'" in str(cause)
    assert actor.state == "failed"
