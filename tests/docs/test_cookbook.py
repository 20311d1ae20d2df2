"""The cookbook: each recipe does what its page says of it."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobs_service import Job, JobsService, Outcome
from tests.docs.pages import examples, headings
from tests.runner.support import opened, running
from tests.virtual_time import in_virtual_time

EXAMPLES = examples("docs/cookbook.md")
BEGINNING = EXAMPLES[0].partition("jobs = JobsService()")[0]
DAY = 86_400


def recipe(*first_words: str, jobs: JobsService, **names: Any) -> SimpleNamespace:
    """Run the example with these words, which has the given names; return what it defines."""
    [text] = [text for text in EXAMPLES if all(word in text for word in first_words)]
    page = {"__name__": __name__, "jobs": jobs, **names}
    exec(compile(BEGINNING + text, "docs/cookbook.md", "exec"), page)
    return SimpleNamespace(**page)


class Calls(list[Any]):
    """Notes with which arguments a function was called, and when."""

    def __init__(self, result: Any = None, *, times: bool = False) -> None:
        super().__init__()
        self._result = result
        self._times = times

    async def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Note a call."""
        what = (*arguments, *named.values())
        self.append((asyncio.get_running_loop().time(), *what) if self._times else what)
        return self._result(*arguments) if callable(self._result) else self._result


async def ended(jobs: JobsService, type: str, id: Any, timeout: float = 3600) -> Job:
    """Wait for the end of a job, and return it."""
    await jobs.wait(type, id, "finished", timeout=timeout)
    return await jobs.get(type, id)


@asynccontextmanager
async def at_work(*words: str, **names: Any) -> AsyncIterator[tuple[JobsService, SimpleNamespace]]:
    """Run the handlers of a recipe in virtual time."""
    async with opened(patience=DAY) as jobs:
        page = recipe(*words, jobs=jobs, **names)
        async with running(jobs):
            yield jobs, page


def test_there_are_twelve_recipes() -> None:
    assert len(headings("docs/cookbook.md")) == 1 + 12


@in_virtual_time
async def test_debounce() -> None:
    written = Calls(times=True)
    async with at_work('handler("index")', write_index=written) as (_, page):
        for _ in range(5):
            await page.changed("a")
            await asyncio.sleep(4)
        await asyncio.sleep(60)
        assert [document for _, document in written] == ["a"]
        assert 26 <= written[0][0] <= 27
        await page.changed("a")
        await asyncio.sleep(60)
        assert len(written) == 2


@in_virtual_time
@pytest.mark.parametrize("decision", ["yes", "no"])
async def test_approval(decision: str) -> None:
    paid = Calls()
    async with at_work('handler("refund")', pay_back=paid) as (jobs, page):
        await jobs.enqueue(page.refund, 7, id="r")
        await jobs.wait("refund", "r", "running")
        waiting = await jobs.wait("refund", "r", "pending")
        assert waiting.run_at is not None
        assert waiting.run_at.timestamp() - jobs.wall_time() == pytest.approx(7 * DAY, abs=60)
        await page.decide("r", decision)
        assert (await ended(jobs, "refund", "r", timeout=5)).result == decision
        await page.decide("r", "no")
        assert (await jobs.get("refund", "r")).state == "finished"
    assert paid == ([(7,)] if decision == "yes" else [])


@in_virtual_time
async def test_pipeline() -> None:
    async with at_work('handler("download")', fetch=Calls("three short words")) as (jobs, page):
        await jobs.enqueue(page.download, "http://example.org", id="one")
        await ended(jobs, "download", "one")
        assert (await ended(jobs, "count-words", "one")).result == 3
        await jobs.resubmit("download", "one")
        await ended(jobs, "download", "one")
        assert (await ended(jobs, "count-words", "one")).attempts == 1


@in_virtual_time
async def test_fan_out_and_fan_in() -> None:
    async with at_work('handler("report")', sales_of=Calls(lambda month: 10 * month)) as (jobs, page):
        await jobs.enqueue(page.report, [*range(1, 13)], id="2026")
        await ended(jobs, "report", "2026")
        for month in [job async for job in jobs.list("month")]:
            await ended(jobs, "month", month.id)
        assert (await ended(jobs, "together", "2026")).result == 780


@in_virtual_time
async def test_limits_per_tenant() -> None:
    called = Calls(times=True)
    async with at_work('handler("call"', call_api=called) as (jobs, page):
        added = [await jobs.enqueue(page.call, tenant) for tenant in ["big"] * 60 + ["small"]]
        for job in added:
            await ended(jobs, "call", job.id)
    times = sorted(at for at, tenant in called if tenant == "big")
    assert len(times) == 60
    assert times[-1] - times[0] == pytest.approx(59 / page.PER_SECOND, abs=2)
    for at in times:  # the page says where its bounds are
        assert sum(at <= other < at + 1 for other in times) <= page.PER_SECOND + 2
    [small] = [at for at, tenant in called if tenant == "small"]
    assert small < times[20]


@in_virtual_time
async def test_priorities_that_do_not_starve() -> None:
    order = Calls()
    async with opened(patience=DAY) as jobs:
        page = recipe("WITHIN", jobs=jobs, send=order)
        for kind in ("mass", "normal", "urgent"):
            await page.send_later(kind, kind)
        await asyncio.sleep(3600)
        await page.send_later("late", "urgent")
        async with running(jobs):
            for job in [job async for job in jobs.list("mail")]:
                await ended(jobs, "mail", job.id)
    assert order == [("urgent",), ("normal",), ("mass",), ("late",)]


