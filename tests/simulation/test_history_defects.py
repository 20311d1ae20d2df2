"""Defects of the layer are found in the histories that they leave."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
from collections.abc import Callable
from typing import Any

import pytest

from jobs_service import JobsError
from jobs_service.layer import queue, running_jobs
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.store import Transaction
from jobs_service.testing import Process, World
from jobs_service.testing.world import Clock
from tests.simulation.histories import altered, run, work
from tests.simulation.history import History

Defect = Callable[[Any], Any]
"""Takes what is there, and returns what is there instead."""


def flag_ignored(original: Any) -> Any:
    """Finish a job that was canceled as if it were not."""

    async def finish(unit: UnitOfWork, place: Any, *arguments: Any) -> Any:
        entry = await unit.load(place)
        if entry.record is not None:
            entry.record = altered(entry.record, cancel=False)
        return await original(unit, place, *arguments)

    return finish


def never_canceled(original: Any) -> Any:
    """Refuse nothing."""
    return lambda entry, record: None


def from_behind(original: Any, *, spread: bool = False) -> Any:
    """Return the candidates in the wrong order."""

    async def candidates(unit: UnitOfWork, keys: Any, terms: queue.AcceptTerms, due_by: float, wanted: int) -> Any:
        if spread and terms.spread == 1:
            return await original(unit, keys, terms, due_by, wanted)
        found, early, is_cut = await original(unit, keys, terms, due_by, wanted + 3)
        return found[::-1], early, is_cut

    return candidates


FLAG = "'t'/'b'.* finished data=.*CANCELED"
REFUSED = "update.*expected JobCanceled, got running"
EXACT = r"accept of 't'.*took \['b'\], expected \['a'\]"
SPREAD = r"accept of 'spread'.*took .*the first were \['p', 'q'\]"
DEFECTS = [
    pytest.param(running_jobs, "finish", flag_ignored, FLAG, id="finish"),
    pytest.param(running_jobs, "_refuse_canceled", never_canceled, REFUSED, id="canceled"),
    pytest.param(queue, "candidates", from_behind, EXACT, id="exact order"),
    pytest.param(queue, "candidates", functools.partial(from_behind, spread=True), SPREAD, id="spread"),
]


# Defects of the layer, put in before and after recording begins


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(("module", "name", "defect", "pattern"), DEFECTS)
def test_a_defect_of_the_layer_is_seen_as_what_really_happened(
    module: Any, name: str, defect: Defect, pattern: str, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(0, disorder=0.0)
    history = History(world.loop.time)
    world.cluster.observers.append(history)

    def put_in() -> None:
        monkeypatch.setattr(module, name, defect(getattr(module, name)))

    async def spoiled(process: Process) -> None:
        try:
            if late:
                put_in()
            with contextlib.suppress(AssertionError, JobsError):
                await work(process)
        finally:
            if late:
                monkeypatch.undo()

    if not late:
        put_in()
    run(world, spoiled)
    assert any(re.search(pattern, complaint) for complaint in history.complaints), history.complaints


def by_the_loop(process: Process) -> Callable[[], float]:
    return process.world.loop.time


def by_the_world(process: Process) -> Callable[[], float]:
    return Clock(process.world.loop).wall_time


def as_it_was_once(process: Process) -> Callable[[], float]:
    began = process.clock.wall_time()
    return lambda: began


# Clocks


@pytest.mark.parametrize("in_a_block", [False, True])
@pytest.mark.parametrize("wrong", [None, by_the_loop, by_the_world, as_it_was_once])
def test_the_time_of_an_operation_is_that_of_its_processs_clock(
    wrong: Callable[[Process], Any] | None, in_a_block: bool
) -> None:
    world = World(0, disorder=0.0)
    history = History(world.loop.time)
    world.cluster.observers.append(history)

    async def program(process: Process) -> None:
        process.clock.ahead = 7.0
        if wrong is not None:
            process.sources.wall_time = wrong(process)
        async with process.service(supervise=False) as jobs:
            await jobs.set_type_timeout("t", 10.0)
            await asyncio.sleep(5.0)
            run_at = process.clock.wall_time() - 1.0
            if not in_a_block:
                await jobs.add("t", "a", run_at=run_at)
                return

            async def add(transaction: Transaction) -> None:
                with jobs.within(transaction) as tx:
                    tx.add("t", "a", run_at=run_at)

            await jobs.store.transact(add)

    run(world, program)
    assert any("notes is" in complaint for complaint in history.complaints) is (wrong is not None)
