"""Every page: what it shows, empty and filled; what it says when there is nothing; who may see it."""

import asyncio
import json
import re
import shlex
import time
from collections import Counter
from html import unescape
from typing import Any

import httpx
import pytest

from jobs_service import JobError, JobsService, NewJob, Outcome
from jobs_service.dashboard import figures, job_page
from jobs_service.dashboard import reads as shared_reads
from jobs_service.http.state import ServerOptions
from jobs_service.model.type_state import Histogram, Interval, Totals
from tests.dashboard.support import eventually, fill, text
from tests.http.support import served

PAGES = ("/", "/failures", "/periodic", "/system", "/search", "/search?q=e")
TYPE_PAGES = (
    "/type?type=email",
    "/job?type=email&id=failed",
    "/job/new?type=email&from=failed",
    "/bulk/new?type=email&action=resubmit",
)


@pytest.mark.parametrize("path", PAGES)
async def test_an_empty_store_has_all_pages_and_they_name_the_next_step(path: str) -> None:
    async with served() as (_, client):
        page = await client.get(path)
        assert page.status_code == 200, page.text
        assert "<h1>" in page.text


@pytest.mark.parametrize("path", PAGES + TYPE_PAGES)
async def test_every_page_of_a_store_with_jobs_is_there_and_has_nothing_of_others(path: str) -> None:
    async with served() as (jobs, client):
        await fill(jobs)
        page = await client.get(path)
        assert page.status_code == 200, page.text
        policy = page.headers["content-security-policy"]
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy
        assert not re.search(r"<script(?! src=)|\sstyle=|\son\w+=|javascript:", page.text)
        assert not re.search(r"""(?:src|href|action)=["'](?!/|#|\?)""", page.text)


async def test_the_overview_has_every_type_with_its_jobs_by_state() -> None:
    async with served() as (jobs, client):
        await fill(jobs)
        await jobs.set_type_timeout(("tenant", 7), 60)
        await jobs.pause(("tenant", 7))
        await jobs.add(("tenant", 7), "one")
        page = (await client.get("/")).text
        assert [word for word in ("Ready", "Scheduled", "Running") if f'data-label="{word}">1<' not in page] == []
        said = text(page)
        assert 'json:["tenant",7] paused' in said
        assert "is paused 1 job is ready" in said
        assert "email 1 job failed within the last hour" in said
        found = text((await client.get("/?q=tenant")).text)
        assert "1 to 1 of 1 type" in found
        assert "No type has such a name" in text((await client.get("/?q=nothing")).text)


async def test_many_types_are_shown_in_pages_and_sorted_by_what_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_reads, "QUICK", 0.0)  # as with very many types, what is read is kept for a while
    async with served() as (jobs, client):
        for number in range(30):
            await jobs.set_type_timeout(f"type-{number:02}", 60)
        await jobs.add("type-29", "one")
        first = (await client.get("/")).text
        assert "1 to 25 of 30 types" in text(first)
        assert "type-29" not in first.split('data-part="types"')[1]
        assert "26 to 30 of 30 types" in text((await client.get("/?page=2")).text)
        # What needs attention comes first.
        await client.post("/type/act", data={"type": "type-29", "action": "pause"})
        first = (await client.get("/")).text
        assert "type-29 is paused 1 job is ready" in text(first)
        assert "type-29" in first.split('data-part="types"')[1]
        await jobs.resume("type-29")
        assert "26 to 30 of 30 types" in text((await client.get("/?page=99999999")).text)
        assert "type-29" in (await client.get("/?sort=ready")).text.split('data-part="types"')[1]


async def test_a_type_shows_the_jobs_that_match_its_address() -> None:
    async with served() as (jobs, client):
        await fill(jobs, data={"to": {"name": "ada"}})

        async def ids(query: str) -> list[str]:
            page = await client.get(f"/type?type=email&{query}")
            assert page.status_code == 200
            return re.findall(r"/job\?type=email&amp;id=([^\"]+)\"", page.text.split('data-part="jobs"')[1])

        assert sorted(await ids("")) == ["failed", "ready", "running", "scheduled", "succeeded"]
        assert await ids("state=failed") == ["failed"]
        assert await ids("prefix=succ") == ["succeeded"]
        assert await ids("error=TimeoutError&text=did+not") == ["failed"]
        assert await ids("data=to.name%3Dbob") == []
        assert len(await ids("data=to.name%3Dada&older=0s")) == 5
        bad = await client.get("/type?type=email&older=soon")
        assert "'soon' is no duration; write 90" in text(bad.text)
        # Nothing is offered that would be done with all jobs, in place of those that were meant.
        assert 'value="resubmit"' in (await client.get("/type?type=email&older=1s")).text
        assert 'value="resubmit"' not in bad.text
        assert "/export" not in bad.text


