"""Pages between a phone and a wide screen: no word is broken in its middle, and nothing is cut off."""

from __future__ import annotations

import asyncio
import time

import pytest

from jobs_service import JobsService
from tests.dashboard.browser import browser, needed
from tests.dashboard.support import eventually
from tests.http.support import running
from tests.shares import share

needed()
pytestmark = pytest.mark.timeout(600)

WIDTHS = share(range(360, 1921, 20), 13)
PAGES = (
    "/",
    "/type?type=email",
    "/job?type=email&id=one",
    "/failures",
    "/periodic",
    "/system",
    "/search?q=1",
    "/bulk/new?type=email&action=resubmit&state=retrying",
)

BROKEN = """
() => {
  const found = []
  const shown = (element) => element.checkVisibility({ opacityProperty: true, visibilityProperty: true })
    && !element.closest(".unseen, .skip, .tip, .sprite, dialog") && !(element.closest("thead") && innerWidth < 700)
  const text = (element) => element.textContent.trim().slice(0, 40)
  const name = (element) => `${element.tagName}.${element.getAttribute("class")}`
  if (document.documentElement.scrollWidth > innerWidth) found.push("the page is wider than the screen")
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
  const range = document.createRange()
  while (walker.nextNode()) {
    const node = walker.currentNode
    if (!node.data.trim() || !shown(node.parentElement) || node.parentElement.closest("pre")) continue
    for (const word of node.data.matchAll(/[\\p{L}\\p{N}]{2,40}/gu)) {
      range.setStart(node, word.index)
      range.setEnd(node, word.index + word[0].length)
      const boxes = [...range.getClientRects()].filter((each) => each.width > 0.5)
      if (boxes.length > 1 && Math.abs(boxes[0].top - boxes.at(-1).top) > 3) found.push(`${word[0]} is broken`)
    }
  }
  for (const element of document.body.querySelectorAll("*")) {
    if (!shown(element) || element.closest("svg, pre")) continue
    const style = getComputedStyle(element), over = element.scrollWidth - element.clientWidth
    const hides = ["hidden", "clip"].includes(style.overflowX) && style.textOverflow !== "ellipsis"
    if (hides && over > 1 && element.clientWidth > 1) found.push(`${name(element)} is cut off: ${text(element)}`)
    const spills = style.overflowX === "visible" && style.display !== "inline" && !element.children.length
    if (spills && over > 2 && element.clientWidth && text(element) && !element.closest(".mark, .x")) {
      found.push(`${name(element)} runs over: ${text(element)}`)
    }
  }
  return [...new Set(found)]
}
"""


async def fill(jobs: JobsService) -> None:
    """Have types with short and long names, and many jobs in every state."""

    @jobs.handler("email", max_attempts=2, backoff=3600)
    async def email(number: int) -> None:
        if number % 3:
            raise ConnectionError("smtp does not answer")

    await jobs.set_type_timeout("thumbnail-of-uploaded-pictures", 60)
    await jobs.set_type_timeout(("tenant", 7), 60)
    for number in range(1234):
        await jobs.add(("tenant", 7), f"{number}", run_at=None if number % 2 else time.time() + 9e5)

    async def all_ran() -> bool:
        counts = (await jobs.counts("email"))["email"]
        return counts.retrying == 40 and counts.succeeded == 20

    run = asyncio.create_task(jobs.run())
    for number in range(60):
        await jobs.enqueue(email, number, id="one" if number == 1 else None)
    await eventually(all_ran)
    run.cancel()
    await asyncio.wait([run])
    await jobs.pause(("tenant", 7))


async def test_no_word_is_broken_and_nothing_is_cut_off_at_any_width() -> None:
    problems: list[str] = []
    async with JobsService("memory:") as jobs, running(jobs) as url:
        await fill(jobs)
        async with browser(url, viewport={"width": 1280, "height": 800}) as watched:
            for path in PAGES:
                await watched.go(path)
                opened = "document.querySelectorAll('.group, .fold').forEach((each) => { each.open = true })"
                await watched.page.evaluate(opened)
                for width in WIDTHS:
                    await watched.page.set_viewport_size({"width": width, "height": 800})
                    problems += [f"{path} at {width}: {each}" for each in await watched.page.evaluate(BROKEN)]
    assert "\n".join(problems) == ""
