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

from jobs_service import JobNotFound, JobsService, JobTransaction, NewJob, Removal
from jobs_service.sources import Sources
from tests.checker import assert_sound
from tests.stores import plain_settings
from tests.system.unsure_cells import CELLS, FINISHED, PENDING, RUNNING, T1, Cell, Stage
from tests.unsure import UNSURE_KINDS, Fate, Fates, past_states, unsure_store
from tests.virtual_time import VirtualTimeLoop, run_virtual

every_kind = pytest.mark.parametrize("kind", UNSURE_KINDS)


@every_kind
def test_a_lost_removal_of_a_job_that_shows_signs_of_life_meanwhile_is_done_again(kind: str) -> None:
    async def scenario() -> None:
        async with staged(kind, []) as stage:
            jobs = stage.jobs
            worker = await stage.running()
            stage.fates.plan(["lost"], lambda: worker.update("alive"))
            assert await jobs.remove(T1, "a", force=True) is Removal.REMOVED
            assert stage.fates.met == ["lost"]
            assert [job async for job in jobs.list(T1)] == []

    run_on(kind, scenario())


@every_kind
def test_a_lost_removal_of_two_jobs_of_which_others_remove_one_meanwhile_is_done_again(kind: str) -> None:
    async def both(tx: JobTransaction) -> None:
        for id in ("a", "b"):
            await tx.remove(T1, id, force=True)

    async def scenario() -> None:
        async with staged(kind, []) as stage:
            jobs = stage.jobs
            await jobs.add_many(T1, [NewJob("a"), NewJob("b")])

            async def meanwhile() -> None:
                await jobs.remove(T1, "a")
                await jobs.accept(T1)

            stage.fates.plan(["lost"], meanwhile)
            with pytest.raises(JobNotFound):
                await jobs.transact(both)
            assert [job.id async for job in jobs.list(T1)] == ["b"]

    run_on(kind, scenario())


@every_kind
@pytest.mark.parametrize("then", ["added", "accepted", "finished"])
def test_an_unanswered_removal_does_not_touch_a_job_made_anew_meanwhile(kind: str, then: str) -> None:
    async def scenario() -> None:
        async with staged(kind, []) as stage:
            jobs = stage.jobs
            await jobs.add(T1, "a", "old")

            async def meanwhile() -> None:
                await jobs.add(T1, "a", "new")
                if then != "added":
                    worker = await stage.accept()
                    if then == "finished":
                        await worker.finish()

            stage.fates.plan(["unanswered"], meanwhile)
            assert await jobs.remove(T1, "a", force=True) is Removal.REMOVED
            job = await jobs.get(T1, "a")
            expected = {"added": PENDING, "accepted": RUNNING, "finished": FINISHED}
            assert (job.data, job.state, job.cancel) == ("new", expected[then], False)

    run_on(kind, scenario())


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
@every_kind
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
