"""The plain methods are those of the asyncio service, with its arguments, results and errors."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs_service import (
    JobCanceled,
    JobExists,
    JobNotFound,
    JobsError,
    JobState,
    NewJob,
    Outcome,
    RunningJob,
    ScheduleNotFound,
    StoreError,
)
from jobs_service import JobsClient as AsyncJobsClient
from jobs_service import JobsService as AsyncJobsService
from jobs_service import JobTransaction as AsyncJobTransaction
from jobs_service import Subscription as AsyncSubscription
from jobs_service.layer.transaction import either
from jobs_service.runner.functions import BlockingJob
from jobs_service.service.schedules import Schedules as AsyncSchedules
from jobs_service.sync import JobsClient, JobsService, JobTransaction, Schedules, Subscription
from tests.left_open import Open
from tests.stores import EVERY_KIND, EVERY_STORE, StoreKind, one_of

store_kind = one_of(EVERY_STORE)
any_store = one_of(EVERY_KIND)

FOR_SERVERS = {"asgi", "before_leaving", "bulk_actions", "listed", "outbox_changed", "outboxes", "remote"}
"""Of the asyncio service: they are for servers, which run on an event loop."""
OF_ITS_OWN = {"asynchronous", "close", "open"}
NEEDING_THE_STORE = {"transact", "within"}
"""Of the client, which has them only to say so."""


@pytest.fixture
def jobs(store_kind: StoreKind, tmp_path: Path) -> Iterator[JobsService]:
    """A service with a type; when it is closed nothing of it is left."""
    before = Open.now()
    with JobsService(store_kind.where(tmp_path)) as jobs:
        jobs.set_type_timeout("email", 30)
        yield jobs
    assert not Open.now().since(before).threads


def public(of: type) -> set[str]:
    """Return the public names of a class, and of its bases."""
    return {name for name in dir(of) if not name.startswith("_")}


def arguments(of: Any) -> list[tuple[str, object, object]]:
    """Return name, kind and default of each parameter."""
    return [(each.name, each.kind, each.default) for each in inspect.signature(of).parameters.values()]


@pytest.mark.parametrize(
    ("plain", "coroutine", "without"),
    [
        (JobsService, AsyncJobsService, FOR_SERVERS | {"settings"}),
        (JobsClient, AsyncJobsClient, NEEDING_THE_STORE),
        (BlockingJob, RunningJob, set()),
        (JobTransaction, AsyncJobTransaction, set()),
        (Subscription, AsyncSubscription, set()),
        (Schedules, AsyncSchedules, set()),
    ],
)
def test_the_plain_classes_have_the_names_and_arguments_of_the_others(
    plain: type, coroutine: type, without: set[str]
) -> None:
    assert public(coroutine) - public(plain) - without == set()
    for name in public(plain) & public(coroutine):
        here, there = getattr(plain, name), getattr(coroutine, name)
        assert not inspect.iscoroutinefunction(here), name
        if inspect.isroutine(there):
            assert arguments(here) == arguments(there), name


def test_a_service_has_nothing_else() -> None:
    assert public(JobsService) - public(AsyncJobsService) == OF_ITS_OWN | {"settings"}


def test_jobs_are_added_read_worked_on_and_waited_for(jobs: JobsService) -> None:
    assert jobs.add("email", "a", {"to": "ada"}).state is JobState.PENDING
    with pytest.raises(JobExists):
        jobs.add("email", "a")
    with pytest.raises(JobNotFound, match="there is no job 'email'/'b'"):
        jobs.get("email", "b")
    job = jobs.accept("email", timeout=5)
    assert job is not None
    assert job.data == {"to": "ada"}
    assert job.progress(1, 2, "half").progress.done == 1
    assert job.update({"to": "bob"}).data == {"to": "bob"}
    jobs.resubmit("email", "a")
    assert job.update().resubmit
    assert job.finish(result="sent").state is JobState.PENDING
    [again] = jobs.accept_many("email", 5)
    ended = again.finish_with(lambda tx: tx.add("email", "b"))
    assert ended.state is JobState.FINISHED
    assert jobs.wait("email", "a", "finished").outcome is Outcome.SUCCEEDED
    assert jobs.result("email", "a") == "sent"
    with pytest.raises(TimeoutError):
        jobs.wait("email", "b", timeout=0.01)
    assert jobs.accept("nobody", timeout=0) is None


def test_schedules_are_made_and_removed(jobs: JobsService) -> None:
    assert jobs.schedules.set("daily", "email", {"to": "ada"}, cron="@daily").next is not None
    assert jobs.schedules.pause("daily").paused
    assert [each.name for each in jobs.schedules.list()] == ["daily"]
    jobs.schedules.remove("daily")
    with pytest.raises(ScheduleNotFound, match="there is no schedule 'daily'"):
        jobs.schedules.get("daily")


def test_many_jobs_are_listed_and_a_list_may_be_left(jobs: JobsService) -> None:
    for number in range(230):
        jobs.add("email", f"{number:03}")
    assert [job.id for job in jobs.list("email")] == [f"{number:03}" for number in range(230)]
    for job in jobs.list("email", page_size=7):
        if job.id == "120":
            break
    assert len(jobs.page("email", limit=10).jobs) == 10


def test_iterables_are_read_in_the_calling_thread(jobs: JobsService) -> None:
    threads = set()

    def new() -> Iterator[NewJob]:
        for number in range(3):
            threads.add(threading.current_thread())
            yield NewJob(str(number))

    jobs.add_many("email", new())
    with jobs.subscribe_many(("email", job.id) for job in jobs.list("email")) as events:
        assert [next(events).id for _ in range(3)] == ["0", "1", "2"]
    assert threads == {threading.current_thread()}
    with pytest.raises(JobsError, match="allowed is any iterable"):
        jobs.enqueue_many("email", "text")


def test_the_events_of_a_job_are_iterated_over(jobs: JobsService) -> None:
    jobs.add("email", "a")
    states: list[str] = []
    begun = threading.Event()

    def follow() -> None:
        with jobs.subscribe("email", "a") as events:
            for event in events:
                states.append(event.state)
                begun.set()

    thread = threading.Thread(target=follow)
    thread.start()
    begun.wait()
    job = jobs.accept("email")
    assert job is not None
    assert jobs.wait("email", "a", "running").state == "running"
    job.finish()
    thread.join()
    assert (states[0], states[-1]) == ("pending", "finished")
    with pytest.raises(JobNotFound):
        next(jobs.subscribe("email", "missing"))


def test_transaction_functions_are_plain_or_coroutine_functions(jobs: JobsService) -> None:
    def place_order(tx: JobTransaction) -> str:
        assert tx.kv.get(b"orders/1") is None
        tx.kv[b"orders/1"] = b"99"
        jobs_of_it = [tx.add("email", "receipt"), *tx.list("email")]
        return str(jobs_of_it[-1].id)

    async def look(tx: AsyncJobTransaction) -> bytes | None:
        return await tx.kv.get(b"orders/1")

    async def added(tx: AsyncJobTransaction, id: str) -> object:
        return (await tx.add("email", id)).id

    def fail(tx: JobTransaction) -> None:
        tx.add("email", "never")
        raise RuntimeError("undone")

    assert jobs.transact(place_order) == "receipt"
    assert jobs.transact(look) == b"99"
    assert jobs.transact(lambda tx: added(tx, "by a lambda")) == "by a lambda"
    with pytest.raises(RuntimeError, match="undone"):
        jobs.transact(fail)
    with pytest.raises(JobsError, match="transact takes a function"):
        jobs.transact("no function")  # type: ignore[call-overload]
    assert [job.id for job in jobs.list("email")] == ["by a lambda", "receipt"]


def test_an_operation_within_a_transaction_function_is_refused_instead_of_waiting_for_itself(jobs: JobsService) -> None:
    with pytest.raises(JobsError, match=r"await nothing but its transaction|was used on the event loop"):
        jobs.transact(lambda tx: jobs.add("email", "a"))
    assert [*jobs.list("email")] == []


def test_plain_handlers_use_the_service_that_runs_them(jobs: JobsService) -> None:
    @jobs.handler("double")
    def double(job: BlockingJob, number: int) -> int:
        jobs.add("email", f"by {job.id!r}")
        return 2 * number

    started = threading.Event()
    running = threading.Thread(target=jobs.run, kwargs={"started": started.set})
    running.start()
    started.wait()
    assert [*jobs.slot_uses()] == ["double"]
    assert jobs.supervision()["children"]
    assert jobs.processes()
    job = jobs.enqueue(double, 21, unique=True)
    result: int = jobs.result(double, job.id)
    assert result == 42
    assert jobs.get("email", f"by {job.id!r}").state is JobState.PENDING
    jobs.configure("double", slots=3)
    assert jobs.handlers["double"].options.slots == 3
    jobs.close()
    running.join()


async def test_operations_run_where_the_asyncio_service_is_open(store_kind: StoreKind, tmp_path: Path) -> None:
    service = AsyncJobsService(store_kind.where(tmp_path))
    with JobsService(service) as jobs:
        await asyncio.to_thread(jobs.set_type_timeout, "email", 30)  # open in a thread of its own, until
        async with jobs.asynchronous:
            await asyncio.to_thread(jobs.set_type_timeout, "email", 30)
            waiting = asyncio.create_task(service.accept("email"))
            await asyncio.to_thread(jobs.add, "email", "a")
            job = await waiting
            assert job is not None
            await job.finish()
            assert (await asyncio.to_thread(jobs.wait, "email", "a")).state is JobState.FINISHED
            with pytest.raises(JobsError, match="was used on the event loop, which it waits for"):
                jobs.get("email", "a")
            with pytest.raises(JobsError, match="open already"):
                await service.__aenter__()
            before = Open.now()
        await asyncio.to_thread(jobs.types)
    assert not {thread for thread in Open.now().since(before).threads if "portal" in thread.name}


def test_services_of_a_process_share_a_store_wherever_they_are_open(tmp_path: Path) -> None:
    address = f"lmdb:{tmp_path / 'store'}"
    with JobsService(address) as first, JobsService(address) as second, JobsService(second.store) as third:
        first.set_type_timeout("email", 30)

        async def elsewhere() -> Any:
            async with AsyncJobsService(address) as jobs:
                return await jobs.add("email", "a", 1)

        assert asyncio.run(elsewhere()).id == "a"
        job = second.accept("email")
        assert job is not None
        assert third.get("email", "a").state is JobState.RUNNING
        first.remove("email", "a")
        with pytest.raises(JobCanceled):
            job.update()
        job.finish()


def test_a_service_that_was_closed_or_has_failed_is_opened_by_the_next_operation(tmp_path: Path) -> None:
    jobs = JobsService(f"lmdb:{tmp_path / 'store'}")
    jobs.close()
    jobs.set_type_timeout("email", 30)
    jobs.close()
    jobs.close()
    assert jobs.types() == ["email"]
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    assert "was removed or moved" in until(jobs, works=False)
    (tmp_path / "elsewhere").rename(tmp_path / "store")
    until(jobs, works=True)
    assert jobs.types() == ["email"]
    jobs.close()


def until(jobs: JobsService, *, works: bool) -> str:
    """Call a service until it works, or fails; return the last error."""
    said = ""
    while True:
        try:
            jobs.types()
            if works:
                return said
        except JobsError as error:
            said = str(error)
            if not works:
                return said


def test_a_service_that_cannot_be_opened_says_why_each_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    before = Open.now()
    jobs = JobsService(f"lmdb:{tmp_path / 'file'}")
    for _ in range(2):
        with pytest.raises(StoreError, match="is a file"):
            jobs.types()
    assert not Open.now().since(before)


async def test_a_plain_function_reads_and_writes_on_every_store(any_store: StoreKind, tmp_path: Path) -> None:
    def move(tx: JobTransaction) -> int:
        tx.set_type_timeout("email", 30)
        tx.kv[b"a"] = tx.kv.get(b"a") or b"1"
        return len([tx.add("email", "a"), *tx.list("email"), tx.get("email", "a")])

    async with AsyncJobsService(any_store.where(tmp_path)) as jobs:
        assert await jobs.transact(either(move)) == 3
        assert (await jobs.get("email", "a")).state is JobState.PENDING
        assert await jobs.transact(either(lambda tx: tx.kv.get(b"a"))) == b"1"
