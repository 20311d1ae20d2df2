"""The pages in a real browser, while jobs run in another process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from jobs_service import JobsService
from jobs_service.names import shown
from jobs_service.service import bulk_actions
from jobs_service.service.selection import Filter
from tests.dashboard.browser import PICTURES, browser, needed, served
from tests.dashboard.test_markup import EVIL

needed()
pytestmark = pytest.mark.timeout(240)

PAGES = {
    "overview": "/",
    "type": "/type?type=email",
    "find": "/type?type=email&state=failed&data=fails~always",
    "job": "/job?type=email&id=welcome-03",
    "running-job": "/job?type=email&id=waits-1",
    "clone": "/job/new?type=email&from=welcome-03",
    "failures": "/failures",
    "processes": "/processes",
    "periodic": "/periodic",
    "supervisor": "/supervision",
    "health": "/health",
    "bulk-confirm": "/bulk/new?type=email&action=resubmit&state=failed",
    "bulk": "/bulk",
    "login": "/login",
}
SIZES = {"wide": (1280, 800), "phone": (390, 844)}


async def fill(jobs: JobsService) -> None:
    """Add jobs that succeed, fail, run and wait; return when nothing changes any more."""
    for number in range(24):
        data = {"to": f"user{number}@example.org", "n": number, "subject": "Welcome"}
        if number % 8 == 3:
            data["fails"] = "always"
        elif number % 8 == 6:
            data["fails"] = "at first"
        await jobs.enqueue("email", data, id=f"welcome-{number:02}")
        await jobs.enqueue("thumbnail", {"image": f"cat-{number}"}, id=f"cat-{number:02}")
    for number in range(24):
        if number % 8 != 6:
            await jobs.wait("email", f"welcome-{number:02}", "finished", timeout=60)
        await jobs.wait("thumbnail", f"cat-{number:02}", "finished", timeout=60)
    for number in range(2):
        await jobs.enqueue("email", {"to": "ada@example.org", "waits": True}, id=f"waits-{number}")
        async with jobs.subscribe("email", f"waits-{number}") as events:
            async for event in events:
                if event.progress is not None and event.progress.done == 2:
                    break
    await jobs.set_type_timeout("newsletter", 60)
    await jobs.pause("newsletter")
    for number in range(12):
        await jobs.add("newsletter", f"november-{number:02}", {"list": "all"})


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[tuple[JobsService, str]]:
    async with served(tmp_path) as (jobs, url):
        yield jobs, url


async def test_every_page_is_as_it_should_be_in_every_size_and_colour(server: tuple[JobsService, str]) -> None:
    jobs, url = server
    await fill(jobs)
    bulk = bulk_actions.BulkActions(jobs)
    id = await bulk.add("count", "email", Filter(state="failed"), "ada")
    await jobs.wait(bulk_actions.TYPE, id, "finished", timeout=60)
    await bulk.close()
    problems: list[str] = []
    for scheme, size in (("light", "wide"), ("dark", "wide"), ("light", "phone")):
        width, height = SIZES[size]
        viewport = {"width": width, "height": height}
        async with browser(url, color_scheme=scheme, viewport=viewport, timezone_id="Europe/Berlin") as watched:
            for name, path in {**PAGES, "bulk-action": f"/bulk/show?id={shown(id)}"}.items():
                await watched.go(path)
                await watched.page.locator("h1").wait_for()
                wider = await watched.page.evaluate("document.documentElement.scrollWidth - innerWidth")
                problems += [f"{name} is wider than a {size} screen by {wider}"] if wider > 0 else []
                if size == "wide" or name in ("overview", "type"):
                    problems += [f"{name} {scheme} {size}: {each}" for each in await watched.violations()]
                if PICTURES and (size == "wide" or name in ("overview", "job")):
                    await watched.page.screenshot(path=f"{PICTURES}/{name}-{size}-{scheme}.png", scale="css")
    assert problems == []


async def test_pages_change_live_while_jobs_run_in_another_process(server: tuple[JobsService, str]) -> None:
    jobs, url = server
    async with browser(url, viewport={"width": 1280, "height": 800}) as watched:
        await watched.go("/")
        await watched.says("#live-says", "live")
        succeeded = watched.page.locator(".figures .succeeded .value")
        before = int(await succeeded.inner_text())
        await jobs.enqueue("email", {"to": "ada"}, id="one")
        await watched.says(".figures .succeeded .value", str(before + 1))

        await watched.go("/type?type=email")
        await jobs.enqueue("email", {"to": "bob"}, id="two")
        await watched.says('[data-part="jobs"] .id', "two")

        await jobs.enqueue("email", {"waits": True}, id="three")
        await watched.go("/job?type=email&id=three")
        await watched.says('[data-part="progress"]', "waiting for the answer")
        await watched.says('[data-part="head"] .state', "running")
        await jobs.remove("email", "three")
        await watched.says('[data-part="head"] .state', "canceled")


async def test_nothing_moves_that_somebody_is_about_to_click(server: tuple[JobsService, str]) -> None:
    jobs, url = server
    await jobs.enqueue("email", {"to": "ada"}, id="one")
    await jobs.wait("email", "one", "finished", timeout=60)
    async with browser(url, viewport={"width": 1280, "height": 800}) as watched:
        page = watched.page
        await watched.go("/type?type=email")
        link = page.locator('[data-part="jobs"] .id a', has_text="one")
        await link.hover()
        place = await link.bounding_box()
        await jobs.enqueue("email", {"to": "bob"}, id="two")
        await watched.says("#live-says", "newer figures wait")
        assert await link.bounding_box() == place
        assert await page.locator('[data-part="jobs"] .id').count() == 1
        await page.mouse.move(5, 5)
        await watched.says('[data-part="jobs"] .id', "two")

        await page.locator("#live-pause").click()
        await watched.says("#live-says", "paused")
        await jobs.enqueue("email", {"to": "eve"}, id="zoe")
        await jobs.wait("email", "zoe", "finished", timeout=60)
        assert await page.locator('[data-part="jobs"] .id').count() == 2
        await page.locator("#live-pause").click()
        await page.mouse.move(5, 5)
        await watched.says('[data-part="jobs"] .id', "zoe")


async def test_what_buttons_say_is_done(server: tuple[JobsService, str]) -> None:
    jobs, url = server
    await fill(jobs)
    async with browser(url, viewport={"width": 1280, "height": 800}) as watched:
        page = watched.page
        await watched.go("/job?type=email&id=welcome-03")
        await page.get_by_role("button", name="Retry").click()
        await watched.says(".note.good", "The job runs again")
        await page.get_by_role("link", name="Clone and edit…").click()
        await page.get_by_label("Id (empty: a random one)").fill("again")
        await page.get_by_label("Data, as JSON").fill('{"to": "ada", "n": 9007199254740993}')
        await page.get_by_role("button", name="Add the job").click()
        await watched.says(".note.good", "The job is added")
        await watched.says("pre", "9007199254740993")
        await jobs.wait("email", "again", "finished", timeout=60)

        await watched.go("/failures")
        await page.get_by_role("link", name="Retry jobs of email that failed with Discard").click()
        await watched.says("h1", "Retry 3 jobs?")
        await page.get_by_role("button", name="Retry 3 jobs").click()
        await watched.says('[data-part="head"] .state', "succeeded")
        await watched.says(".succeeded .value", "3")

        await watched.go("/type?type=newsletter")
        await page.get_by_role("button", name="Resume the type").click()
        await watched.says(".note.good", "The type is resumed")
        assert not await jobs.paused("newsletter")
        await page.locator("summary", has_text="Find jobs").click()
        await page.get_by_label("Id begins with").fill("november-1")
        await page.get_by_role("button", name="Find").click()
        await page.get_by_role("link", name="Remove all of these…").click()
        await watched.says("h1", "Remove 2 jobs?")
        await page.get_by_role("button", name="Remove 2 jobs").click()
        await watched.says('[data-part="head"] .state', "succeeded")
        assert (await jobs.counts("newsletter"))["newsletter"].ready == 10

        await watched.go("/periodic")
        await page.get_by_role("button", name="Run nightly now").click()
        await watched.says(".note.good", "A job is added")


async def test_what_a_browser_cannot_or_is_not_to_do(server: tuple[JobsService, str]) -> None:
    jobs, url = server
    await polls(jobs, url)
    await shows_scripts_as_text(jobs, url)
    await reads_without_javascript(jobs, url)
    await shows_the_zone_one_has_chosen(jobs, url)
    await goes_by_keyboard(url)
    await scrolls_by_keyboard(jobs, url)
    await breaks_no_word_on_a_phone(url)


async def polls(jobs: JobsService, url: str) -> None:
    """Without server-sent events pages ask from time to time."""
    async with browser(url) as watched:
        await watched.page.route("**/live?*", lambda route: route.fulfill(status=204))
        await watched.go("/type?type=email")
        await jobs.enqueue("email", {"to": "bob"}, id="two")
        await watched.says('[data-part="jobs"] .id', "two")


async def shows_scripts_as_text(jobs: JobsService, url: str) -> None:
    """No script in a job ever runs."""
    await jobs.set_type_timeout(EVIL, 60)
    await jobs.add(EVIL, EVIL, {EVIL: EVIL})
    async with browser(url) as watched:
        page = watched.page
        await watched.go("/")
        await page.locator('[data-part="types"] a', has_text="<script>alert(1)</script>").first.click()
        await page.locator('[data-part="jobs"] .id a').click()
        await watched.says("h1", "<script>alert(1)</script>")
        await page.get_by_role("link", name="Clone and edit…").click()
        await page.get_by_label("Data, as JSON").wait_for()


async def reads_without_javascript(jobs: JobsService, url: str) -> None:
    """All can be read without JavaScript, and in the colours that one has chosen."""
    await jobs.enqueue("email", {"to": "ada"}, id="one")
    await jobs.wait("email", "one", "finished", timeout=60)
    async with browser(url, java_script_enabled=False, color_scheme="light") as watched:
        page = watched.page
        for path in ("/", "/type?type=email", "/job?type=email&id=one", "/processes", "/supervision"):
            await watched.go(path)
            assert await page.locator("#live-pause").is_hidden()
        await page.get_by_role("button", name="Dark").click()
        await page.locator('html[data-theme="dark"]').wait_for(state="attached")


async def shows_the_zone_one_has_chosen(jobs: JobsService, url: str) -> None:
    """Times are shown in the zone that one has chosen."""
    await jobs.set_type_timeout("late", 60)
    await jobs.add("late", "one", run_at=4_102_444_800)
    async with browser(url, timezone_id="America/New_York", locale="en-GB") as watched:
        await watched.go("/job?type=late&id=one")
        await watched.says(".facts dd", "2100-01-01 00:00:00 UTC")
        await watched.page.get_by_role("button", name="Local time").click()
        await watched.says(".facts dd", "31/12/2099, 19:00:00")


async def goes_by_keyboard(url: str) -> None:
    """The keyboard reaches the content at once."""
    async with browser(url) as watched:
        await watched.go("/")
        await watched.page.keyboard.press("Tab")
        assert await watched.page.evaluate("document.activeElement.textContent") == "To the page's content"
        await watched.page.keyboard.press("Enter")
        assert await watched.page.evaluate("document.activeElement.id") == "main"


async def scrolls_by_keyboard(jobs: JobsService, url: str) -> None:
    """Whatever is longer than its place can be reached by keyboard."""
    await jobs.add("late", "long", {"rows": [{"n": number} for number in range(80)]})
    await jobs.add("late", "very-long", {"rows": [{"n": number} for number in range(800)]})
    async with browser(url, viewport={"width": 1280, "height": 800}) as watched:
        for id in ("long", "very-long"):
            await watched.go(f"/job?type=late&id={id}")
            await watched.page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true })")
            assert await watched.violations() == []


async def breaks_no_word_on_a_phone(url: str) -> None:
    """Several links in a row of a table stand beside each other, not each in a column of single letters."""
    async with browser(url, viewport={"width": 390, "height": 844}) as watched:
        await watched.go("/processes")
        await watched.says('[data-label="Runs"]', "thumbnail")
        heights = "[...document.querySelectorAll('td a')].map((each) => each.getBoundingClientRect().height)"
        assert max(await watched.page.evaluate(heights)) < 40  # of one line
