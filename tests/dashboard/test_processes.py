"""The page of processes: who is there, what each runs, and the way from a job to the process that runs it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from jobs_service import HandlerSlots, JobsService, ProcessState
from jobs_service.http.state import ServerOptions
from jobs_service.layer import rows as process_rows
from jobs_service.layer.rows import ProcessRow
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model.process import OutboxInfo
from tests.dashboard.support import text
from tests.http.support import served
from tests.layer.processes import process_row

EVIL = "<img src=x onerror=alert(1)>\u202e'\"{{7*7}}"


@pytest.fixture
async def place() -> AsyncIterator[tuple[JobsService, httpx.AsyncClient]]:
    """A server of pages, whose own process is not listed."""
    async with served() as (jobs, client):
        yield jobs, client


async def put(jobs: JobsService, *rows: ProcessRow) -> None:
    """Write rows of processes that were heard of just now."""
    now = time.time()

    async def write(unit: UnitOfWork) -> None:
        for row in rows:
            heard = replace(row.info, heard=now - row.info.heard, started=now - row.info.started)
            process_rows.write(unit, replace(row, info=heard))

    await jobs._access.transact(write)


def row(id: str, **more: Any) -> ProcessRow:
    """Return a row; `heard` and `started` are how many seconds ago."""
    return process_row(id * 12, **{"heard": 1.0, "started": 7200.0, **more})


async def test_every_process_is_shown_with_what_it_runs(place: tuple[JobsService, httpx.AsyncClient]) -> None:
    jobs, client = place
    many = tuple(HandlerSlots(f"type-{number}", 1, 0) for number in range(8))
    await put(
        jobs,
        row("a"),
        row("b", worker="web-2:1", state=ProcessState.QUIET, handlers=many, unnamed=2),
        row("c", worker="web-3:1", role="daemon", handlers=(), slots=0, taken=0),
        row("d", worker="web-4:1", heard=5000.0),
    )
    said = text((await client.get("/system")).text)
    assert "web-1:4711 runner running 2 of 7" in said
    assert 'json:["a",{"bytes":"62"}], email 0.1.0 2 h 1 s ago' in said
    assert "quiet" in said
    assert "5 more" in said
    assert "no handlers: it looks after lost and scheduled jobs" in said
    assert "web-4:1 is silent." in said
    assert said.count("End this process") == 4


async def test_a_job_leads_to_the_process_that_runs_it(place: tuple[JobsService, httpx.AsyncClient]) -> None:
    jobs, client = place
    await jobs.set_type_timeout("email", 60)
    await jobs.add("email", "one")
    assert await jobs.accept("email") is not None
    worker = jobs._context.sources.worker
    await put(jobs, row("a", worker=worker), row("b", worker="web-2:1"))
    page = (await client.get("/job?type=email&id=one")).text
    [link] = [part.split('"')[0] for part in page.split('href="')[1:] if part.startswith("/system?worker=")]
    page = (await client.get(link.replace("&amp;", "&"))).text
    said = text(page)
    assert 'title="aaaaaaaaaaaa"' in page
    assert 'title="bbbbbbbbbbbb"' not in page
    assert "one email" in said


async def test_only_admins_see_buttons_and_the_dead_have_none() -> None:
    async with served() as (jobs, client):
        await put(jobs, row("b", state=ProcessState.STOPPING))
        assert "End this process" not in (await client.get("/system")).text
        await put(jobs, row("a"))
        assert "End this process" in (await client.get("/system")).text
    options = ServerOptions(authenticate=lambda scope: ("ada", "write"))
    async with served(options=options) as (jobs, client):
        await put(jobs, row("a"))
        page = (await client.get("/system")).text
        assert "End this process" not in page
        assert "Take no more jobs" not in page


async def test_the_lag_of_outboxes_is_a_check_and_one_that_stands_still_needs_attention(
    place: tuple[JobsService, httpx.AsyncClient],
) -> None:
    jobs, client = place
    await jobs.set_type_timeout("email", 60)
    await put(jobs, row("a", outboxes=(OutboxInfo("sqlite:shop.db", 1200, 12.0, 1),)))
    assert "Outbox sqlite:shop.db is moved : yes 1,200 rows, the oldest for 12 s, 1 set aside" in text(
        (await client.get("/system")).text
    )
    await put(jobs, row("a", outboxes=(OutboxInfo("sqlite:shop.db", 3, 75.0), OutboxInfo(EVIL, error=EVIL))))
    for path in ("/system", "/"):
        page = (await client.get(path)).text
        assert "<img src=x" not in page
        said = text(page)
        assert "sqlite:shop.db falls behind" in said
        assert "3 rows, the oldest for 1 min 15 s" in said
        assert said.count("is not moved: <img src=x onerror=alert(1)>") == 1
