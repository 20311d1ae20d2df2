"""Schedules that are made and changed while programs run: each tick once, by the latest definition."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from jobs_service import (
    InvalidJob,
    InvalidSettings,
    JobsError,
    JobsService,
    JobState,
    JobTooLarge,
    NoTypeTimeout,
    ScheduleNotFound,
)
from jobs_service.runner.ticker import tick_id
from jobs_service.testing import World
from jobs_service.testing.world import Process
from tests.runner.support import TYPE, opened, running, store_of
from tests.runner.ticking import FIRST, MINUTE, START, Observer, in_a_world
from tests.shares import share
from tests.virtual_time import EPOCH, in_virtual_time

HOUR = 3600.0
NEXT_HOUR = START + HOUR - START % HOUR
"""The first full hour of a world, by the clock of the world."""


async def ids(jobs: JobsService, type: Any = TYPE) -> list[str]:
    """Return the ids of a type's jobs, in order."""
    return [str(job.id) async for job in jobs.list(type)]


def named(name: str, *ticks: float) -> list[str]:
    """Return the ids of the jobs of ticks, given in seconds since the epoch."""
    return [f"{name}@{tick_id(tick)}" for tick in ticks]


def minutes(count: int, first: float = FIRST) -> list[float]:
    """Return so many ticks of every minute, the first of them so many seconds after the start of a world."""
    return [START + first + number * MINUTE for number in range(count)]


@in_virtual_time
async def test_its_ticks_add_jobs_with_its_arguments_that_handlers_run() -> None:
    async with opened() as jobs:

        @jobs.handler("report", keep=None)
        async def report(kind: str) -> str:
            return f"the {kind} report"

        made = await jobs.schedules.set("daily", report, "sales", every="1m")
        assert (made.name, made.type, made.data, made.every, made.last) == ("daily", "report", "sales", 60.0, None)
        assert made.next == EPOCH + 60 - EPOCH % 60
        async with running(jobs):
            await asyncio.sleep(125)
            found = [job async for job in jobs.list("report")]
        assert [str(job.id) for job in found] == named("daily", made.next, made.next + 60)
        assert {job.result for job in found} == {"the sales report"}
        now = await jobs.schedules.get("daily")
        assert (now.last, now.next) == (made.next + 60, made.next + 120)
        assert now.changed == made.changed


@in_virtual_time
async def test_however_many_tick_at_the_same_time_and_whatever_was_removed_meanwhile() -> None:
    async with opened() as jobs:
        await jobs.set_type_timeout(TYPE, 60)
        names = [f"{number:02}" for number in range(50)]
        for name in names:
            made = await jobs.schedules.set(name, TYPE, every=60, overlap=True)
            await jobs.schedules.set(f"gone {name}", TYPE, every=60)
        assert made.next is not None
        await asyncio.sleep(1)
        for name in names:
            await jobs.schedules.remove(f"gone {name}")
        await asyncio.sleep(made.next - jobs.wall_time() + 61)
        ticks = [made.next, made.next + 60]
        assert await ids(jobs) == sorted(id for name in names for id in named(name, *ticks))


@in_virtual_time
async def test_it_is_listed_changed_paused_and_removed() -> None:
    async with opened() as jobs:
        await jobs.set_type_timeout(TYPE, 60)
        await jobs.schedules.set("b", TYPE, {"n": 1}, cron="@hourly", timezone="Europe/Berlin", missed="skip")
        await jobs.schedules.set("a", TYPE, every=90, overlap=True)
        listed = await jobs.schedules.list()
        assert [(each.name, each.every, each.cron, each.timezone) for each in listed] == [
            ("a", 90.0, None, None),
            ("b", None, "0 * * * *", "Europe/Berlin"),
        ]
        assert [(each.data, each.missed, each.overlap) for each in listed] == [
            (None, "once", True),
            ({"n": 1}, "skip", False),
        ]
        paused = await jobs.schedules.pause("a")
        assert (paused.paused, paused.next) == (True, None)
        assert (await jobs.schedules.set("a", TYPE, every=60)).paused
        assert not (await jobs.schedules.resume("a")).paused
        await jobs.schedules.remove("b")
        assert [each.name for each in await jobs.schedules.list()] == ["a"]
        for call in (jobs.schedules.get, jobs.schedules.remove, jobs.schedules.pause, jobs.schedules.resume):
            with pytest.raises(ScheduleNotFound, match="there is no schedule 'b'"):
                await call("b")


