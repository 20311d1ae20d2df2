"""Copies whose jobs are too many, too large or damaged: transactions stay bounded, refusals name the job."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs_service import JobsService, NewJob, run_data
from jobs_service.copying import Batch, CopyRefused, Step
from jobs_service.errors import JobTooLarge, RecordDamaged, TransactionTooOld
from jobs_service.layer.record import Record
from jobs_service.layer.record_limits import room_left
from jobs_service.store import Limits, Transaction
from tests.copying.support import (
    SMALL,
    Sizes,
    accepted,
    copied,
    everything,
    memory,
    opened,
    populate,
    portrait,
    with_jobs,
)
from tests.copying.test_copying import LMDB
from tests.service.support import FAR_AWAY


@pytest.mark.unmeasured
async def test_thousands_of_jobs_are_copied_in_transactions_that_shrink_until_they_are_small_enough() -> None:
    source, target = memory(), memory()
    target.limits = Limits(transaction=20_000)
    async with opened(source, target):

        async def fill(jobs: JobsService) -> None:
            await jobs.set_type_timeout("t", 1)
            for start in range(0, 2000, 1000):
                await jobs.add_many("t", [NewJob(f"{n:04}", n, n % 5) for n in range(start, start + 1000)])

        await with_jobs(source, fill)
        sizes = target.faults = Sizes()
        await copied(source, target)
        assert await portrait(target) == await portrait(source)
        assert max(sizes.bytes) <= 20_000
        assert len(sizes.bytes) > 15


async def test_transactions_that_take_too_long_shrink_as_well_and_one_job_that_does_is_told() -> None:
    source, target = memory(), memory()
    async with opened(source, target):
        await populate(source)
        sizes = target.faults = Sizes(most=60)
        await copied(source, target)
        assert sizes.refused > 0
        assert await portrait(target) == await portrait(source)
    target = memory()
    await target.open()
    target.faults = Sizes(most=2)
    async with opened(source):
        with pytest.raises(TransactionTooOld):
            await copied(source, target)
    await target.close()


async def test_jobs_of_the_largest_size_do_not_come_together_in_large_transactions() -> None:
    source, target = memory(), memory()
    async with opened(source, target):

        async def fill(jobs: JobsService) -> None:
            await jobs.set_type_timeout("t", 1)
            for n in range(40):
                await jobs.add("t", f"{n}", "x" * 95_000, run_at=None if n % 2 else FAR_AWAY)

        await with_jobs(source, fill)
        sizes = target.faults = Sizes()
        await copied(source, target)
        assert await portrait(target) == await portrait(source)
        assert 900_000 < max(sizes.bytes) < 1_200_000


# What the target cannot hold


async def test_a_job_whose_key_is_too_long_for_the_target_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    source = memory()
    target = LMDB.make(tmp_path)
    async with opened(source, target):
        await populate(source)
        await with_jobs(source, lambda jobs: jobs.add("email", "x" * 600))
        with pytest.raises(
            JobTooLarge, match=r"^job 'email'/'xxx.*: type, priority and id make a key of 6\d\d bytes; the"
        ):
            await copied(source, target)
        assert await everything(target) == {}
        await with_jobs(source, lambda jobs: jobs.remove("email", "x" * 600))
        await with_jobs(source, lambda jobs: jobs.set_type_timeout("y" * 520, 1))
        with pytest.raises(JobTooLarge, match=r"^type 'yyy.* makes a key of 5\d\d bytes; the limit of lmdb:.* is 511"):
            await copied(source, target)
        assert await everything(target) == {}


async def test_a_damaged_record_is_named_and_nothing_is_written() -> None:
    source, target = memory(), memory()
    async with opened(source, target):
        await populate(source)
        key = next(key for key in await everything(source) if key.startswith(b"\x15\x01\x02email\x00\x02large"))
        prefix = await source.prefix()

        async def damage(tr: Transaction) -> None:
            tr.set(prefix + key, b"\x01\x02")

        await source.transact(damage)
        with pytest.raises(
            RecordDamaged, match=r"^job 'email'/'large' of memory:: a job's record is damaged"
        ) as caught:
            await copied(source, target)
        assert "; 1 such in all: " in str(caught.value)
        assert (caught.value.type, caught.value.id) == ("email", "large")
        assert await everything(target) == {}


async def test_unreadable_jobs_are_left_out_and_counted_with_force() -> None:
    source, target = memory(), memory()
    async with opened(source, target):

        async def fill(jobs: JobsService) -> None:
            await jobs.set_type_timeout("t", 1)
            await jobs.add_many("t", [NewJob(f"{n}") for n in range(9)])
            for number in range(3):
                assert await jobs.accept("t", timeout=0) is not None, number

        await with_jobs(source, fill)
        prefix = await source.prefix()

        async def damage(tr: Transaction) -> None:
            for id in b"157":
                tr.set(prefix + b"\x15\x01\x02t\x00\x02%c\x00" % id, b"\x04of a newer version")
            tr.set(prefix + b"\x15\x01\x02t\x00\x02never ends", b"")
            tr.set(prefix + b"\x15\x02\x02t\x00\x02never ends", b"")
            tr.set(prefix + b"\x15\x07\x02never ends", b"")

        await source.transact(damage)
        with pytest.raises(CopyRefused, match="is being worked on"):
            await copied(source, target)
        result = await copied(source, target, force=True)
        assert (result.jobs, result.running, result.unreadable, result.differing) == (6, 2, 4, 0)

        async def look(jobs: JobsService) -> list[tuple[object, str]]:
            return [(job.id, job.state.value) async for job in jobs.list("t")]

        assert await with_jobs(target, look) == [(id, "pending") for id in "023468"]


async def test_entries_of_activity_whose_jobs_do_not_run_are_no_reason_to_refuse_a_copy() -> None:
    source, target = memory(), memory()
    async with opened(source, target):
        await populate(source)
        prefix = await source.prefix()

        async def stray(tr: Transaction) -> None:
            activity = prefix + b"\x15\x07"
            tr.set(activity + b"\x02email\x00\x33" + b"\x01" * 12, b"\x02large\x00")  # it is pending
            tr.set(activity + b"\x02email\x00\x33" + b"\x02" * 12, b"\x02succeeded\x00")
            for number in range(20):
                tr.set(activity + b"\x02no such type\x00\x33" + bytes([number]) * 12, b"\x02a\x00")
            tr.set(activity + b"\xfe no tuple", b"\x02a\x00")

        await source.transact(stray)
        assert (await copied(source, target, batch=SMALL)).running == 0


async def test_entries_of_the_queue_that_belong_to_no_job_are_left_out_and_counted() -> None:
    source, target = memory(), memory()
    async with opened(source, target):

        async def fill(jobs: JobsService) -> None:
            await jobs.set_type_timeout("t", 1)
            await jobs.add_many("t", [NewJob(f"{n}") for n in range(4)])
            await jobs.add("t", "scheduled", run_at=FAR_AWAY)

        await with_jobs(source, fill)
        prefix = await source.prefix()
        ready = prefix + b"\x15\x02\x02t\x00"

        async def stray(tr: Transaction) -> None:
            earliest = ready + b"\x14" + b"\x33" + bytes(12)
            for id in (b"nobody", b"3", b"scheduled"):
                tr.set(earliest + b"\x02" + id + b"\x00", b"")
            tr.set(ready + b"\x02never ends", b"")

        before = len(await everything(source))
        await source.transact(stray)
        assert len(await everything(source)) == before + 4
        result = await copied(source, target)
        assert (result.jobs, result.differing, result.strays) == (5, 0, 4)
        assert await accepted(target, "t") == ["0", "1", "2", "3"]
        assert (await copied(source, target, force=True)).skipped == 5


@pytest.mark.parametrize("size", [-1, 0, 1, 4])
async def test_a_record_as_large_as_a_store_takes_is_copied_or_refused_before_it_begins(size: int) -> None:
    """A cluster takes records of 4 bytes less: it adds an offset to what gets a versionstamp."""
    source, target = memory(), memory()
    async with opened(source, target):

        async def fill(jobs: JobsService) -> None:
            await jobs.set_type_timeout("t", 1)
            await jobs.add("t", "small")
            await jobs.add("t", "large")

        await with_jobs(source, fill)
        key = await source.prefix() + b"\x15\x01\x02t\x00\x02large\x00"

        async def enlarge(tr: Transaction) -> None:
            raw = await tr.get(key)
            assert raw is not None
            record = Record.decode(raw)
            record.run_data = run_data.with_newest_events(record.run_data, 0)
            record.json = b'"' + b"x" * (size + room_left(source.limits, record) - 2) + b'"'
            assert room_left(source.limits, record) == -size
            tr.set(key, record.encode())

        await source.transact(enlarge)
        if size <= 0:
            assert (await copied(source, target)).jobs == 2
            return
        with pytest.raises(
            JobTooLarge,
            match=r"^job 't'/'large': its record takes 10000\d bytes, .*; the limit of memory: is 100000",
        ):
            await copied(source, target)
        assert await everything(target) == {}


async def test_progress_is_told_step_by_step() -> None:
    source, target = memory(), memory()
    told: list[tuple[Step, int, int | None]] = []
    async with opened(source, target):

        async def fill(jobs: JobsService) -> None:
            await jobs.set_type_timeout("t", 1)
            await jobs.add_many("t", [NewJob(f"{n}") for n in range(450)])

        await with_jobs(source, fill)
        await copied(source, target, batch=Batch(jobs=200), progress=lambda *now: told.append(now))
    assert told == [
        (Step.LOOKING, 200, None),
        (Step.LOOKING, 400, None),
        (Step.COPYING, 0, 450),
        (Step.COPYING, 200, 450),
        (Step.COPYING, 400, 450),
        (Step.COPYING, 450, 450),
        (Step.COPYING, 450, 450),
        (Step.COPYING, 450, 450),
        (Step.COPYING, 450, 450),
        (Step.COMPARING, 200, 450),
        (Step.COMPARING, 400, 450),
        (Step.COMPARING, 450, 450),
    ]
