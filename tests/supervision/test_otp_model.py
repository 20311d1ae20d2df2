"""Random histories of crashes, failing starts and passing time: the supervisor does what the model of OTP's does."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from jobs_service.errors import SupervisorFailed
from jobs_service.supervision import Strategy, Supervisor
from tests.supervision.otp_model import ModelChild, OtpSupervisor
from tests.supervision.probes import Trace, probe, settled, tell
from tests.virtual_time import run_virtual

NAMES = "abcde"


@dataclass(frozen=True)
class Step:
    """Seconds pass, some of the next starts are made to fail, and some children die at the same moment."""

    seconds: float
    failing_starts: dict[str, int]
    deaths: list[tuple[str, str]]


names = st.sampled_from(NAMES)
steps = st.builds(
    Step,
    st.sampled_from([0.0, 0.5, 1.0, 2.0, 5.0, 9.0]),
    st.dictionaries(names, st.integers(1, 3), max_size=2),
    st.lists(
        st.tuples(names, st.sampled_from(["crash", "crash", "return"])), max_size=3, unique_by=lambda death: death[0]
    ),
)


@settings(deadline=None, max_examples=100)
@given(
    count=st.integers(1, len(NAMES)),
    strategy=st.sampled_from(Strategy),
    max_restarts=st.integers(0, 4),
    failing_at_first=st.sampled_from([None, None, None, *NAMES]),
    history=st.lists(steps, max_size=12),
)
def test_any_history_has_the_same_starts_and_stops_as_in_otp(
    count: int,
    strategy: Strategy,
    max_restarts: int,
    failing_at_first: str | None,
    history: list[Step],
) -> None:
    period = 5.0
    model = OtpSupervisor(
        [ModelChild(name) for name in NAMES[:count]],
        strategy,
        max_restarts,
        period,
    )

    async def live() -> None:
        loop = asyncio.get_running_loop()
        trace = Trace()
        specs = [probe(name, trace) for name in NAMES[:count]]
        supervisor = Supervisor("top", specs, strategy=strategy, max_restarts=max_restarts, restart_period=period)
        first = Counter([failing_at_first] if failing_at_first else [])
        trace.failing_starts, model.failing_starts = Counter(first), Counter(first)
        model.start()
        if model.failed_start is not None:
            with pytest.raises(SupervisorFailed, match=f"child '{model.failed_start}' failed to start"):
                await supervisor.start()
            assert trace.starts_and_stops() == model.trace
            event("did not start")
            return
        await supervisor.start()
        for step in history:
            await asyncio.sleep(step.seconds)
            trace.failing_starts.update(step.failing_starts)
            model.failing_starts.update(step.failing_starts)
            deaths = [(name, how) for name, how in step.deaths if name in model.alive]
            for name, how in deaths:
                tell(supervisor.child(name), how)
            model.die(deaths, loop.time())
            await settled()
            assert [e for e in trace.events if not e.startswith("end")] == model.trace
            if model.gave_up is not None:
                assert isinstance(supervisor.cause, SupervisorFailed)
                assert f"child '{model.gave_up}' ended once more after {max_restarts} restarts" in str(supervisor.cause)
                event("gave up")
                return
            assert [child.name for child in supervisor.children if child.is_alive] == model.alive
        event("was stopped")
        model.stop()
        await supervisor.stop()
        assert supervisor.cause is None
        assert trace.starts_and_stops() == model.trace

    run_virtual(live())
