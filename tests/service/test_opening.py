"""Opening and closing a service: addresses, stores passed in, the supervisor tree's shape, and nothing left behind."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from jobs_service import (
    JobNotFound,
    JobsError,
    JobsService,
    JobState,
    JobTransaction,
    NewJob,
    ServiceClosed,
    Settings,
    StoreError,
    SupervisorFailed,
)
from jobs_service.sources import Sources
from jobs_service.store import Store, open_address
from tests.service.support import (
    J1,
    T1,
    T2,
    accepted,
    busy,
    child_of_type,
    eventually,
    kill,
    listed,
    monitors_and_notifiers,
    node,
    running_children,
    state,
    waits,
)
from tests.stores import StoreKind


@pytest.fixture(autouse=True)
def no_store_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the environment of whoever runs the tests out of them."""
    monkeypatch.delenv("JOBS_SERVICE_STORE", raising=False)


@pytest.fixture
def nothing_left_behind() -> Iterator[None]:
    """Fail when a test leaves a thread or an open file behind."""
    threads = set(threading.enumerate())
    files = open_files()
    yield
    assert set(threading.enumerate()) - threads == set()
    assert open_files() - files == set()


def open_files() -> set[str]:
    """Return the regular files that the process has open."""
    found = set()
    for descriptor in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else []:
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:
            continue
        if target.startswith("/") and not target.startswith(("/dev/", "/proc/")):
            found.add(target)
    return found


def unopened(address: str) -> Store:
    """Return a store that is not open yet."""
    return open_address(address, Settings(), Sources())


# addresses


async def test_a_service_opens_the_store_that_its_address_names(address: str) -> None:
    async with JobsService(address) as jobs:
        assert isinstance(jobs, JobsService)
        assert jobs.store.is_open
        assert jobs.store.address == address
        await jobs.set_type_timeout(T1, 10)
        await jobs.add(T1, J1)
        assert await state(jobs) is JobState.PENDING
    assert not jobs.store.is_open


async def test_what_was_written_is_there_when_the_store_is_opened_again(store_kind: StoreKind, address: str) -> None:
    if not store_kind.persistent:
        pytest.skip("this store keeps nothing")
    async with JobsService(address) as jobs:
        await jobs.set_type_timeout(T1, 10)
        await jobs.add(T1, J1, "kept")
    async with JobsService(address) as jobs:
        assert await jobs.get_type_timeout(T1) == 10
        assert (await jobs.get(T1, J1)).data == "kept"
        worker = await accepted(jobs)
        assert (await worker.finish()).state is JobState.FINISHED


async def test_a_service_can_be_entered_again_after_it_was_left(address: str) -> None:
    jobs = JobsService(address)
    for _ in range(2):
        async with jobs:
            await jobs.set_type_timeout(T1, 10)
            assert await jobs.types() == [T1]


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


async def test_an_address_counts_more_than_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBS_SERVICE_STORE", f"lmdb:{tmp_path / 'here'}")
    async with JobsService("memory:") as jobs:
        assert jobs.store.address == "memory:"
    assert not (tmp_path / "here").exists()


async def test_without_anything_the_store_is_in_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with JobsService() as jobs:
        await jobs.set_type_timeout(T1, 10)
    assert (tmp_path / "jobs-data").exists()


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


async def test_operations_outside_of_the_service_are_errors(address: str) -> None:
    jobs = JobsService(address)
    with pytest.raises(JobsError):
        await jobs.add(T1, J1)
    async with jobs:
        await jobs.set_type_timeout(T1, 10)
    with pytest.raises(JobsError):
        await jobs.add(T1, J1)
    with pytest.raises(JobsError):
        await jobs.accept(T1)


# several services


async def test_several_services_live_on_one_loop(tmp_path: Path) -> None:
    async with (
        JobsService("memory:") as first,
        JobsService("memory:") as second,
        JobsService(f"lmdb:{tmp_path / 'a'}") as third,
        JobsService(f"lmdb:{tmp_path / 'b'}") as fourth,
    ):
        for number, jobs in enumerate((first, second, third, fourth)):
            await jobs.set_type_timeout(T1, 10)
            await jobs.add(T1, J1, number)
        for number, jobs in enumerate((first, second, third, fourth)):
            assert (await jobs.get(T1, J1)).data == number