async def test_a_page_of_jobs_is_one_screen_and_leads_to_the_next() -> None:
    async with served() as (jobs, client):
        await jobs.set_type_timeout("email", 60)
        for number in range(70):
            await jobs.add("email", f"{number:03}")
        seen: list[str] = []
        where = "/type?type=email&order=id"
        while where:
            page = (await client.get(where)).text
            seen += re.findall(r"/job\?type=email&amp;id=(\d+)\"", page.split('data-part="jobs"')[1])
            more = re.search(r'rel="next" href="([^"]+)"', page)
            where = "" if more is None else more[1].replace("&amp;", "&")
        assert seen == [f"{number:03}" for number in range(70)]


async def test_a_job_shows_everything_that_is_known_of_it() -> None:
    async with served() as (jobs, client):
        await fill(jobs, data={"to": "ada", "n": 2**70})
        said = text((await client.get("/job?type=email&id=failed")).text)
        for part in ("TimeoutError", "smtp 10.0.0.7 did not answer", "in send", str(2**70), "Started run 1", "Retry"):
            assert part in said
        running = text((await client.get("/job?type=email&id=running")).text)
        assert "3 of 4, resizing" in running
        assert "Cancel" in running
        succeeded = text((await client.get("/job?type=email&id=succeeded")).text)
        assert str(2**70) in succeeded
        scheduled = text((await client.get("/job?type=email&id=scheduled")).text)
        assert "It waits until it is due" in scheduled
        await jobs.pause("email")
        assert "its type is paused" in text((await client.get("/job?type=email&id=ready")).text)


async def test_what_a_job_offers_for_copying_adds_such_a_job_while_it_is_there_itself() -> None:
    async with served() as (jobs, client):
        await fill(jobs, data={"to": "ada"})
        page = (await client.get("/job?type=email&id=failed")).text
        cli, curl = (shlex.split(unescape(found)) for found in re.findall(r"(?:jobs-service add|curl -X)[^<]*", page))
        assert cli == ["jobs-service", "add", "email", "--data", '{"to":"ada"}']
        body = json.loads(curl[curl.index("-d") + 1])
        added = (await client.post(curl[3], json=body)).json()
        assert (added["data"], added["priority"]) == ({"to": "ada"}, 0)
        assert added["id"] != "failed"


async def test_large_data_are_folded_and_can_be_downloaded_whole() -> None:
    async with served() as (jobs, client):
        await jobs.set_type_timeout("email", 60)
        data = {"text": "x" * 60_000, "n": 2**63 + 1}
        await jobs.add("email", "large", data)
        page = (await client.get("/job?type=email&id=large")).text
        assert re.search(r"</svg>60,\d+ characters</summary>", page)
        whole = await client.get("/download?type=email&id=large&part=data")
        assert whole.json() == data
        assert "attachment" in whole.headers["content-disposition"]
        assert (await client.get("/download?type=email&id=large&part=lock")).status_code == 404


