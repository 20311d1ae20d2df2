"""Several processes on one store: each job runs once, none is lost, and word gets around."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs_service import JobEvent, JobsService, JobState, Settings
from jobs_service.store import Transaction
from tests.checker import assert_sound
from tests.stores import EVERY_LASTING_STORE, StoreKind, one_of
from tests.system.forking import ForkServer
from tests.system.workloads import KIND, effect_key, finish_with_effect

PROCESSES = 4
KILLS = 5
MOST_KILLS = 50
SECONDS = 2.0
"""How long each process adds jobs: thousands of them come together."""
PATIENCE = 60.0
"""Seconds after which what should have happened at once has not."""

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def address(tmp_path: Path) -> str:
    """The address of the store that all processes share."""
    return f"lmdb:{tmp_path / 'store'}"


def journaled(directory: Path) -> dict[str, list[str]]:
    """Return what all processes wrote into their journals: ids by what was said of them."""
    said: dict[str, list[str]] = {}
    for path in directory.glob("journal*"):
        for line in path.read_text().splitlines():
            what, id = json.loads(line)
            said.setdefault(what, []).append(id)
    return said


async def effects(jobs: JobsService) -> Counter[str]:
    """Return how often each job's work took effect."""

    async def read(tr: Transaction) -> Counter[str]:
        head = effect_key("")
        pairs = await tr.get_range(head, effect_key("\U0010ffff"))
        return Counter({key[len(head) :].decode(): int.from_bytes(value, "little") for key, value in pairs})

    return await jobs.store.read(read)


async def ended(jobs: JobsService) -> set[str]:
    """Return the ids of all jobs, which must have finished."""
    found = set()
    async for job in jobs.list(KIND):
        assert (job.state, job.data) == (JobState.FINISHED, "done")
        found.add(str(job.id))
    return found


def test_of_the_jobs_that_four_processes_add_and_run_at_once_each_runs_once(
    forks: ForkServer, address: str, tmp_path: Path
) -> None:
    pids = [
        forks.start(
            "add_and_run", address=address, journal=str(tmp_path / f"journal {n}"), name=f"p{n}", seconds=SECONDS
        )
        for n in range(PROCESSES)
    ]
    assert [forks.wait(pid) for pid in pids] == [0] * PROCESSES

    async def check() -> None:
        async with JobsService(address, supervise=False) as jobs:
            said = journaled(tmp_path)
            added = set(said["added"])
            print(f"{len(added)} jobs")
            assert len(added) == len(said["added"]) > 50
            assert await ended(jobs) == added
            assert await effects(jobs) == Counter(added)
            assert Counter(said["accepted"]) == Counter(said["ran"]) == Counter(added)
            assert "refused" not in said
            await assert_sound(jobs.store)

    asyncio.run(check())


shared_kind = one_of(EVERY_LASTING_STORE)


def test_the_jobs_of_workers_that_are_killed_run_again_and_take_effect_once(
    forks: ForkServer, shared_kind: StoreKind, tmp_path: Path
) -> None:
    address = shared_kind.address_in(tmp_path)
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    choose = random.Random(seed)

    def start(number: int) -> int:
        journal = str(tmp_path / f"journal {number}")
        return forks.start("add_and_run_until_killed", address=address, journal=journal, name=f"p{number}")

    pids = [start(number) for number in range(PROCESSES)]
    kill = 0
    # On a slow machine many are killed while they have no job, or before they have written down that they have one.
    while kill < KILLS or (
        kill < MOST_KILLS and max(Counter(journaled(tmp_path).get("accepted", [])).values(), default=1) == 1
    ):
        time.sleep(1.2)  # longer than a lost job's timeout, so that it comes back while others are killed
        victim = choose.randrange(PROCESSES)
        forks.kill(pids[victim])
        pids[victim] = start(PROCESSES + kill)
        kill += 1
    for pid in pids:
        forks.kill(pid)

    journals = list(tmp_path.glob("journal*"))
    taken: list[str] = []

    async def work_off() -> None:
        async with JobsService(address) as jobs:
            async with asyncio.timeout(PATIENCE):
                while await jobs.pending_count(KIND) or await jobs.active_ids(KIND):
                    job = await jobs.accept(KIND, timeout=1)
                    if job is not None:
                        taken.append(str(job.id))
                        await finish_with_effect(jobs, job, "done")
            said = journaled(tmp_path)
            found = await ended(jobs)
            # A job may be there without its journal saying so: its process was killed before it could.
            assert set(said["added"]) <= found
            assert len(found) <= len(said["added"]) + len(journals)
            assert await effects(jobs) == Counter(found)
            assert max(Counter(said["ran"]).values()) == 1
            again = [id for id, times in Counter(said["accepted"] + taken).items() if times > 1]
            print(f"{len(found)} jobs, {len(again)} of them accepted more than once")
            assert again
            await assert_sound(jobs.store)

    asyncio.run(work_off())


@pytest.fixture
def elsewhere(forks: ForkServer, address: str) -> Iterator[None]:
    """Another process that runs the jobs."""
    pid = forks.start("serve", address=address)
    yield
    forks.kill(pid)


def service(address: str) -> JobsService:
    """Return a service that hears of nothing but by watches: its next look at anything else is an hour away."""
    return JobsService(address, settings=Settings(type_check_period=3600, notify_holdoff=0.001))


@pytest.mark.usefixtures("elsewhere")
async def test_subscribers_are_told_what_happens_in_another_process_in_order_and_to_the_end(address: str) -> None:
    updates = 20
    async with service(address) as jobs, asyncio.timeout(PATIENCE):
        await jobs.set_type_timeout(KIND, 600)
        history: list[tuple[JobState, object]] = [(JobState.PENDING, updates), (JobState.RUNNING, updates)]
        history += [(JobState.RUNNING, number) for number in range(updates)] + [(JobState.FINISHED, "end")]
        for round in range(10):
            await jobs.add(KIND, f"{round}", updates)
            seen = [event async for event in jobs.subscribe(KIND, f"{round}")]
            assert in_order(history, seen)
            assert seen[-1].state is JobState.FINISHED
            assert len(seen) > 2


def in_order(history: list[tuple[JobState, object]], seen: list[JobEvent]) -> bool:
    """Whether the events are part of the history, in its order, none of them twice, with growing seqs."""
    rest = iter(history)
    seqs = [event.seq or b"" for event in seen]
    return all((event.state, event.data) in rest for event in seen) and seqs == sorted(set(seqs))
