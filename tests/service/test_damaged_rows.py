"""One damaged row of one type concerns what has to do with it; when it can be read again, all is caught up."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from jobs_service import JobsService, JobState, RunningJob, StoreDamaged
from jobs_service.layer import process_rows
from jobs_service.layer.keyspace import ALARM, Keyspace, TypeKeys
from jobs_service.sources import Sources
from jobs_service.store import Transaction, memory
from jobs_service.store.base import KeyValue
from jobs_service.store.memory import MemoryStore
from jobs_service.store.mvcc import View
from tests.service.test_damaged_pages import nobody_was_restarted
from tests.stores import settings_with
from tests.virtual_time import VirtualTimeLoop, in_virtual_time

DAMAGED: set[bytes] = set()
"""The keys that cannot be read."""


class DamagedView(View):
    """What a transaction reads from."""

    def get(self, key: bytes) -> bytes | None:
        fail_at(key)
        return super().get(key)

    def scan(self, begin: bytes, end: bytes, reverse: bool) -> Iterator[KeyValue]:
        for pair in super().scan(begin, end, reverse):
            fail_at(pair[0])
            yield pair


def fail_at(key: bytes) -> None:
    if key in DAMAGED:
        raise StoreDamaged("store memory: is damaged where this is stored")


@pytest.fixture(autouse=True)
def _damage(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(memory, "View", DamagedView)
    yield
    DAMAGED.clear()


def opened(**settings: float) -> JobsService:
    """A service in virtual time."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    sources = Sources(1, wall_time=loop.wall_time)
    chosen = settings_with(**settings)
    return JobsService(MemoryStore(settings=chosen, sources=sources), settings=chosen, sources=sources)


def now() -> float:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    return loop.wall_time()


async def keys_of(jobs: JobsService, type: str) -> TypeKeys:
    return Keyspace(await jobs.store.prefix()).of(type)


@pytest.mark.parametrize("row", ["asleep", "alarm"])
@in_virtual_time
async def test_sleeping_types_are_woken_although_one_of_them_cannot_be(row: str) -> None:
    async with opened(type_idle_after=5.0) as jobs:
        for type, delay in (("a", 100.0), ("b", 101.0)):
            await jobs.set_type_timeout(type, 60)
            await jobs.add(type, "later", run_at=now() + delay)
        await asyncio.sleep(60)
        keys = await keys_of(jobs, "a")
        DAMAGED.add(keys.asleep if row == "asleep" else await first_alarm(jobs))
        await asyncio.sleep(60)
        assert (await jobs.counts("b"))["b"].ready == 1
        assert nobody_was_restarted(jobs)
        DAMAGED.clear()
        await asyncio.sleep(60)
        assert (await jobs.counts("a"))["a"].ready == 1


async def first_alarm(jobs: JobsService) -> bytes:
    section = Keyspace(await jobs.store.prefix()).sections[ALARM]
    found = await jobs.store.read(
        lambda transaction: transaction.get_range(section + b"\x00", section + b"\xff", limit=1)
    )
    return found[0][0]


@in_virtual_time
async def test_no_job_is_set_aside_where_it_is_not_known_whether_its_type_is_followed() -> None:
    async with opened() as jobs:
        for type in ("a", "b"):
            await jobs.set_type_timeout(type, 60)
            await jobs.add(type, "1")
            await jobs.add(type, "2")
        running = await jobs.accept("a")
        assert running is not None
        keys = await keys_of(jobs, "a")
        DAMAGED.add(keys.followed)
        ends = await asyncio.gather(
            running.finish(), jobs.accept("a", timeout=0), jobs.accept("b", timeout=0), return_exceptions=True
        )
        assert [end.__class__ for end in ends[:2]] == [StoreDamaged, StoreDamaged]
        other = ends[2]
        assert not isinstance(other, BaseException)
        assert other is not None
        DAMAGED.clear()
        await running.finish()
        second = await jobs.accept("a", timeout=0)
        assert second is not None
        assert {running.id, second.id} == {"1", "2"}
        assert (await jobs.get("a", running.id)).state is JobState.FINISHED


@in_virtual_time
async def test_a_damaged_row_of_another_process_stops_no_heartbeat() -> None:
    async with opened() as jobs:

        @jobs.handler("a")
        async def run(job: RunningJob) -> None:
            """Never run."""

        keyspace = Keyspace(await jobs.store.prefix())
        other = process_rows._key(keyspace, process_rows.PROCESSES, "f" * 12)
        DAMAGED.add(other)
        await jobs.store.transact(lambda transaction: written(transaction, other))
        running = asyncio.create_task(jobs.run())
        heartbeats = set()
        for _ in range(3):
            await asyncio.sleep(40)
            [mine] = await jobs.store.read(lambda transaction: transaction.get_range(other[:-12], other, limit=1))
            heartbeats.add(mine)
        assert len(heartbeats) == 3
        running.cancel()
        await asyncio.wait([running])


async def written(transaction: Transaction, key: bytes) -> None:
    transaction.set(key, b"{}")
