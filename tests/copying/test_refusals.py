"""When a copy is refused, and what is said then."""

from __future__ import annotations

import pytest

from jobs_service import JobsService
from jobs_service.copying import CopyRefused, copy_jobs
from jobs_service.errors import JobsError, StoreError
from jobs_service.layer import rows
from jobs_service.layer.keyspace import Keyspace
from jobs_service.layer.unit_of_work import UnitOfWork, run
from jobs_service.sources import Sources
from jobs_service.store import Store
from tests.copying.support import (
    SMALL,
    Meanwhile,
    copied,
    everything,
    half_copied,
    memory,
    opened,
    portrait,
    two_stores,
    with_jobs,
)
from tests.layer.processes import process_row


async def refusal(source: Store, target: Store, error: type[JobsError] = CopyRefused, *, anew: bool = False) -> str:
    """Return what is said of a copy that is refused, before it has written anything."""
    before = await everything(target)
    with pytest.raises(error) as refused:
        await copied(source, target, batch=SMALL, anew=anew)
    assert await everything(target) == before
    return str(refused.value)


async def add(store: Store, id: str) -> None:
    """Add a job, or have one that exists run again."""
    await with_jobs(store, lambda jobs: jobs.add("email", id, if_exists="resubmit"))


# Stores in use


async def test_a_source_in_which_a_job_runs_is_refused() -> None:
    async with two_stores() as (source, target):
        await with_jobs(source, lambda jobs: jobs.accept(b"b", timeout=0))
        assert await refusal(source, target) == (
            "job b'b'/b'\\x00bytes\\xff' of lmdb:from runs: wait until it has ended or is given back, and end the "
            "programs that use the store"
        )


@pytest.mark.parametrize("used", [0, 1])
async def test_a_store_that_a_runner_or_a_daemon_uses_is_refused_until_it_has_ended_or_is_silent(used: int) -> None:
    async with two_stores() as stores:
        store = stores[used]
        keyspace = Keyspace(await store.prefix())

        async def run_in(unit: UnitOfWork) -> None:
            rows.write(unit, process_row("0123456789ab", heard=Sources(1).wall_time() - seconds))

        for seconds in (0, 1_000):
            await store.transact(lambda tr: run(tr, keyspace, Sources(2), run_in))
            if seconds:
                await copied(*stores)
            else:
                said = f"{store.address} is in use (processes: 1): end the programs that use it, then copy"
                assert await refusal(*stores) == said


async def test_a_change_of_the_source_while_it_is_copied_is_found_whenever_it_comes() -> None:
    async with two_stores() as (source, target):
        counting = source.faults = Meanwhile(0, lambda: add(source, "never"))
        await copy_jobs(source, target, sources=Sources(1), batch=SMALL)
    refused = 0
    # The calls that come last read what tells of changes.
    for call in range(1, counting.calls - 11, 4):
        async with two_stores() as (source, target):
            source.faults = Meanwhile(call, lambda store=source: add(store, "many 5"))  # type: ignore[misc]
            try:
                await copy_jobs(source, target, sources=Sources(1), batch=SMALL)
            except CopyRefused:
                refused += 1
                source.faults = None
                await copied(source, target, anew=True)
            assert await portrait(target) == await portrait(source)
    assert refused > 5


@pytest.mark.parametrize("call", range(4, 30, 6))
async def test_of_two_copies_at_the_same_time_the_one_that_began_anew_ends(call: int) -> None:
    async with two_stores() as (source, target):
        target.faults = Meanwhile(call, lambda: copy_jobs(source, target, sources=Sources(2), anew=True))
        with pytest.raises(CopyRefused, match=r"^another process copies jobs to lmdb:to: it goes on, this one has end"):
            await copy_jobs(source, target, sources=Sources(1), batch=SMALL)
        assert await portrait(target) == await portrait(source)


async def test_jobs_that_a_program_removes_which_had_the_target_open_before_are_missed() -> None:
    async with two_stores() as (source, target), JobsService(target, supervise=False) as jobs:

        async def remove() -> None:
            [job, *_] = [job async for job in jobs.list()]
            await jobs.remove(job.type, job.id)
            # No worker gets one of them.
            assert await jobs.accept(job.type, timeout=0) is None

        target.faults = Meanwhile(10, remove)
        with pytest.raises(CopyRefused, match=r"^lmdb:to has not as many jobs of type .* as lmdb:from: end the progr"):
            await copy_jobs(source, target, sources=Sources(1), batch=SMALL)


# Targets


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("has", ["job", "type", "pause", "retention", "redaction"])
async def test_a_target_that_is_not_empty_is_refused_and_stays_as_it_is(has: str, anew: bool) -> None:
    async with two_stores() as (source, target):

        async def fill(jobs: JobsService) -> None:
            if has in ("job", "type"):
                await jobs.set_type_timeout("mine", 5)
            if has == "job":
                await jobs.add("mine", "mine")
                await jobs.clear_type_timeout("mine")
            elif has == "pause":
                await jobs.pause("mine")
            elif has == "retention":
                await jobs.set_retention("mine", keep=5)
            elif has == "redaction":
                await jobs.set_redaction("mine", ["card"])

        await with_jobs(target, fill)
        said = "lmdb:to is not empty, it has jobs or types: name an empty store"
        assert await refusal(source, target, anew=anew) == said
        assert await refusal(target, source, anew=anew) == said.replace("to", "from", 1)


async def test_a_store_is_not_copied_to_itself() -> None:
    async with two_stores() as (source, _):
        assert "is not empty" in await refusal(source, source, anew=True)


async def test_half_a_copy_is_refused_by_everybody_until_it_is_begun_anew() -> None:
    async with two_stores() as (source, target):
        await half_copied(source, target)
        said = "store lmdb:to is half a copy: begin it anew with jobs-service copy FROM lmdb:to --anew, or remove it"
        assert await refusal(source, target, StoreError) == said
        other = memory()
        async with opened(other):
            assert await refusal(target, other, StoreError) == said
        for supervise in (False, True):
            with pytest.raises(StoreError) as refused:
                async with JobsService(target, supervise=supervise):
                    pass
            assert str(refused.value) == said
        await copied(source, target, batch=SMALL, anew=True)
        assert await portrait(target) == await portrait(source)
        await with_jobs(target, lambda jobs: jobs.add("email", "more"))
