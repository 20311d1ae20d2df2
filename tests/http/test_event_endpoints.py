"""Events over HTTP: of a job, of several, of a type."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack, aclosing
from typing import Any

import fdb.tuple
import httpx

from jobs_service import JobsService, NewJob
from jobs_service.http.application import Application
from jobs_service.http.server import Server, bound
from jobs_service.http.state import ServerLimits, ServerOptions
from jobs_service.http.tokens import add_token
from jobs_service.layer.keyspace import FOLLOWED
from tests.http.support import also_on_a_cluster, events, listening, problem

pytestmark = also_on_a_cluster

EVENTS = "/v1/types/email/jobs/a/events"


async def test_a_job_is_followed_to_its_end() -> None:
    async with listening() as (jobs, client):
        await jobs.set_type_timeout("email", 30)
        await jobs.add("email", "a", {"n": 1})
        async with client.stream("GET", EVENTS) as response, aclosing(events(response)) as told:
            assert response.headers["content-type"] == "text/event-stream"
            assert response.headers["x-accel-buffering"] == "no"
            kind, _, first = await anext(told)
            assert (kind, first["state"], first["data"]) == ("job", "pending", {"n": 1})
            job = await jobs.accept("email")
            assert job is not None
            assert (await anext(told))[2]["state"] == "running"
            await job.progress(1, 2)
            assert (await anext(told))[2]["progress"]["done"] == 1
            await job.finish(result="sent")
            _, last_id, last = await anext(told)
            assert (last["state"], last["result"]) == ("finished", "sent")
            assert [kind async for kind, _, _ in told] == ["end"]
        # A browser that comes back is told that there is no more.
        again = await client.get(EVENTS, headers={"Last-Event-ID": last_id})
        assert (again.status_code, again.content) == (204, b"")


async def test_a_client_that_comes_back_is_told_what_is_new_alone() -> None:
    async with listening() as (jobs, client):
        await jobs.set_type_timeout("email", 30)
        await jobs.add("email", "a")
        async with client.stream("GET", EVENTS) as response, aclosing(events(response)) as told:
            _, id, _ = await anext(told)
        async with (
            client.stream("GET", EVENTS, headers={"Last-Event-ID": id}) as response,
            aclosing(events(response)) as told,
        ):
            assert (await jobs.accept("email")) is not None
            assert (await anext(told))[2]["state"] == "running"


SEVERAL = "/v1/events?job=email/a&job=email/b&job=email/c"


async def last_id_of(response: httpx.Response, parts: int) -> tuple[list[str], str]:
    """Return the jobs and problems that a stream of several jobs tells of, and its last id."""
    told: list[str] = []
    last_id = ""
    async for line in response.aiter_lines():
        name, _, value = line.partition(": ")
        if name == "data":
            form = json.loads(value)
            told += [form.get("job_id", form.get("id"))] if form else []
        elif name == "id":
            last_id = value
        if not line and len(told) == parts and last_id.startswith("all."):
            break
    return told, last_id


async def test_a_client_that_comes_back_to_several_jobs_is_told_what_is_new_and_then_that_there_is_no_more() -> None:
    async with listening() as (jobs, client):
        await jobs.set_type_timeout("email", 30)
        for id in "abc":
            await jobs.add("email", id)
        async with client.stream("GET", SEVERAL) as response:
            told, last_id = await last_id_of(response, 3)
        assert sorted(told) == ["a", "b", "c"]
        [job] = await jobs.accept_many("email", 1)
        await job.finish(result="x" * 10)
        async with client.stream("GET", SEVERAL, headers={"Last-Event-ID": last_id}) as response:
            told, last_id = await last_id_of(response, 1)
        assert told == ["a"]
        await jobs.remove("email", "b")
        [job] = await jobs.accept_many("email", 1)
        await job.finish()
        async with client.stream("GET", SEVERAL, headers={"Last-Event-ID": last_id}) as response:
            told, last_id = await last_id_of(response, -1)
        assert sorted(told) == ["b", "c"]
        again = await client.get(SEVERAL, headers={"Last-Event-ID": last_id})
        assert (again.status_code, again.content) == (204, b"")
        # Of other jobs, or more of them, that id says nothing.
        other = await client.get(SEVERAL + "&job=email/d", headers={"Last-Event-ID": last_id})
        assert other.status_code == 200
        one = await client.get("/v1/events?job=email/a")
        id = [line[4:] for line in one.text.splitlines() if line.startswith("id: ")][-1]
        again = await client.get("/v1/events?job=email/a", headers={"Last-Event-ID": id})
        assert again.status_code == 204


async def test_a_job_that_is_not_there_is_not_found_or_removed() -> None:
    async with listening() as (_, client):
        problem(await client.get(EVENTS), 404, "job-not-found")
        response = await client.get(EVENTS, headers={"Last-Event-ID": "00.11"})
        assert '"state":"removed"' in response.text


async def test_who_follows_what_is_not_there_writes_nothing() -> None:
    async with listening() as (jobs, client):
        await jobs.set_type_timeout("email", 30)
        async with client.stream("GET", "/v1/types/email/events"):  # what there is one row of
            before = await _rows(jobs)
            for type in ("invented", "json:7", 'json:["a",1]'):
                problem(await client.get(f"/v1/types/{type}/events"), 404, "no-type-timeout")
            wanted = [["invented", str(number)] for number in range(20)] + [["email", "none"]]
            told = await client.post("/v1/events", json={"jobs": wanted})
            assert told.text.count("event: problem\n") == len(wanted)
            assert told.text.endswith("event: end\ndata: {}\n\n")
            wanted_pages = [{"of": "job", "type": "invented", "id": str(number)} for number in range(20)]
            await asyncio.gather(*(client.get("/live", params=each) for each in wanted_pages))
            assert await _rows(jobs) == before


async def _rows(jobs: JobsService) -> list[bytes]:
    """Return the keys of the rows that tell that a type is followed."""
    head = await jobs.store.prefix() + fdb.tuple.pack((FOLLOWED,))
    return [key for key, _ in await jobs.store.read(lambda tr: tr.get_range(head, head + b"\xff"))]


async def test_several_jobs_are_followed_and_one_that_is_missing_is_a_problem() -> None:
    async with listening() as (jobs, client):
        await jobs.set_type_timeout("email", 30)
        await jobs.add("email", "a/1")
        await jobs.add("email", "b")
        query = {"job": ["email/a%2F1", "email/b", "email/missing"]}
        async with client.stream("GET", "/v1/events", params=query) as response, aclosing(events(response)) as told:
            first = [await anext(told) for _ in range(3)]
            assert sorted(kind for kind, _, _ in first) == ["job", "job", "problem"]
            [missing] = [data for kind, _, data in first if kind == "problem"]
            assert (missing["type"], missing["job_id"]) == ("/problems/job-not-found", "missing")
            await jobs.remove("email", "a/1")
            await jobs.remove("email", "b")
            rest = [(kind, data.get("state")) async for kind, _, data in told]
            assert rest == [("job", "removed"), ("job", "removed"), ("end", None)]
        body = {"jobs": [["email", "a/1"]]}
        posted = await client.post("/v1/events", json=body)
        assert "event: problem" in posted.text
        problem(await client.get("/v1/events?job=email"), 400, "bad-request")


async def test_a_type_is_followed_and_a_client_that_comes_back_misses_nothing() -> None:
    path = "/v1/types/email/events"
    async with listening() as (jobs, client):
        await jobs.set_type_timeout("email", 30)
        await jobs.add("email", "before")
        async with client.stream("GET", path) as response:
            mark = await _mark(response)
        await jobs.add("email", "a")
        await jobs.remove("email", "before")
        headers = {"Last-Event-ID": mark}
        async with client.stream("GET", path, headers=headers) as response, aclosing(events(response)) as told:
            found = {data["id"]: data["state"] for _, _, data in [await anext(told), await anext(told)]}
            assert found == {"before": "removed", "a": "pending"}
            job = await jobs.accept("email")
            assert job is not None
            assert (await anext(told))[2]["state"] == "running"
            await job.finish()
            _, _, last = await anext(told)
            assert (last["state"], last["outcome"]) == ("finished", "succeeded")
            assert "data" not in last
        unknown = {"Last-Event-ID": "aa.bb.cc"}
        async with client.stream("GET", path, headers=unknown) as response, aclosing(events(response)) as told:
            assert (await anext(told))[0] == "reset"


async def _mark(response: httpx.Response) -> str:
    async for line in response.aiter_lines():
        if line.startswith("id: "):
            return line[4:]
    raise AssertionError("the stream ended")


async def test_a_stream_says_that_it_lives() -> None:
    options = ServerOptions(is_open=True, limits=ServerLimits(heartbeat=0.02))
    async with listening(options=options) as (jobs, client):
        await jobs.set_type_timeout("email", 30)
        await jobs.add("email", "a")
        async with client.stream("GET", EVENTS) as response:
            async for line in response.aiter_lines():
                if line == ": alive":
                    break


async def test_streams_end_with_the_server_and_leave_nothing_behind(address: str) -> None:
    async with JobsService(address) as jobs:
        await jobs.set_type_timeout("email", 30)
        await jobs.add("email", "a")
        application = Application(jobs, ServerOptions(is_open=True))
        server = Server(application, bound("127.0.0.1", 0))
        await server.start()
        async with httpx.AsyncClient(base_url=server.url, timeout=20) as client, AsyncExitStack() as stack:
            paths = [EVENTS] * 10 + ["/v1/types/email/events", "/live", "/live?of=job&type=email&id=a"]
            opened = [await stack.enter_async_context(client.stream("GET", path)) for path in paths]
            told = [events(each) for each in opened[:10]]
            assert {(await anext(each))[2]["state"] for each in told} == {"pending"}
            await server.stop()
            assert [[kind async for kind, _, _ in each] for each in told] == [[]] * 10
        assert application.state.open_streams.taken == 0
        assert application.state.streams == set()
        assert jobs.remote.hub.types() == []


async def test_a_client_has_so_many_streams_at_most() -> None:
    options = ServerOptions(is_open=True, limits=ServerLimits(streams_of_client=1))
    async with listening(options=options) as (jobs, client):
        await jobs.set_type_timeout("email", 30)
        await jobs.add("email", "a")
        async with client.stream("GET", EVENTS) as response:
            assert response.status_code == 200
            problem(await client.get(EVENTS), 429, "too-many-requests")


async def test_a_token_has_so_many_jobs_told_of_however_many_streams_they_are_in() -> None:
    options = ServerOptions(limits=ServerLimits(followed=50, followed_of_client=30))
    async with listening(options=options) as (jobs, client), AsyncExitStack() as stack:
        await jobs.set_type_timeout("email", 30)
        await jobs.add_many("email", [NewJob(str(number)) for number in range(20)])
        ada, bob = [{"Authorization": f"Bearer {await add_token(jobs, name, 'read')}"} for name in ("ada", "bob")]
        twenty = {"jobs": [["email", str(number)] for number in range(20)]}

        async def open_stream(method: str, path: str, **more: Any) -> None:
            response = await stack.enter_async_context(client.stream(method, path, **more))
            assert response.status_code == 200

        await open_stream("POST", "/v1/events", json=twenty, headers=ada)
        await open_stream("GET", "/v1/types/email/events", headers=ada)
        problem(await client.get("/v1/types/email/jobs/0/events", headers=ada), 429, "too-many-requests")
        await open_stream("POST", "/v1/events", json=twenty, headers=bob)
        problem(await client.get("/v1/types/email/jobs/0/events", headers=bob), 503, "busy")
