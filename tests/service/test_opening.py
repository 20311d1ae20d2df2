"""Opening and closing a service: addresses, stores passed in, the supervisor tree's shape, and nothing left behind."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from jobs_service import JobsError, JobsService, JobState, Settings, StoreError
from jobs_service.sources import Sources
from jobs_service.store import Store, open_address
from tests.service.support import J1, T1, T2, accepted, busy, child_of_type, monitors_and_notifiers, state


@pytest.fixture(autouse=True)
def no_store_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the environment of whoever runs the tests out of them."""
    monkeypatch.delenv("JOBS_SERVICE_STORE", raising=False)


def unopened(address: str) -> Store:
    """Return a store that is not open yet."""
    return open_address(address, Settings(), Sources())


# addresses


@pytest.mark.parametrize("first_to_leave", [0, 1, 2])
async def test_services_that_share_a_store_may_be_left_in_any_order(address: str, first_to_leave: int) -> None:
    first = JobsService(address)
    others = [JobsService(first.store) for _ in range(2)]
    services = [first, *others]
    # At once: one of them opens the store, the others wait for that.
    await asyncio.gather(*[each.__aenter__() for each in services])
    await first.set_type_timeout(T1, 10)
    order = services[first_to_leave:] + services[:first_to_leave]
    for place, each in enumerate(order):
        await each.__aexit__(None, None, None)
        for other in order[place + 1 :]:
            await other.add(T1, f"{place}", if_exists="ignore")
            assert (await other.get(T1, f"{place}")).state is JobState.PENDING
    assert not first.store.is_open
    async with others[0]:
        assert others[0].store.is_open
    assert not first.store.is_open


async def test_a_service_that_cannot_open_the_store_leaves_it_to_the_others(address: str) -> None:
    first = JobsService(address)
    async with first:
        second = JobsService(first.store)
        async with second:
            with pytest.raises(JobsError, match="open already"):
                await second.__aenter__()
        assert first.store.is_open
    assert not first.store.is_open


async def test_an_embedded_store_is_made_when_it_is_missing(tmp_path: Path) -> None:
    directory = tmp_path / "deep" / "down"
    async with JobsService(f"lmdb:{directory}") as jobs:
        await jobs.set_type_timeout(T1, 10)
    assert list(directory.iterdir())


async def test_without_an_address_the_environment_names_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOBS_SERVICE_STORE", f"lmdb:{tmp_path / 'here'}")
    async with JobsService() as jobs:
        assert jobs.store.address == f"lmdb:{tmp_path / 'here'}"
    assert (tmp_path / "here").exists()


@pytest.mark.parametrize("address", ["", "nosuch:", "lmdb:", "lmdb", "memory:x", "redis://localhost", "/tmp/x"])
async def test_an_address_that_names_no_store_is_an_error_that_names_it(address: str) -> None:
    with pytest.raises(StoreError) as caught:
        async with JobsService(address):
            pass
    assert repr(address) in str(caught.value)


@pytest.mark.usefixtures("nothing_left_behind")
async def test_a_store_that_cannot_be_opened_is_an_error_and_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(StoreError) as caught:
        async with JobsService(f"lmdb:{tmp_path / 'file'}"):
            pass
    assert str(tmp_path / "file") in str(caught.value)
    assert "\n" not in str(caught.value)


# several services


@pytest.mark.usefixtures("nothing_left_behind")
async def test_services_with_one_address_share_an_embedded_store(tmp_path: Path) -> None:
    address = f"lmdb:{tmp_path / 'store'}"
    async with JobsService(address) as first:
        await first.set_type_timeout(T1, 10)
        async with JobsService(address) as second:
            waiting = asyncio.create_task(first.accept(T1))
            await second.add(T1, J1)
            taken = await waiting
            assert taken is not None
            assert await state(second) is JobState.RUNNING
        await taken.release()
    async with JobsService(address) as third:
        assert await state(third) is JobState.PENDING


@pytest.mark.usefixtures("nothing_left_behind")
async def test_services_of_two_loops_share_an_embedded_store(tmp_path: Path) -> None:
    address, most = f"lmdb:{tmp_path / 'store'}", 50

    async def add(first: int) -> None:
        async with JobsService(address) as jobs:
            await jobs.set_type_timeout(T1, 10)
            for number in range(most):
                await jobs.add(T1, f"{first + number}")

    async with JobsService(address) as jobs:
        await asyncio.gather(
            asyncio.to_thread(asyncio.run, add(0)), add_here(jobs, most), asyncio.to_thread(asyncio.run, add(2 * most))
        )
        assert sorted(int(str(job.id)) for job in [job async for job in jobs.list(T1)]) == [*range(3 * most)]


async def add_here(jobs: JobsService, most: int) -> None:
    """Add the jobs in the middle."""
    await jobs.set_type_timeout(T1, 10)
    for number in range(most):
        await jobs.add(T1, f"{most + number}")


@pytest.mark.usefixtures("nothing_left_behind")
async def test_services_of_one_process_must_agree_whether_their_store_is_durable(tmp_path: Path) -> None:
    address = f"lmdb:{tmp_path / 'store'}"
    async with JobsService(address, settings=Settings(durable=False)):
        with pytest.raises(StoreError, match="is open in this process already with durable=False"):
            await JobsService(address).__aenter__()
        larger = Settings(durable=False, lmdb_map_size=4 << 30)
        async with JobsService(address, settings=larger) as jobs:
            await jobs.set_type_timeout(T1, 10)


# a store passed in


async def test_a_store_that_is_not_open_is_opened_and_closed(address: str) -> None:
    store = unopened(address)
    async with JobsService(store) as jobs:
        assert jobs.store is store
        assert store.is_open
        await jobs.set_type_timeout(T1, 10)
    assert not store.is_open


# the tree


async def test_the_tree_has_the_shape_that_was_designed(jobs: JobsService) -> None:
    async with busy(jobs, T1, T2):
        root = jobs.supervision()
        own = (root["name"], root["kind"], root["state"], root["restarts"])
        assert own == ("JobsService", "supervisor", "running", 0)
        assert [(child["name"], child["kind"], child["state"], child["restarts"]) for child in root["children"]] == [
            ("keyspace", "actor", "running", 0),
            ("monitors", "dynamic", "running", 0),
            ("notifiers", "dynamic", "running", 0),
            ("type server", "actor", "running", 0),
            *([("process monitor", "actor", "running", 0)] if jobs.store.instance else []),
        ]
        for name in ("monitors", "notifiers"):
            for type in (T1, T2):
                child = child_of_type(jobs, name, type)
                state = child["kind"], child["state"], child["restarts"], child["children"]
                assert state == ("actor", "running", 0, [])
                assert 0 <= child["seconds"] <= jobs.supervision()["seconds"]  # read later than the child's


async def test_types_with_running_jobs_are_watched_over_as_soon_as_the_service_is_open(quiet: JobsService) -> None:
    for type in (T1, T2):
        await quiet.add(type, J1)
        await accepted(quiet, type)
    async with JobsService(quiet.store) as jobs:
        assert monitors_and_notifiers(jobs) == (2, 0)
