"""The history finds nothing wrong with what really happens."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
from typing import Any

import pytest

from jobs_service import JobsError, JobsService, JobTransaction, Outcome
from jobs_service.arguments import IF_EXISTS, IfExists
from jobs_service.store.base import Limits
from jobs_service.testing import FAULTS, Process, World
from tests.operations import CELLS
from tests.simulation.histories import recorded, replayed, run
from tests.simulation.history import History


def test_a_run_in_which_all_is_well_gives_no_complaint() -> None:
    history = replayed(recorded())
    assert history.complaints == []
    assert history.operations > 50
    assert {(silence.type, silence.id) for silence in history.silences} >= {("lost", "x"), ("lost", "y")}


TIGHT = Limits(key=120, value=400, transaction=2500)
"""Limits at which some jobs are too large, and not all that an accept finds fits into a transaction."""


@pytest.mark.parametrize(
    ("seed", "limits"), [*((seed, None) for seed in range(5)), *((seed, TIGHT) for seed in range(5, 8))]
)
def test_what_processes_do_in_a_storm_is_as_if_done_one_after_the_other(seed: int, limits: Limits | None) -> None:
    world = World(seed, rates=dict.fromkeys(FAULTS, 0.03), latency=0.01 * (seed % 2), limits=limits)
    history = History(world.loop.time)
    world.cluster.observers.append(history)
    history.finish(run(world, *[functools.partial(at_random, seed=f"{seed}/{number}") for number in range(3)]))
    assert history.complaints == []
    assert history.operations > 200
    assert set(history.cells) <= CELLS


async def at_random(process: Process, seed: str) -> None:
    """Do anything to few jobs of few types, several things at the same time."""
    source = random.Random(seed)

    async def act() -> None:
        held: list[Any] = []
        for _ in range(40):
            with contextlib.suppress(JobsError, TimeoutError):
                await act_at_random(jobs, source, held, process.clock.wall_time())
            await asyncio.sleep(source.uniform(0, 0.5))

    async with process.service() as jobs, asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(act())


async def act_at_random(jobs: JobsService, source: random.Random, held: list[Any], now: float) -> None:
    any_of = source.choice
    type, id = any_of("tu"), any_of("abcdef")
    run_at, priority = any_of([None, now + source.uniform(-5, 10)]), any_of([0, 0, 1])
    what = source.random()
    if what < 0.3:
        rule: IfExists = source.choice(IF_EXISTS)
        await jobs.add(type, id, any_of([1, 2, 250 * "x", 350 * "x"]), priority=priority, run_at=run_at, if_exists=rule)
    elif what < 0.35:
        await jobs.resubmit(type, id, run_at=run_at)
    elif what < 0.4:
        await jobs.remove(type, id, force=any_of([True, False]))
    elif what < 0.44:
        await (jobs.set_type_timeout(type, any_of([2, 5])) if what < 0.43 else jobs.clear_type_timeout(type))
    elif what < 0.5:
        await jobs.transact(lambda tx: several(tx, type, id, run_at, source.getrandbits(3)))
    elif what < 0.75 or not held:
        due_by, spread = any_of([None, now + 5, now - 5]), any_of([1, 1, 3])
        held += await jobs.accept_many(type, any_of([1, 2]), timeout=any_of([0, 1]), due_by=due_by, spread=spread)
    else:
        job = any_of(held)
        await any_of([job.update, job.finish, job.resubmit, job.release, lambda: job.finish(outcome=Outcome.FAILED)])()


async def several(tx: JobTransaction, type: str, id: str, run_at: float | None, choices: int) -> None:
    """Do several operations in one transaction."""
    if choices & 1:
        with contextlib.suppress(JobsError):
            await tx.add(type, id, run_at=run_at)
    job = await tx.accept(type)
    if job is not None and choices & 2:
        await tx.finish(await tx.update(job, 7))
    if choices & 4:
        with contextlib.suppress(JobsError):
            await tx.remove(type, id)
