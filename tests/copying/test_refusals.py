"""When a copy is refused, what is said then, and what --force and --start-over make of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jobs_service import JobsService, JobState, NewJob, Outcome
from jobs_service.copying import CopyRefused, copy_jobs
from jobs_service.layer.keyspace import COPYING
from jobs_service.model import HistoryKind
from jobs_service.sources import Sources
from jobs_service.store import Store, Transaction
from jobs_service.testing import Choices, Cluster, Plan, SimulatedStore
from tests.checker import assert_sound
from tests.copying.support import (
    SMALL,
    Meanwhile,
    Stopped,
    accepted,
    copied,
    everything,
    half_copied,
    memory,
    opened,
    populate,
    portrait,
    stop_at,
    two_stores,
    with_jobs,
)
from tests.stores import plain_settings


async def refusal(source: Store, target: Store, *, start_over: bool = False, force: bool = False) -> str:
    """Return what is said of a copy that is refused."""
    with pytest.raises(CopyRefused) as refused:
        await copied(source, target, batch=SMALL, start_over=start_over, force=force)
    return str(refused.value)


async def add(store: Store, id: str, type: str = "email") -> None:
    """Add a job, or have one that exists run again."""
    await with_jobs(store, lambda jobs: jobs.add(type, id, if_exists="resubmit"))


# The source


async def test_a_source_in_which_a_job_runs_is_refused() -> None:
    async with two_stores() as (source, target):
        await with_jobs(source, lambda jobs: jobs.accept(b"b", timeout=0))
        assert await refusal(source, target) == (
            "lmdb:from is being worked on: job b'b'/b'\\x00bytes\\xff' runs. End the workers and wait until it is "
            "given back, or copy it as a pending job with --force"
        )
        assert await everything(target) == {}


async def test_with_force_running_jobs_are_pending_in_the_copy_and_come_first() -> None:
    async with two_stores() as (source, target):

        async def work(jobs: JobsService) -> None:
            await jobs.set_type_timeout("t", 60)
            await jobs.set_retention("t", keep=1000)
            await jobs.add_many("t", [NewJob(name, name, run_at=1e9) for name in ("z", "y", "x", "w", "v")])
            taken = await jobs.accept_many("t", 4, timeout=0)
            await taken[1].resubmit(priority=7)
            await jobs.remove("t", "x")

        await with_jobs(source, work)
        result = await copied(source, target, force=True)
        assert (result.running, result.differing, result.skipped) == (4, 0, 0)

        async def look(jobs: JobsService) -> None:
            z, y, x, v = [await jobs.get("t", id) for id in "zyxv"]
            assert [job.state for job in (z, y, x, v)] == [*[JobState.PENDING] * 2, JobState.FINISHED, JobState.PENDING]
            assert (z.attempts, z.data, z.priority, z.run_at) == (0, "z", 0, v.run_at)
            assert [event.kind for event in z.history] == [HistoryKind.STOPPED, HistoryKind.STARTED, HistoryKind.ADDED]
            assert (z.resubmit, y.resubmit) == (False, True)
            assert (x.outcome, x.history[0].kind) == (Outcome.CANCELED, HistoryKind.CANCELED)

        await with_jobs(target, look)
        # The one that was active last comes last among those that ran.
        assert await accepted(target, "t") == ["z", "w", "y", "v"]
        assert [key for key in await everything(target) if key.startswith(b"\x15\x0b\x02t\x00")]
        await assert_sound(target)


async def test_a_source_that_has_changed_since_its_first_part_was_copied_is_refused() -> None:
    async with two_stores() as (source, target):
        await half_copied(source, target)
        await add(source, "many 1")
        assert await everything(source)
        await with_jobs(source, lambda jobs: jobs.remove("email", "many 1"))
        before = await everything(target)
        assert await refusal(source, target) == (
            "lmdb:from has changed since its copy began: end the programs that use it and copy again with "
            "--start-over, or go on with --force"
        )
        assert await everything(target) == before
        result = await copied(source, target, batch=SMALL, start_over=True)
        assert (result.resumed, result.differing) == (False, 0)
        assert await portrait(target) == await portrait(source)


@pytest.mark.parametrize("change", ["set_type_timeout", "set_retention", "pause"])
async def test_settings_of_a_type_that_change_are_a_change(change: str) -> None:
    async with two_stores() as (source, target):
        await half_copied(source, target)
        arguments = {"set_type_timeout": {"seconds": 61}, "set_retention": {"keep": 1}, "pause": {}}[change]
        await with_jobs(source, lambda jobs: getattr(jobs, change)("email", **arguments))
        assert "lmdb:from has changed since its copy began" in await refusal(source, target)


async def test_with_force_a_copy_goes_on_after_changes_and_tells_what_differs() -> None:
    async with two_stores() as (source, target):
        await half_copied(source, target)
        await add(source, "zz: a new one")
        await with_jobs(source, lambda jobs: jobs.remove("email", "many 9"))
        await with_jobs(source, lambda jobs: jobs.resubmit("email", "many 8", data="changed"))
        result = await copied(source, target, batch=SMALL, force=True)
        assert (result.resumed, result.differing, result.skipped) == (True, 1, 0)
        ids = {job.id for job in await _listed(target)}
        assert {"many 9", "many 8", "zz: a new one"} <= ids
        assert COPYING not in {key[1] for key in await everything(target)}


async def test_a_change_of_the_source_while_it_is_copied_is_found_whenever_it_comes() -> None:
    refused = 0
    for call in range(1, await _calls_of_source() - READS_OF_A_LOOK, 4):
        async with two_stores() as (source, target):
            source.faults = Meanwhile(call, lambda store=source: add(store, "many 5"))  # type: ignore[misc]
            try:
                await copy_jobs(source, target, sources=Sources(1), batch=SMALL)
            except CopyRefused:
                refused += 1
                source.faults = None
                await copied(source, target, start_over=True)
            assert await portrait(target) == await portrait(source)
    assert refused > 5


READS_OF_A_LOOK = 7
"""A change that comes while the source is looked at for the last time may come too late."""


async def _calls_of_source() -> int:
    """Return how often a copy calls its source."""
    async with two_stores() as (source, target):
        counting = source.faults = Meanwhile(0, lambda: add(source, "never"))
        await copy_jobs(source, target, sources=Sources(1), batch=SMALL)
        return counting.calls


async def test_a_store_that_is_only_half_a_copy_is_no_source() -> None:
    async with two_stores() as (source, target):
        await half_copied(source, target)
        third = memory()
        async with opened(third):
            assert await refusal(target, third) == (
                "lmdb:to is the target of a copy that is not finished: finish that, or name its source"
            )


# The target


async def test_a_target_with_jobs_is_refused_and_with_force_they_stay_as_they_are() -> None:
    async with two_stores() as (source, target):
        await with_jobs(target, lambda jobs: jobs.set_type_timeout("email", 5))
        await with_jobs(target, lambda jobs: jobs.add("email", "many 1", "mine"))
        before = await everything(target)
        assert await refusal(source, target) == (
            "lmdb:to has jobs already, and not just those that are to be copied: name a store without jobs; with "
            "--force the jobs that are there stay, and the others are added"
        )
        assert await everything(target) == before
        result = await copied(source, target, batch=SMALL, force=True)
        assert (result.skipped, result.differing) == (1, 1)
        assert (await with_jobs(target, lambda jobs: jobs.get("email", "many 1"))).data == "mine"
        assert len(await _listed(target)) == result.jobs


async def test_a_complete_copy_is_recognized_until_it_is_used() -> None:
    async with two_stores() as (source, target):
        await copied(source, target)
        before = await everything(target)
        assert (await copied(source, target)).complete_before
        assert await everything(target) == before
        await with_jobs(target, lambda jobs: jobs.accept("email", timeout=0))
        assert "lmdb:to has jobs already" in await refusal(source, target)


async def test_the_same_jobs_in_another_order_are_no_copy() -> None:
    async with two_stores() as (source, target):
        await copied(source, target)
        prefix = await target.prefix()
        front = b"email\x00\x14\x33"  # of priority 0
        rows = await everything(target)
        first, second = [key for key in rows if key.startswith(b"\x15\x02\x02" + front)][:2]
        start = len(b"\x15\x02\x02" + front)

        async def swap(tr: Transaction) -> None:
            for key, other in ((first, second), (second, first)):
                seq, id = other[start : start + 12], key[start + 12 :]
                data = b"\x15\x01\x02email\x00" + id
                tr.clear(prefix + key)
                tr.set(prefix + key[:start] + seq + id, rows[key])
                tr.set(prefix + data, rows[data][:2] + seq + rows[data][14:])

        await target.transact(swap)
        await assert_sound(target)
        assert "lmdb:to has jobs already" in await refusal(source, target)


@pytest.mark.parametrize("use", ["add", "remove", "resubmit"])
async def test_a_target_that_is_used_while_it_is_copied_to_is_refused(use: str) -> None:
    async with two_stores() as (source, target):
        await half_copied(source, target)

        async def others(jobs: JobsService) -> None:
            await jobs.set_type_timeout("email", 60)
            if use == "add":
                await jobs.add("email", "somebody else's")
            elif use == "remove":
                await jobs.remove("email", "many 7")
            else:
                await jobs.resubmit("email", "many 7", priority=100)

        await with_jobs(target, others)
        assert await refusal(source, target) == (
            "lmdb:to is being worked on (jobs of type 'email' that this copy has not written): end the programs that "
            "use it and copy again with --start-over, or go on with --force"
        )
        assert await refusal(source, target, start_over=True) == (
            "jobs of type 'email' in lmdb:to were changed by others since they were copied; --force removes them all "
            "the same"
        )
        await copied(source, target, batch=SMALL, start_over=True, force=True)
        assert await portrait(target) == await portrait(source)


async def test_jobs_that_others_add_of_a_type_that_is_not_copied_are_found_by_comparing() -> None:
    async with two_stores() as (source, target):
        await half_copied(source, target)
        await with_jobs(target, lambda jobs: jobs.set_type_timeout("others", 5))
        await add(target, "theirs", "others")
        assert await refusal(source, target) == (
            "lmdb:to differs from lmdb:from: job 'others'/'theirs' is not from the source, but in lmdb:to; was it "
            "changed meanwhile? Copy again with --start-over"
        )


@pytest.mark.parametrize("call", range(1, 44, 3))
async def test_a_use_of_the_target_is_found_whenever_it_comes(call: int) -> None:
    async with two_stores() as (source, target):
        await with_jobs(target, lambda jobs: jobs.set_type_timeout("email", 60))
        target.faults = Meanwhile(call, lambda: add(target, "somebody else's"))
        with pytest.raises(CopyRefused):
            await copy_jobs(source, target, sources=Sources(1), batch=SMALL)


async def test_an_unfinished_copy_of_another_store_is_refused_and_can_be_started_over() -> None:
    async with two_stores() as (source, target):
        await half_copied(source, target)
        third = memory()
        third.address = "lmdb:third"
        async with opened(third):
            await with_jobs(third, lambda jobs: jobs.set_type_timeout("t", 5))
            await add(third, "one", "t")
            assert await refusal(third, target) == (
                "lmdb:to has an unfinished copy of another store, lmdb:from: finish that, or remove what it has "
                "written with --start-over"
            )
            await copied(third, target, start_over=True)
            assert await portrait(target) == await portrait(third)


async def test_starting_over_removes_the_copied_jobs_in_small_transactions_and_goes_on_after_a_stop() -> None:
    async with two_stores() as (source, target):
        await with_jobs(target, lambda jobs: jobs.pause("email"))
        await half_copied(source, target, 12)
        removed = []

        def stop(step: object, done: int, total: object) -> None:
            removed.append(done)
            if len(removed) == 3:
                raise Stopped

        with pytest.raises(Stopped):
            await copied(source, target, batch=SMALL, start_over=True, progress=stop)
        assert removed[-1] <= 3 * SMALL.jobs
        # Nothing goes on with what is half removed.
        await copied(source, target, batch=SMALL)
        assert await with_jobs(target, lambda jobs: jobs.paused("email"))
        await with_jobs(target, lambda jobs: jobs.resume("email"))
        assert await portrait(target) == await portrait(source)


async def test_starting_over_never_removes_jobs_that_were_there_before() -> None:
    async with two_stores() as (source, target):
        await with_jobs(target, lambda jobs: jobs.set_type_timeout("email", 5))
        await with_jobs(target, lambda jobs: jobs.add("email", "mine"))
        with pytest.raises(Stopped):
            await copied(source, target, batch=SMALL, force=True, progress=stop_at(6))
        before = await everything(target)
        assert await refusal(source, target, start_over=True, force=True) == (
            "lmdb:to had jobs of type 'email' before jobs were copied to it with --force: which ones are the copy's "
            "cannot be told; remove them yourself, or go on without --start-over"
        )
        assert await everything(target) == before


async def test_starting_over_where_nothing_was_begun_is_a_copy() -> None:
    async with two_stores() as (source, target):
        await copied(source, target, start_over=True)
        assert await portrait(target) == await portrait(source)


# Both


async def test_a_store_is_not_copied_to_itself_by_whatever_name() -> None:
    source = memory()
    async with opened(source):
        await populate(source)
        with pytest.raises(CopyRefused, match="would be copied to itself"):
            await copied(source, source)
    cluster = Cluster(asyncio.get_running_loop(), Choices(Plan(0)))
    one, other = (SimulatedStore(cluster, None, settings=plain_settings(), sources=Sources(n)) for n in range(2))
    async with opened(one, other):
        assert "would be copied to itself" in await refusal(one, other)
        await populate(one)
        with pytest.raises(CopyRefused, match="would be copied to itself"):
            await copied(one, other, force=True)
        assert COPYING not in {key[1] for key in await everything(one)}


async def _listed(store: Store) -> list[Any]:
    async def look(jobs: JobsService) -> list[Any]:
        return [job async for job in jobs.list()]

    return await with_jobs(store, look)