@in_virtual_time
async def test_a_store_without_schedules_has_no_actor_for_them() -> None:
    def actors(jobs: JobsService) -> list[str]:
        [monitors] = [each for each in jobs.supervision()["children"] if each["name"] == "monitors"]
        return [each["name"] for each in monitors["children"]]

    async with opened() as jobs:
        await jobs.set_type_timeout(TYPE, 60)
        await asyncio.sleep(1)
        reads = store_of(jobs).transactions
        await asyncio.sleep(20)
        assert store_of(jobs).transactions == reads
        assert actors(jobs) == []
        await jobs.schedules.set("a", TYPE, every=60)
        await asyncio.sleep(1)
        assert actors(jobs) == ["schedules"]
        await jobs.schedules.remove("a")
        await asyncio.sleep(1)
        assert actors(jobs) == []
        await asyncio.sleep(120)
        assert await ids(jobs) == []


@in_virtual_time
async def test_ticks_are_missed_while_it_or_its_type_is_paused_or_the_last_job_has_not_finished() -> None:
    async with opened() as jobs:
        await jobs.set_type_timeout(TYPE, 600)
        first = (await jobs.schedules.set("a", TYPE, every=60)).next
        assert first is not None
        await asyncio.sleep(first - jobs.wall_time() + 1)
        await jobs.schedules.pause("a")
        await asyncio.sleep(120)
        assert await ids(jobs) == named("a", first)
        [job] = await jobs.accept_many(TYPE, 1)
        await jobs.schedules.resume("a")
        await asyncio.sleep(1)
        assert await ids(jobs) == named("a", first)  # the last one runs
        await job.finish()
        await asyncio.sleep(1)
        assert await ids(jobs) == named("a", first, first + 120)  # one for all that were missed
        [job] = await jobs.accept_many(TYPE, 1)
        await job.finish()
        await jobs.pause(TYPE)
        await asyncio.sleep(120)
        assert len(await ids(jobs)) == 2
        await jobs.resume(TYPE)
        await asyncio.sleep(1)
        assert await ids(jobs) == named("a", first, first + 120, first + 240)


@in_virtual_time
async def test_a_change_of_the_times_counts_from_now_on_and_loses_no_due_tick() -> None:
    async with opened(supervise=False) as jobs:  # nobody ticks but who changes
        await jobs.set_type_timeout(TYPE, 60)
        first = (await jobs.schedules.set("a", TYPE, "old", every=60)).next
        assert first is not None
        await asyncio.sleep(first - jobs.wall_time() + 1)
        changed = await jobs.schedules.set("a", TYPE, "new", every=1000)
        assert (changed.last, changed.next) == (None, first + 1000 - first % 1000)
        [job] = [job async for job in jobs.list(TYPE)]
        assert (job.id, job.data) == (named("a", first)[0], "old")
        # Other arguments alone: a tick that is due comes by the new ones.
        await asyncio.sleep(1000)
        await jobs.schedules.set("a", TYPE, "newest", every=1000)
        assert len(await ids(jobs)) == 1
        async with opened(store_of(jobs), worker="w2"):
            await asyncio.sleep(1)
            due = await jobs.get(TYPE, named("a", first + 1000 - first % 1000)[0])
        assert due.data == "newest"


@in_virtual_time
async def test_schedules_in_code_are_others() -> None:
    async with opened() as jobs:

        @jobs.every("1m", type="tick")
        async def tick() -> None: ...

        await jobs.schedules.set("tick", tick, every="1m")
        async with running(jobs):
            await asyncio.sleep(65)
        assert len(await ids(jobs, "tick")) == 2
        assert [each.name for each in await jobs.schedules.list()] == ["tick"]


