"""A damaged page of the embedded store concerns who asks for what is on it, and nobody else."""

from __future__ import annotations

import asyncio
import random
import re
import struct
from collections.abc import Callable
from pathlib import Path

import fdb.tuple
import pytest

from jobs_service import JobsService, JobState, NewJob, RecordDamaged, RunningJob, Settings, StoreDamaged
from jobs_service.layer.keyspace import Keyspace
from tests.metrics.support import scraped, value

PAGE = 4096
LEAF, OVERFLOW = 2, 4
"""The kinds of LMDB's pages that hold values: in part, and the first of those that a long one has for itself."""
JOBS = 300
A = "a"
B = "b"


def data_of(number: int, size: int) -> str:
    """Return data by which a job's page can be found."""
    return f"needle-{number:04}-" + "x" * size


async def made(path: Path, size: int) -> bytes:
    """Make a store with jobs of two types, and return its file, compact: every page of it is in use."""
    async with JobsService(f"lmdb:{path / 'made'}", supervise=False) as jobs:
        for type in (A, B):
            await jobs.set_type_timeout(type, 60)
        await jobs.add_many(A, [NewJob(f"{number:04}", data_of(number, size)) for number in range(JOBS)])
        await jobs.add_many(B, [NewJob(f"{number:04}") for number in range(JOBS)])
        await jobs.store.backup(str(path / "compact"))
    return (path / "compact").read_bytes()


def zeros(_: bytes) -> bytes:
    return bytes(PAGE)


def noise(_: bytes) -> bytes:
    return random.Random(7).randbytes(PAGE)


def no_header(page: bytes) -> bytes:
    return random.Random(7).randbytes(16) + page[16:]


def place_of(content: bytes, number: int) -> int:
    """Return where a job's data is in a file."""
    return first_place(content, b"needle-%04d-" % number)


def first_place(content: bytes, needle: bytes) -> int:
    """Return where a needle is in a file: not in what was on a page before, and is left in its unused part."""
    for found in re.finditer(re.escape(needle), content):
        start = found.start() - found.start() % PAGE
        flags, _, upper = struct.unpack_from("<HHH", content, start + 10)
        if flags == OVERFLOW or (flags == LEAF and found.start() - start >= upper):
            return found.start()
    raise AssertionError(f"{needle!r} is nowhere")


Damage = Callable[[bytes], bytes]


def damaged(path: Path, content: bytes, place: int, damage: Damage) -> str:
    """Damage the page around a place in the file, and return the address of a store with that file."""
    start = place - place % PAGE
    store = path / "damaged"
    store.mkdir()
    changed = content[:start] + damage(content[start : start + PAGE]) + content[start + PAGE :]
    (store / "data.mdb").write_bytes(changed)
    return f"lmdb:{store}"


async def outcome(jobs: JobsService, id: str) -> bool:
    """Whether a job can be got."""
    try:
        assert (await jobs.get(A, id)).data[:11] == f"needle-{id}"
    except (StoreDamaged, RecordDamaged):
        return False
    return True


def nobody_was_restarted(jobs: JobsService) -> bool:
    """Whether everything in the tree runs as it has begun."""
    tree = jobs.supervision()
    nodes = [*tree["children"]]
    for node in nodes:
        nodes += node["children"]
    return all(node["state"] == "running" and not node["restarts"] for node in [tree, *nodes])


@pytest.mark.parametrize(("size", "damage"), [(10, zeros), (10, noise), (10, no_header), (9000, no_header)])
async def test_jobs_on_other_pages_than_the_damaged_one_go_on(tmp_path: Path, size: int, damage: Damage) -> None:
    content = await made(tmp_path, size)
    address = damaged(tmp_path, content, place_of(content, 123), damage)
    async with JobsService(address, settings=Settings(transaction_timeout=60)) as jobs:
        ids = [f"{number:04}" for number in range(JOBS)]
        # All at once, so that sound ones share transactions with those that cannot be read.
        found = await asyncio.gather(*[outcome(jobs, id) for id in ids])
        lost = {id for id, readable in zip(ids, found, strict=True) if not readable}
        assert "0123" in lost
        assert len(lost) < 60
        running: list[RunningJob] = []
        while taken := await jobs.accept_many(A, 50, timeout=0):
            running += taken
        assert {job.id for job in running} == set(ids) - lost
        ends = [job.finish(job.data) for job in running]
        removals = [jobs.remove(A, id) for id in lost]
        results = await asyncio.gather(*ends, *removals, return_exceptions=True)
        assert not [result for result in results[: len(ends)] if isinstance(result, BaseException)]
        assert {type(result) for result in results[len(ends) :]} <= {StoreDamaged, RecordDamaged}
        await asyncio.gather(*[jobs.resubmit(A, str(job.id)) for job in running])
        for number in range(JOBS):
            job = await jobs.accept(B, timeout=0)
            assert job is not None, number
            await job.finish()
        await jobs.add(A, "new")
        assert nobody_was_restarted(jobs)


