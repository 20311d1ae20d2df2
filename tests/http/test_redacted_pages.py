"""That no byte of any page of the dashboard has what is secret: every link is followed from the first page on."""

from __future__ import annotations

import html
import re
from collections import Counter

import httpx

from jobs_service import JobError, JobsService, Outcome
from tests.http.support import served

SECRET = "S3cret-4111-1111"
MOST_PAGES = 150


async def charge(jobs: JobsService) -> None:
    """Leave jobs with a secret in every part: failed, running, waiting, crashed."""
    await jobs.set_type_timeout("pay", 60)
    await jobs.set_redaction("pay", ["card.number", "result:token"])
    for id in ("failed", "runs", "waits"):
        await jobs.add("pay", id, {"card": {"number": SECRET, "of": "Ada"}})
    first = await jobs.accept("pay")
    assert first is not None
    await first.progress(1, 2, f"charging {SECRET}")
    error = JobError("ValueError", f"{SECRET!r} is refused", f"Traceback\n  pay({SECRET!r})")
    await first.finish(outcome=Outcome.FAILED, result={"token": SECRET}, error=error)
    second = await jobs.accept("pay")
    assert second is not None
    await second.progress(1, 2, f"charging {SECRET}")


def links(base: httpx.URL, text: str) -> set[str]:
    """Return the addresses of this server that a page leads to, those of its forms that only ask among them."""
    found = re.findall(r'(?:href|src|action)="([^"#]+)', text)
    urls = [base.join(html.unescape(each)) for each in found if not each.startswith(("mailto:", "javascript:"))]
    return {url.raw_path.decode() for url in urls if url.host == base.host}


async def test_no_page_and_no_export_has_what_is_secret() -> None:
    async with served() as (jobs, client):
        await charge(jobs)
        left, seen, kinds = ["/"], set[str](), Counter[str]()
        while left and len(seen) < MOST_PAGES:
            path = left.pop(0)
            if path in seen or "/events" in path or "/live" in path:
                continue
            seen.add(path)
            answer = await client.get(path, headers={"Accept": "text/html,*/*"})
            kinds[answer.headers.get("content-type", "").partition(";")[0]] += 1
            for part in (SECRET, SECRET[:8], SECRET[-8:]):
                assert part not in answer.text, path
                assert part not in str(answer.headers), path
            if answer.headers.get("content-type", "").startswith("text/html"):
                left += sorted(links(answer.url, answer.text) - seen)
        assert kinds["text/html"] > 8
        assert {path for path in seen if "failed" in path}
