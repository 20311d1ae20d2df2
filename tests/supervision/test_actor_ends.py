"""How an actor starts and ends: failures, stops and lost cancellations."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from jobs_service.supervision import Actor, ActorStopped, Killed
from tests.supervision.probes import Crash, Probe, Trace, settled
from tests.virtual_time import in_virtual_time


@in_virtual_time
async def test_stopping_while_it_starts_fails_the_start() -> None:
    actor = Probe("a", Trace(), pause=10)
    starting = asyncio.create_task(actor.start())
    await settled()
    await actor.stop()
    with pytest.raises(ActorStopped, match="stopped while it was starting"):
        await starting


@in_virtual_time
async def test_a_terminate_that_takes_too_long_is_canceled() -> None:
    class Dawdler(Actor):
        async def terminate(self) -> None:
            await asyncio.sleep(1000)

    actor = Dawdler("dawdler")
    await actor.start()
    await actor.stop()
    assert asyncio.get_running_loop().time() == Dawdler.shutdown
    assert isinstance(actor.cause, Killed)


@in_virtual_time
async def test_an_actor_that_swallows_its_cancellation_is_canceled_again() -> None:
    class Stubborn(Actor):
        swallowed = 0

        async def run(self) -> None:
            while self.swallowed < 3:
                try:
                    await asyncio.get_running_loop().create_future()
                except asyncio.CancelledError:
                    self.swallowed += 1

    actor = Stubborn("stubborn")
    await actor.start()
    await actor.stop()
    assert actor.swallowed == 3
    assert asyncio.get_running_loop().time() == 10
    assert actor.cause is None


@in_virtual_time
async def test_asking_again_to_stop_does_not_interrupt_a_main_loop_that_is_ending() -> None:
    class Orderly(Actor):
        async def run(self) -> None:
            try:
                await self.receive()
            finally:
                await asyncio.sleep(1)
                ended.append(asyncio.get_running_loop().time())

    ended: list[float] = []
    actor = Orderly("orderly")
    await actor.start()
    await settled()
    actor.request_stop()
    await asyncio.sleep(0.5)
    await asyncio.gather(actor.stop(), actor.stop())
    assert ended == [pytest.approx(1.0, abs=1e-3)]


@in_virtual_time
async def test_a_lost_cancellation_is_noticed_at_the_next_receive() -> None:
    class Forgetful(Actor):
        async def handle(self, message: Any) -> None:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1)

    actor = Forgetful("forgetful")
    await actor.start()
    actor.cast("x")
    await asyncio.sleep(0.5)
    await actor.stop()
    assert asyncio.get_running_loop().time() == 0.5
    assert actor.cause is None


@in_virtual_time
async def test_exit_callbacks_are_called_once_and_can_be_taken_back() -> None:
    told: list[Any] = []
    actor = Probe("a", Trace())
    actor.on_exit(lambda who, cause: told.append((who.name, type(cause))))
    actor.on_exit(lambda *_: 1 / 0)
    forget = actor.on_exit(lambda *_: told.append("not wanted"))
    actor.on_exit(lambda *_: told.append("second"))
    await actor.start()
    forget()
    actor.cast("crash")
    await actor.ended()
    assert told == [("a", Crash), "second"]
    forget()
    actor.on_exit(lambda *_: told.append("at once"))
    assert told[2:] == ["at once"]
