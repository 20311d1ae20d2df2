"""A damaged page of an index or of what monitors read: lost jobs of other types, and other duties, are in time."""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import fdb.tuple
import pytest

from jobs_service import JobNotFound, JobsService, JobState, JobType, NewJob, RunningJob, Settings, StoreDamaged
from jobs_service.layer import awake_types
from jobs_service.layer.key_parts import TIME_CODE
from jobs_service.layer.keyspace import ALARM, AWAKE, Keyspace
from jobs_service.store import Transaction
from tests.service.test_damaged_pages import LEAF, PAGE, Damage, damaged, no_header, nobody_was_restarted, zeros

MANY = 300
"""Jobs of a type, so many that their entries in an index take several pages."""
SHORT = 0.5
"""The activity timeout of the type whose lost job must be found, seconds."""
OFTEN = Settings(type_check_period=0.1, process_check_period=0.05)
KEYS = Keyspace(fdb.tuple.pack(("jobs_service",)))


@asynccontextmanager
async def store_at(path: Path) -> AsyncIterator[JobsService]:
    """A store without supervision; it is compact in `path / compact` when it is left."""
    async with JobsService(f"lmdb:{path / 'made'}", supervise=False) as jobs:
        yield jobs
        await jobs.store.backup(str(path / "compact"))


async def add_and_accept(jobs: JobsService, type: JobType, count: int, timeout: float) -> None:
    await jobs.set_type_timeout(type, timeout)
    await jobs.add_many(type, [NewJob(f"{number:04}") for number in range(count)])
    taken = 0
    while taken < count:
        taken += len(await jobs.accept_many(type, 100))


async def forget_which_types_are_awake(jobs: JobsService) -> None:
    """Take the marks away, as in a store that was restored in part."""

    async def forget(tx: Transaction) -> None:
        tx.clear_range(KEYS.sections[AWAKE] + b"\x00", KEYS.sections[AWAKE] + b"\xff")

    await jobs.store.transact(forget)


async def sleep_all(jobs: JobsService) -> None:
    """Have all types that are awake settle."""

    async def settle(tx: Transaction) -> None:
        for type in (await awake_types.awake_types(tx, KEYS, None, 2 * MANY)).types:
            assert await awake_types.settle(tx, KEYS, KEYS.of_packed(type), time.time() + 1)

    await jobs.store.transact(settle)


def with_damage(path: Path, section: bytes, which: Callable[[list[int]], int], damage: Damage = zeros) -> str:
    """Return the address of a copy one of whose pages with keys of a section is damaged.

    LMDB ends the process where it comes to a page of zeros on its way from the page before.
    """
    content = (path / "compact").read_bytes()
    return damaged(path, content, which(places_of(section, content)), damage)


def places_of(section: bytes, content: bytes | bytearray) -> list[int]:
    """Return where a file has keys that begin so: not in what was on a page before, and is left in its unused part."""
    found = [found.start() for found in re.finditer(re.escape(section), content)]
    return [place for place in found if place % PAGE >= upper_of(content, place - place % PAGE)]


def upper_of(content: bytes | bytearray, page: int) -> int:
    """Return from where on a page has content."""
    flags, _, upper = struct.unpack_from("<HHH", content, page + 10)
    return int(upper) if flags == LEAF else PAGE


async def until_pending(jobs: JobsService, type: JobType, id: str) -> None:
    async with asyncio.timeout(60), jobs.subscribe(type, id) as events:
        async for event in events:
            if event.state is JobState.PENDING:
                return


async def test_lost_jobs_are_found_where_the_running_jobs_of_another_type_are_damaged(tmp_path: Path) -> None:
    async with store_at(tmp_path) as jobs:
        # Before those of "a" come others: the first page of its running jobs has nothing else.
        for type in ("0", "a"):
            await add_and_accept(jobs, type, MANY, 600)
        await add_and_accept(jobs, "b", 1, SHORT)
    address = with_damage(tmp_path, KEYS.of("a").activity, lambda places: min(places, key=_key_at(tmp_path)))
    async with JobsService(address, settings=OFTEN) as jobs:
        await until_pending(jobs, "b", "0000")
        # Also when it has been looked for types without a mark, which reads the damaged page.
        await asyncio.sleep(3 * OFTEN.type_check_period)
        await add_and_accept(jobs, "c", 1, SHORT)
        await until_pending(jobs, "c", "0000")
        assert nobody_was_restarted(jobs)


async def test_running_jobs_without_a_mark_are_found_behind_a_damaged_page_of_running_jobs(tmp_path: Path) -> None:
    async with store_at(tmp_path) as jobs:
        for type in ("0", "a"):
            await add_and_accept(jobs, type, MANY, 600)
        await add_and_accept(jobs, "b", 1, SHORT)
        await forget_which_types_are_awake(jobs)
    running = KEYS.of("a").activity
    address = with_damage(tmp_path, running, lambda places: min(places, key=_key_at(tmp_path)), no_header)
    async with JobsService(address, settings=OFTEN) as jobs:
        await until_pending(jobs, "b", "0000")
        assert nobody_was_restarted(jobs)


@pytest.mark.parametrize(("rows", "damage"), [("awake", no_header), ("watch_activity", zeros)])
async def test_lost_jobs_are_found_where_the_marks_or_the_activity_of_others_are_damaged(
    tmp_path: Path, rows: str, damage: Damage
) -> None:
    async with store_at(tmp_path) as jobs:
        for number in range(MANY):
            await add_and_accept(jobs, f"a{number:03}", 1, 600)
        await add_and_accept(jobs, "z", 1, SHORT)
    address = with_damage(tmp_path, getattr(KEYS.of("a150"), rows), lambda places: places[0], damage)
    async with JobsService(address, settings=OFTEN) as jobs:
        await until_pending(jobs, "z", "0000")
        assert nobody_was_restarted(jobs)


