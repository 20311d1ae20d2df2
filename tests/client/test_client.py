"""JobsClient is a JobsService as far as one can be over HTTP."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest

from jobs_service import (
    InvalidJob,
    JobsClient,
    JobsError,
    JobsService,
    JobState,
    NewJob,
    NoTypeTimeout,
    ScheduleNotFound,
)
from jobs_service import sync as plain
from jobs_service.client.client import RemoteSchedules
from jobs_service.service.schedules import Schedules
from tests.client.served import listening
from tests.service.support import T1, TIMEOUT, listed

HERE_ONLY = {"handler", "every", "cron", "commands", "configure", "reload", "handlers", "periodic", "slot_uses"}
HERE_ONLY |= {"include", "middleware", "provide"}
NOT_CALLED = {"run", "schedules"}
OF_THE_STORE = {"store", "asgi"}
FOR_INTERFACES = {
    "ask_process",
    "before_leaving",
    "bulk_actions",
    "listed",
    "process_id",
    "queue_states",
    "remote",
    "type_settings",
    "wall_time",
}


def public(owner: type) -> set[str]:
    return {name for name in dir(owner) if not name.startswith("_")}


def test_it_has_every_method_but_those_that_need_the_store_or_have_handlers() -> None:
    assert public(JobsService) - public(JobsClient) == HERE_ONLY | OF_THE_STORE | FOR_INTERFACES
    assert public(JobsClient) - public(JobsService) == {"url"}


@pytest.mark.parametrize(
    ("here", "there", "name"),
    [
        *((JobsService, JobsClient, name) for name in sorted((public(JobsService) & public(JobsClient)) - NOT_CALLED)),
        *((Schedules, RemoteSchedules, name) for name in sorted(public(Schedules))),
    ],
)
def test_each_takes_the_same_arguments(here: type, there: type, name: str) -> None:
    one, other = (inspect.signature(getattr(owner, name)).parameters for owner in (here, there))
    only_here = {"page": {"by_time"}}.get(name, set())
    assert [(each.name, each.kind, each.default) for each in one.values() if each.name not in only_here] == [
        (each.name, each.kind, each.default) for each in other.values()
    ]


HEAVY = ("jobs_service.layer", "jobs_service.store", "jobs_service.runner", "fdb", "lmdb")


def test_a_client_loads_neither_the_layer_nor_a_store_nor_foundationdb_nor_the_runner() -> None:
    program = f"""
import sys
from jobs_service import InvalidJob, JobsClient, JobState, JobsError, NewJob, QueueState, Retention
JobsClient("http://h")
print(*(name for name in sys.modules if name.startswith({HEAVY})))
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == ""


def test_without_httpx_it_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['httpx'] = None; import jobs_service\n"
        "try: jobs_service.JobsClient('http://h')\n"
        "except jobs_service.JobsError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "JobsClient needs httpx: pip install 'jobs-service[client]'\n"


async def test_a_handler_of_this_program_is_enqueued_for_and_its_type_is_made() -> None:
    elsewhere = JobsService("memory:")

    @elsewhere.handler("mail", timeout=7)
    async def mail(to: str, times: int = 1) -> int:
        return times

    async with JobsService("memory:") as served, listening(served) as url, JobsClient(url) as jobs:
        job = await jobs.enqueue(mail, to="ada", times=3, delay=timedelta(hours=1), max_attempts=2, time_limit=5)
        assert (job.data, job.max_attempts, job.time_limit) == ({"to": "ada", "times": 3}, 2, 5)
        assert job.run_at is not None
        assert (job.enqueued, await jobs.get_type_timeout("mail")) == ("new", 7)
        one = await jobs.enqueue(mail, to="bob", unique=True)
        # The client knows the default of what is left out, the server does not.
        same = await jobs.enqueue(mail, to="bob", times=1, unique=True, unique_for=60)
        assert (one.enqueued, same.enqueued, same.id) == ("new", "there", one.id)
        worker = await served.accept("mail", timeout=0)
        assert worker is not None
        await worker.finish()
        assert (await jobs.enqueue(mail, to="bob", unique=True, unique_for=60)).enqueued == "there"
        again = await jobs.enqueue(mail, to="bob", unique=True)
        assert (again.id, again.enqueued, again.created) == (one.id, "again", False)
        named = [await jobs.enqueue(mail, to="eve", id="eve", if_exists="ignore", max_attempts=2) for _ in range(2)]
        assert [each.enqueued for each in named] == ["new", "there"]
        with pytest.raises(InvalidJob, match="if_exists='ignore': it goes with id="):
            await jobs.enqueue(mail, to="eve", if_exists="ignore")
        assert await jobs.enqueue_many(mail, []) == []
        with pytest.raises(InvalidJob):
            await jobs.enqueue(mail, {"to": 7})
        with pytest.raises(NoTypeTimeout):
            await jobs.enqueue("nobody's", 1)


