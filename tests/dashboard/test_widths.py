"""The overview between a phone and a wide screen: no word is broken in its middle, and nothing is cut off."""

from __future__ import annotations

import asyncio
import time

import pytest

from jobs_service import JobsService
from tests.dashboard.browser import browser, needed
from tests.dashboard.support import eventually
from tests.http.support import running

needed()
pytestmark = pytest.mark.timeout(240)

WIDTHS = (360, 390, 480, 640, 760, 761, 768, 800, 900, 960, 1000, 1024, 1100, 1180, 1280, 1440)

BROKEN = """
() => {
  const found = []
  for (const element of document.querySelectorAll("main *")) {
    if (element.closest(".for-readers, svg, pre, .mono") || element.offsetParent === null) continue
    for (const node of element.childNodes) {
      if (node.nodeType !== Node.TEXT_NODE) continue
      for (const word of node.data.matchAll(/[\\p{L}\\p{N}]{2,40}/gu)) {
        const range = document.createRange()
        range.setStart(node, word.index)
        range.setEnd(node, word.index + word[0].length)
        const tops = new Set([...range.getClientRects()].map(box => Math.round(box.top)))
        if (tops.size > 1) found.push(`${word[0]} is broken`)
      }
    }
  }
  for (const table of document.querySelectorAll(".table, main td, main th, .figure")) {
    if (table.matches(".cut, [tabindex]") || table.closest(".for-readers, thead") && innerWidth <= 900) continue
    const name = `${table.className} ${table.innerText.slice(0, 30)}`
    if (table.scrollWidth > table.clientWidth + 1) found.push(`${name} is cut off`)
  }
  if (document.documentElement.scrollWidth > innerWidth) found.push("the page is wider than the screen")
  return found
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
        await jobs.enqueue(email, number)
    await eventually(all_ran)
    run.cancel()
    await asyncio.wait([run])
    await jobs.pause(("tenant", 7))


async def test_no_word_of_the_overview_is_broken_and_nothing_is_cut_off_at_any_width() -> None:
    problems: list[str] = []
    async with JobsService("memory:") as jobs, running(jobs) as url:
        await fill(jobs)
        async with browser(url, viewport={"width": 1280, "height": 800}) as watched:
            for path in ("/", "/type?type=email", "/failures"):
                await watched.go(path)
                for width in WIDTHS:
                    await watched.page.set_viewport_size({"width": width, "height": 800})
                    problems += [f"{path} at {width}: {each}" for each in await watched.page.evaluate(BROKEN)]
    assert "\n".join(problems) == ""
