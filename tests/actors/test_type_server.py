"""The type server finds the types that need a monitor: when it loses its watch, and when there are very many."""

from __future__ import annotations

import asyncio

import pytest

from jobs_service import JobId, JobNotFound, JobState, JobTransaction, Retry, RunningJob, Settings, Snooze
from jobs_service.actors.type_server import TypeServer
from jobs_service.layer.keyspace import ALARM, AWAKE, HOURS, MINUTES
from jobs_service.store import Transaction
from jobs_service.testing import World
from jobs_service.testing.world import Process
from tests.runner.support import opened, running
from tests.service.support import J1, T1, accepted, in_a_process, kill, node, state
from tests.virtual_time import in_virtual_time

TIMEOUT = 4.0
BOUND = 1.5 * TIMEOUT + 1


def test_a_job_of_a_type_that_was_idle_is_found_in_time_though_the_cluster_loses_every_watch() -> None:
    settings = Settings(type_check_period=86_400)
    found: list[JobState] = []

    async def serve(process: Process) -> None:
        async with process.service(), process.service(supervise=False) as other:
            await other.set_type_timeout(T1, TIMEOUT)
            await other.add(T1, J1)
            # The watch that was there when the service was opened is lost by now.
            await asyncio.sleep(100)
            await accepted(other)
            await asyncio.sleep(BOUND)
            found.append(await state(other))

    in_a_process(serve, rates={"watch_lost": 1.0}, settings=settings)
    assert found == [JobState.PENDING]


def test_each_of_many_types_that_have_lost_their_rows_is_watched_over() -> None:
    """They are more than are read at once."""
    types = [f"type {number:03}" for number in range(110)]
    found: list[JobState] = []

    async def main(world: World) -> None:
        for name, program in ("earlier", leave), ("this", serve):
            process = world.start(name, program)
            await process.ended()
            assert process.failure is None, process.failure

    async def leave(process: Process) -> None:
        async with process.service(supervise=False) as earlier:

            async def run_jobs(tx: JobTransaction) -> None:
                for type in types:
                    await tx.set_type_timeout(type, TIMEOUT)
                    await tx.add(type, J1)
                    assert await tx.accept(type) is not None

            async def forget(transaction: Transaction) -> None:
                sections = earlier._context.keyspace.sections
                transaction.clear_range(sections[AWAKE], sections[ALARM] + b"\xff")

            await earlier.transact(run_jobs)
            await earlier.store.transact(forget)

    async def serve(process: Process) -> None:
        async with process.service() as jobs:
            await asyncio.sleep(BOUND + 20)  # they are looked for every 20 s
            found.extend([await state(jobs, type=type) for type in types])

    World(1).run(main)
    assert found == [JobState.PENDING] * len(types)


@in_virtual_time
async def test_old_counts_of_types_to_which_nothing_happens_any_more_are_removed() -> None:
    """They are more types than one transaction looks at; half of them are removed, with and without jobs left."""
    types = [f"type {number:03}" for number in range(50)]
    async with opened(patience=40 * 86_400, type_check_period=1800.0) as jobs:

        async def rows(family: int) -> int:
            section = jobs._context.keyspace.sections[family]
            return len(await jobs.store.read(lambda tr: tr.get_range(section, section + b"\xff")))

        async def run_jobs(tx: JobTransaction) -> None:
            for number, type in enumerate(types):
                await tx.set_type_timeout(type, TIMEOUT)
                await tx.add(type, J1)
                if number % 4 < 2:
                    await tx.remove(type, J1)
                if number % 2:
                    await tx.clear_type_timeout(type)

        await jobs.transact(run_jobs)
        found = [(await rows(MINUTES), await rows(HOURS))]
        for days in 0.9, 0.5, 33.0, 2.0:
            await asyncio.sleep(days * 86_400)
            found.append((await rows(MINUTES), await rows(HOURS)))
        assert found == [(50, 50), (50, 50), (0, 50), (0, 50), (0, 0)]
        assert len(await jobs.counts()) >= 25


@pytest.mark.parametrize("ahead", [7200.0, 366 * 86_400.0])
def test_what_a_clock_far_ahead_has_written_is_set_right_within_two_hours(ahead: float) -> None:
    """A pause, a snooze and the end of a job; not the time that somebody has given.

    And the pauses of more large jobs than one transaction can hold.
    """
    large = [f"large {number}" for number in range(60)]
    done: list[JobId] = []
    found: dict[str, JobState | None] = {}

    async def work(process: Process) -> None:
        async with process.service() as jobs:

            @jobs.handler(T1, keep=1200)
            async def work(job: RunningJob) -> None:
                if job.id in ("crashes", *large) and process.name == "ahead":
                    raise Retry(1800)
                if job.id == "snoozes" and process.name == "ahead":
                    raise Snooze(1800)
                done.append(job.id)

            reminder = process.sources.wall_time() + 90 * 86_400
            if process.name == "ahead":
                await jobs.set_type_timeout(T1, TIMEOUT)
                for id in "crashes", "snoozes", "ends":
                    await jobs.add(T1, id)
                await jobs.add(T1, "reminder", run_at=reminder)
                for id in large:
                    await jobs.add(T1, id, "x" * 90_000)
            async with running(jobs):
                await asyncio.sleep(10 if process.name == "ahead" else 2 * 3600)
            for id in "crashes", "snoozes", "ends", "reminder":
                try:
                    found[id] = (await jobs.get(T1, id)).state
                except JobNotFound:
                    found[id] = None

    async def main(world: World) -> None:
        for name, seconds in ("ahead", ahead), ("in time", 0.0):
            process = world.start(name, work, ahead=seconds)
            await process.ended()
            assert process.failure is None, process.failure

    World(1).run(main)
    assert sorted(map(str, done)) == sorted(["crashes", "ends", "snoozes", *large])
    assert found == {"crashes": None, "snoozes": None, "ends": None, "reminder": JobState.PENDING}


@in_virtual_time
async def test_a_type_server_whose_start_fails_leaves_no_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed 6734141: one more was left in the store with each start that failed."""
    fails: list[int] = []
    start = TypeServer._start_notifiers

    async def fail_three_times(server: TypeServer) -> None:
        if len(fails) < 3:
            fails.append(jobs.store.metrics()["watches"])
            raise RuntimeError("as the test wants it")
        await start(server)

    async with opened(max_restarts=10, restart_period=1.0) as jobs:
        before = jobs.store.metrics()["watches"]
        monkeypatch.setattr(TypeServer, "_start_notifiers", fail_three_times)
        kill("type server")
        await asyncio.sleep(10)
        assert node(jobs, "type server")["state"] == "running"
        assert fails == [before] * 3
        assert jobs.store.metrics()["watches"] == before