async def test_each_group_is_retried_by_its_own_signature() -> None:
    async with served() as (jobs, client):
        await jobs.set_type_timeout("email", 60)
        for error in (None, JobError("TimeoutError", "no answer")):
            await jobs.add("email", str(error))
            job = await jobs.accept("email")
            assert job is not None
            await job.finish(outcome=Outcome.FAILED, error=error)
        page = (await client.get("/failures")).text
        assert "no error was kept" in page
        retries = [unescape(link) for link in re.findall(r"/bulk/new\?action=resubmit[^\"]*", page)]
        assert [httpx.URL(link).params["signature"] for link in retries] == [
            "TimeoutError: no answer",
            "no error was kept",
        ]
        for link in retries:
            assert "Retry 1 job?" in (await client.get(link)).text


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("/type", 400, "the address names no type"),
        ("/type?type=json:[", 400, "behind json: is not JSON"),
        ("/type?type=nothing", 404, "There is no such type"),
        ("/job?type=email&id=nothing", 404, "There is no such job"),
        ("/job?type=email", 400, "the address names no id"),
        ("/bulk/new?type=email&action=odd", 422, "There is no such action"),
        ("/bulk/new?type=email&action=remove&older=soon", 422, "is no duration"),
        ("/bulk/show?id=nothing", 404, "There is no such job"),
        ("/export?type=email&format=odd", 422, "There is no such format"),
        ("/static/nothing.js", 404, "There is no such file"),
    ],
)
async def test_an_address_that_leads_nowhere_says_why(path: str, status: int, says: str) -> None:
    async with served() as (jobs, client):
        await fill(jobs)
        page = await client.get(path)
        assert page.status_code == status, page.text
        assert says in text(page.text)
        assert "To the overview" in page.text


async def test_names_that_are_no_texts_go_through_addresses_unharmed() -> None:
    async with served() as (jobs, client):
        for type, id in ((("a", 1, b"\x00/"), b"\xff/.."), ("a/b%2Fc?d#e", "é&=+ /../"), (7, "json:x")):
            await jobs.set_type_timeout(type, 60)
            await jobs.add(type, id)
        overview = (await client.get("/")).text.split('data-part="types"')[1]
        links = {
            link.replace("&amp;", "&")
            for link in re.findall(r'<th scope="row"[^>]*><a class="[^"]+" href="([^"]+)"', overview)
        }
        assert len(links) == 3
        for link in links:
            page = await client.get(link)
            assert page.status_code == 200
            job = re.search(r'class="id mono"><a class="[^"]+" href="([^"]+)"', page.text)
            assert job is not None
            assert (await client.get(job[1].replace("&amp;", "&"))).status_code == 200


async def test_the_environment_has_its_name_and_colour_on_every_page() -> None:
    async with served(options=ServerOptions(is_open=True, environment="staging <1>", colour="#fc0")) as (jobs, client):
        await fill(jobs)
        pages = (*PAGES, *TYPE_PAGES, "/login", "/type", "/job?type=email&id=nobody")
        found = {path: (await client.get(path)).text for path in pages}
        assert [path for path in pages if "staging &lt;1&gt;</span>" not in found[path]] == []
        assert [path for path in pages if 'href="/static/environment.css?v=' not in found[path]] == []
        css = (await client.get("/static/environment.css")).text
        assert css == ":root { --environment: #ffcc00; }\n"
    async with served() as (_, client):
        assert (await client.get("/static/environment.css")).text == ""


