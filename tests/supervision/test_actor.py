"""Actors: inbox, calls, timeouts, the end and its causes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jobs_service.supervision import Actor, ActorStopped, UnknownMessage
from tests.supervision.actors import Echo
from tests.supervision.probes import Crash, Probe, Trace, running, settled
from tests.virtual_time import cancel_at_every_step, in_virtual_time


class Collector(Actor):
    """Overrides the main loop: keeps what `receive(timeout)` returned and when, until it is told to stop."""

    def __init__(self, timeout: float | None) -> None:
        super().__init__("collector")
        self.timeout = timeout
        self.received: list[tuple[float, Any]] = []

    async def run(self) -> None:
        while True:
            message = await self.receive(self.timeout)
            self.received.append((asyncio.get_running_loop().time(), message and message.body))
            if message is not None and message.body == "last":
                return
            if message is not None and message.body == "bad":
                message.fail(ValueError("a bad request"))


@in_virtual_time
async def test_calls_are_answered_in_order_one_at_a_time() -> None:
    actor = Echo("echo")
    async with running(actor):
        loop = asyncio.get_running_loop()
        answered: list[tuple[Any, float]] = []

        async def call(message: Any) -> None:
            answered.append((await actor.call(message), loop.time()))

        await asyncio.gather(*map(call, [2.0, "quick", 1.0]))
        assert answered == [(2.0, 2.0), ("quick", 2.0), (1.0, 3.0)]


@in_virtual_time
async def test_messages_sent_while_it_initialises_are_handled_afterwards() -> None:
    actor = Probe("slow", Trace(), pause=5)
    starting = asyncio.create_task(actor.start())
    await settled()
    assert actor.state == "starting"
    assert await actor.call("hello") == ("slow", "hello")
    assert asyncio.get_running_loop().time() == 5
    await starting
    await actor.stop()


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
async def test_an_unknown_message_kills_the_actor_and_its_caller_is_told() -> None:
    actor = Actor("plain")
    await actor.start()
    with pytest.raises(ActorStopped, match="'plain' has ended") as stopped:
        await actor.call("what?")
    assert isinstance(stopped.value.__cause__, UnknownMessage)
    assert "'what?'" in str(stopped.value.__cause__)
    assert actor.state == "failed"
    assert actor.cause is stopped.value.__cause__


@in_virtual_time
async def test_all_waiting_callers_are_told_when_the_actor_dies() -> None:
    actor = Probe("a", Trace(), pause=1)
    await actor.start()
    actor.cast("crash")
    calls = [asyncio.create_task(actor.call(number)) for number in range(3)]
    await settled()
    assert actor.state == "stopping"
    calls.append(asyncio.create_task(actor.call("while it cleans up")))
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ActorStopped] * 4
    assert len({id(outcome) for outcome in outcomes}) == 4
    assert all(isinstance(outcome, ActorStopped) and isinstance(outcome.__cause__, Crash) for outcome in outcomes)


@in_virtual_time
async def test_a_call_fails_at_once_when_the_actor_is_not_there() -> None:
    actor = Echo("echo")
    with pytest.raises(ActorStopped, match="has not been started"):
        await actor.call(1)
    actor.cast(1)
    await actor.stop()
    assert await actor.ended() is None
    async with running(actor):
        assert await actor.call(2) == 2
    with pytest.raises(ActorStopped, match=r"has ended$"):
        await actor.call(3)
    actor.cast(3)


@in_virtual_time
async def test_an_actor_that_calls_itself_is_told_so() -> None:
    class Narcissus(Actor):
        async def handle(self, message: Any) -> Any:
            return await self.call(message)

    actor = Narcissus("narcissus")
    await actor.start()
    with pytest.raises(ActorStopped, match="calls itself"):
        await actor.call("hello")


def test_a_caller_that_is_canceled_does_no_harm() -> None:
    async def scenario() -> None:
        actor = Echo("echo")
        async with running(actor):
            calling = asyncio.create_task(actor.call(3.0))
            try:
                await asyncio.wait([calling])
            except asyncio.CancelledError:
                calling.cancel()
                await asyncio.wait([calling])
                assert await actor.call("still there") == "still there"
                raise
        answers.append(calling.result())

    answers: list[Any] = []
    for _ in cancel_at_every_step(scenario):
        pass
    assert answers == [3.0]


@in_virtual_time
async def test_a_second_task_that_waits_for_messages_is_told_so() -> None:
    actor = Actor("busy")
    async with running(actor):
        await settled()
        with pytest.raises(RuntimeError, match="two tasks wait"):
            await actor.receive()


@in_virtual_time
async def test_a_cast_is_not_answered_and_an_answer_is_given_once() -> None:
    class Twice(Actor):
        async def run(self) -> None:
            while message := await self.receive():
                message.reply(1)
                message.reply(2)
                message.fail(ValueError("too late"))

    actor = Twice("twice")
    async with running(actor):
        actor.cast("nobody waits for this")
        assert await actor.call("x") == 1
