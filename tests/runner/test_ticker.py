"""Periodic jobs: one per tick however many services run, whatever their clocks do; in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import fdb.tuple
import pytest
from structlog.testing import capture_logs

from jobs_service import InvalidJob, InvalidSettings, JobsService, RunningJob
from jobs_service.errors import TransactionTooOld
from jobs_service.layer.keyspace import AFTER, PERIODIC, unpack_id
from jobs_service.model import JobId
from jobs_service.runner.schedule import MOST_MADE_UP, Every
from jobs_service.runner.ticker import tick_id
from jobs_service.store.base import Limits, Transaction
from jobs_service.store.memory import Faults, MemoryTransaction
from jobs_service.testing import World
from tests.runner.support import opened, running, store_of
from tests.runner.ticking import FIRST, MINUTE, Register, RunRecord, every_minute, in_a_world, serving, ticks
from tests.virtual_time import in_virtual_time

# One job per tick


def test_however_many_services_run_there_is_one_job_per_tick() -> None:
    seen = RunRecord()

    async def main(world: World) -> None:
        for number in range(5):
            world.start(f"p{number}", serving(every_minute(seen)))
        await asyncio.sleep(FIRST + 9 * MINUTE + 5)

    in_a_world(main)
    assert seen.ids == ticks(10)
    assert all(-0.001 <= at - (FIRST + place * MINUTE) <= 2 for place, (_, at) in enumerate(seen.ran)), seen.ran


def test_clocks_that_differ_bring_no_tick_twice() -> None:
    seen = RunRecord()

    async def main(world: World) -> None:
        for ahead in (-20.0, -1.0, 0.0, 3.0, 25.0):
            world.start(f"{ahead}", serving(every_minute(seen)), ahead=ahead)
        await asyncio.sleep(FIRST + 5 * MINUTE + 5)

    in_a_world(main)
    assert max(Counter(seen.ids).values()) == 1
    assert set(ticks(6)) <= set(seen.ids)
    assert set(seen.ids) <= set(ticks(8, FIRST - MINUTE))


# The transaction that adds them


def test_a_ticks_id_is_its_time_in_utc() -> None:
    assert tick_id(0.0) == "1970-01-01T00:00:00Z"
    assert tick_id(1_700_000_000.5) == "2023-11-14T22:13:20.500000Z"


# What is refused


@pytest.mark.parametrize(
    ("register", "error", "refused"),
    [
        (lambda jobs: jobs.every("soon"), InvalidJob, "period='soon': allowed are durations from 1"),
        (lambda jobs: jobs.every(0.5), InvalidJob, "period=0.5: allowed are"),
        (lambda jobs: jobs.every(timedelta(0)), InvalidJob, "period=datetime.timedelta(0): allowed are"),
        (
            lambda jobs: jobs.every(5, missed="never"),
            InvalidSettings,
            "missed='never': allowed are 'skip', 'once', 'all'",
        ),
        (lambda jobs: jobs.every(5, slots=-1), InvalidSettings, "option slots=-1: allowed is"),
        (lambda jobs: jobs.cron("every day"), InvalidJob, "cron expression 'every day'"),
        (lambda jobs: jobs.cron("0 0 31 2 *"), InvalidJob, "bad day-of-month"),
        (lambda jobs: jobs.cron("0 3 * * *", timezone="Berlin"), InvalidJob, "time zone 'Berlin': there is none"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused_in_one_line(
    register: Register, error: type[Exception], refused: str
) -> None:
    with pytest.raises(error) as caught:
        register(JobsService("memory:"))
    assert refused in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_handler_that_needs_arguments_cannot_be_periodic() -> None:
    jobs = JobsService("memory:")

    async def needy(job: RunningJob, args: dict[str, Any]) -> None:
        """Take arguments that no tick has."""

    def needier(to: str, subject: str = "hi") -> None:
        """Take several."""

    def odd(args: object = ...) -> None:
        """Have a default that is no JSON."""

    for register in (jobs.every(10), jobs.cron("* * * * *")):
        with pytest.raises(
            InvalidSettings, match=r"needy cannot be a periodic handler: nobody gives it args; give thes"
        ):
            register(needy)
        with pytest.raises(InvalidSettings, match="nobody gives it to; "):
            register(needier)
        with pytest.raises(
            InvalidSettings, match="odd cannot be a periodic handler: its default is no argument: data is"
        ):
            register(odd)
    assert not jobs.handlers


@in_virtual_time
async def test_a_tick_whose_job_cannot_be_read_keeps_no_other_from_coming() -> None:
    async with opened() as jobs:
        ran: Counter[str] = Counter()
        ids: list[JobId] = []

        @jobs.every(10, type="damaged")
        async def damaged() -> None:
            ran["damaged"] += 1

        @jobs.every(10, type="sound")
        async def sound() -> None:
            ran["sound"] += 1

        async def damage(transaction: Transaction) -> None:
            data = jobs._context.keyspace.of("damaged").data
            found = await transaction.get_range(data, data + AFTER)
            transaction.set(found[-1][0], b"\xff")
            ids.append(unpack_id(found[-1][0][len(data) :]))

        async with running(jobs):
            await asyncio.sleep(15)
            await jobs.store.transact(damage)
            before = ran.copy()
            await asyncio.sleep(60)
        assert ran - before == {"damaged": 6, "sound": 6}
        await jobs.remove("damaged", ids[0], force=True)


@pytest.mark.parametrize("damage", [b"", b"\xff", b"no tuple", fdb.tuple.pack(("no time",))])
@in_virtual_time
async def test_a_last_tick_that_cannot_be_read_is_forgotten(damage: bytes) -> None:
    async with opened() as jobs:
        ran = 0

        @jobs.every(10, type="ticking")
        async def tick() -> None:
            nonlocal ran
            ran += 1

        async def harm(transaction: Transaction) -> None:
            keyspace = jobs._context.keyspace
            transaction.set(keyspace.sections[PERIODIC] + keyspace.of("ticking").packed, damage)

        await jobs.store.transact(harm)
        async with running(jobs):
            await asyncio.sleep(35)
        assert ran == 4  # at 0, 10, 20 and 30 s


class _Sizes(Faults):
    """Refuses transactions that write too many rows, and notes the bytes of the others."""

    def __init__(self, most: int) -> None:
        self.bytes: list[int] = []
        self._most = most

    async def before_commit(self, transaction: MemoryTransaction) -> None:
        if len(transaction.log) > self._most:
            raise TransactionTooOld("transaction_too_old (1007): this one writes too much")
        self.bytes.append(transaction.size)


@pytest.mark.parametrize("most", [1_000_000, 60])
@pytest.mark.parametrize("before", [False, True])
@in_virtual_time
async def test_ticks_that_are_made_up_for_take_as_many_transactions_as_they_need(
    monkeypatch: pytest.MonkeyPatch, before: bool, most: int
) -> None:
    async with opened() as jobs:
        store = store_of(jobs)
        monkeypatch.setattr(store, "limits", Limits(value=2_000, transaction=8_000))

        @jobs.every(60, type="ticking", missed="all", overlap=True, slots=0, keep=None)
        async def tick(given: str = "x" * 200) -> None:
            """Nothing."""

        newest = Every(60).previous_at(jobs._context.sources.wall_time())
        assert newest is not None
        ids = [tick_id(newest - 60 * back) for back in reversed(range(MOST_MADE_UP))]
        if before:  # they have run, and run again: what they returned is rewritten
            await jobs.set_type_timeout("ticking", 60)
            for id in ids:
                await jobs.add("ticking", id)
                job = await jobs.accept("ticking", timeout=0)
                assert job is not None
                await job.finish(result="y" * 1_000)

        async def miss(transaction: Transaction) -> None:
            key = jobs._context.keyspace.sections[PERIODIC] + jobs._context.keyspace.of("ticking").packed
            transaction.set(key, fdb.tuple.pack((newest - 60.0 * MOST_MADE_UP,)))

        await store.transact(miss)
        sizes = store.faults = _Sizes(most)
        with capture_logs() as events:
            async with running(jobs):
                await asyncio.sleep(30)
        assert [job.id async for job in jobs.list("ticking", state="pending")] == ids
        assert max(sizes.bytes) <= 8_000 // 2
        assert [event for event in events if event["log_level"] != "debug"] == []