@pytest.mark.parametrize(
    ("arguments", "changes", "error", "why"),
    [
        (("a", TYPE), {}, InvalidJob, "every=None and cron=None: give one of them"),
        (("a", TYPE), {"every": 60, "cron": "@daily"}, InvalidJob, "every=60 and cron='@daily': give one of them"),
        (("a", TYPE), {"every": 0.5}, InvalidJob, "period=0.5: allowed are"),
        (("a", TYPE), {"cron": "daily"}, InvalidJob, "cron expression 'daily'"),
        (("a", TYPE), {"cron": "@daily", "timezone": "Berlin"}, InvalidJob, "time zone 'Berlin': there is none"),
        (("a", TYPE), {"every": 60, "missed": "never"}, InvalidSettings, "missed='never': allowed are"),
        (("a", TYPE), {"every": 60, "overlap": 1}, InvalidSettings, "overlap=1: allowed are True and False"),
        (("", TYPE), {"every": 60}, InvalidJob, "name '': allowed are 1 to 100 printable characters"),
        ((7, TYPE), {"every": 60}, InvalidJob, "name 7: an int; a schedule's name is a str"),
        (("a", 1.5), {"every": 60}, InvalidJob, "1.5: a float; enqueue takes"),
        (("a", TYPE, "x" * 20_000), {"every": 60}, JobTooLarge, "the data take 20002 bytes; those of a schedule may"),
        (("a", TYPE, {1}), {"every": 60}, InvalidJob, "data is not JSON"),
        (("a", "nowhere"), {"every": 60}, NoTypeTimeout, "nowhere"),
    ],
)
@in_virtual_time
async def test_what_cannot_be_is_refused_in_a_line(
    arguments: tuple[Any, ...], changes: dict[str, Any], error: type[JobsError], why: str
) -> None:
    async with opened() as jobs:
        await jobs.set_type_timeout(TYPE, 60)
        with pytest.raises(error) as refusal:
            await jobs.schedules.set(*arguments, **changes)
        assert why in str(refusal.value)
        assert "\n" not in str(refusal.value)
        assert await jobs.schedules.list() == []


# Several processes


def holding(use: Callable[[JobsService], Awaitable[object]] | None = None) -> Callable[[Process], Awaitable[None]]:
    """Return the program of a process with a service that ticks, and does something first."""

    async def hold(process: Process) -> None:
        async with process.service() as jobs:
            if use is not None:
                await use(jobs)
            await asyncio.Event().wait()

    return hold


def test_however_many_services_are_open_there_is_one_job_per_tick() -> None:
    async def main(world: World) -> None:
        async with Observer(world) as jobs:
            await jobs.set_type_timeout(TYPE, 60)
            for number, ahead in enumerate((-20.0, 0.0, 3.0, 25.0)):
                world.start(f"p{number}", holding(), ahead=ahead)
            await jobs.schedules.set("m", TYPE, every=MINUTE, overlap=True)
            await asyncio.sleep(FIRST + 5 * MINUTE + 5)
            found = await ids(jobs)
            assert named("m", *minutes(6)) == [id for id in found if id <= named("m", minutes(6)[-1])[0]]
            assert found == sorted(set(found))

    in_a_world(main)


SLACK = 65.0
"""Seconds by which clocks differ there, and a little more."""


