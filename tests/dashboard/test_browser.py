"""The pages in a real browser, while jobs run in another process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import pytest

from jobs_service import JobsService
from jobs_service.names import shown
from jobs_service.service import bulk_actions
from jobs_service.service.selection import Filter
from tests.dashboard.browser import PICTURES, browser, needed, served
from tests.dashboard.test_markup import EVIL

needed()
pytestmark = pytest.mark.timeout(600)

PAGES = {
    "overview": "/",
    "type": "/type?type=email",
    "find": "/type?type=email&state=failed&data=fails~always",
    "job": "/job?type=email&id=welcome-03",
    "retrying-job": "/job?type=email&id=welcome-06",
    "running-job": "/job?type=email&id=waits-1",
    "clone": "/job/new?type=email&from=welcome-03",
    "failures": "/failures",
    "periodic": "/periodic",
    "system": "/system",
    "search": "/search?q=wel",
    "bulk-confirm": "/bulk/new?type=email&action=resubmit&state=failed",
    "login": "/login",
}
SIZES = {"wide": (1440, 900), "middle": (1024, 800), "phone": (390, 844)}


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


@pytest.mark.parametrize(
    ("scheme", "size"), [("light", "wide"), ("dark", "wide"), ("light", "middle"), ("dark", "phone")]
)
async def test_every_page_is_as_it_should_be_in_every_size_and_colour(
    server: tuple[JobsService, str], scheme: Literal["light", "dark"], size: str
) -> None:
    jobs, url = server
    await fill(jobs)
    bulk = bulk_actions.BulkActions(jobs)
    id = await bulk.add("count", "email", Filter(state="failed"), "ada")
    await jobs.wait(bulk_actions.TYPE, id, "finished", timeout=60)
    await bulk.close()
    problems: list[str] = []
    width, height = SIZES[size]
    viewport = {"width": width, "height": height}
    async with browser(url, color_scheme=scheme, viewport=viewport, timezone_id="Europe/Berlin") as watched:
        for name, path in {**PAGES, "bulk-action": f"/bulk/show?id={shown(id)}"}.items():
            await watched.go(path)
            await watched.page.locator("h1").wait_for()
            if PICTURES and size == "wide":
                await watched.page.screenshot(path=f"{PICTURES}/{name}-{size}-{scheme}.png", scale="css")
            await watched.page.evaluate(
                "document.querySelectorAll('.group, .fold').forEach((each) => { each.open = true })"
            )
            wider = await watched.page.evaluate("document.documentElement.scrollWidth - innerWidth")
            problems += [f"{name} is wider than a {size} screen by {wider}"] if wider > 0 else []
            if size != "middle":
                problems += [f"{name} {scheme} {size}: {each}" for each in await watched.violations()]
    assert problems == []


async def test_pages_change_live_while_jobs_run_in_another_process(server: tuple[JobsService, str]) -> None:
    jobs, url = server
    async with browser(url, viewport={"width": 1280, "height": 800}) as watched:
        await jobs.set_type_timeout("email", 60)
        await watched.go("/")
        await watched.says("#live-says", "Live")
        await jobs.enqueue("email", {"to": "ada"}, id="one")
        await watched.says('[data-part="chart"] .figures dd >> nth=0', "1")

        await watched.go("/type?type=email")
        await jobs.enqueue("email", {"to": "bob"}, id="two")
        await watched.says('[data-part="jobs"] .id', "two")

        await jobs.enqueue("email", {"waits": True}, id="three")
        await watched.go("/job?type=email&id=three")
        await watched.says('[data-part="progress"]', "waiting for the answer")
        await watched.says('[data-part="head"] .pill', "running")
        await jobs.remove("email", "three")
        await watched.says('[data-part="head"] .pill', "canceled")


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
        await watched.says("#live-says", "Newer figures wait")
        assert await link.bounding_box() == place
        assert await page.locator('[data-part="jobs"] .id').count() == 1
        await page.mouse.move(5, 5)
        await watched.says('[data-part="jobs"] .id', "two")

        # What is checked stays so, and its list as it is.
        await page.locator("[name=pick]").first.check()
        await page.mouse.move(5, 5)
        await page.evaluate("document.activeElement.blur()")
        await jobs.enqueue("email", {"to": "eve"}, id="zoe")
        await jobs.wait("email", "zoe", "finished", timeout=60)
        await watched.says('[data-part="head"]', "No job waits")
        assert await page.locator("[name=pick]:checked").count() == 1
        await page.locator("[name=pick]:checked").uncheck()

        await page.locator("#live").click()
        await watched.says("#live-says", "Paused")
        await jobs.enqueue("email", {"to": "ann"}, id="zwei")
        await jobs.wait("email", "zwei", "finished", timeout=60)
        assert await page.locator('[data-part="jobs"] .id', has_text="zwei").count() == 0
        await page.locator("#live").click()
        await watched.says('[data-part="jobs"] .id', "zwei")


async def test_a_day_of_work_is_done_with_keys_alone(server: tuple[JobsService, str]) -> None:
    """An error is found, its jobs are retried, a job is looked up and edited, a type is paused."""
    jobs, url = server
    await fill(jobs)
    async with browser(url, viewport={"width": 1280, "height": 800}) as watched:
        page, press = watched.page, watched.page.keyboard.press
        await watched.go("/")
        await press("Tab")
        assert await page.evaluate("document.activeElement.textContent") == "Skip to content"
        await press("Enter")
        assert await page.evaluate("document.activeElement.id") == "main"

        await press("g")
        await press("f")
        await watched.says("h1", "Failures")
        await press("j")
        await press("Enter")  # opens the group
        await page.locator(".group[open]").wait_for()
        await press("Tab")
        await press("Enter")  # its first button
        await watched.says("h1", "Retry")
        await press("u")
        await watched.says("h1", "email")

        await press("j")
        await press("x")
        await press("j")
        await press("x")
        await watched.says(".bulk .some", "selected")
        assert await page.locator("[name=pick]:checked").count() == 2
        await press("c")
        await watched.says("h1", "Cancel")
        await press("g")
        await press("o")
        await watched.says("h1", "Overview")
        await press("2")
        await page.wait_for_url("**window=day*")

        await press("/")
        await page.keyboard.type("november-0")
        await watched.says("#palette .chosen", "november-0")
        await press("ArrowDown")
        await press("Enter")
        await watched.says("h1", "november-0")
        id = await page.locator("h1").inner_text()
        await page.locator("#edit summary").focus()
        await press("Enter")
        await page.get_by_label("Arguments, as JSON").focus()
        await press("Control+A")
        await page.keyboard.type('{"list": "few"}')
        await press("Tab")
        await press("Control+A")
        await page.keyboard.type("7")
        await press("Enter")
        await watched.says('[role="status"]', "The job is changed")
        job = await jobs.get("newsletter", id)
        assert (job.data, job.priority) == ({"list": "few"}, 7)

        await press("u")
        await watched.says("h1", "newsletter")
        await press("f")
        await page.keyboard.type("november-1")
        await press("Enter")
        await watched.says(".chip", "id begins with november-1")
        await press("?")
        await watched.says("#keys", "previous row")
        await press("Escape")
        await page.get_by_role("button", name="Resume").focus()
        await press("Enter")
        await watched.says('[role="status"]', "The type is resumed")
        assert not await jobs.paused("newsletter")


async def test_buttons_do_what_they_say(server: tuple[JobsService, str]) -> None:
    jobs, url = server
    await fill(jobs)
    async with browser(url, viewport={"width": 1280, "height": 800}) as watched:
        page = watched.page
        await watched.go("/failures")
        await page.locator(".group summary", has_text="Discard").click()
        await page.get_by_role("link", name="Retry jobs of email with Discard").click()
        await watched.says("h1", "Retry 3 jobs?")
        await page.get_by_role("button", name="Retry 3 jobs").click()
        await watched.says('[data-part="head"] .pill', "succeeded")
        await watched.says(".figures", "3")

        await watched.go("/type?type=newsletter&prefix=november-1")
        await page.get_by_label("november-10").check()
        await watched.says(".bulk .some", "selected")
        await page.get_by_role("button", name="Remove…").click()
        await watched.says("h1", "Remove 1 job?")
        await page.get_by_role("button", name="Remove 1 job").click()
        await watched.says('[role="status"]', "Done.")
        assert (await jobs.counts("newsletter"))["newsletter"].ready == 11

        await watched.go("/periodic")
        await page.locator("summary[aria-label='Actions for nightly']").click()
        await page.get_by_role("button", name="Run now").click()
        await watched.says('[role="status"]', "A job is added")


async def test_what_a_browser_cannot_or_is_not_to_do(server: tuple[JobsService, str]) -> None:
    jobs, url = server
    await polls(jobs, url)
    await shows_scripts_as_text(jobs, url)
    await reads_without_javascript(jobs, url)
    await shows_the_zone_one_has_chosen(jobs, url)
    await scrolls_by_keyboard(jobs, url)


async def polls(jobs: JobsService, url: str) -> None:
    """Without server-sent events pages ask from time to time."""
    await jobs.set_type_timeout("email", 60)
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
        await page.keyboard.press("/")
        await page.keyboard.type("<script>")
        await watched.says("#palette .results", "<script>alert(1)</script>")
        await page.keyboard.press("Escape")
        await page.get_by_role("link", name="Clone and edit").click()
        await page.get_by_label("Arguments, as JSON").wait_for()


async def reads_without_javascript(jobs: JobsService, url: str) -> None:
    """All can be read without JavaScript, and in the colours that one has chosen."""
    await jobs.enqueue("email", {"to": "ada"}, id="one")
    await jobs.wait("email", "one", "finished", timeout=60)
    async with browser(url, java_script_enabled=False, color_scheme="light") as watched:
        page = watched.page
        for path in ("/", "/type?type=email", "/job?type=email&id=one", "/system", "/search?q=o"):
            await watched.go(path)
            assert await page.locator("#live").is_hidden()
            assert await page.locator("#palette").is_hidden()
        await watched.go("/type?type=email")
        await page.locator("#f-find").fill("to=ada")
        await page.keyboard.press("Enter")
        await watched.says(".chip", "to=ada")
        await page.locator("#order").select_option("oldest")
        await page.get_by_role("button", name="Apply").click()
        await page.wait_for_url("**order=oldest*")
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


async def scrolls_by_keyboard(jobs: JobsService, url: str) -> None:
    """Whatever is longer than its place can be reached by keyboard."""
    await jobs.add("late", "long", {"rows": [{"n": number} for number in range(80)]})
    await jobs.add("late", "very-long", {"rows": [{"n": number} for number in range(800)]})
    async with browser(url, viewport={"width": 1280, "height": 800}) as watched:
        for id in ("long", "very-long"):
            await watched.go(f"/job?type=late&id={id}")
            await watched.page.evaluate(
                "document.querySelectorAll('details.fold').forEach((each) => { each.open = true })"
            )
            assert await watched.violations() == []
