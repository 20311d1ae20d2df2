"""Linked tasks, which die with their actor and it with them; monitors, which are only told."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jobs_service.supervision import Actor, ActorStopped, Down
from tests.supervision.probes import Crash, Probe, Trace, running, settled
from tests.virtual_time import in_virtual_time


class Linked(Probe):
    """A probe with a helper, which sleeps and then ends as it was told."""

    def __init__(self, trace: Trace, *, seconds: float = 1000.0, how: BaseException | None = None) -> None:
        super().__init__("boss", trace)
        self.seconds = seconds
        self.how = how
        self.helper: asyncio.Task[Any]

    async def init(self) -> None:
        await super().init()
        self.helper = self.spawn_link(self.help(), "helper")

    async def help(self) -> None:
        self.trace.events.append("start helper")
        try:
            await asyncio.sleep(self.seconds)
            if self.how is not None:
                raise self.how
        finally:
            await asyncio.sleep(1)
            self.trace.events.append("end helper")


@in_virtual_time
async def test_a_helper_that_crashes_takes_its_actor_with_it() -> None:
    trace = Trace()
    actor = Linked(trace, seconds=3, how=Crash("helper"))
    await actor.start()
    cause = await actor.ended()
    assert cause is actor.how
    assert cause is not None
    assert cause.__notes__ == ["raised in 'boss/helper', which is linked to actor 'boss'"]
    assert trace.take() == ["start boss", "start helper", "end helper", "crash boss", "end boss"]


@in_virtual_time
async def test_a_helper_that_crashes_during_init_fails_the_start() -> None:
    class Hasty(Actor):
        async def init(self) -> None:
            async def fail() -> None:
                raise Crash("helper")

            self.spawn_link(fail(), "helper")
            await asyncio.sleep(10)

    with pytest.raises(Crash, match="helper"):
        await Hasty("hasty").start()


@in_virtual_time
async def test_a_helper_that_does_not_end_is_canceled_again() -> None:
    class Stuck(Actor):
        async def init(self) -> None:
            self.helper = self.spawn_link(self.hang(), "helper")
            await asyncio.sleep(0)

        async def hang(self) -> None:
            try:
                await asyncio.sleep(1000)
            finally:
                await asyncio.sleep(1000)

    actor = Stuck("stuck")
    await actor.start()
    await actor.stop()
    assert asyncio.get_running_loop().time() == Stuck.shutdown
    assert actor.helper.cancelled()


@in_virtual_time
async def test_no_helper_starts_when_the_actor_is_ending_or_has_ended() -> None:
    class Late(Actor):
        async def terminate(self) -> None:
            with pytest.raises(ActorStopped, match="is ending"):
                self.spawn_link(asyncio.sleep(1), "late")

    actor = Late("late")
    await actor.start()
    await actor.stop()
    assert actor.cause is None
    with pytest.raises(ActorStopped, match="has ended"):
        actor.spawn_link(asyncio.sleep(1), "later")


class Observer(Actor):
    """Keeps the Down messages that it gets."""

    def __init__(self) -> None:
        super().__init__("observer")
        self.downs: list[Down] = []

    async def handle(self, message: Any) -> Any:
        if not isinstance(message, Down):
            return await super().handle(message)
        self.downs.append(message)


@in_virtual_time
async def test_a_monitor_is_told_once_who_ended_and_why() -> None:
    observer = Observer()
    async with running(observer):
        crashing, stopping = Probe("a", Trace()), Probe("b", Trace())
        for actor in (crashing, stopping):
            await actor.start()
            observer.monitor(actor)
            observer.monitor(actor)
        crashing.cast("crash")
        await stopping.stop()
        await settled()
        assert observer.downs == [Down(crashing, crashing.cause), Down(stopping, None)]
        assert isinstance(crashing.cause, Crash)
        observer.monitor(crashing)
        await settled()
        assert observer.downs[2:] == [Down(crashing, crashing.cause)]
        assert observer._monitored == {}


@in_virtual_time
async def test_an_observer_that_ends_leaves_nothing_with_those_it_observed() -> None:
    observer = Observer()
    async with running(actor := Probe("a", Trace())):
        async with running(observer):
            observer.monitor(actor)
            assert len(actor._exit_callbacks) == 1
        assert len(actor._exit_callbacks) == 0


@in_virtual_time
async def test_a_monitor_taken_back_says_nothing() -> None:
    observer = Observer()
    async with running(observer), running(actor := Probe("a", Trace())):
        observer.monitor(actor)
        observer.demonitor(actor)
        observer.demonitor(actor)
        await actor.stop()
        await settled()
        assert observer.downs == []
