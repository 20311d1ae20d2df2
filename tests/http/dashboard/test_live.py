"""Open pages are told when what they show has changed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, cast

import pytest

from jobs_service import JobsService
from jobs_service.http.dashboard import live
from jobs_service.http.dashboard.live import CHANGED, Pulse
from jobs_service.http.dashboard.shared_counts import SharedCounts
from jobs_service.http.dashboard.visit import Visit
from jobs_service.http.limits import Limits
from jobs_service.http.state import Options, State
from jobs_service.http.tokens import add_token
from tests.http.support import listening


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "LEAST", 0.01)
    monkeypatch.setattr(live, "_SHARE", 0)


async def changes(jobs: JobsService, pulse: Pulse, state: State | None = None, **query: str) -> AsyncIterator[bytes]:
    """Return the stream of a page."""
    from starlette.requests import Request

    text = "&".join(f"{name}={value}" for name, value in query.items()).encode()
    scope = {"type": "http", "method": "GET", "path": "/live", "query_string": text, "headers": []}
    scope["state"] = cast(Any, {"who": None, "client": "127.0.0.1"})
    response = await live.live(Visit(Request(scope), state or State(jobs)), pulse)
    return cast(AsyncIterator[bytes], cast(Any, response).body_iterator)


async def until_changed(stream: AsyncIterator[bytes]) -> None:
    async with asyncio.timeout(20):
        async for told in stream:
            if told == CHANGED:
                return
    raise AssertionError("the stream has ended")


async def test_a_page_of_types_is_told_of_a_change_of_any(address: str) -> None:
    async with JobsService(address) as jobs:
        await jobs.set_type_timeout("email", 60)
        pulse = Pulse(SharedCounts(jobs))
        stream = await changes(jobs, pulse, of="types")
        await until_changed(stream)  # what the page shows may be old when the stream begins
        told = asyncio.create_task(until_changed(stream))
        await pulse_has_looked(pulse)
        await jobs.add("email", "one")
        await told
        await cast(Any, stream).aclose()
        assert pulse._task is None


async def test_a_page_of_a_type_is_told_of_that_type_only(address: str) -> None:
    async with JobsService(address) as jobs:
        await jobs.set_type_timeout("email", 60)
        await jobs.set_type_timeout("other", 60)
        pulse = Pulse(SharedCounts(jobs))
        stream = await changes(jobs, pulse, of="type", type="email")
        await until_changed(stream)
        told = asyncio.create_task(until_changed(stream))
        await pulse_has_looked(pulse)
        await jobs.add("other", "one")
        await pulse_has_looked(pulse)
        await pulse_has_looked(pulse)
        assert not told.done()
        await jobs.pause("email")
        await told
        told = asyncio.create_task(until_changed(stream))
        await jobs.add("email", "one")
        await told
        await cast(Any, stream).aclose()


async def test_a_page_of_a_job_is_told_of_its_progress_and_its_end(address: str) -> None:
    async with JobsService(address) as jobs:
        await jobs.set_type_timeout("email", 60)
        await jobs.add("email", "one")
        stream = await changes(jobs, Pulse(SharedCounts(jobs)), of="job", type="email", id="one")
        await until_changed(stream)
        told = asyncio.create_task(until_changed(stream))
        job = await jobs.accept("email")
        assert job is not None
        await job.progress(1, 2)
        await told
        told = asyncio.create_task(until_changed(stream))
        await job.finish()
        await told
        await cast(Any, stream).aclose()


async def test_one_look_at_the_store_serves_all_pages(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    async with JobsService(address) as jobs:
        await jobs.set_type_timeout("email", 60)
        pulse = Pulse(SharedCounts(jobs))
        looks = 0
        counts = jobs.counts

        async def counted(*args: Any) -> Any:
            nonlocal looks
            looks += 1
            return await counts(*args)

        monkeypatch.setattr(jobs, "counts", counted)
        streams = [await changes(jobs, pulse, of="types") for _ in range(50)]
        await asyncio.gather(*map(until_changed, streams))
        told = [asyncio.create_task(until_changed(stream)) for stream in streams]
        await pulse_has_looked(pulse)
        before = looks
        await jobs.add("email", "one")
        await asyncio.gather(*told)
        assert looks - before < 50
        for stream in streams:
            await cast(Any, stream).aclose()


async def test_a_server_that_ends_ends_the_stream() -> None:
    async with JobsService("memory:") as jobs:
        await jobs.set_type_timeout("email", 60)
        state = State(jobs)
        stream = await changes(jobs, Pulse(SharedCounts(jobs)), state, of="types")
        await until_changed(stream)
        await state.close()
        assert [each async for each in stream if each != CHANGED] == []
        late = await changes(jobs, Pulse(SharedCounts(jobs)), state, of="types")
        assert [each async for each in late] == []


async def test_a_token_that_is_removed_ends_the_pages_that_were_opened_with_it() -> None:
    async with listening(options=Options()) as (jobs, client):
        headers = {"Authorization": f"Bearer {await add_token(jobs, 'ada', 'read')}"}
        async with asyncio.timeout(30), client.stream("GET", "/live?of=types", headers=headers) as response:
            assert response.status_code == 200
            parts = response.aiter_bytes()
            assert await anext(parts)
            await jobs._remote.remove_token("ada")
            assert b"".join([part async for part in parts]) in (b"", CHANGED)


async def pulse_has_looked(pulse: Pulse) -> None:
    """Return when the store has been looked at from now on."""
    for _ in range(2):
        await pulse.looked()


async def test_pages_that_are_open_take_no_places_of_requests() -> None:
    options = Options(is_open=True, limits=Limits(requests=1))
    async with listening(options=options) as (_, client), AsyncExitStack() as stack:
        for _ in range(3):
            response = await stack.enter_async_context(client.stream("GET", "/live"))
            assert response.status_code == 200
        assert (await client.get("/v1/types")).status_code == 200
        assert (await client.get("/")).status_code == 200
