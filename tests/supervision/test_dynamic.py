"""The dynamic supervisor: children that come and go."""

from __future__ import annotations

import asyncio

import pytest

from jobs_service.supervision import ActorStopped, ChildSpec, DynamicSupervisor
from tests.supervision.probes import Crash, Probe, Trace, probe, running, settled
from tests.virtual_time import in_virtual_time


@in_virtual_time
async def test_children_come_and_go() -> None:
    trace = Trace()
    dynamic = DynamicSupervisor("dynamic")
    async with running(dynamic):
        a, b, c = [await dynamic.start_child(probe(name, trace)) for name in "abc"]
        assert dynamic.children == [a, b, c]
        await dynamic.stop_child(b)
        await dynamic.stop_child(c)
        assert trace.starts_and_stops() == ["start a", "start b", "start c", "stop b", "stop c"]
        assert dynamic.children == [a]
        again = await dynamic.start_child(probe("b", trace))
        assert dynamic.children == [a, again]
    assert sorted(trace.starts_and_stops()) == ["start b", "stop a", "stop b"]
    assert dynamic.children == []


@in_virtual_time
async def test_children_that_end_by_themselves_are_forgotten() -> None:
    trace = Trace()
    dynamic = DynamicSupervisor("dynamic")
    async with running(dynamic):
        for _ in range(20):
            child = await dynamic.start_child(probe("a", trace))
            child.cast("crash")
            assert isinstance(await child.ended(), Crash)
            assert dynamic.children == []
    assert trace.starts_and_stops() == ["start a", "crash a"] * 20


@in_virtual_time
async def test_a_start_that_fails_is_raised_and_leaves_nothing() -> None:
    trace = Trace()
    dynamic = DynamicSupervisor("dynamic")
    async with running(dynamic):
        trace.failing_starts["a"] = 1
        with pytest.raises(Crash, match="a does not start"):
            await dynamic.start_child(probe("a", trace))
        with pytest.raises(ZeroDivisionError):
            await dynamic.start_child(ChildSpec("b", lambda: Probe(str(1 / 0), trace)))
        assert dynamic.children == []
        await dynamic.start_child(probe("a", trace))


@in_virtual_time
async def test_a_name_is_taken_until_its_child_has_ended() -> None:
    trace = Trace()
    dynamic = DynamicSupervisor("dynamic")
    async with running(dynamic):
        child = await dynamic.start_child(probe("a", trace, pause=5))
        stopping = asyncio.create_task(dynamic.stop_child(child))
        await settled()
        with pytest.raises(ValueError, match="'dynamic' has a child 'a' already"):
            await dynamic.start_child(probe("a", trace))
        await stopping
        await dynamic.start_child(probe("a", trace))


@in_virtual_time
async def test_no_child_starts_unless_the_supervisor_runs() -> None:
    dynamic = DynamicSupervisor("dynamic")
    with pytest.raises(ActorStopped, match="is starting"):
        await dynamic.start_child(probe("a", Trace()))
    await dynamic.start()
    await dynamic.start_child(probe("slow", Trace(), pause=5))
    stopping = asyncio.create_task(dynamic.stop())
    await settled()
    with pytest.raises(ActorStopped, match="is stopping"):
        await dynamic.start_child(probe("a", Trace()))
    await stopping
    with pytest.raises(ActorStopped, match="is stopped"):
        await dynamic.start_child(probe("a", Trace()))


@in_virtual_time
async def test_a_start_given_up_late_does_not_forget_the_next_child_of_that_name() -> None:
    dynamic = DynamicSupervisor("dynamic")

    async def replace() -> None:
        await dynamic.stop_child(dynamic.children[0])
        await dynamic.start_child(probe("a", Trace()))

    async with running(dynamic):
        starting = asyncio.create_task(dynamic.start_child(probe("a", Trace(), pause=10)))
        await settled()
        replacing = asyncio.create_task(replace())
        await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait([starting, replacing])
        assert starting.cancelled()
        assert [child.is_alive for child in dynamic.children] == [True]


@in_virtual_time
async def test_two_callers_may_stop_the_same_child_and_one_may_lose_patience() -> None:
    trace = Trace()
    dynamic = DynamicSupervisor("dynamic")
    async with running(dynamic):
        child = await dynamic.start_child(probe("a", trace, pause=2))
        patient = asyncio.create_task(dynamic.stop_child(child))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await dynamic.stop_child(child)
        assert dynamic.children == [child]
        await patient
        assert dynamic.children == []
        assert trace.starts_and_stops() == ["start a", "stop a"]


@in_virtual_time
async def test_stopping_a_child_that_is_not_there_does_nothing() -> None:
    dynamic = DynamicSupervisor("dynamic")
    async with running(dynamic), running(stranger := Probe("a", Trace())):
        mine = await dynamic.start_child(probe("a", Trace()))
        await dynamic.stop_child(stranger)
        assert stranger.is_alive
        assert dynamic.children == [mine]