@pytest.mark.usefixtures("nothing_left_behind")
async def test_opening_an_embedded_store_twice_in_one_process_is_an_error_and_disturbs_nobody(tmp_path: Path) -> None:
    address = f"lmdb:{tmp_path / 'store'}"
    async with JobsService(address) as first:
        await first.set_type_timeout(T1, 10)
        with pytest.raises(StoreError) as caught:
            async with JobsService(address):
                pass
        assert str(tmp_path / "store") in str(caught.value)
        assert "\n" not in str(caught.value)
        await first.add(T1, J1)
    async with JobsService(address) as second:
        assert await state(second) is JobState.PENDING


async def test_a_service_wakes_and_tells_another_on_the_same_store(jobs: JobsService) -> None:
    async with JobsService(jobs.store) as other:
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(other.accept(T1))
            await waits(other)
            await jobs.add(T1, J1)
        worker = waiting.result()
        assert worker is not None
        async with jobs.subscribe(T1, J1) as events:
            assert (await anext(events)).state is JobState.RUNNING
            await worker.finish("result")
            assert (await anext(events)).data == "result"


# a store passed in


async def test_a_store_that_is_open_already_stays_open(address: str) -> None:
    store = unopened(address)
    await store.open()
    async with JobsService(store) as jobs:
        assert jobs.store is store
        await jobs.set_type_timeout(T1, 10)
        await jobs.add(T1, J1)
    assert store.is_open
    async with JobsService(store) as jobs:
        assert await state(jobs) is JobState.PENDING
    assert store.is_open
    await store.close()


async def test_a_store_that_is_not_open_is_opened_and_closed(address: str) -> None:
    store = unopened(address)
    async with JobsService(store) as jobs:
        assert jobs.store is store
        assert store.is_open
        await jobs.set_type_timeout(T1, 10)
    assert not store.is_open


async def test_services_on_one_store_see_the_same_jobs(jobs: JobsService) -> None:
    async with JobsService(jobs.store, supervise=False) as other:
        await other.add(T1, J1)
        assert await state(jobs) is JobState.PENDING
    assert await state(jobs) is JobState.PENDING


# without a supervisor tree


@pytest.mark.usefixtures("nothing_left_behind")
async def test_without_supervision_jobs_can_be_added_and_run_by_hand(quiet: JobsService) -> None:
    await quiet.add(T1, J1)
    worker = await quiet.accept(T1)
    assert worker is not None
    assert (await worker.finish()).state is JobState.FINISHED
    await quiet.stop_and_remove(T1, J1, timeout=1)
    assert await listed(quiet) == []


async def test_without_supervision_there_is_no_tree(quiet: JobsService) -> None:
    before = {task.get_name() for task in asyncio.all_tasks()}
    async with JobsService(quiet.store) as jobs:
        supervised = {task.get_name() for task in asyncio.all_tasks()} - before
        assert jobs.supervision()["children"]
    assert supervised
    async with JobsService(quiet.store, supervise=False) as jobs:
        assert jobs.supervision() == {}
        assert not supervised & {task.get_name() for task in asyncio.all_tasks()}


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


async def test_the_tree_is_plain_data(jobs: JobsService) -> None:
    tree = jobs.supervision()
    assert json.loads(json.dumps(tree)) == tree


async def test_types_with_running_jobs_are_watched_over_as_soon_as_the_service_is_open(quiet: JobsService) -> None:
    for type in (T1, T2):
        await quiet.add(type, J1)
        await accepted(quiet, type)
    async with JobsService(quiet.store) as jobs:
        assert monitors_and_notifiers(jobs) == (2, 0)


