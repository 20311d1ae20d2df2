"""Open pages are told when what they show has changed."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest

from jobs_service.dashboard import pages
from jobs_service.dashboard.overview import overview
from jobs_service.http.state import ServerLimits, ServerOptions
from jobs_service.http.tokens import add_token
from tests.http.support import listening


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "LEAST", 0.01)
    monkeypatch.setattr(pages, "_SHARE", 0)


@asynccontextmanager
async def page(
    client: httpx.AsyncClient, headers: Mapping[str, str] | None = None, **query: str
) -> AsyncIterator[AsyncIterator[str]]:
    """Open the stream of a page, and yield it after its first news: the page may be old when it begins."""
    async with asyncio.timeout(30), client.stream("GET", "/live", params=query, headers=headers) as response:
        assert response.status_code == 200
        lines = response.aiter_lines()
        await changed(lines)
        yield lines


async def changed(lines: AsyncIterator[str]) -> None:
    async for line in lines:
        if line == "event: changed":
            return
    raise AssertionError("the stream has ended")


async def test_a_page_of_types_is_told_of_a_change_of_any() -> None:
    async with listening() as (jobs, client):
        await jobs.set_type_timeout("email", 60)
        async with page(client, of="types") as stream:
            await jobs.add("email", "one")
            await changed(stream)


async def test_a_page_of_a_job_is_told_of_its_progress_and_its_end() -> None:
    async with listening() as (jobs, client):
        await jobs.set_type_timeout("email", 60)
        await jobs.add("email", "one")
        async with page(client, of="job", type="email", id="one") as stream:
            job = await jobs.accept("email")
            assert job is not None
            await job.progress(1, 2)
            await changed(stream)
            await job.finish()
            await changed(stream)


async def test_one_look_at_the_store_serves_all_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "LEAST", 0.5)
    async with listening() as (jobs, client), AsyncExitStack() as stack:
        await jobs.set_type_timeout("email", 60)
        looks = 0
        counts = jobs.counts

        async def counted(*args: Any) -> Any:
            nonlocal looks
            looks += 1
            return await counts(*args)

        monkeypatch.setattr(jobs, "counts", counted)
        streams = [await stack.enter_async_context(page(client)) for _ in range(30)]
        looks = 0
        await jobs.add("email", "one")
        await asyncio.gather(*map(changed, streams))
        assert looks < 30


async def test_a_token_that_is_removed_ends_the_pages_that_were_opened_with_it() -> None:
    async with listening(options=ServerOptions()) as (jobs, client):
        headers = {"Authorization": f"Bearer {await add_token(jobs, 'ada', 'read')}"}
        async with page(client, headers) as stream:
            await jobs.remote.remove_token("ada")
            assert {line async for line in stream} <= {"event: changed", "data: ", ""}


async def test_pages_that_are_open_take_no_places_of_requests() -> None:
    options = ServerOptions(is_open=True, limits=ServerLimits(requests=1))
    async with listening(options=options) as (_, client), AsyncExitStack() as stack:
        for _ in range(3):
            await stack.enter_async_context(page(client))
        assert (await client.get("/v1/types")).status_code == 200
        assert (await client.get("/")).status_code == 200


async def test_open_pages_that_show_the_same_are_made_once_and_anew_after_a_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pages, "LEAST", 1000)
    made = 0

    async def counted(visit: Any) -> Any:
        nonlocal made
        made += 1
        return await overview(visit)

    monkeypatch.setattr(pages, "overview", counted)
    async with listening() as (jobs, client):
        await jobs.set_type_timeout("email", 60)
        fetch = {"x-live": "1"}
        answers = await asyncio.gather(*(client.get("/", headers=fetch) for _ in range(20)))
        assert made == 1
        assert len({(answer.status_code, answer.text) for answer in answers}) == 1
        await client.get("/", headers={**fetch, "cookie": "jobs_service_theme=dark"})
        await client.get("/", headers=fetch, params={"window": "day"})
        assert made == 3
        await client.post("/type/act", data={"type": "email", "action": "pause"})
        assert "paused" in (await client.get("/", headers=fetch)).text
        await client.get("/")
        assert made == 5


async def test_a_page_that_is_told_of_a_change_is_not_given_one_made_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "LEAST", 2.0)
    monkeypatch.setattr(pages.OpenPages, "rest", lambda *_: asyncio.sleep(0.01))
    async with listening() as (jobs, client):
        await jobs.set_type_timeout("email", 60)
        async with page(client, of="types") as stream:
            before = (await client.get("/", headers={"x-live": "1"})).text
            await jobs.add("email", "one")
            await changed(stream)
            assert (await client.get("/", headers={"x-live": "1"})).text != before


async def test_what_acts_or_is_no_page_is_never_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "LEAST", 1000)
    fetch = {"x-live": "1"}
    async with listening() as (jobs, client):
        await jobs.set_type_timeout("email", 60)
        await jobs.set_type_timeout("sms", 60)
        await asyncio.gather(
            *(
                client.post("/type/act", data={"type": type, "action": "pause"}, headers=fetch)
                for type in ("email", "sms")
            )
        )
        assert [await jobs.paused(type) for type in ("email", "sms")] == [True, True]
        await jobs.add("email", "one")
        exported = [(await client.get("/export?type=email", headers=fetch)).text for _ in range(2)]
        assert exported[0].count("one") == exported[1].count("one") == 1


def test_the_more_pages_are_open_the_rarer_they_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "LEAST", 1.0)
    monkeypatch.setattr(pages, "_SHARE", 25)
    opened, beats = pages.OpenPages(), []
    with ExitStack() as stack:
        for number in range(1, 2001):
            stack.enter_context(opened.stream())
            if number in (1, 20, 50, 100, 2000):
                beats.append(opened.beat())
        beats.append(opened.beat(took=0.1))
    beats.append(opened.beat(took=0.1))
    assert beats == [1, 1, 4, 8, 32, 32, 4]
