"""Processes that run handlers are listed in the store, and do what they are asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from jobs_service import HandlerSlots, JobsService, JobState, ProcessGone, ProcessInfo, ProcessState, Settings
from jobs_service.layer import rows
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model import ProcessAction, ProcessRequest
from jobs_service.sources import Sources
from jobs_service.store import Store
from jobs_service.testing.world import Process, World
from tests.checker import assert_sound
from tests.copying.support import everything
from tests.service.support import eventually
from tests.shares import share
from tests.stores import EVERY_STORE, StoreKind, one_of

kind = one_of(EVERY_STORE)


class Program:
    """A program that runs handlers in the background, and whose jobs end when they are let go."""

    def __init__(self, store: str | Store, **more: Any) -> None:
        self.jobs = JobsService(store, **more)
        self.go_on = asyncio.Event()
        self.began: list[Any] = []
        self.running: asyncio.Task[None]

        @self.jobs.handler("email", slots=2)
        async def email(job: Any) -> None:
            self.began.append(job.id)
            await self.go_on.wait()

    async def process(self, state: ProcessState | None = None, taken: int | None = None) -> ProcessInfo:
        """Return the one process of the store, once it is as it is to be."""
        found: list[ProcessInfo] = []

        async def is_so() -> bool:
            found[:] = await self.jobs.processes()
            return any(
                (state is None or each.state is state) and (taken is None or each.taken == taken) for each in found
            )

        await eventually(is_so)
        [one] = found
        return one

    async def gone(self) -> None:
        """Return when no process is listed."""

        async def is_so() -> bool:
            return not await self.jobs.processes()

        await eventually(is_so)


@asynccontextmanager
async def running(store: str | Store, **more: Any) -> AsyncIterator[Program]:
    """Run a program's handlers as long as the block runs."""
    program = Program(store, **more)
    async with program.jobs:
        started = asyncio.Event()
        program.running = asyncio.create_task(program.jobs.run(started=started.set))
        await started.wait()
        try:
            yield program
        finally:
            program.go_on.set()
            program.running.cancel()
            await asyncio.wait([program.running])


async def test_a_process_is_listed_while_it_runs_handlers_and_never_else(kind: StoreKind, tmp_path: Path) -> None:
    sources = Sources(worker="web-1:7")
    async with running(kind.address_in(tmp_path), sources=sources) as program:
        found = await program.process()
        assert (found.worker, found.role, found.state, found.request) == ("web-1:7", "runner", "running", None)
        assert (found.slots, found.taken, found.unnamed) == (2, 0, 0)
        assert found.handlers == (HandlerSlots("email", 2, 0),)
        assert found.started <= found.heard
        await assert_sound(program.jobs.store)
        program.running.cancel()
        await asyncio.wait([program.running])
        assert await program.jobs.processes() == []
        assert not [key for key in await everything(program.jobs.store) if key.startswith((b"\x15\x32", b"\x15\x33"))]


async def test_a_quiet_process_ends_what_it_has_and_takes_no_more_until_it_is_resumed(
    kind: StoreKind, tmp_path: Path
) -> None:
    async with running(kind.address_in(tmp_path)) as program:
        jobs = program.jobs
        await jobs.enqueue("email", id="first")
        await eventually(lambda: _has(program.began, "first"))
        process = await program.process()
        before = await jobs.quiet_process(process.id)
        assert (before.id, before.state) == (process.id, ProcessState.RUNNING)
        quiet = await program.process(ProcessState.QUIET)
        assert quiet.request is not None
        assert (quiet.request.action, quiet.request.who) == (ProcessAction.QUIET, jobs._context.sources.worker)
        await jobs.enqueue("email", id="second")
        await program.process(taken=1)
        program.go_on.set()
        await jobs.wait("email", "first", "finished", timeout=60)
        await program.process(ProcessState.QUIET, taken=0)  # told at once: a heartbeat is 15 s away
        assert (await jobs.get("email", "second")).state is JobState.PENDING
        await jobs.resume_process(process.id)
        await jobs.wait("email", "second", "finished", timeout=60)
        await program.process(ProcessState.RUNNING)
        assert program.began == ["first", "second"]


