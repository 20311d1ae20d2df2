"""Commits of unknown outcome and conflicts, one after the other: no operation doubles, loses or wrongly refuses.

Every cell of the operations table is met, each time in one group commit with other callers' operations, on every kind
of store that can meet such commits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from jobs_service import JobsService
from jobs_service.sources import Sources
from tests.checker import assert_sound
from tests.stores import plain_settings
from tests.system.unsure_cells import CELLS, T1, Cell, Stage
from tests.unsure import UNSURE_KINDS, Fate, Fates, past_states, unsure_store
from tests.virtual_time import VirtualTimeLoop, run_virtual


@pytest.mark.parametrize(
    "planned",
    [
        ["lost"],
        ["unanswered"],
        ["conflict"],
        ["lost", "lost", "unanswered"],
        ["conflict", "unanswered"],
        ["lost", "conflict", "lost"],
        ["late", "timed out"],
    ],
    ids="-".join,
)
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.__name__)
@pytest.mark.parametrize("kind", UNSURE_KINDS)
def test_every_cell_of_the_table_and_its_neighbours_take_effect_once(
    kind: str, cell: Cell, planned: list[Fate]
) -> None:
    async def scenario() -> None:
        async with staged(kind, planned) as stage:
            await cell(stage)
            await assert_sound(stage.jobs.store)

    run_on(kind, scenario())


@asynccontextmanager
async def staged(kind: str, planned: list[Fate]) -> AsyncIterator[Stage]:
    """Set a stage on a store of its own."""
    loop = asyncio.get_running_loop()
    fates = Fates()
    store = unsure_store(kind, fates, seed=1)
    await store.open()
    try:
        sources = Sources(1, wall_time=loop.wall_time) if isinstance(loop, VirtualTimeLoop) else Sources()
        async with JobsService(store, settings=plain_settings(), supervise=False, sources=sources) as jobs:
            await jobs.set_type_timeout(T1, 60)
            yield Stage(jobs, fates, planned)
    finally:
        await store.close()
    assert kind == "fdb" or past_states(store) == 0


def run_on(kind: str, scenario: Coroutine[Any, Any, None]) -> None:
    """Run a scenario in virtual time, but with a cluster, which has its own."""
    if kind == "fdb":
        asyncio.run(scenario)
    else:
        run_virtual(scenario)
