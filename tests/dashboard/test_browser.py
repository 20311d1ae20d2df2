"""The pages in a real browser, while jobs run in another process."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path

import pytest

from jobs_service import JobsService, NewJob
from jobs_service.names import shown
from jobs_service.service import bulk_actions
from jobs_service.service.selection import Filter
from tests.dashboard.browser import PICTURES, Browser, browser, needed, served
from tests.dashboard.test_markup import EVIL
from tests.shares import share

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
    "past": "/past?for=2h",
    "periodic": "/periodic",
    "system": "/system",
    "search": "/search?q=wel",
    "bulk-confirm": "/bulk/new?type=email&action=resubmit&state=failed",
    "login": "/login",
}
SIZES = {
    "wide": {"width": 1440, "height": 900},
    "middle": {"width": 1024, "height": 800},
    "phone": {"width": 390, "height": 844},
}
WIDTHS = range(360, 1921, 20)
_OF_LOOKS = ("color-contrast", "target-size", "scrollable-region-focusable", "list", "listitem", "empty-table-header")
"""Rules of axe-core that may find something else in other colours, and on a screen on which rows are cards."""
_ELSEWHERE = ("overview", "type", "job", "failures", "system")


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
    await jobs.set_type_timeout("thumbnail-of-uploaded-pictures", 60)
    await jobs.set_type_timeout(("tenant", 7), 60)
    later = time.time() + 9e5
    await jobs.add_many(("tenant", 7), [NewJob(f"{each}", run_at=later if each % 2 else None) for each in range(1234)])
    await jobs.pause(("tenant", 7))
    bulk = bulk_actions.BulkActions(jobs)
    id = await bulk.add("count", "email", Filter(state="failed"), "ada")
    await jobs.wait(bulk_actions.TYPE, id, "finished", timeout=60)
    await bulk.close()
    problems: list[str] = []
    async with browser(url) as opened, opened(timezone_id="Europe/Berlin") as watched:
        page = watched.page
        for number, (name, path) in enumerate({**PAGES, "bulk-action": f"/bulk/show?id={shown(id)}"}.items()):
            await page.set_viewport_size(SIZES["wide"])
            await watched.go(path)
            await page.locator("h1").wait_for()
            for size, scheme in product(SIZES, ("dark", "light")) if PICTURES else ():
                await page.set_viewport_size(SIZES[size])
                await page.emulate_media(color_scheme=scheme)
                await page.screenshot(path=f"{PICTURES}/{name}-{size}-{scheme}.png", scale="css")
            await watched.unfold()
            # Other colours and sizes have the same elements: only what depends on them is looked at again.
            await page.set_viewport_size(SIZES["wide"])
            await page.emulate_media(color_scheme="light")
            problems += [f"{name}: {each}" for each in await watched.violations()]
            if name in _ELSEWHERE:
                await page.set_viewport_size(SIZES["phone"])
                await page.emulate_media(color_scheme="dark")
                problems += [f"{name} on a dark phone: {each}" for each in await watched.violations(*_OF_LOOKS)]
            for width in {*share(WIDTHS, 26, 7 * number % 26), SIZES["phone"]["width"], SIZES["middle"]["width"]}:
                await page.set_viewport_size({"width": width, "height": 800})
                problems += [f"{name} at {width}: {each}" for each in await watched.broken()]
    assert "\n".join(problems) == ""


async def test_pages_change_live_and_nothing_moves_that_somebody_is_about_to_click(
    server: tuple[JobsService, str],
) -> None:
    jobs, url = server
    async with browser(url) as opened:
        await change_live(jobs, opened)
        await hold_still(jobs, opened)


async def change_live(jobs: JobsService, opened: Browser) -> None:
    """Pages change while jobs run in another process."""
    async with opened(viewport={"width": 1280, "height": 800}) as watched:
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


async def hold_still(jobs: JobsService, opened: Browser) -> None:
    """What is pointed at, checked or paused stays as it is."""
    async with opened(viewport={"width": 1280, "height": 800}) as watched:
        page = watched.page
        await jobs.enqueue("thumbnail", {"image": "ada"}, id="one")
        await jobs.wait("thumbnail", "one", "finished", timeout=60)
        await watched.go("/type?type=thumbnail")
        link = page.locator('[data-part="jobs"] .id a', has_text="one")
        await link.hover()
        place = await link.bounding_box()
        await jobs.enqueue("thumbnail", {"image": "bob"}, id="two")
        await watched.says("#live-says", "Newer figures wait")
        assert await link.bounding_box() == place
        assert await page.locator('[data-part="jobs"] .id').count() == 1
        await page.mouse.move(5, 5)
        await watched.says('[data-part="jobs"] .id', "two")

        # What is checked stays so, and its list as it is.
        await page.locator("[name=pick]").first.check()
        await page.mouse.move(5, 5)
        await page.evaluate("document.activeElement.blur()")
        await jobs.enqueue("thumbnail", {"image": "eve"}, id="zoe")
        await jobs.wait("thumbnail", "zoe", "finished", timeout=60)
        await watched.says('[data-part="head"]', "No job waits")
        assert await page.locator("[name=pick]:checked").count() == 1
        await page.locator("[name=pick]:checked").uncheck()

        await page.locator("#live").click()
        await watched.says("#live-says", "Paused")
        await jobs.enqueue("thumbnail", {"image": "ann"}, id="zwei")
        await jobs.wait("thumbnail", "zwei", "finished", timeout=60)
        assert await page.locator('[data-part="jobs"] .id', has_text="zwei").count() == 0
        await page.locator("#live").click()
        await watched.says('[data-part="jobs"] .id', "zwei")


async def test_keys_and_buttons_do_what_they_say(server: tuple[JobsService, str]) -> None:
    jobs, url = server
    await fill(jobs)
    async with browser(url) as opened:
        await find_things_without_documentation(opened)
        await work_with_keys_alone(jobs, opened)
        await press_buttons(jobs, opened)


async def find_things_without_documentation(opened: Browser) -> None:
    """What is broken since when, its failures, the jobs of a customer, why one waits, what ran at a time."""
    async with opened(viewport={"width": 1280, "height": 800}) as watched:
        page = watched.page
        await watched.go("/")
        await page.locator(".alerts a", has_text="email").click()
        await watched.says("h1 + .pill", "of its runs crash since")

        await page.get_by_role("navigation", name="Pages", exact=True).get_by_role("link", name="Failures").click()
        await page.locator(".group summary", has_text="Discard").click()
        await page.get_by_role("link", name="Show jobs").locator("visible=true").click()
        await watched.says(".chip", "failed with")
        assert await page.locator('[data-part="jobs"] tbody .state', has_text="failed").count() == 3

        await page.locator("#find").click()
        await page.keyboard.type("to=user3@example.org")
        await page.locator("#palette a", has_text="welcome-03").click()
        await watched.says("h1", "welcome-03")

        await watched.go("/job?type=newsletter&id=november-01")
        await watched.says(".about", "its type is paused: resume the type")

        await watched.go("/?window=day")
        await page.mouse.move(5, 5)
        await page.locator(".columns a").last.click()
        await watched.says("h1", "What ran")
        await page.get_by_role("link", name="email").click()
        await watched.says(".chip", "last event within")


async def work_with_keys_alone(jobs: JobsService, opened: Browser) -> None:
    """An error is found, its jobs are retried, a job is looked up and edited, a type is paused."""
    async with opened(viewport={"width": 1280, "height": 800}) as watched:
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


async def press_buttons(jobs: JobsService, opened: Browser) -> None:
    """Jobs of an error are retried, one is removed, a schedule runs."""
    async with opened(viewport={"width": 1280, "height": 800}) as watched:
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
    async with browser(url) as opened:
        for check in polls, shows_scripts_as_text, reads_without_javascript, shows_the_zone, scrolls_by_keyboard:
            await check(jobs, opened)


async def polls(jobs: JobsService, opened: Browser) -> None:
    """Without server-sent events pages ask from time to time."""
    await jobs.set_type_timeout("email", 60)
    async with opened() as watched:
        await watched.page.route("**/live?*", lambda route: route.fulfill(status=204))
        await watched.go("/type?type=email")
        await jobs.enqueue("email", {"to": "bob"}, id="two")
        await watched.says('[data-part="jobs"] .id', "two")


async def shows_scripts_as_text(jobs: JobsService, opened: Browser) -> None:
    """No script in a job ever runs."""
    await jobs.set_type_timeout(EVIL, 60)
    await jobs.add(EVIL, EVIL, {EVIL: EVIL})
    async with opened() as watched:
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


async def reads_without_javascript(jobs: JobsService, opened: Browser) -> None:
    """All can be read without JavaScript, and in the colours that one has chosen."""
    await jobs.enqueue("email", {"to": "ada"}, id="one")
    await jobs.wait("email", "one", "finished", timeout=60)
    async with opened(java_script_enabled=False, color_scheme="light") as watched:
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


async def shows_the_zone(jobs: JobsService, opened: Browser) -> None:
    """Times are shown in the zone that one has chosen."""
    await jobs.set_type_timeout("late", 60)
    await jobs.add("late", "one", run_at=4_102_444_800)
    async with opened(timezone_id="America/New_York", locale="en-GB") as watched:
        await watched.go("/job?type=late&id=one")
        await watched.says(".facts dd", "2100-01-01 00:00:00 UTC")
        await watched.page.get_by_role("button", name="Local time").click()
        await watched.says(".facts dd", "31/12/2099, 19:00:00")


async def scrolls_by_keyboard(jobs: JobsService, opened: Browser) -> None:
    """Whatever is longer than its place can be reached by keyboard."""
    await jobs.add("late", "long", {"rows": [{"n": number} for number in range(80)]})
    await jobs.add("late", "very-long", {"rows": [{"n": number} for number in range(800)]})
    async with opened(viewport={"width": 1280, "height": 800}) as watched:
        for id in ("long", "very-long"):
            await watched.go(f"/job?type=late&id={id}")
            await watched.unfold()
            assert await watched.violations() == []
