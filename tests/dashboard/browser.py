"""A real browser, and the processes that it looks at: a server of pages, and one that runs jobs."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from jobs_service import JobsService
from jobs_service.http import token_file
from tests.docs.pages import ROOT

CHROMIUM = os.environ.get("JOBS_SERVICE_TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
PICTURES = os.environ.get("JOBS_SERVICE_TEST_PICTURES")
"""A directory that gets pictures of all pages; without it none are kept."""


def needed() -> Any:
    """Return Playwright; skip the tests where there is none, or no browser."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium", allow_module_level=True)
    return pytest.importorskip("playwright.async_api", reason="there is no Playwright")


_BROKEN = """
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


async def _started(*arguments: str, store: str, wanted: str) -> tuple[asyncio.subprocess.Process, dict[str, Any]]:
    """Start the command line; return it when it has logged an event, and that event."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "jobs_service", *arguments),
        cwd=ROOT,
        env={**os.environ, "JOBS_SERVICE_STORE": store},
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    while line := await process.stderr.readline():
        with suppress(ValueError):
            event: dict[str, Any] = json.loads(line)
            if event.get("event") == wanted:
                return process, event
    raise AssertionError(f"{arguments} ended before it said {wanted}")


@asynccontextmanager
async def running(*arguments: str, store: str, wanted: str = "serving") -> AsyncIterator[dict[str, Any]]:
    """Run the command line as long as the block runs; yields the event that says that it is ready."""
    process, event = await _started(*arguments, store=store, wanted=wanted)
    assert process.stderr is not None
    reading = asyncio.create_task(process.stderr.read())
    try:
        yield event
    finally:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        await process.wait()
        await reading


@asynccontextmanager
async def served(directory: Path) -> AsyncIterator[tuple[JobsService, str]]:
    """Yield a service of this process on a store that other processes serve and run the jobs of, and their address."""
    store = f"lmdb:{directory}/jobs"
    application = "tests.dashboard.browser_application:jobs"
    async with JobsService(store) as jobs:
        options = ("--http", "127.0.0.1:0", "--environment", "staging", "--colour", "purple")
        async with (
            running("serve", application, *options, "--types", "nightly", store=store, wanted="http_serving") as event,
            running("serve", application, store=store),
        ):
            yield jobs, event["url"]


class Watched:
    """A page of the browser, and what must not happen on it.

    Args:
        page: Playwright's.
        url: of the server.
    """

    def __init__(self, page: Any, url: str) -> None:
        self.page = page
        self.url = url
        self.complaints: list[str] = []
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.on("request", self._asked)
        page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def _asked(self, request: Any) -> None:
        if urlsplit(request.url).netloc != urlsplit(self.url).netloc:
            self.complaints.append(f"foreign request: {request.url}")

    async def go(self, path: str) -> None:
        """Open a page of the server."""
        answer = await self.page.goto(self.url + path)
        assert answer.status == 200, (path, answer.status)

    async def says(self, selector: str, text: str) -> None:
        """Return when something on the page has a text."""
        await self.page.locator(selector, has_text=text).first.wait_for()
        await self.page.wait_for_load_state()  # before that the script does not hear keys

    async def violations(self, *rules: str) -> list[str]:
        """Return what axe-core finds, whatever its impact; only by some of its rules if they are named."""
        from axe_playwright_python.async_playwright import Axe

        found = await Axe().run(
            self.page, options={"resultTypes": ["violations"], **({"runOnly": [*rules]} if rules else {})}
        )
        return [
            f"{each['id']}: {node['html'][:200]} {node.get('failureSummary', '')[:300]}"
            for each in found.response["violations"]
            for node in each["nodes"][:3]
        ]

    async def broken(self) -> list[str]:
        """Return what is wider than the screen, broken within a word, or cut off."""
        found: list[str] = await self.page.evaluate(_BROKEN)
        return found

    async def unfold(self) -> None:
        """Open whatever is folded."""
        await self.page.evaluate("document.querySelectorAll('.group, .fold').forEach((each) => { each.open = true })")


Browser = Callable[..., AbstractAsyncContextManager[Watched]]


@asynccontextmanager
async def browser(url: str) -> AsyncIterator[Browser]:
    """Run a browser; yields a function that opens a page of a context of its own, with the options of Playwright."""
    playwright = needed()

    @asynccontextmanager
    async def opened(**options: Any) -> AsyncIterator[Watched]:
        # That of whoever has started the server; one that is mounted as an open one needs none.
        token = token_file.found(url)
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        context = await chromium.new_context(extra_http_headers=headers, **options)
        context.set_default_timeout(120_000)
        watched = Watched(await context.new_page(), url)
        yield watched
        assert watched.complaints == []
        await context.close()

    async with playwright.async_playwright() as driver:
        chromium = await driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield opened
        finally:
            await chromium.close()