async def test_run_returns_when_its_process_is_asked_to_stop_and_running_jobs_get_their_grace(
    kind: StoreKind, tmp_path: Path
) -> None:
    async with running(kind.address_in(tmp_path)) as program:
        jobs = program.jobs
        await jobs.enqueue("email", id="first")
        await eventually(lambda: _has(program.began, "first"))
        process = await program.process()
        await jobs.stop_process(process.id)
        await program.process(ProcessState.STOPPING)
        await jobs.stop_process(process.id)  # once more: nothing is cut short
        with pytest.raises(ProcessGone, match=f"process {process.id} was asked to stop before, and ends"):
            await jobs.resume_process(process.id)
        program.go_on.set()
        await program.running  # returns
        assert (await jobs.get("email", "first")).state is JobState.FINISHED
        with pytest.raises(ProcessGone, match=f"there is no process {process.id}"):
            await jobs.stop_process(process.id)
        # The program goes on, and may run them again: as another process, that nobody has asked anything.
        program.running = asyncio.create_task(jobs.run())
        await jobs.enqueue("email", id="second")
        await jobs.wait("email", "second", "finished", timeout=60)
        again = await program.process()
        assert (again.id != process.id, again.request, again.state) == (True, None, ProcessState.RUNNING)


async def test_a_cancellation_while_it_stops_is_not_lost() -> None:
    async with running("memory:") as program:
        await program.jobs.enqueue("email", id="first")
        await eventually(lambda: _has(program.began, "first"))
        await program.jobs.stop_process((await program.process()).id)
        await program.process(ProcessState.STOPPING)
        program.running.cancel()
        await asyncio.sleep(0)
        program.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await program.running


async def test_what_another_run_was_asked_is_never_done() -> None:
    async with running("memory:") as program:
        process = await program.process()

        async def ask(unit: UnitOfWork) -> None:  # of a process that has ended in the meantime
            unit.transaction.set(rows._key(unit.keyspace, rows.PROCESSES, "0" * 12), b"{}")
            await rows.ask(unit, "0" * 12, ProcessRequest(ProcessAction.STOP, "", 1.0))

        await program.jobs._access.transact(ask)
        await program.jobs.quiet_process(process.id)
        await program.process(ProcessState.QUIET)
        assert not program.running.done()


async def test_the_row_comes_back_when_somebody_has_removed_it() -> None:
    """A process that was away for a day is listed again, under the same id."""
    async with running("memory:", settings=Settings(process_heartbeat=0.02)) as program:
        first = await program.process()

        async def remove(unit: UnitOfWork) -> None:
            rows.remove(unit, first.id)

        await program.jobs._access.transact(remove)
        assert (await program.process()).id == first.id


@pytest.mark.parametrize(
    "rates", [{}, {"conflict": 0.1, "commit_lost": 0.1, "commit_unknown": 0.1}], ids=["calm", "faults"]
)
def test_on_a_cluster_no_heartbeat_that_is_under_way_brings_back_a_process_that_has_ended(
    rates: dict[str, float],
) -> None:
    settings = Settings.model_construct(process_heartbeat=0.02)

    async def left(world: World) -> list[ProcessInfo]:
        found: list[ProcessInfo] = []

        async def program(process: Process) -> None:
            jobs = process.service()
            jobs.handler("email")(_nothing)
            await jobs.run()

        async def look(process: Process) -> None:
            async with process.service(supervise=False) as jobs:
                found.extend(await jobs._context.retried(jobs.processes))

        ending = world.start("ends", program)
        await asyncio.sleep(1 + world.choices.plan.seed / 100)
        ending.request_stop()
        await ending.ended()
        await asyncio.sleep(1)
        await world.start("looks", look).ended()
        return found

    for seed in share(range(40), 3):
        assert World(seed, rates=rates, latency=0.05, settings=settings).run(left) == [], seed


async def _nothing(job: Any) -> None:
    """End at once."""


async def _has(found: list[Any], id: str) -> bool:
    return id in found
