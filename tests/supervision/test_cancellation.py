"""Cancellation at every iteration of the loop, once and twice: everything ends, in reverse order, and nothing is left.

That no task is left behind, and no exception unseen, is checked by `cancel_at_every_step` itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from jobs_service.errors import SupervisorFailed
from jobs_service.supervision import (
    ChildSpec,
    Down,
    DynamicSupervisor,
    Strategy,
    SupervisedProcess,
    Supervisor,
    run_tree,
)
from tests.supervision.probes import Crash, Probe, Trace, probe, tell
from tests.virtual_time import cancel_at_every_step, in_virtual_time

POSITIONS = {"a": 0, "b": 1, "c": 2, "x": 3, "y": 3, "server": 4}
"""Where each actor of `Tree` stands: it stops only when those of higher positions have ended."""

TWICE = pytest.mark.parametrize("again_after", [None, 1])


class Server(Probe):
    """Stops leftovers in the dynamic supervisor, fills it, has a helper, and dies when one of those it started dies."""

    def __init__(self, trace: Trace, dynamic: Callable[[], DynamicSupervisor]) -> None:
        super().__init__("server", trace, pause=1)
        self.dynamic = dynamic

    async def init(self) -> None:
        await self.dynamic().stop_all()
        specs = [probe(name, self.trace, pause=1) for name in ("x", "y")]
        await asyncio.gather(*map(self.dynamic().start_child, specs))
        for child in self.dynamic().children:
            self.monitor(child)
        self.spawn_link(asyncio.sleep(1000), "helper")
        await super().init()

    async def handle(self, message: Any) -> None:
        if isinstance(message, Down):
            raise Crash(f"{message.process.name} went down")
        await super().handle(message)


class Tree:
    """top (rest_for_one): a, inner (one_for_one): b, c, dynamic: x, y, server which starts x and y."""

    def __init__(self) -> None:
        self.trace = Trace()
        specs: list[ChildSpec[SupervisedProcess]] = [
            probe("a", self.trace, pause=1),
            ChildSpec("inner", self._inner),
            ChildSpec("dynamic", lambda: DynamicSupervisor("dynamic")),
            ChildSpec("server", lambda: Server(self.trace, self.dynamic)),
        ]
        self.top = Supervisor("top", specs, strategy=Strategy.REST_FOR_ONE, max_restarts=5)

    def _inner(self) -> Supervisor:
        specs = [probe(name, self.trace, pause=1) for name in "bc"]
        return Supervisor("inner", specs, strategy=Strategy.ONE_FOR_ONE)

    def dynamic(self) -> DynamicSupervisor:
        dynamic = self.top.child("dynamic")
        assert isinstance(dynamic, DynamicSupervisor)
        return dynamic

    def inner(self) -> Supervisor:
        inner = self.top.child("inner")
        assert isinstance(inner, Supervisor)
        return inner

    def check(self) -> None:
        """Everything that started has ended; each stop found everything that stands behind it ended."""
        live: set[str] = set()
        for event in self.trace.events:
            what, name = event.split()
            if what == "start":
                assert name not in live, self.trace.events
                live.add(name)
            elif what == "stop":
                behind = {other for other in live if POSITIONS[other] > POSITIONS[name]}
                assert not behind, (event, self.trace.events)
            elif what == "end":
                live.remove(name)
        assert not live, self.trace.events
        assert self.top.state in ("stopped", "starting")


def cancel_everywhere(scenario: Callable[[Tree], Awaitable[object]], again_after: int | None) -> int:
    """Run the scenario canceled at every step, check each tree, and return the number of runs."""
    trees: list[Tree] = []

    async def run() -> None:
        trees.append(Tree())
        await scenario(trees[-1])

    steps = []
    for step in cancel_at_every_step(run, again_after=again_after):
        steps.append(step)
        while trees:
            trees.pop().check()
    return len(steps)


@TWICE
def test_a_tree_canceled_at_every_step_of_its_start_life_and_stop(again_after: int | None) -> None:
    async def scenario(tree: Tree) -> None:
        try:
            async with asyncio.timeout(20):
                await run_tree(tree.top)
        except TimeoutError:
            pass

    assert cancel_everywhere(scenario, again_after) > 50


@TWICE
@pytest.mark.parametrize("victims", ["a", "b", "server", "xa", "cby"])
def test_a_tree_canceled_at_every_step_of_its_restarts(victims: str, again_after: int | None) -> None:
    """Victims: each letter is an actor that crashes, all of them at the same moment."""

    def crash(tree: Tree) -> None:
        for name in ["server"] if victims == "server" else victims:
            supervisor: Supervisor | DynamicSupervisor = tree.top
            if name in "bc":
                supervisor = tree.inner()
            elif name in "xy":
                supervisor = tree.dynamic()
            tell(next(child for child in supervisor.children if child.name == name), "crash")

    async def scenario(tree: Tree) -> None:
        try:
            async with asyncio.timeout(30):
                await run_tree(tree.top, started=lambda: crash(tree))
        except TimeoutError:
            pass
        assert tree.trace.events.count("start server") == (1 if victims == "b" else 2)

    assert cancel_everywhere(scenario, again_after) > 50


@TWICE
def test_a_tree_canceled_at_every_step_of_failing_restarts(again_after: int | None) -> None:
    async def scenario(tree: Tree) -> None:
        def crash() -> None:
            tree.trace.failing_starts.update({"a": 2, "c": 1})
            tell(tree.top.child("a"), "crash")

        try:
            async with asyncio.timeout(30):
                await run_tree(tree.top, started=crash)
        except TimeoutError:
            pass
        assert tree.trace.events.count("start server") == 2

    assert cancel_everywhere(scenario, again_after) > 50


@TWICE
def test_a_supervisor_that_gives_up_still_ends_in_order_when_canceled_meanwhile(again_after: int | None) -> None:
    traces: list[Trace] = []

    async def scenario() -> None:
        traces.append(trace := Trace())
        specs = [probe(name, trace, pause=1) for name in "abc"]
        top = Supervisor("top", specs, strategy=Strategy.ONE_FOR_ONE, max_restarts=0)
        with pytest.raises(SupervisorFailed):
            await run_tree(top, started=lambda: tell(top.child("b"), "crash"))

    for _ in cancel_at_every_step(scenario, again_after=again_after):
        for trace in traces:
            started = [event.split()[1] for event in trace.events if event.startswith("start")]
            ended = [event.split()[1] for event in trace.events if event.startswith("end")]
            if "crash b" in trace.events:
                started = ["a", "c", "b"]
            assert ended == started[::-1]
        traces.clear()


def test_a_start_child_that_is_canceled_leaves_no_child_or_a_whole_one() -> None:
    traces: list[Trace] = []

    async def scenario() -> None:
        traces.append(trace := Trace())
        dynamic = DynamicSupervisor("dynamic")
        await dynamic.start()
        try:
            child = await dynamic.start_child(probe("a", trace, pause=1))
            assert dynamic.children != []
            await dynamic.stop_child(child)
        finally:
            if "stop a" not in trace.events:
                assert (dynamic.children == []) == (trace.events == [])
            await dynamic.stop()

    for _ in cancel_at_every_step(scenario):
        while traces:
            assert traces.pop().events in ([], ["start a", "stop a", "end a"])


@in_virtual_time
async def test_an_anyio_scope_that_cancels_again_and_again_still_gets_an_orderly_stop() -> None:
    trace = Trace()
    top = Supervisor("top", [probe(name, trace, pause=0) for name in "abc"], strategy=Strategy.REST_FOR_ONE)
    with anyio.move_on_after(5) as scope:
        await run_tree(top)
    assert scope.cancelled_caught
    assert trace.take()[3:] == ["stop c", "end c", "stop b", "end b", "stop a", "end a"]


@in_virtual_time
async def test_a_cancellation_while_the_start_notice_fails_is_not_lost() -> None:
    trace = Trace()
    top = Supervisor("top", [probe("a", trace, pause=1)], strategy=Strategy.ONE_FOR_ONE)
    task = asyncio.create_task(run_tree(top, started=lambda: 1 / 0))
    await asyncio.sleep(1.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as canceled:
        await task
    assert isinstance(canceled.value.__cause__, ZeroDivisionError)
    assert trace.take() == ["start a", "stop a", "end a"]