async def test_where_the_queue_stands_is_told_by_the_jobs_on_other_pages(tmp_path: Path) -> None:
    content = await made(tmp_path, 9000)
    address = damaged(tmp_path, content, place_of(content, 123), no_header)
    async with JobsService(address) as jobs:
        await jobs.accept_many(A, 100, timeout=0)
        await jobs.accept_many(A, 23, timeout=0)
        assert (await jobs.queue_state(A)).id == "0124"


@pytest.mark.parametrize("damage", [zeros, no_header])
async def test_metrics_lack_only_what_the_damaged_page_of_a_queue_hides(tmp_path: Path, damage: Damage) -> None:
    content = await made(tmp_path, 10)
    front = first_place(content, Keyspace(fdb.tuple.pack(("jobs_service",))).of(A).ready)
    async with JobsService(damaged(tmp_path, content, front, damage)) as jobs:
        with pytest.raises(StoreDamaged):
            await jobs.queue_state(A)
        samples = await scraped(jobs)
        assert value(samples, "jobs_service_up") == 1
        assert [value(samples, "jobs_service_jobs", type=type, state="ready") for type in (A, B)] == [JOBS, JOBS]
        for name in ("jobs_service_oldest_ready_seconds", "jobs_service_paused"):
            assert [labels for found, labels in samples if found == name] == [(("type", B),)]


@pytest.mark.parametrize(("size", "damage"), [(10, zeros), (9000, no_header)])
async def test_who_subscribes_to_a_job_on_a_damaged_page_is_told_so_and_the_others_go_on(
    tmp_path: Path, size: int, damage: Damage
) -> None:
    content = await made(tmp_path, size)
    address = damaged(tmp_path, content, place_of(content, 123), damage)
    async with asyncio.timeout(60), JobsService(address) as jobs, jobs.subscribe(A, "0290") as other:
        assert (await anext(other)).state is JobState.PENDING
        with pytest.raises(RecordDamaged, match="'0123'"):
            await anext(jobs.subscribe(A, "0123"))
        job = await jobs.accept(A, timeout=0)
        while job is not None and job.id != "0290":
            job = await jobs.accept(A, timeout=0)
        assert (await anext(other)).state is JobState.RUNNING
        assert nobody_was_restarted(jobs)


@pytest.mark.parametrize(("size", "damage"), [(10, zeros), (9000, no_header)])
async def test_jobs_that_are_read_together_with_damaged_ones_are_taken(
    tmp_path: Path, size: int, damage: Damage
) -> None:
    content = await made(tmp_path, size)
    address = damaged(tmp_path, content, place_of(content, 123), damage)
    ids = [f"{number:04}" for number in range(JOBS)]
    async with JobsService(address, supervise=False) as jobs:
        sound = {id for id in ids if await outcome(jobs, id)}
    async with JobsService(address, supervise=False) as jobs:
        running: list[RunningJob] = []
        while taken := await jobs.accept_many(A, 300, timeout=0):
            running += taken
        assert {job.id for job in running} == sound


def no_second_half(page: bytes) -> bytes:
    return page[: PAGE // 2] + random.Random(7).randbytes(PAGE // 2)


async def test_a_queue_with_a_page_of_noise_stops_no_other_type(tmp_path: Path) -> None:
    content = await made(tmp_path, 10)
    async with JobsService(f"lmdb:{tmp_path / 'made'}", supervise=False) as jobs:
        ready = jobs._access.keys(A).ready
    # In the middle of the queue, far from what else is there.
    places = [place for place in range(len(content)) if content.startswith(ready, place)]
    address = damaged(tmp_path, content, places[len(places) // 2], no_second_half)
    async with JobsService(address, settings=Settings(transaction_timeout=60)) as jobs:
        taken = 0
        with pytest.raises(StoreDamaged, match=r"^[^\n]*Restore a backup[^\n]*$"):  # noqa: PT012 - sooner or later
            while more := await jobs.accept_many(A, 10, timeout=0):
                taken += len(more)
        assert taken > 50
        for number in range(JOBS):
            job = await jobs.accept(B, timeout=0)
            assert job is not None, number
            await job.finish()
        await jobs.add(B, "new")
        assert nobody_was_restarted(jobs)
