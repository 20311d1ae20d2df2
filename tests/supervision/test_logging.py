"""What the supervision floor logs, and at which level; and the tree as plain data."""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping
from typing import Any

from jobs_service.supervision import Actor, ChildSpec, DynamicSupervisor, Node, Strategy, SupervisedProcess, Supervisor
from tests.supervision.probes import Crash, Probe, Trace, of_probes, probe, running, settled, tell
from tests.virtual_time import in_virtual_time

Logs = list[MutableMapping[str, Any]]


def brief(logs: Logs) -> list[tuple[str, str, str | None]]:
    """Return level, event and child of what was logged, and forget it."""
    events = [(entry["log_level"], entry["event"], entry.get("child")) for entry in logs]
    logs.clear()
    return events


@in_virtual_time
async def test_a_crash_is_an_error_with_its_traceback_and_a_restart_a_warning_with_its_cause(logs: Logs) -> None:
    async with running(supervisor := of_probes(Trace(), "a")):
        logs.clear()
        tell(supervisor.child("a"), "crash")
        await settled()
        crashed, restarting, started = logs
        assert (crashed["log_level"], crashed["event"], crashed["child"]) == ("error", "child_crashed", "a")
        assert isinstance(crashed["exc_info"], Crash)
        assert crashed["exc_info"].__traceback__ is not None
        assert (restarting["log_level"], restarting["event"]) == ("warning", "child_restarting")
        assert (restarting["supervisor"], restarting["cause"]) == ("top", "Crash('a')")
        assert started["event"] == "child_started"


@in_virtual_time
async def test_a_failed_clean_up_after_a_crash_is_not_lost_either(logs: Logs) -> None:
    trace = Trace()
    trace.failing_ends["a"] = 1
    async with running(actor := Probe("a", trace)):
        actor.cast("crash")
        await actor.ended()
    assert [str(entry["exc_info"]) for entry in logs if "exc_info" in entry] == ["a does not clean up", "a"]


@in_virtual_time
async def test_a_slow_stop_is_a_warning_each_time_it_is_canceled_again(logs: Logs) -> None:
    class Dawdler(Actor):
        async def terminate(self) -> None:
            await asyncio.sleep(1000)

    async with running(Dawdler("d")):
        logs.clear()
    assert logs[0]["seconds"] == 5.0
    assert brief(logs)[0] == ("warning", "child_slow_to_stop", "d")


@in_virtual_time
async def test_a_failed_helper_of_an_ending_actor_and_a_failed_exit_callback_are_not_lost(logs: Logs) -> None:
    class Messy(Actor):
        async def init(self) -> None:
            self.spawn_link(self.fail(), "helper")
            await asyncio.sleep(0)

        async def fail(self) -> None:
            try:
                await asyncio.sleep(100)
            finally:
                raise Crash("in cleanup")

    actor = Messy("m")
    actor.on_exit(lambda *_: 1 / 0)
    async with running(actor):
        logs.clear()
    helper, stopped, callback = logs
    assert (helper["log_level"], helper["event"], helper["task"]) == ("error", "linked_task_failed", "m/helper")
    assert isinstance(helper["exc_info"], Crash)
    assert stopped["event"] == "child_stopped"
    assert (callback["log_level"], callback["event"], callback["exc_info"]) == ("error", "exit_callback_failed", True)


def tree_of(dynamic: DynamicSupervisor) -> Supervisor:
    specs: list[ChildSpec[SupervisedProcess]] = [probe("a", Trace(), pause=2), ChildSpec("dynamic", lambda: dynamic)]
    return Supervisor("top", specs, strategy=Strategy.REST_FOR_ONE)


@in_virtual_time
async def test_the_tree_tells_names_kinds_states_restarts_and_ages() -> None:
    dynamic = DynamicSupervisor("dynamic")
    top = tree_of(dynamic)
    assert top.tree() == Node(
        "top", "supervisor", "starting", children=[Node("a", "actor", "starting"), Node("dynamic", "actor", "starting")]
    )
    starting = asyncio.create_task(top.start())
    await asyncio.sleep(1)
    assert [child.state for child in top.tree().children] == ["starting", "starting"]
    assert top.tree().children[0].seconds == 1
    await starting
    await asyncio.sleep(8)
    await dynamic.start_child(probe("x", Trace()))
    await asyncio.sleep(4)
    expected = Node("x", "actor", "running", seconds=4)
    assert top.tree().children[1] == Node("dynamic", "dynamic", "running", seconds=12, children=[expected])
    as_dict = json.loads(json.dumps(top.tree().as_dict()))
    assert as_dict["children"][1]["children"][0] == {
        "name": "x",
        "kind": "actor",
        "state": "running",
        "restarts": 0,
        "seconds": 4.0,
        "children": [],
    }
    stopping = asyncio.create_task(top.stop())
    await asyncio.sleep(1)
    assert top.tree().state == "stopping"
    assert [(child.name, child.state) for child in top.tree().children] == [("a", "stopping"), ("dynamic", "stopped")]
    await stopping
    await asyncio.sleep(100)
    assert (top.tree().state, top.tree().seconds) == ("stopped", 16)


@in_virtual_time
async def test_the_tree_shows_what_is_being_restarted_and_what_failed() -> None:
    trace = Trace()
    specs = [probe("a", trace, pause=2), probe("b", trace, pause=2)]
    top = Supervisor("top", specs, strategy=Strategy.REST_FOR_ONE, max_restarts=1)
    await top.start()
    tell(top.child("a"), "crash")
    seen = []
    for _ in range(5):
        await asyncio.sleep(2.01)
        seen.append([child.state for child in top.tree().children])
    # a ends, b is stopped, a starts, b starts
    waiting, running_again = ["restarting", "restarting"], ["running", "restarting"]
    assert seen == [waiting, waiting, running_again, ["running", "running"], ["running", "running"]]
    assert [child.restarts for child in top.tree().children] == [1, 1]
    trace.failing_starts["a"] = 1
    tell(top.child("a"), "crash")
    await top.ended()
    assert top.tree().state == "failed"
    assert [child.state for child in top.tree().children] == ["failed", "stopped"]