@pytest.mark.parametrize("seed", share(range(6), 2))
def test_two_processes_change_it_at_once_across_clock_changes_and_restarts(seed: int) -> None:
    """Every tick comes once, by the definition that is in force at its time."""
    wrong: list[str] = []

    async def main(world: World) -> None:
        random = world.choices.stream("test")
        definitions: list[tuple[float, str, float]] = []

        async def change(jobs: JobsService, data: str) -> None:
            every = random.choice([MINUTE, 2 * MINUTE, 3 * MINUTE])
            await jobs.schedules.set("s", TYPE, data, every=every, overlap=True, missed="all")

        async def latest(jobs: JobsService) -> tuple[float, str, float]:
            """Return the definition that was committed last, whatever the clocks of those who changed it say."""
            found = await jobs.schedules.get("s")
            assert found.every is not None
            return found.changed, found.data, found.every

        async def changed_by_two(round: int) -> None:
            def changer(data: str) -> Callable[[Process], Awaitable[None]]:
                async def program(process: Process) -> None:
                    async with process.service(supervise=False) as jobs:
                        await change(jobs, data)

                return program

            for process in [world.start(f"changer {n}", changer(f"{round} {n}")) for n in range(2)]:
                await process.ended()

        async with Observer(world) as jobs:
            await jobs.set_type_timeout(TYPE, 60)
            processes = [world.start(f"p{number}", holding()) for number in range(3)]
            await change(jobs, "first")
            definitions.append(await latest(jobs))
            for round in range(8):
                await asyncio.sleep(random.uniform(250.0, 400.0))
                match round % 4:
                    case 0:
                        processes.pop(0).kill()
                        processes.append(world.start(f"again {round}", holding()))
                    case 1:
                        processes[0].clock.ahead = random.uniform(5.0, 60.0)
                    case 2:
                        processes[0].clock.ahead = 0.0
                await changed_by_two(round)
                definitions.append(await latest(jobs))
            await asyncio.sleep(4 * MINUTE)
            found = {str(job.id): job async for job in jobs.list(TYPE)}
            wrong.extend(_wrong(definitions, found, START + world.loop.time()))

    in_a_world(main, seed=seed)
    assert wrong == []


def _wrong(definitions: list[tuple[float, str, float]], found: dict[str, Any], now: float) -> list[str]:
    """Compare the jobs of ticks with the definitions: a line for each that is missing, twice there, or another's."""
    wrong = [f"{id} came twice" for id, job in found.items() if [each.kind for each in job.history] != ["added"]]
    unknown = set(found)
    for (since, data, every), (until, _, _) in zip(definitions, [*definitions[1:], (now, "", 0.0)], strict=True):
        tick = since - SLACK
        tick -= tick % every - every
        while tick < until + SLACK:
            [id] = named("s", tick)
            unknown.discard(id)
            if since + SLACK < tick < until - SLACK and (id not in found or found[id].data != data):
                wrong.append(f"{id} by {data} of {since}: {found.get(id)}")
            tick += every
    return wrong + [f"{id} is no tick" for id in unknown]


def test_a_tick_that_was_missed_while_nothing_ran_comes_when_a_process_starts() -> None:
    async def main(world: World) -> None:
        async with Observer(world) as jobs:
            await jobs.set_type_timeout(TYPE, 60)
            await jobs.schedules.set("m", TYPE, every=MINUTE)
            first = world.start("p", holding())
            await asyncio.sleep(FIRST + 1)
            first.kill()
            await jobs.remove(TYPE, named("m", *minutes(1))[0])
            await asyncio.sleep(3 * MINUTE)
            assert await ids(jobs) == []
            world.start("q", holding())
            await asyncio.sleep(1)
            assert await ids(jobs) == named("m", minutes(4)[-1])

    in_a_world(main)


def test_a_removed_one_ticks_nowhere_any_more() -> None:
    async def main(world: World) -> None:
        async with Observer(world) as jobs:
            await jobs.set_type_timeout(TYPE, 60)
            for number in range(3):
                world.start(f"p{number}", holding())
            await jobs.schedules.set("m", TYPE, every=MINUTE, overlap=True)
            await jobs.schedules.set("n", TYPE, every=MINUTE, overlap=True)
            await asyncio.sleep(FIRST + 1)
            await jobs.schedules.remove("m")
            await asyncio.sleep(2 * MINUTE)
            assert await ids(jobs) == [*named("m", *minutes(1)), *named("n", *minutes(3))]
            assert (await jobs.get(TYPE, named("m", *minutes(1))[0])).state is JobState.PENDING

    in_a_world(main)