async def test_schedules_are_made_seen_and_changed_as_beside_the_store() -> None:
    elsewhere = JobsService("memory:")

    @elsewhere.handler("mail", timeout=7, redact=["key"])
    async def mail(to: str, key: str = "") -> None:
        return

    async with JobsService("memory:") as served, listening(served) as url, JobsClient(url) as jobs:
        await jobs.set_type_timeout(T1, TIMEOUT)
        here, there = served.schedules, jobs.schedules
        made = await there.set("a/b: ö?", mail, {"to": "ada"}, cron="0 7 * * *", timezone="Europe/Berlin")
        assert (await jobs.get_type_timeout("mail"), made) == (7, await here.get("a/b: ö?"))
        assert (await there.set("b", T1, every="30m", missed="skip", overlap=True)).every == 1800
        assert await there.list() == await here.list()
        paused = await there.pause("b")
        assert (paused.paused, paused) == (True, await there.get("b"))
        assert not (await there.resume("b")).paused
        await there.remove("b")
        assert [each.name for each in await here.list()] == ["a/b: ö?"]
        for schedules in (here, there):
            for absent in (schedules.get, schedules.remove, schedules.pause, schedules.resume):
                with pytest.raises(ScheduleNotFound, match="there is no schedule 'b'"):
                    await absent("b")
            with pytest.raises(InvalidJob, match="allowed are 1 to 100 printable characters"):
                await schedules.get("")
            with pytest.raises(NoTypeTimeout):
                await schedules.set("c", "nobody's", every=60)
            for refused in ({}, {"every": 60, "cron": "@daily"}, {"cron": "never"}, {"every": "soon"}):
                with pytest.raises(JobsError):
                    await schedules.set("c", T1, **refused)
        with plain.JobsClient(url) as client:
            assert (await asyncio.to_thread(client.schedules.pause, "a/b: ö?")).paused
            assert await asyncio.to_thread(client.schedules.list) == await here.list()
            await asyncio.to_thread(client.close)


async def test_many_jobs_are_added_in_several_requests_and_in_their_order() -> None:
    async with JobsService("memory:") as served, listening(served) as url, JobsClient(url) as jobs:
        await jobs.set_type_timeout(T1, TIMEOUT)
        ids = [f"{number:04}" for number in range(1_200)]
        added = await jobs.add_many(T1, (NewJob(id, {"n": id}, run_at=5) for id in ids))
        assert [job.id for job in added] == ids
        assert added == await listed(served, T1)
        found = await jobs.enqueue_many(T1, range(600), delay=60)
        assert [job.data for job in found] == [*range(600)]
        assert await jobs.pending_count(T1) == 1_800
        assert {job.state for job in found} == {JobState.PENDING}


@pytest.mark.parametrize("prefix", ["", "a ", " ", "-x", "json:", "json:7", "\n", "ü", "a", b"", b"\x00", b"a"])
async def test_each_prefix_that_the_service_takes_is_taken_by_the_client(prefix: str | bytes) -> None:
    ids: list[Any] = ["a b", "a c", "a", " b", "-x1", "json:7", "json:", "\n1", "über", b"\x00\xff", b"abc", b"\xff"]
    async with JobsService("memory:") as served, listening(served) as url, JobsClient(url) as jobs:
        await jobs.set_type_timeout(T1, TIMEOUT)
        await jobs.add_many(T1, [NewJob(id) for id in ids])
        found = [job.id for job in (await served.page(T1, prefix=prefix)).jobs]
        wanted = {id for id in ids if type(id) is type(prefix) and id[: len(prefix)] == prefix}
        assert {*found} == wanted != set()
        for state in (None, "ready"):
            here, there = [await each.page(T1, prefix=prefix, state=state) for each in (served, jobs)]
            assert [job.id for job in there.jobs] == [job.id for job in here.jobs]
        with pytest.raises(InvalidJob):
            await jobs.page(T1, prefix=7)  # type: ignore[arg-type]


async def test_the_client_takes_the_same_numbers_as_the_service() -> None:
    async with JobsService("memory:") as served, listening(served) as url, JobsClient(url) as jobs:
        await jobs.set_type_timeout(T1, TIMEOUT)
        await jobs.add_many(T1, [NewJob(f"{number:04}") for number in range(2_500)])
        for limit in (999, 1_000, 1_001, 2_400, 5_000):
            one, other = await served.page(T1, limit=limit), await jobs.page(T1, limit=limit)
            assert [job.id for job in other.jobs] == [job.id for job in one.jobs]
            assert (other.next is None) is (one.next is None)
        taken = await jobs.accept_many(T1, 2_200)
        assert [job.id for job in taken] == [f"{number:04}" for number in range(2_200)]
        assert len(await jobs.accept_many(T1, 5_000)) == 300


@pytest.mark.parametrize("type", [T1, b"\xff\x00", 7, ("a", 1), "nobody's"])
async def test_the_counts_of_a_type_are_those_of_the_service(type: Any) -> None:
    async with JobsService("memory:") as served, listening(served) as url, JobsClient(url) as jobs:
        if type != "nobody's":
            await jobs.set_type_timeout(type, TIMEOUT)
            await jobs.add(type, "1")
        assert await jobs.counts(type) == await served.counts(type)
        assert await jobs.counts() == await served.counts()
