"""The supervisor that never gives up: how long it waits before it starts a child again."""

from __future__ import annotations

import asyncio

from jobs_service.supervision import PatientSupervisor
from tests.supervision.probes import Trace, probe, running, tell
from tests.virtual_time import in_virtual_time

CALM = 60.0


@in_virtual_time
async def test_pauses_double_up_to_the_longest_and_begin_anew_after_a_calm_time() -> None:
    trace = Trace()
    supervisor = PatientSupervisor("top", [probe("a", trace)], first_pause=1, longest_pause=6, calm=CALM)
    async with running(supervisor):
        trace.take()

        async def assert_started_again_after(pause: float) -> None:
            tell(supervisor.child("a"), "crash")
            await asyncio.sleep(pause - 0.1)
            assert trace.starts_and_stops() == ["crash a"]
            await asyncio.sleep(0.2)
            assert trace.starts_and_stops() == ["start a"]

        for pause in (1, 2, 4, 6, 6):
            await assert_started_again_after(pause)
        await asyncio.sleep(CALM)
        for pause in (1, 2):
            await assert_started_again_after(pause)
