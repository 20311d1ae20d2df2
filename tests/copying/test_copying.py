"""A copy has everything that its source has, in the same order, whatever the stores are, in bounded transactions."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs_service import JobsService, NewJob, run_data
from jobs_service.errors import JobTooLarge
from jobs_service.layer.record import Record, room_left
from jobs_service.store import Limits, Transaction
from tests.copying.support import (
    SMALL,
    TYPE,
    Sizes,
    accepted,
    clear,
    copied,
    everything,
    memory,
    opened,
    populate,
    portrait,
    with_jobs,
)
from tests.service.support import FAR_AWAY
from tests.stores import EVERY_KIND, KINDS, StoreKind

LMDB = next(kind for kind in KINDS if kind.name == "lmdb")


@pytest.mark.parametrize("target_kind", EVERY_KIND)
@pytest.mark.parametrize("source_kind", EVERY_KIND)
async def test_everything_but_the_versionstamps_is_the_same(
    source_kind: StoreKind, target_kind: StoreKind, tmp_path: Path
) -> None:
    if source_kind.shared and target_kind.shared:
        pytest.skip("there is one shared store only")
    source, target = source_kind.make(tmp_path / "from"), target_kind.make(tmp_path / "to")
    async with opened(source, target):
        for store, kind in ((source, source_kind), (target, target_kind)):
            if kind.shared:
                await clear(store)
        await populate(source)
        wanted = await portrait(source)
        assert len(wanted["jobs"]) > 30
        assert wanted["failed"]
        result = await copied(source, target, batch=SMALL)
        assert await portrait(target) == wanted
        assert (result.jobs, result.unreadable, result.strays) == (len(wanted["jobs"]), 0, 0)
        counts = {each.type: (each.ready, each.scheduled, each.finished) for each in result.types}
        assert counts.pop("email")[1:] == (1, 6)
        waiting = dict.fromkeys((TYPE, "paused", "cleared", b"b"), (1, 1, 0))
        assert counts == {**waiting, "nothing yet": (0, 0, 0), "not there": (0, 0, 0)}


# Damage


async def test_what_cannot_be_read_and_entries_of_no_job_are_left_out_and_counted() -> None:
    source, target = memory(), memory()
    async with opened(source, target):

        async def fill(jobs: JobsService) -> None:
            await jobs.set_type_timeout("t", 1)
            await jobs.add_many("t", [NewJob(f"{n}") for n in range(8)])
            await jobs.add("t", "scheduled", run_at=FAR_AWAY)

        await with_jobs(source, fill)
        prefix = await source.prefix()
        data, ready, activity = (prefix + b"\x15" + section + b"\x02t\x00" for section in (b"\x01", b"\x02", b"\x07"))

        async def damage(tr: Transaction) -> None:
            for id in b"157":
                tr.set(data + b"\x02%c\x00" % id, b"\x04of a newer version")
            tr.set(data + b"\x02never ends", b"")
            for name in (b"nobody", b"3", b"scheduled"):
                tr.set(ready + b"\x14" + b"\x33" + bytes(12) + b"\x02" + name + b"\x00", b"")
            tr.set(ready + b"\x02never ends", b"")
            # Neither is a running job, which would be refused.
            tr.set(activity + b"\x33" + bytes(12), b"\x023\x00")
            tr.set(prefix + b"\x15\x07\xfe no tuple", b"")

        await source.transact(damage)
        result = await copied(source, target, batch=SMALL)
        assert (result.jobs, result.unreadable, result.strays) == (6, 4, 3 + 3 + 1)
        assert await accepted(target, "t") == ["0", "2", "3", "4", "6"]


# Bounds


async def test_transactions_shrink_until_they_are_small_enough_and_keep_the_order() -> None:
    source, target = memory(), memory()
    ids = [f"{n * 7919 % 1000:03}" for n in range(1000)]
    target.limits = Limits(transaction=20_000)
    async with opened(source, target):

        async def fill(jobs: JobsService) -> None:
            await jobs.set_type_timeout("t", 1)
            await jobs.add_many("t", [NewJob(id) for id in ids])

        await with_jobs(source, fill)
        sizes = target.faults = Sizes()
        await copied(source, target)
        assert max(sizes.bytes) <= 20_000
        assert len(sizes.bytes) > 10
        assert await accepted(target, "t") == ids


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


async def test_a_key_that_is_too_long_for_the_target_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    source, target = memory(), LMDB.make(tmp_path)
    async with opened(source, target):
        await populate(source)
        await with_jobs(source, lambda jobs: jobs.add("email", "x" * 600))
        with pytest.raises(JobTooLarge, match=r"^job 'email'/'xxx.*: type, priority and id make a key of 6\d\d bytes"):
            await copied(source, target)
        await with_jobs(source, lambda jobs: jobs.remove("email", "x" * 600))
        await with_jobs(source, lambda jobs: jobs.set_type_timeout("y" * 520, 1))
        with pytest.raises(JobTooLarge, match=r"^type 'yyy.* makes a key of 5\d\d bytes; the limit of lmdb:.* is 511"):
            await copied(source, target)
        assert await everything(target) == {}


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
            JobTooLarge, match=r"^job 't'/'large': its record takes 10000\d bytes, .*; the limit of mem"
        ):
            await copied(source, target)
        assert await everything(target) == {}
