"""An outage in which everything is tried again: every page says so, and what is scheduled for later is no complaint."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from jobs_service import JobsService, NewJob
from jobs_service.dashboard import figures
from jobs_service.metrics import text as metrics_text
from tests.dashboard.support import eventually, text
from tests.http.support import served

RUNS = 200
WEEK = 7 * 86_400.0


@asynccontextmanager
async def outage(*, then: str = "") -> AsyncIterator[tuple[JobsService, httpx.AsyncClient]]:
    """Have all runs of a type crash, with the default options, beside 25 reminders for next week."""
    async with served() as (jobs, client):

        @jobs.handler("email")
        async def email(number: int) -> None:
            raise ConnectionError(f"smtp 10.0.0.{number} does not answer")

        @jobs.handler("remind")
        async def remind() -> None: ...

        async def all_wait() -> bool:
            return (await jobs.counts("email"))["email"].retrying == RUNS

        task = asyncio.create_task(jobs.run())
        try:
            for number in range(RUNS):
                await jobs.enqueue(email, number)
            for _ in range(25):
                await jobs.enqueue(remind, delay=WEEK)
            await eventually(all_wait)
            yield jobs, client
        finally:
            task.cancel()
            await asyncio.wait([task])


async def test_every_page_tells_of_an_outage_while_its_jobs_are_tried_again() -> None:
    async with outage() as (jobs, client):
        overview = (await client.get("/")).text
        assert "200 of 200 runs crashed within the last 2 minutes; 200 jobs wait for another attempt" in text(overview)
        assert "email 100 % of its runs crash" in text(overview)
        assert 'data-label="Retrying">200<' in overview
        assert "remind" not in text(re.findall(r'data-part="attention".*?</section>', overview, re.DOTALL)[0])
        kind = text((await client.get("/type?type=email&state=retrying")).text)
        assert re.search(r"100 % of its runs crash since \d\d:\d\d", kind)
        assert "ConnectionError: smtp" in kind
        failures = text((await client.get("/failures")).text)
        assert "200 retrying ConnectionError" in failures
        assert "smtp … does not answer email 200" in failures
        assert "200 runs crashed in the last hour" in failures
        health = text((await client.get("/system")).text)
        assert "Of email, 200 of 200 runs crashed within the last 2 minutes." in health
        assert "All is well" not in health
        scraped = (await metrics_text(jobs)).decode()
        assert 'jobs_service_jobs{state="retrying",type="email"} 200.0' in scraped
        assert 'jobs_service_jobs{state="scheduled",type="email"} 0.0' in scraped


async def test_a_group_of_retrying_jobs_has_a_filter_with_which_they_are_found_and_changed() -> None:
    async with outage() as (jobs, client):
        found = (await client.get("/v1/failures")).json()
        assert (found["failed"], found["retrying"], found["read"]) == (0, RUNS, RUNS)
        [group] = found["groups"]
        assert (group["state"], group["error"], group["count"]) == ("retrying", "ConnectionError", RUNS)
        wanted = group["types"][0]["filter"]
        assert wanted["state"] == "retrying"
        listed = (await client.get("/v1/types/email/jobs", params={"state": "retrying", "limit": 1000})).json()["jobs"]
        assert {(job["state"], job["retrying"]) for job in listed} == {("pending", True)}
        body = {"action": "cancel", "filter": wanted}
        assert (await client.post("/v1/types/email/bulk", json=body)).json()["changed"] == RUNS
        assert (await jobs.counts("email"))["email"].retrying == 0


async def test_an_outage_is_told_of_whatever_page_its_type_is_on() -> None:
    async with outage() as (jobs, client):
        for number in range(30):
            await jobs.set_type_timeout(f"a-type-{number:02}", 60)
        first = text((await client.get("/")).text)
        assert "1 to 25 of 32 types" in first
        assert "email 100 % of its runs crash" in first


async def test_a_paused_type_is_listed_once_however_many_jobs_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "SLOW", 0.0)
    async with served() as (jobs, client):
        await jobs.set_type_timeout("email", 60)
        for number in range(30):
            await jobs.add("email", f"{number}")
        assert "email falls behind" in text((await client.get("/")).text)
        await client.post("/type/act", data={"type": "email", "action": "pause"})
        overview = (await client.get("/")).text
        attention = re.findall(r'data-part="attention".*?</section>', overview, re.DOTALL)[0]
        assert text(attention).count("email") == 1
        assert "email is paused 30 jobs are ready" in text(attention)


@pytest.mark.parametrize("number", [25, 400])
async def test_jobs_that_are_scheduled_for_later_are_no_backlog(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "SLOW", 0.0)
    async with served() as (jobs, client):
        await jobs.set_type_timeout("email", 60)
        await jobs.add_many("email", [NewJob(f"later-{each}", run_at=time.time() + WEEK) for each in range(number)])
        assert "falls behind" not in text((await client.get("/")).text)
