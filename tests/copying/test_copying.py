"""A copy has everything that its source has, in the same order, whatever the stores are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jobs_service import JobsService, NewJob, NoTypeTimeout
from jobs_service.copying import Batch
from jobs_service.layer.key_parts import pack_seconds
from jobs_service.store import Store, Transaction
from tests.checker import assert_sound
from tests.copying.support import (
    SMALL,
    TYPE,
    Stopped,
    accepted,
    clear,
    copied,
    everything,
    memory,
    opened,
    populate,
    portrait,
    stop_at,
    with_jobs,
)
from tests.service.support import FAR_AWAY
from tests.stores import EVERY_KIND, KINDS, StoreKind

LMDB = next(kind for kind in KINDS if kind.name == "lmdb")


def stores(source: StoreKind, target: StoreKind, directory: Path) -> tuple[Store, Store]:
    """Return two stores, not yet open."""
    if source.shared and target.shared:
        pytest.skip("there is one shared store only")
    return source.make(directory / "from"), target.make(directory / "to")


@pytest.mark.parametrize("target_kind", EVERY_KIND)
@pytest.mark.parametrize("source_kind", EVERY_KIND)
async def test_everything_but_the_versionstamps_is_the_same(
    source_kind: StoreKind, target_kind: StoreKind, tmp_path: Path
) -> None:
    source, target = stores(source_kind, target_kind, tmp_path)
    async with opened(source, target):
        for store, kind in ((source, source_kind), (target, target_kind)):
            if kind.shared:
                await clear(store)
        await populate(source)
        wanted = await portrait(source)
        assert len(wanted["jobs"]) == len({*wanted["jobs"]}) > 30
        result = await copied(source, target, batch=SMALL)
        assert await portrait(target) == wanted
        assert (result.jobs, result.resumed, result.skipped, result.differing) == (len(wanted["jobs"]), False, 0, 0)


async def test_workers_get_the_jobs_in_the_order_in_which_they_would_have_got_them_from_the_source() -> None:
    source, target = memory(), memory()
    async with opened(source, target):
        await populate(source)
        await copied(source, target, batch=SMALL)
        order = {type: await accepted(source, type) for type in ("email", TYPE, b"b", "cleared", "paused")}
        assert {type: await accepted(target, type) for type in order} == order
        assert len(order["email"]) > 15
        assert order["email"] != sorted(order["email"])
        assert order["paused"] == []


async def test_the_order_holds_within_one_transaction_and_from_one_to_the_next() -> None:
    source, target = memory(), memory()
    ids = [f"{n * 7919 % 1000:03}" for n in range(1000)]
    async with opened(source, target):

        async def fill(jobs: JobsService) -> None:
            await jobs.set_type_timeout("t", 1)
            await jobs.add_many("t", [NewJob(id) for id in ids])

        await with_jobs(source, fill)
        await copied(source, target, batch=Batch(jobs=300))
        assert await accepted(target, "t") == ids


async def test_what_counts_of_the_source_is_told() -> None:
    source, target = memory(), memory()
    async with opened(source, target):
        await populate(source)
        result = await copied(source, target)
        counts = {repr(each.type): (each.ready, each.scheduled, each.running, each.finished) for each in result.types}
        assert counts.pop("'email'")[1:] == (1, 0, 6)
        assert counts == {
            repr(TYPE): (1, 1, 0, 0),
            "'paused'": (1, 1, 0, 0),
            "'cleared'": (1, 1, 0, 0),
            "b'b'": (1, 1, 0, 0),
            "'nothing yet'": (0, 0, 0, 0),
            "'not there'": (0, 0, 0, 0),
        }


async def test_an_empty_store_is_copied_too() -> None:
    source, target = memory(), memory()
    async with opened(source, target):
        assert (await copied(source, target)).types == ()
        assert await everything(target) == {}


async def test_programs_go_on_with_the_copy_where_they_left_the_source() -> None:
    source, target = memory(), memory()
    async with opened(source, target):
        await populate(source)
        await copied(source, target)

        async def work(jobs: JobsService) -> set[Any]:
            await jobs.resubmit("email", "failed", priority=b"")
            for job in await jobs.accept_many("email", 4, timeout=0):
                await job.finish()
            await jobs.remove("email", "succeeded")
            await jobs.resume("paused")
            assert await jobs.accept("paused", timeout=0) is not None
            with pytest.raises(NoTypeTimeout):
                await jobs.add("cleared", "more")
            return {job.id async for job in jobs.list("email", state="finished")}

        assert await with_jobs(target, work) == {
            "released",
            "crashes",
            "failed",
            "canceled",
            "again succeeded",
            "again failed",
            "again canceled",
        }
        await assert_sound(target)


async def test_half_a_copy_is_of_no_use_to_workers_and_creators() -> None:
    source, target = memory(), memory()
    async with opened(source, target):
        await populate(source)
        with pytest.raises(Stopped):
            await copied(source, target, batch=SMALL, progress=stop_at(8))

        async def use(jobs: JobsService) -> int:
            listed = [job async for job in jobs.list()]
            for type in {job.type for job in listed}:
                assert await jobs.accept(type, timeout=0) is None
                with pytest.raises(NoTypeTimeout):
                    await jobs.add(type, "new")
            return len(listed)

        assert 10 < await with_jobs(target, use) < 30
        await copied(source, target)
        assert await portrait(target) == await portrait(source)


async def test_a_type_that_was_paused_in_the_target_stays_so() -> None:
    source, target = memory(), memory()
    async with opened(source, target):
        await populate(source)
        await with_jobs(target, lambda jobs: jobs.pause("email"))
        await copied(source, target)
        assert await with_jobs(target, lambda jobs: jobs.paused("email"))
        assert not await with_jobs(target, lambda jobs: jobs.paused(b"b"))
        # Which does not make it another copy.
        assert (await copied(source, target)).complete_before


async def test_settings_of_the_source_count_and_what_has_ticked_does_not_tick_again() -> None:
    source, target = memory(), memory()
    async with opened(source, target):
        await populate(source)
        await populate(target)
        wanted = await portrait(target)

        async def change(jobs: JobsService) -> None:
            for job in [job async for job in jobs.list()]:
                await jobs.remove(job.type, job.id)
            await jobs.set_type_timeout("email", 999)
            await jobs.set_type_timeout("its own", 1)

        await with_jobs(target, change)
        periodic = next(key for key in wanted["verbatim"] if key.startswith(b"\x15\x0c"))
        later = pack_seconds(FAR_AWAY)

        prefix = await target.prefix()

        async def ticked(tr: Transaction) -> None:
            tr.set(prefix + periodic, later)

        await target.transact(ticked)
        await copied(source, target)
        found = await everything(target)
        assert found[periodic] == later

        async def look(jobs: JobsService) -> tuple[float, float]:
            return await jobs.get_type_timeout("email"), await jobs.get_type_timeout("its own")

        assert await with_jobs(target, look) == (60, 1)