async def test_under_a_prefix_every_link_stays_below_it() -> None:
    import httpx
    from starlette.applications import Starlette
    from starlette.routing import Mount

    from jobs_service.http.application import Application

    async with JobsService("memory:") as jobs:
        await fill(jobs)
        app = Starlette(routes=[Mount("/admin/jobs", Application(jobs, ServerOptions(is_open=True)))])
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
            for path in ("/", "/type?type=email", "/job?type=email&id=failed"):
                page = (await client.get(f"/admin/jobs{path}")).text
                links = re.findall(r'(?:href|src|action|data-live)="([^"#]+)"', page)
                assert links
                assert [link for link in links if not link.startswith("/admin/jobs/")] == []
            assert 'aria-current="page">Failures' in (await client.get("/admin/jobs/failures")).text


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/nonsense", 404),
        ("/v1/nonsense/x", 404),
        ("/bulk/cancel", 405),
        ("/v1/types/email/accept", 405),
        ("/v1/types/email", 404),
        ("/job?type=%ff", 400),
    ],
)
async def test_what_a_browser_is_refused_is_a_page_and_to_a_program_a_problem(path: str, status: int) -> None:
    async with served() as (_, client):
        page = await client.get(path, headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
        assert (page.status_code, page.headers["content-type"]) == (status, "text/html; charset=utf-8")
        assert 'href="/"' in page.text
        for accept in ("", "*/*", "application/json"):
            told = await client.get(path, headers={"Accept": accept})
            assert (told.status_code, told.json()["status"]) == (status, status)
            assert told.json()["title"] in page.text


@pytest.mark.parametrize(
    ("query", "actions"),
    [
        ("", {"resubmit", "remove", "cancel"}),
        ("&state=failed&signature=TimeoutError%3A+smtp", {"resubmit", "remove"}),
        ("&state=finished", {"resubmit", "remove"}),
        ("&state=pending&added_before=4e9", {"resubmit", "remove", "cancel"}),
        ("&state=running", {"remove", "cancel"}),
        ("&state=unreadable", {"remove"}),
    ],
)
async def test_a_type_offers_what_can_be_done_with_jobs_in_the_state_and_keeps_the_filter(
    query: str, actions: set[str]
) -> None:
    async with served() as (jobs, client):
        await fill(jobs)
        page = (await client.get(f"/type?type=email{query}")).text
        assert set(re.findall(r'name="action" value="(resubmit|remove|cancel)"', page)) == actions
        for name, value in httpx.QueryParams(query).items():
            assert f">{value}</option>" in page if name == "state" else f'name="{name}" value="{value}"' in page


async def test_jobs_are_listed_by_their_last_events_or_by_id() -> None:
    async with served() as (jobs, client):
        await jobs.set_type_timeout("email", 60)
        await jobs.set_retention("email", keep=3600)
        for id in ("c", "a", "b"):
            await jobs.add("email", id)
        for outcome in (Outcome.SUCCEEDED, Outcome.FAILED):
            job = await jobs.accept("email")
            assert job is not None
            await job.finish(outcome=outcome)

        async def ids(query: str) -> str:
            page = (await client.get(f"/type?type=email{query}")).text
            return "".join(re.findall(r'name="pick" value="(\w)"', page))

        assert [await ids(each) for each in ("", "&order=oldest", "&order=id")] == ["acb", "bca", "abc"]
        await jobs.set_retention("email")
        assert await ids("") == "abc"  # the order by time would lack those that are kept for ever


async def test_one_field_takes_the_beginning_of_an_id_or_an_argument() -> None:
    async with served() as (jobs, client):
        await fill(jobs, data={"to": "ada"})
        for written, query in (("succ", "prefix=succ"), ("to=ada", "data=to%3Dada"), ("to~ad", "data=to~ad")):
            answer = await client.get("/type", params={"type": "email", "state": "failed", "find": written})
            assert answer.headers["location"] == f"/type?type=email&state=failed&{query}"
        page = (await client.get("/type?type=email&data=to%3Dada&data=n%3D1&error=E")).text
        without = [unescape(link) for link in re.findall(r'<span class="chip">[^<]*<a href="([^"]+)"', page)]
        assert without == [
            "/type?type=email&data=to%3Dada&data=n%3D1",
            "/type?type=email&data=n%3D1&error=E",
            "/type?type=email&data=to%3Dada&error=E",
        ]


@pytest.mark.parametrize("window", ["hour", "day", "week", "month"])
async def test_charts_show_an_hour_a_day_a_week_and_a_month(window: str) -> None:
    async with served() as (jobs, client):
        await fill(jobs)

        said = text(await eventually_drawn(client, f"/?window={window}"))
        assert "Succeeded 1 last" in said
        assert "1 succeeded 0 retried 1 failed" in said
        kind = (await client.get(f"/type?type=email&window={window}")).text
        assert 24 <= kind.count('class="tip"') <= 60


async def test_a_search_finds_jobs_of_all_types_types_and_pages() -> None:
    async with served() as (jobs, client):
        await fill(jobs)
        await fill(jobs, ("tenant", 7))
        found = (await client.get("/search?q=fail")).text.split('id="results"')[1]
        assert [unescape(link) for link in re.findall(r'<a href="(/job\?[^"]+)"', found)] == [
            "/job?type=json%3A%5B%22tenant%22%2C7%5D&id=failed",  # what has happened last comes first
            "/job?type=email&id=failed",
        ]
        assert "Run again" in found
        assert "Failures" in found
        assert "/type?type=email" in (await client.get("/search?q=EMA")).text.split('id="results"')[1]
        assert "Nothing begins so" in (await client.get("/search?q=nothing")).text


async def test_a_jobs_page_says_how_long_it_waited_and_ran_and_folds_frames_of_libraries() -> None:
    traceback = (
        "Traceback (most recent call last):\n"
        '  File "/srv/shop/hooks.py", line 41, in deliver\n    await client.post(url)\n'
        '  File "/usr/lib/python3/site-packages/httpx/a.py", line 1, in b\n    c()\n'
        '  File "/usr/lib/python3/site-packages/httpx/d.py", line 2, in e\n    raise F\n'
        "httpx.ConnectTimeout: no answer"
    )
    assert job_page.frames(traceback) == [
        ("lib", "Traceback (most recent call last):"),
        ("own", '  File "/srv/shop/hooks.py", line 41, in deliver\n    await client.post(url)'),
        ("lib", "  … 2 frames of libraries"),
        ("", "httpx.ConnectTimeout: no answer"),
    ]
    async with served() as (jobs, client):
        await fill(jobs)
        said = text((await client.get("/job?type=email&id=failed")).text)
        assert re.search(r"Waited \d+ m?s before the first attempt Ran \d+ m?s in 1 attempt", said)


async def test_failures_say_what_the_jobs_of_an_error_have_in_common_and_where_they_differ() -> None:
    async with served() as (jobs, client):
        await jobs.set_type_timeout("email", 60)
        for number in range(6):
            await jobs.add("email", f"{number}", {"account": "acme", "event": "paid" if number % 3 else "sent"})
            job = await jobs.accept("email")
            assert job is not None
            await job.finish(outcome=Outcome.FAILED, error=JobError("TimeoutError", f"no answer in {number} s"))
        said = text((await client.get("/failures")).text)
        assert "All with account = acme" in said
        assert "Where they differ: event By event paid 4 sent 2" in said
        assert "No such error" in text((await client.get("/failures?q=nothing")).text)
        assert "6 failed TimeoutError" in text((await client.get("/failures?state=failed&sort=most&q=answer")).text)


async def test_failures_reckon_how_many_jobs_an_error_has_from_those_that_are_read() -> None:
    async with served() as (jobs, client):
        for type, number in ("email", 250), ("sms", 30):
            await jobs.set_type_timeout(type, 60)
            await jobs.add_many(type, [NewJob(f"{each:03}") for each in range(number)])
            for job in await jobs.accept_many(type, number):
                kind = "TimeoutError" if int(job.id) % 5 else "ValueError"
                await job.finish(outcome=Outcome.FAILED, error=JobError(kind, "no"))
        said = text((await client.get("/failures")).text)
        assert "about ≈ 224 failed TimeoutError no email, sms" in said
        assert "about ≈ 56 failed ValueError no email, sms" in said
        assert "Read were 130 of 280 jobs" in said
        assert "about ≈ 200 TimeoutError" in text((await client.get("/type?type=email")).text)


async def test_what_ran_at_a_time_is_found_from_a_chart_and_leads_to_the_jobs() -> None:
    async with served() as (jobs, client):
        await fill(jobs)
        await jobs.set_type_timeout("idle", 60)
        overview = (await client.get("/?window=day")).text
        [*_, last] = re.findall(r'<a tabindex="-1" href="(/past\?[^"]+)"', overview)
        page = (await client.get(unescape(last))).text
        assert re.search(r"Runs begun 3 Succeeded 1 Retried 0 Failed 1 .* email 3 1", text(page))
        assert "idle" not in text(page)
        found = unescape(re.findall(r'href="(/type\?type=email&amp;younger=[^"]+)"', page)[0])
        assert "5 looked at" in text((await client.get(found)).text)
        [earlier] = re.findall(r'href="([^"]+)" rel="next">Earlier', page)
        assert "Nothing ran" in text((await client.get(unescape(earlier))).text)
        # Of long ago only hours are known.
        old = text((await client.get("/past?from=2026-01-05 14:10&for=90m")).text)
        assert "From 2026-01-05 14:00:00 UTC to 2026-01-05 16:00:00 UTC" in old


@pytest.mark.parametrize("address", ["from=noon", "for=long", "for=8d", "for=1s", "from=1970-01-01", "from=9999-12-31"])
async def test_a_time_that_is_none_is_refused_in_one_line(address: str) -> None:
    async with served() as (_, client):
        answer = await client.get(f"/past?{address}")
        assert (answer.status_code, "The address is not complete" in text(answer.text)) == (400, True)


async def test_a_search_finds_jobs_of_all_types_by_an_argument() -> None:
    async with served() as (jobs, client):
        for type in "email", "invoice":
            await jobs.set_type_timeout(type, 60)
            await jobs.add_many(type, [NewJob(f"{type}-{each}", {"account": f"a{each % 3}"}) for each in range(6)])
        said = text((await client.get("/search?q=account=a1")).text)
        assert {*re.findall(r"(?:email|invoice)-\d", said)} == {"email-1", "email-4", "invoice-1", "invoice-4"}
        page = (await client.get("/search?q=account=a1")).text
        assert 'href="/type?type=invoice&amp;data=account%3Da1"' in page
        more = (await client.get("/search?q=email-")).text
        assert 'href="/type?type=email&amp;prefix=email-"' in more
        assert "For an argument of jobs write its name as well" in text((await client.get("/search?q=acme")).text)


async def test_a_waiting_jobs_page_says_for_what_it_waits() -> None:
    async with served() as (jobs, client):

        @jobs.handler("email", slots=1)
        async def email() -> None:
            await asyncio.Event().wait()

        await jobs.enqueue("email", id="a")
        page = "/job?type=email&id=b"
        await jobs.enqueue("email", id="b")
        assert "no known process has a handler of its type" in text((await client.get(page)).text)
        run = asyncio.create_task(jobs.run())

        async def taken() -> bool:
            return "waits for a slot: all 1 of its type are taken" in text((await client.get(page)).text)

        await eventually(taken)
        run.cancel()
        await asyncio.wait([run])
        await jobs.pause("email")
        assert "its type is paused: resume the type" in text((await client.get("/job?type=email&id=b")).text)


async def test_the_overview_compares_with_what_is_usual_and_with_yesterday(monkeypatch: pytest.MonkeyPatch) -> None:
    hour = Totals(started=10, succeeded=8, failed=2)
    asked: list[float] = []

    async def together(access: Any, types: Any, resolution: str, first: int, last: int) -> list[Interval]:
        asked.append(first * (3600 if resolution == "hour" else 60))
        seconds = 3600.0 if resolution == "hour" else 60.0
        return [Interval(each * seconds, seconds, hour, Histogram(), Histogram()) for each in range(first, last + 1)]

    monkeypatch.setattr(shared_reads, "together", together)
    async with served() as (jobs, client):
        await jobs.set_type_timeout("email", 60)
        page = await eventually_drawn(client, "/")
        assert "usually 8" in text(page)
        assert "Failed 120 usually 2" in text(page)
        assert "yesterday" in text(page)
        days = {round((time.time() - at) / 86_400) for at in asked}
        assert days == {*range(8)}


async def test_pages_of_many_types_stay_short_and_read_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the number of types, a page reads the queues of the first ones and the rows of those on the page."""
    async with served() as (jobs, client):
        for number in range(300):
            await jobs.set_type_timeout(f"type-{number:03}", 60)
            await jobs.add(f"type-{number:03}", "one")
        reads = Counter[str]()
        for of, name, place in (figures, "columns_of", 1), (jobs, "queue_states", 0):
            original = getattr(of, name)

            def counted(
                *given: Any, name: str = name, place: int = place, original: Any = original, **more: Any
            ) -> Any:
                reads[name] += len([*given[place]])
                return original(*given, **more)

            monkeypatch.setattr(of, name, counted)
        await client.get("/?window=day")  # the sums of all types are read once, in the background
        await eventually_drawn(client, "/?window=day")
        reads.clear()
        page = (await client.get("/?window=day")).text
        assert len(page) < 100_000
        assert reads["queue_states"] <= 125
        assert reads["columns_of"] == 25
        await client.get("/?window=month")
        await client.get("/?window=month&q=type-")
        assert reads["columns_of"] == 50  # those of a month are kept for a while


async def eventually_drawn(client: httpx.AsyncClient, path: str) -> str:
    """Return a page when the sums of all types are on it."""

    async def drawn() -> str:
        page = (await client.get(path)).text
        return page if "being counted" not in page else ""

    return str(await eventually(drawn))