async def test_a_type_is_watched_over_while_another_service_works_with_it(quiet: JobsService) -> None:
    async with JobsService(quiet.store, settings=Settings(type_idle_after=0.05)) as jobs:

        async def monitors_are(expected: int) -> bool:
            return running_children(jobs, "monitors") == expected

        await quiet.set_type_timeout("t3", 10)
        assert await monitors_are(0)
        await quiet.add("t3", J1)
        worker = await accepted(quiet, "t3")
        await eventually(lambda: monitors_are(1))
        await worker.update()
        await worker.finish()
        await eventually(lambda: monitors_are(0))


# leaving


@pytest.mark.usefixtures("nothing_left_behind")
async def test_leaving_stops_every_task_thread_and_file(address: str) -> None:
    tasks = asyncio.all_tasks()
    async with JobsService(address) as jobs:
        await jobs.set_type_timeout(T1, 10)
        await jobs.add(T1, J1)
        assert await jobs.accept(T1) is not None
        async with jobs.subscribe(T1, J1) as events:
            await anext(events)
        assert asyncio.all_tasks() > tasks
    assert asyncio.all_tasks() == tasks


@pytest.mark.usefixtures("nothing_left_behind")
async def test_leaving_by_an_error_passes_it_on_and_stops_everything(address: str) -> None:
    tasks = asyncio.all_tasks()
    jobs = JobsService(address)
    with pytest.raises(LookupError, match="the application's own"):
        async with jobs:
            raise LookupError("the application's own")
    assert not jobs.store.is_open
    assert asyncio.all_tasks() == tasks


@pytest.mark.usefixtures("nothing_left_behind")
async def test_leaving_by_cancellation_stops_everything(address: str) -> None:
    tasks = asyncio.all_tasks()
    jobs = JobsService(address)
    entered = asyncio.Event()

    async def use() -> None:
        async with jobs:
            await jobs.set_type_timeout(T1, 10)
            entered.set()
            await jobs.accept(T1)

    task = asyncio.create_task(use())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not jobs.store.is_open
    assert asyncio.all_tasks() == tasks


@pytest.mark.usefixtures("nothing_left_behind")
@pytest.mark.parametrize("steps", range(12))
async def test_cancellation_at_any_moment_of_entering_and_leaving_leaves_nothing_behind(
    address: str, steps: int
) -> None:
    tasks = asyncio.all_tasks()
    jobs = JobsService(address)

    async def use() -> None:
        async with jobs:
            pass

    task = asyncio.create_task(use())
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert not task.cancelled() or not is_open(jobs)
    assert not is_open(jobs)
    assert asyncio.all_tasks() == tasks


@pytest.mark.usefixtures("nothing_left_behind")
@pytest.mark.parametrize("own_store", [True, False])
async def test_leaving_refuses_what_other_tasks_begin_meanwhile_and_ends_what_they_have_begun(
    address: str, own_store: bool
) -> None:
    answered: list[str] = []
    refusals: list[JobsError] = []

    async def add_on_and_on(jobs: JobsService, name: str) -> None:
        for number in count():
            await jobs.add(T1, f"{name} {number}")
            answered.append(f"{name} {number}")

    async def add_all(jobs: JobsService) -> None:
        await jobs.add_many(T1, (NewJob(f"many {number}") for number in count()))

    async def wait_for_a_job(jobs: JobsService) -> None:
        await jobs.accept(T2)

    async def refused(work: Coroutine[Any, Any, None]) -> None:
        with pytest.raises(JobsError) as caught:
            await work
        refusals.append(caught.value)

    async with asyncio.timeout(30), AsyncExitStack() as stack, asyncio.TaskGroup() as others:
        keeper = JobsService(address, supervise=False)
        if not own_store:
            await stack.enter_async_context(keeper)
        async with JobsService(address if own_store else keeper.store) as jobs:
            await jobs.set_type_timeout(T1, 10)
            await jobs.set_type_timeout(T2, 10)
            for name in ("a", "b", "c"):
                others.create_task(refused(add_on_and_on(jobs, name)))
            others.create_task(refused(add_all(jobs)))
            for _ in range(3):
                others.create_task(refused(wait_for_a_job(jobs)))
            await waits(jobs, 3)

            async def all_have_begun(jobs: JobsService = jobs) -> bool:
                begun = {str(job.id).split()[0] for job in await listed(jobs, T1)}
                return begun == {"a", "b", "c", "many"} and bool(answered)

            await eventually(all_have_begun)
    assert len(refusals) == 7
    assert {*map(type, refusals)} == {ServiceClosed}
    if address != "memory:":
        async with JobsService(address, supervise=False) as jobs:
            for id in answered:
                assert (await jobs.get(T1, id)).id == id


