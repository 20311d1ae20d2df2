"""Children that cannot be started, or started again."""

from __future__ import annotations

import pytest

from jobs_service.errors import SupervisorFailed
from jobs_service.supervision import ChildSpec, Strategy, SupervisedProcess, Supervisor
from tests.supervision.nesting import BOTH
from tests.supervision.probes import Crash, Probe, Trace, of_probes, probe, running, settled, tell
from tests.virtual_time import in_virtual_time


@BOTH
@in_virtual_time
async def test_a_failed_start_stops_those_before_in_reverse_and_ends_the_supervisor(strategy: Strategy) -> None:
    trace = Trace()
    trace.failing_starts["c"] = 1
    supervisor = of_probes(trace, "abcd", strategy=strategy)
    with pytest.raises(SupervisorFailed, match="'top' did not start: child 'c' failed to start") as failed:
        await supervisor.start()
    assert isinstance(failed.value.__cause__, Crash)
    assert trace.starts_and_stops() == ["start a", "start b", "fail c", "stop b", "stop a"]


@in_virtual_time
async def test_a_child_that_cannot_even_be_made_fails_the_start() -> None:
    trace = Trace()

    def no_child() -> SupervisedProcess:
        raise Crash("no child")

    supervisor = Supervisor("top", [probe("a", trace), ChildSpec("b", no_child)], strategy=Strategy.ONE_FOR_ONE)
    with pytest.raises(SupervisorFailed, match="'b' failed to start: Crash"):
        await supervisor.start()
    assert trace.starts_and_stops() == ["start a", "stop a"]


@in_virtual_time
async def test_a_failed_restart_counts_and_is_tried_again() -> None:
    trace = Trace()
    supervisor = of_probes(trace, "ab")
    async with running(supervisor):
        trace.take()
        trace.failing_starts["a"] = 2
        tell(supervisor.child("a"), "crash")
        await settled()
        assert trace.starts_and_stops() == ["crash a", "fail a", "fail a", "start a"]
        tell(supervisor.child("a"), "crash")
        assert isinstance(await supervisor.ended(), SupervisorFailed)
        assert trace.starts_and_stops() == ["crash a", "stop b"]


@in_virtual_time
async def test_a_start_that_hands_out_a_used_object_counts_as_failed() -> None:
    actor = Probe("a", Trace())
    supervisor = Supervisor("top", [ChildSpec("a", lambda: actor)], strategy=Strategy.ONE_FOR_ONE)
    await supervisor.start()
    actor.cast("crash")
    cause = await supervisor.ended()
    assert isinstance(cause, SupervisorFailed)
    assert "a restart needs a new object" in str(cause)