@in_virtual_time
async def test_a_job_that_waits_for_a_webhook() -> None:
    asked = Calls()
    async with at_work('handler("payment")', ask_bank=asked) as (jobs, page):
        await jobs.enqueue(page.payment, 40, id="p")
        await asyncio.sleep(3600 + 60)
        assert asked == [("p", 40), ("p", 40)]
        await page.webhook("unknown", "paid")
        await page.webhook("p", "paid")
        assert (await ended(jobs, "payment", "p", timeout=5)).result == "paid"
        await page.webhook("p", "paid")
        assert (await jobs.get("payment", "p")).state == "finished"


@in_virtual_time
async def test_a_webhook_before_the_first_run_has_ended() -> None:
    async with opened(patience=DAY) as jobs:

        async def ask_bank(id: str, amount: int) -> None:
            await page.webhook(id, "paid at once")

        page = recipe('handler("payment")', jobs=jobs, ask_bank=ask_bank)
        async with running(jobs):
            await jobs.enqueue(page.payment, 40, id="p")
            assert (await ended(jobs, "payment", "p", timeout=60)).result == "paid at once"


@in_virtual_time
async def test_effects_elsewhere_with_a_key() -> None:
    charged: dict[str, int] = {}

    async def card_api(amount: int, idempotency_key: str) -> str:
        is_first = not charged
        charged[idempotency_key] = amount
        if is_first:
            raise OSError("the answer was lost")
        return "charged"

    async with at_work('handler("charge")', card_api=card_api) as (jobs, page):
        await jobs.enqueue(page.charge, 40, id="c")
        assert (await ended(jobs, "charge", "c")).result == "charged"
    assert charged == {"charge/c": 40}


@in_virtual_time
async def test_effects_elsewhere_at_most_once() -> None:
    printed = []

    async def print_letter(to: str) -> None:
        printed.append(to)
        raise OSError("the answer was lost")

    async with at_work('handler("letter")', print_letter=print_letter) as (jobs, page):
        await jobs.enqueue(page.letter, "ada", id="l")
        job = await ended(jobs, "letter", "l")
        assert (job.outcome, job.error and job.error.type) == (Outcome.FAILED, "Discard")
    assert printed == ["ada"]


@in_virtual_time
async def test_many_schedules() -> None:
    sent = Calls(times=True)
    async with at_work("class Digest", send_digest=sent) as (jobs, page):

        async def next_of(customer: str) -> datetime | None:
            return (await jobs.get("digest", customer)).run_at

        def at(day: int, hour: int) -> datetime:
            return datetime(2023, 11, day, hour, tzinfo=UTC)

        await page.subscribe("ada", page.Digest(0, "Europe/Berlin"))  # it is the evening of the 14th
        await page.subscribe("bob", page.Digest(17))
        assert (await next_of("ada"), await next_of("bob")) == (at(14, 23), at(15, 17))
        await asyncio.sleep(at(14, 23).timestamp() - jobs.wall_time() + 60)
        assert [id for _, id in sent] == ["ada"]
        assert (await next_of("ada"), await next_of("bob")) == (at(15, 23), at(15, 17))
        await page.subscribe("ada", page.Digest(10, "Europe/Berlin"))
        await page.unsubscribe("bob")
        assert await next_of("ada") == at(15, 9)
        assert [job.id async for job in jobs.list("digest")] == ["ada"]


# In real time: files, threads, requests


async def test_large_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: JobsService) -> None:
    async def content() -> AsyncIterator[bytes]:
        for _ in range(10):
            yield b"x" * 100_000

    monkeypatch.chdir(tmp_path)
    (tmp_path / "files").mkdir()
    page = recipe("FILES = ", jobs=jobs)
    async with running(jobs):
        job = await page.upload(content())
        name = await jobs.result(page.compress, job.id, timeout=60)
    assert gzip.decompress((tmp_path / "files" / name).read_bytes()) == b"x" * 1_000_000
    assert sorted(os.listdir("files")) == sorted([job.id, name])


async def test_progress_in_a_browser(jobs: JobsService) -> None:
    page = recipe("StreamingResponse", jobs=jobs)

    @jobs.handler("video")
    async def video(job: Any) -> None:
        await begun.wait()
        for done in range(1, 4):
            await job.progress(done, 3)

    begun = asyncio.Event()
    await jobs.enqueue(video, id="42")
    answer = await page.progress(SimpleNamespace(path_params={"id": "42"}))
    async with running(jobs):
        seen = []
        async for chunk in answer.body_iterator:
            begun.set()
            seen.append(json.loads(chunk.removeprefix("data: ")))
    assert answer.media_type == "text/event-stream"
    assert seen[-1] == {"state": "finished", "done": 3, "total": 3}
    [html] = re.findall(r"```html\n(.*?)```", (Path(__file__).parents[2] / "docs/cookbook.md").read_text(), re.DOTALL)
    assert all(f"{name}" in html for name in seen[-1])


def test_moving_from_celery(tmp_path: Path) -> None:
    busy = iter([True, False])
    jobs = JobsService(f"lmdb:{tmp_path}/jobs")
    page = recipe("PlainJobsService", jobs=jobs, is_busy=lambda: next(busy))
    id = page.view("ada")
    page.plain.close()

    async def run() -> None:
        async with jobs, running(jobs):
            async with jobs.subscribe("send", id) as events:
                async for event in events:
                    if event.retrying:
                        break
            await jobs.resubmit("send", id, run_at=None)  # rather than wait for five seconds
            assert await jobs.result(page.send_mail, id, timeout=60) == "sent to ada"

    asyncio.run(run())
