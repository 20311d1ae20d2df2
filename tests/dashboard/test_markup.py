"""A job whose every part is scripts and markup is shown as text, on every page."""

from html.parser import HTMLParser

import pytest

from jobs_service import JobError, JobsService, Outcome
from tests.http.support import served

EVIL = (
    "<script>alert(1)</script><img src=x onerror=alert(2)>\"'><svg/onload=alert(3)>{{6999*7}}</textarea></pre></title>"
)
TAGS = {
    *("html", "head", "meta", "title", "link", "script", "body", "a", "header", "nav", "main", "footer", "div", "span"),
    *("ul", "ol", "li", "h1", "h2", "h3", "p", "section", "form", "input", "button", "label", "select", "option"),
    *("table", "caption", "thead", "tbody", "tr", "th", "td", "svg", "line", "rect", "polygon", "polyline", "time"),
    *("dl", "dt", "dd", "pre", "details", "summary", "figure", "figcaption", "progress", "strong", "code", "textarea"),
    *("b", "i", "br", "kbd", "dialog", "footer", "symbol", "g", "circle", "path", "use"),
}


class Reader(HTMLParser):
    """Notes what a browser would take for tags and attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.scripts: list[str | None] = []
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag == "script":
            self.scripts.append(dict(attrs).get("src"))


async def make(jobs: JobsService) -> None:
    """Add jobs that are nothing but markup: one that failed, one that runs, one that succeeded, one that waits."""
    for type in (EVIL, ("tenant", EVIL)):
        await jobs.set_type_timeout(type, 60)
        for number in range(4):
            await jobs.add(type, f"{EVIL}{number}", {EVIL: [EVIL, {"x": EVIL}]})
        for number in range(3):
            job = await jobs.accept(type)
            assert job is not None
            await job.progress(1, 2, EVIL)
            if number == 0:
                error = JobError(EVIL, f"{EVIL}\n{EVIL}", f"Traceback\n{EVIL}")
                await job.finish(outcome=Outcome.FAILED, error=error)
            elif number == 1:
                await job.finish(result=[EVIL])


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/?q={evil}&sort={evil}&window={evil}&page={evil}",
        "/type?type={type}",
        "/type?type={type}&state=failed&prefix={evil}&error={evil}&text={evil}&worker={evil}&data={evil}%3D{evil}",
        "/type?type={type}&older={evil}",
        "/job?type={type}&id={evil}0",
        "/job?type={type}&id={evil}1",
        "/job?type={type}&id={evil}2",
        "/job?type={type}&id={evil}{evil}",
        "/job/new?type={type}&from={evil}0",
        "/failures",
        "/failures?q={evil}&sort={evil}&state={evil}&window={evil}",
        "/system",
        "/system?worker={evil}",
        "/periodic",
        "/search?q={evil}",
        "/bulk/new?type={type}&action=resubmit&error={evil}&text={evil}",
        "/bulk/new?type={type}&action={evil}",
        "/login?next={evil}&refused={evil}",
    ],
)
@pytest.mark.parametrize("type", [EVIL, ("tenant", EVIL)])
async def test_scripts_and_markup_show_as_text(path: str, type: object) -> None:
    from urllib.parse import quote

    from jobs_service.names import shown

    async with served() as (jobs, client):
        await make(jobs)
        address = path.format(evil=quote(EVIL, safe=""), type=quote(shown(type), safe=""))
        page = await client.get(address)
        assert page.headers["content-type"].startswith("text/html")
        reader = Reader()
        reader.feed(page.text)
        assert reader.tags <= TAGS
        assert [script for script in reader.scripts if not (script or "").startswith("/static/page.js")] == []
        assert not [name for name in reader.attributes if name.startswith("on") or name == "style"]
        assert "48993" not in page.text


async def test_a_bulk_action_of_such_a_type_shows_as_text() -> None:
    async with served() as (jobs, client):
        await make(jobs)
        answer = await client.post("/bulk", data={"type": EVIL, "action": "count", "text": EVIL, "data": f"x~{EVIL}"})
        for path in (answer.headers["location"], "/type?type=bulk-actions"):
            page = await client.get(path)
            reader = Reader()
            reader.feed(page.text)
            assert page.status_code == 200
            assert reader.tags <= TAGS
