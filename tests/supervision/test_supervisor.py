"""Supervisors with a fixed list of children: order, strategies, restart kinds, failures at the start and at the end."""

from __future__ import annotations

import asyncio

import pytest

from jobs_service.errors import SupervisorFailed
from jobs_service.supervision import Killed, Strategy, Supervisor, run_tree
from tests.supervision.nesting import BOTH, nested
from tests.supervision.probes import Crash, Trace, of_probes, probe, running, settled, tell
from tests.virtual_time import in_virtual_time


@BOTH
@in_virtual_time
async def test_children_start_in_order_and_stop_in_reverse_order_each_awaited(strategy: Strategy) -> None:
    trace = Trace()
    names = "abc"
    specs = [probe(name, trace, pause=pause) for name, pause in zip(names, (3, 2, 1), strict=True)]
    supervisor = Supervisor("top", specs, strategy=strategy)
    async with running(supervisor):
        assert trace.take() == ["start a", "start b", "start c"]
        assert asyncio.get_running_loop().time() == 6
        assert [child.name for child in supervisor.children] == ["a", "b", "c"]
    assert trace.take() == ["stop c", "end c", "stop b", "end b", "stop a", "end a"]
    assert supervisor.state == "stopped"


@BOTH
@in_virtual_time
async def test_too_many_restarts_end_the_supervisor_which_says_why(strategy: Strategy) -> None:
    trace = Trace()
    supervisor = of_probes(trace, "ab", strategy=strategy, max_restarts=2, restart_period=5)
    await supervisor.start()
    for _ in range(2):
        tell(supervisor.child("b"), "crash")
        await asyncio.sleep(2)
    trace.take()
    tell(supervisor.child("b"), "crash")
    cause = await supervisor.ended()
    assert isinstance(cause, SupervisorFailed)
    assert str(cause) == (
        "supervisor 'top' gave up: child 'b' ended once more after 2 restarts within 5 s;"
        " the last time because of Crash('b')"
    )
    assert isinstance(cause.__cause__, Crash)
    assert trace.take() == ["crash b", "end b", "stop a", "end a"]
    assert supervisor.state == "failed"


@in_virtual_time
async def test_errors_during_the_stop_do_not_keep_the_others_from_being_stopped() -> None:
    trace = Trace()
    trace.failing_ends.update("abc")
    supervisor = of_probes(trace)
    async with running(supervisor):
        children = supervisor.children
        trace.take()
    assert trace.take() == ["stop c", "end c", "stop b", "end b", "stop a", "end a"]
    assert all(isinstance(child.cause, Crash) for child in children)
    assert supervisor.cause is None


@in_virtual_time
async def test_a_child_that_dies_while_a_later_one_starts_is_restarted_afterwards() -> None:
    trace = Trace()
    supervisor = Supervisor(
        "top", [probe("a", trace), probe("b", trace, pause=10)], strategy=Strategy.REST_FOR_ONE, max_restarts=1
    )
    starting = asyncio.create_task(supervisor.start())
    await asyncio.sleep(1)
    tell(supervisor.child("a"), "crash")
    await starting
    await asyncio.sleep(30)
    assert trace.starts_and_stops() == ["start a", "crash a", "start b", "stop b", "start a", "start b"]
    await supervisor.stop()


@in_virtual_time
async def test_a_child_canceled_by_a_stranger_is_restarted() -> None:
    trace = Trace()
    supervisor = of_probes(trace, "a", max_restarts=1)
    async with running(supervisor):
        for _ in range(2):
            next(task for task in asyncio.all_tasks() if task.get_name() == "a").cancel()
            await settled()
        assert isinstance(supervisor.cause, SupervisorFailed)
        assert isinstance(supervisor.cause.__cause__, Killed)
    assert trace.starts_and_stops() == ["start a", "crash a", "start a", "crash a"]


@in_virtual_time
async def test_an_inner_supervisor_that_gives_up_is_restarted_by_the_outer_one_until_that_gives_up_too() -> None:
    trace = Trace()
    top = nested(trace)
    await top.start()

    async def crash_b() -> None:
        trace.take()
        inner = top.child("inner")
        assert isinstance(inner, Supervisor)
        tell(inner.child("b"), "crash")
        await settled()

    await crash_b()
    assert trace.starts_and_stops() == ["crash b", "start b"]
    await crash_b()
    assert trace.starts_and_stops() == ["crash b", "stop c", "stop d", "start b", "start c", "start d"]
    await crash_b()
    assert trace.starts_and_stops() == ["crash b", "start b"]
    await crash_b()
    assert trace.starts_and_stops() == ["crash b", "stop c", "stop d", "stop a"]
    cause = await top.ended()
    assert isinstance(cause, SupervisorFailed)
    assert isinstance(cause.__cause__, SupervisorFailed)
    assert isinstance(cause.__cause__.__cause__, Crash)


def test_names_must_differ_and_limits_make_sense() -> None:
    with pytest.raises(ValueError, match="same name"):
        of_probes(Trace(), "aba")
    for max_restarts, period in [(-1, 1.0), (1, 0.0)]:
        with pytest.raises(ValueError, match="at least 0"):
            of_probes(Trace(), max_restarts=max_restarts, restart_period=period)


@in_virtual_time
async def test_run_tree_tells_when_everything_has_started_and_raises_what_ended_it() -> None:
    trace = Trace()
    supervisor = of_probes(trace, max_restarts=0)

    def started() -> None:
        trace.events.append("all started")
        tell(supervisor.child("b"), "crash")

    with pytest.raises(SupervisorFailed, match="'b' ended once more after 0 restarts"):
        await run_tree(supervisor, started=started)
    expected = ["start a", "start b", "start c", "all started", "crash b", "stop c", "stop a"]
    assert trace.starts_and_stops() == expected


@in_virtual_time
async def test_run_tree_stops_everything_when_the_notice_of_the_start_fails() -> None:
    trace = Trace()
    with pytest.raises(ZeroDivisionError):
        await run_tree(of_probes(trace, "ab"), started=lambda: 1 / 0)
    assert trace.starts_and_stops() == ["start a", "start b", "stop b", "stop a"]