def is_open(jobs: JobsService) -> bool:
    """Whether the service's store is open; it may have none when it was never entered."""
    try:
        return jobs.store.is_open
    except JobsError:
        return False


@pytest.mark.usefixtures("nothing_left_behind")
async def test_leaving_in_a_canceled_scope_of_anyio_stops_everything(address: str) -> None:
    jobs = JobsService(address)
    with anyio.CancelScope() as scope:
        async with jobs:
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert not jobs.store.is_open


async def test_leaving_lets_running_transactions_end(jobs: JobsService) -> None:
    async def write(tx: JobTransaction) -> None:
        for number in range(200):
            await tx.add(T1, str(number))

    async with JobsService(jobs.store) as leaving:
        writing = asyncio.create_task(leaving.transact(write))
        await asyncio.sleep(0)
    await writing
    assert len(await listed(jobs, T1)) == 200


async def test_an_accept_that_waits_while_the_service_leaves_ends_with_an_error(address: str) -> None:
    async with JobsService(address) as jobs:
        await jobs.set_type_timeout(T1, 10)
        waiting = asyncio.create_task(jobs.accept(T1))
        await waits(jobs)
    with pytest.raises(JobsError):
        await waiting


async def test_a_type_server_that_keeps_dying_fails_the_service_and_says_why(address: str) -> None:
    settings = Settings(max_restarts=1, restart_period=60)

    async def use() -> None:
        async with JobsService(address, settings=settings) as jobs:
            for restarts in range(2):

                async def server_runs(restarts: int = restarts) -> bool:
                    server = node(jobs, "type server")
                    return (server["restarts"], server["state"]) == (restarts, "running")

                await eventually(server_runs)
                kill("type server")
            await asyncio.Event().wait()

    with pytest.raises(SupervisorFailed) as caught:
        await use()
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is not None


# fixtures


@pytest.fixture
async def from_a_fixture(address: str) -> AsyncIterator[JobsService]:
    """A service entered in one task and left in another, as pytest-asyncio does it."""
    entered_in = asyncio.current_task()
    async with JobsService(address) as service:
        await service.set_type_timeout(T1, 10)
        yield service
    assert asyncio.current_task() is not entered_in
    assert not service.store.is_open


async def test_a_service_can_be_entered_in_one_task_and_left_in_another(from_a_fixture: JobsService) -> None:
    await from_a_fixture.add(T1, J1)
    async with from_a_fixture.subscribe(T1, J1) as events:
        assert (await anext(events)).state is JobState.PENDING
        await from_a_fixture.remove(T1, J1)
        assert (await anext(events)).state is JobState.REMOVED
    with pytest.raises(JobNotFound):
        await from_a_fixture.get(T1, J1)


def test_a_service_can_be_used_on_one_loop_after_the_other(store_kind: StoreKind, address: str) -> None:
    async def use() -> None:
        async with JobsService(address) as jobs:
            await jobs.set_type_timeout(T1, 10)
            await jobs.add(T1, J1, if_exists="ignore")
            assert await state(jobs) is JobState.PENDING

    for _ in range(2):
        asyncio.run(use())


async def test_logs_name_the_embedded_store_by_its_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with capture_logs() as logged:
        async with JobsService("lmdb:data", supervise=False) as jobs:
            assert jobs.store.address == "lmdb:data"
    named = {entry["event"]: entry["store"] for entry in logged if "store" in entry}
    assert named == dict.fromkeys(["service_opened", "service_closed"], f"lmdb:{tmp_path / 'data'}")
