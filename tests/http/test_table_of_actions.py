"""The table of actions and states: each of its cells is tried through each door, and so is each filter."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from jobs_service import JobNotFound, JobsClient, JobsError, JobsService, Outcome, RecordDamaged
from jobs_service.cli import main
from jobs_service.layer.keyspace import Keyspace, pack_id
from jobs_service.model.job import status_of
from jobs_service.service import bulk_actions
from jobs_service.service.bulk_actions import ACTIONS
from jobs_service.service.selection import Filter
from jobs_service.store import Transaction
from tests.docs.pages import read, rows
from tests.http.support import running, served
from tests.service.unreadable import garbage

STATES = ("ready", "scheduled", "retrying", "running", "succeeded", "failed", "canceled", "unreadable")
TABLE = {
    row[0]: dict(zip(STATES, row[1:], strict=True))
    for row in rows(read("docs/semantics.md"), f"action | {' | '.join(STATES)}")
}
TYPE, ID = "email", "one"


class Place(NamedTuple):
    """A store with a job, and the way to it."""

    jobs: JobsService
    http: httpx.AsyncClient


Door = Callable[[Place, str, str], Awaitable[Any]]
"""Takes an action and the state in which the job is."""


@asynccontextmanager
async def with_job(state: str, address: str = "memory:") -> AsyncIterator[Place]:
    """Serve a store with a job in a state; who runs it is no part of this process."""
    async with served(address) as (jobs, http):
        await jobs.set_type_timeout(TYPE, 600)
        await jobs.add(TYPE, ID, {"n": 1}, run_at=4e9 if state == "scheduled" else None)
        if state == "retrying":
            await crashed(jobs)
        if state in ("running", "succeeded", "failed", "canceled"):
            [taken] = (await http.post(f"/v1/types/{TYPE}/accept")).json()["jobs"]
            if state == "canceled":
                await jobs.remove(TYPE, ID)
            if state != "running":
                end = {"lock": taken["lock"], "outcome": state, "result": 7}
                await http.post(f"/v1/types/{TYPE}/jobs/{ID}/finish", json=end)
        if state == "unreadable":
            key = Keyspace(await jobs.store.prefix(), jobs.store.limits.key).of(TYPE).data + pack_id(ID)

            async def spoil(transaction: Transaction) -> None:
                transaction.set(key, garbage(await transaction.get(key) or b""))

            await jobs.store.transact(spoil)
        yield Place(jobs, http)


async def crashed(jobs: JobsService) -> None:
    """Have a run of the job crash."""

    @jobs.handler(TYPE, backoff=3600)
    async def crash() -> None:
        raise OSError("no route")

    running = asyncio.create_task(jobs.run())
    async with jobs.subscribe(TYPE, ID) as events:
        async for event in events:
            if event.retrying:
                break
    running.cancel()
    await asyncio.wait([running])


# The doors to one job


async def by_http(place: Place, action: str, state: str) -> Any:
    path = f"/v1/types/{TYPE}/jobs/{ID}"
    if action == "remove":
        return await place.http.delete(path)
    return await place.http.post(f"{path}/{action}", json={})


async def by_client(place: Place, action: str, state: str) -> Any:
    async with running(place.jobs) as url, JobsClient(url) as client:
        return await getattr(client, action)(TYPE, ID)


async def by_service(place: Place, action: str, state: str) -> Any:
    return await getattr(place.jobs, action)(TYPE, ID)


async def by_button(place: Place, action: str, state: str) -> Any:
    return await place.http.post("/job/act", data={"type": TYPE, "id": ID, "action": action})


# The doors to all that match


def filter_of(action: str, state: str) -> dict[str, Any]:
    """Return a filter that the job matches."""
    return {"state": state, "prefix": "o"} if state == "unreadable" else {"state": state, "data": ["n=1"]}


async def by_http_of_all(place: Place, action: str, state: str) -> Any:
    body = {"action": action, "filter": filter_of(action, state)}
    counted = await place.http.post(f"/v1/types/{TYPE}/bulk", json={**body, "dry_run": True})
    done = await place.http.post(f"/v1/types/{TYPE}/bulk", json=body)
    assert done.json()["matched"] == done.json()["changed"] == counted.json()["matched"], done.text


async def by_page_of_all(place: Place, action: str, state: str) -> Any:
    query = {"type": TYPE, "action": action, **filter_of(action, state)}
    page = (await place.http.get("/bulk/new", params=query)).text
    confirmed = await place.http.post("/bulk", data=query)
    changed = await ended(place, str(httpx.URL(confirmed.headers["location"]).params["id"]))
    assert (f"{changed} job" in page) is True
    assert ("there is nothing to do" in page) is (changed == 0)


async def by_job_of_all(place: Place, action: str, state: str) -> Any:
    actions = bulk_actions.BulkActions(place.jobs)
    await ended(place, await actions.add("count", TYPE, Filter(), ""))
    data = {"action": action, "type": TYPE, "filter": filter_of(action, state)}
    await place.jobs.add(bulk_actions.TYPE, "mine", data)
    await ended(place, "mine")
    await actions.close()


async def ended(place: Place, id: Any) -> int:
    await place.jobs.wait(bulk_actions.TYPE, id, "finished", timeout=60)
    job = await place.jobs.get(bulk_actions.TYPE, id)
    assert job.outcome is Outcome.SUCCEEDED, job.error
    assert job.result["matched"] == job.result["changed"] or job.data["action"] == "count"
    return int(job.result["changed"])


OF_ONE: dict[str, Door] = {
    "HTTP": by_http,
    "client": by_client,
    "service": by_service,
    "button": by_button,
}
OF_ALL: dict[str, Door] = {"HTTP": by_http_of_all, "page": by_page_of_all, "job": by_job_of_all}
DOORS = [
    (row, door)
    for row in TABLE
    for door in (OF_ALL if "of all" in row else OF_ONE)
    # There is no verb, and no method, that cancels: `remove` asks a running job to end, and removes any other.
    if not (row == "`cancel`" and door in ("client", "service"))
]


async def what_it_is(jobs: JobsService) -> str:
    try:
        job = await jobs.get(TYPE, ID)
    except JobNotFound:
        return "gone"
    except RecordDamaged:
        return "unreadable"
    return (
        "canceled"
        if job.cancel
        else "flagged"
        if job.resubmit
        else status_of(job, jobs._context.sources.wall_time()).value
    )


def becomes(said: str, before: str) -> str:
    """Return what a job is after an action of which a cell says what becomes of it."""
    return before if said == "unchanged" or said.startswith("`") else said


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(("row", "door"), DOORS, ids=lambda value: str(value).replace("`", ""))
async def test_a_cell_says_what_an_action_does_through_each_door(row: str, door: str, state: str) -> None:
    said = TABLE[row][state].partition(":")[0]
    async with with_job(state) as place:
        before = await what_it_is(place.jobs)
        answer = refused = None
        try:
            answer = await (OF_ALL if "of all" in row else OF_ONE)[door](place, row.split("`")[1], state)
        except JobsError as error:
            refused = f"`{type(error).__name__}`"
        assert refused in (None, said)
        if isinstance(answer, httpx.Response):
            assert answer.is_error is said.startswith("`"), answer.text
        assert await what_it_is(place.jobs) == becomes(said, before)
        if state == "succeeded" and said == "unchanged":
            assert (await place.jobs.get(TYPE, ID)).result == 7


VERBS = [
    *(("`cancel`", ["cancel", TYPE, ID]), ("`remove`", ["remove", TYPE, ID]), ("`resubmit`", ["resubmit", TYPE, ID])),
    ("`resubmit` of all that match", ["retry", TYPE, ID]),
    *((f"`{action}` of all that match", [verb, TYPE, "--yes"]) for action, verb in ACTIONS.items()),
]


@pytest.mark.usefixtures("own_logging")
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(("row", "verb"), VERBS[:-1], ids=str)
async def test_a_cell_says_what_a_verb_of_the_command_line_does(
    row: str, verb: list[str], state: str, tmp_path: Path
) -> None:
    said, address = TABLE[row][state].partition(":")[0], f"lmdb:{tmp_path}/store"
    if ID in verb and state == "unreadable":
        said = TABLE[row.partition(" of all")[0]][state].partition(":")[0]
    async with with_job(state, address) as place:
        before = await what_it_is(place.jobs)
    filter = [] if ID in verb else ["--state", state]
    code = await asyncio.to_thread(main, [*verb, *filter, "--store", address])
    assert (code == 0) is (not said.startswith("`"))
    async with JobsService(address) as jobs:
        assert await what_it_is(jobs) == becomes(said, before)


def test_the_table_has_every_state_and_each_action_twice() -> None:
    assert [*TABLE] == [
        f"`{action}`{of}" for of in ("", " of all that match") for action in ("cancel", "remove", "resubmit")
    ]
