"""What is secret is on no page, in no export, and nobody finds jobs by it."""

from __future__ import annotations

import html
import re
from collections import Counter

import httpx

from tests.dashboard.support import fill
from tests.http.support import served
from tests.redacted import SECRET, charge

MOST_PAGES = 150
PAGES = {"/", "/type", "/job", "/job/new", "/download", "/export", "/failures", "/system"}
"""Some that show jobs: the links must lead there."""


def links(base: httpx.URL, text: str) -> set[str]:
    """Return the addresses of this server that a page leads to, those of its forms that only ask among them."""
    found = re.findall(r'(?:href|src|action)="([^"#]+)', text)
    urls = [base.join(html.unescape(each)) for each in found if not each.startswith(("mailto:", "javascript:"))]
    return {url.raw_path.decode() for url in urls if url.host == base.host}


async def test_no_page_and_no_export_has_what_is_secret() -> None:
    """Every link is followed, from the first page on."""
    async with served() as (jobs, client):
        await charge(jobs)
        left, seen, kinds = ["/", "/search?q=card%7E1"], set[str](), Counter[str]()
        while left and len(seen) < MOST_PAGES:
            path = left.pop(0)
            if path in seen or "/events" in path or "/live" in path or path.startswith("/past"):
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
        assert {path.partition("?")[0] for path in seen} >= PAGES


async def test_nobody_finds_jobs_by_what_is_secret() -> None:
    async with served() as (jobs, client):
        await fill(jobs, data={"to": "ada", "password": SECRET})
        await jobs.set_redaction("email", ["password"])
        page = (await client.get(f"/type?type=email&data=password%3D{SECRET}")).text
        assert "No job matches" in page
        assert (await client.get(f"/export?type=email&data=password%3D{SECRET}")).text == ""
        assert "Remove 0 jobs?" in (await client.get(f"/bulk/new?type=email&action=remove&data=password~{SECRET}")).text


async def test_a_job_with_secrets_is_not_cloned_by_mistake() -> None:
    async with served() as (jobs, client):
        await fill(jobs, data={"to": "ada", "password": SECRET})
        await jobs.set_redaction("email", ["password"])
        form = {"type": "email", "id": "again", "data": '{"to": "ada", "password": "[redacted]"}'}
        answer = await client.post("/job/new", data=form)
        assert answer.status_code == 422
        assert "write what it is to be" in answer.text