async def test_lost_and_scheduled_jobs_are_found_where_the_alarms_of_other_types_are_damaged(tmp_path: Path) -> None:
    async with store_at(tmp_path) as jobs:
        first = "a000"
        for number in range(MANY):
            await jobs.set_type_timeout(f"a{number:03}", 600)
            if number:
                await jobs.add(f"a{number:03}", "later", run_at=4e9)
        await jobs.add(first, "later", run_at=time.time() + 4)  # last: all that came before may have taken seconds
        await sleep_all(jobs)
        await add_and_accept(jobs, "z", 1, SHORT)
    # The first alarms: those that are looked at first.
    alarms = KEYS.sections[ALARM] + TIME_CODE
    address = with_damage(tmp_path, alarms, lambda places: min(places, key=_key_at(tmp_path)), no_header)
    async with JobsService(address, settings=OFTEN) as jobs:
        await until_pending(jobs, "z", "0000")
        async with asyncio.timeout(60):
            while not (await jobs.counts(first))[first].ready:  # noqa: ASYNC110 - nothing tells it
                await asyncio.sleep(0.05)
        assert nobody_was_restarted(jobs)


@pytest.mark.parametrize("index", ["scheduled", "expiring"])
async def test_lost_jobs_are_found_where_scheduled_or_expiring_jobs_of_their_type_are_damaged(
    tmp_path: Path, index: str
) -> None:
    async with store_at(tmp_path) as jobs:
        # Before those of "b" come those of "a": the first page of the index of "b" has nothing else.
        for type in ("a", "b"):
            await jobs.set_retention(type, keep=86_400)
            await add_and_accept(jobs, type, 1, SHORT)
            new = [NewJob(f"s{number:04}", run_at=4e9 if index == "scheduled" else None) for number in range(MANY)]
            await jobs.add_many(type, new)
            while index == "expiring" and (taken := await jobs.accept_many(type, 100, timeout=0)):
                await asyncio.gather(*[job.finish() for job in taken])
    address = with_damage(tmp_path, getattr(KEYS.of("b"), index), lambda places: min(places, key=_key_at(tmp_path)))
    async with JobsService(address, settings=OFTEN) as jobs:
        await until_pending(jobs, "b", "0000")
        assert nobody_was_restarted(jobs)


async def test_a_job_is_not_half_enqueued_where_it_is_not_known_what_is_secret(tmp_path: Path) -> None:
    async with store_at(tmp_path) as jobs:
        for number in range(MANY):
            await jobs.set_type_timeout(f"a{number:03}", 600)
            await jobs.set_redaction(f"a{number:03}", ["data.password"])
    address = with_damage(tmp_path, KEYS.of("a150").redaction, lambda places: places[0], no_header)
    async with JobsService(address, settings=OFTEN) as jobs:

        @jobs.handler("a150", redact=["data.password"])
        async def log_in(job: RunningJob) -> None:
            pass

        beside = asyncio.create_task(jobs.add("a000", "beside"))
        with pytest.raises(StoreDamaged):
            await jobs.enqueue(log_in, id="mine")
        await beside
        with pytest.raises(JobNotFound):
            await jobs.get("a150", "mine")


def _key_at(path: Path) -> Callable[[int], bytes]:
    content = (path / "compact").read_bytes()
    return lambda place: content[place : place + 40]


KILLED = """
import asyncio, sys
from jobs_service import JobsService, NewJob

async def accept(type, count):
    jobs = await JobsService(sys.argv[1], supervise=False).__aenter__()
    await jobs.set_type_timeout(type, 600)
    await jobs.add_many(type, [NewJob(f"{number:04}") for number in range(count)])
    while count:
        count -= len(await jobs.accept_many(type, 100))
    return jobs

async def main():
    # Whoever held these has ended: they wait for their timeout. Those of "aa" keep the pages of "a" and "b" apart.
    for type in ("a", "aa"):
        await (await accept(type, 300)).__aexit__(None, None, None)
    # Their timeouts are what comes before all running jobs.
    async with JobsService(sys.argv[1], supervise=False) as jobs:
        for number in range(300):
            await jobs.set_type_timeout(f"z{number:03}", 600)
    jobs = await accept("b", 3)
    print("accepted", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def kill_a_worker_on(address: str) -> None:
    """Have a process accept jobs on a store, and die."""
    command = [sys.executable, "-c", KILLED, address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == "accepted\n"
        finally:
            child.send_signal(signal.SIGKILL)


async def test_jobs_of_a_dead_process_are_found_at_once_where_those_of_another_type_are_damaged(tmp_path: Path) -> None:
    address = f"lmdb:{tmp_path / 'made'}"
    await asyncio.to_thread(kill_a_worker_on, address)
    async with store_at(tmp_path):
        pass
    # The first page of all running jobs.
    with_damage(tmp_path, KEYS.of("a").activity, lambda places: min(places, key=_key_at(tmp_path)), no_header)
    # Where the store was: its directory tells which processes are dead.
    shutil.copy(tmp_path / "damaged" / "data.mdb", tmp_path / "made" / "data.mdb")
    async with JobsService(address, settings=OFTEN) as jobs:
        for number in range(3):
            await until_pending(jobs, "b", f"{number:04}")
        assert nobody_was_restarted(jobs)
