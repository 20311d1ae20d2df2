"""What buttons do: to jobs, to types, to periodic jobs; who may press them, and from where."""

import re
from datetime import UTC, datetime
from html import unescape

import httpx
import pytest

from jobs_service import JobNotFound, JobsService, Outcome
from jobs_service.http.application import Application
from jobs_service.http.state import ServerOptions
from jobs_service.runner.commands import COMMAND_TYPE
from tests.dashboard.support import fill, text
from tests.http.support import BASE, served


async def form_of(client: httpx.AsyncClient, id: str) -> dict[str, str]:
    """Return what the buttons of a job's page send, beside the action."""
    form = (await client.get(f"/job?type=email&id={id}")).text.split('action="/job/act"')[1].partition("</form>")[0]
    return dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form))


async def test_retry_pressed_twice_runs_a_job_once() -> None:
    async with served() as (jobs, client):
        await fill(jobs)
        form = {**await form_of(client, "failed"), "action": "resubmit"}
        await client.post("/job/act", data=form)
        again = [job for job in await jobs.accept_many("email", 5, timeout=0) if job.id == "failed"]
        await again[0].finish(outcome=Outcome.FAILED)
        answer = await client.post("/job/act", data=form)
        assert answer.headers["location"] == "/job?type=email&id=failed&said=meanwhile"
        assert (await jobs.get("email", "failed")).outcome is Outcome.FAILED
        assert "nothing was done" in text((await client.get(answer.headers["location"])).text)


@pytest.mark.parametrize("sent", ["seen", "unseen"])
async def test_cancel_of_a_job_that_has_just_succeeded_keeps_its_result(sent: str) -> None:
    async with served() as (jobs, client):
        await jobs.set_type_timeout("email", 60)
        await jobs.add("email", "a")
        job = await jobs.accept("email")
        assert job is not None
        form = await form_of(client, "a") if sent == "seen" else {"type": "email", "id": "a"}
        await job.finish(result=7)
        answer = await client.post("/job/act", data={**form, "action": "cancel"})
        assert answer.headers["location"].endswith("said=meanwhile" if sent == "seen" else "said=ended")
        assert (await jobs.get("email", "a")).result == 7


async def test_signs_of_life_are_no_reason_to_refuse_a_button_but_another_run_is() -> None:
    async with served() as (jobs, client):
        await jobs.set_type_timeout("email", 60)
        await jobs.add("email", "a")
        job = await jobs.accept("email")
        assert job is not None
        form = {**await form_of(client, "a"), "action": "cancel"}
        await job.release()
        other = await jobs.accept("email")
        assert other is not None
        assert (await client.post("/job/act", data=form)).headers["location"].endswith("said=meanwhile")
        form = {**await form_of(client, "a"), "action": "cancel"}
        await other.update({"n": 1})
        assert (await client.post("/job/act", data=form)).headers["location"].endswith("said=canceled")
        assert (await jobs.get("email", "a")).cancel


async def test_a_type_is_paused_resumed_and_changed() -> None:
    async with served() as (jobs, client):
        await fill(jobs)
        await client.post("/type/act", data={"type": "email", "action": "pause"})
        assert await jobs.paused("email")
        await client.post("/type/act", data={"type": "email", "action": "resume"})
        assert not await jobs.paused("email")
        form = {"type": "email", "action": "change", "timeout": "1m30s", "keep": "2d", "keep_failed": ""}
        await client.post("/type/act", data=form)
        retention = await jobs.get_retention("email")
        assert (await jobs.get_type_timeout("email"), retention.keep, retention.keep_failed) == (90, 172_800, None)
        for timeout in ("", "soon", "0"):
            answer = await client.post("/type/act", data={**form, "timeout": timeout})
            assert answer.status_code == 422
        assert await jobs.get_type_timeout("email") == 90


async def test_a_job_is_cloned_with_other_data() -> None:
    async with served() as (jobs, client):
        await fill(jobs, data={"n": 2**70})
        page = (await client.get("/job/new?type=email&from=failed")).text
        assert str(2**70) in page
        form = {"type": "email", "from": "failed", "id": "again", "data": f'{{"n": {2**70 + 1}}}', "priority": "-3"}
        answer = await client.post("/job/new", data=form)
        assert answer.headers["location"] == "/job?type=email&id=again&said=added"
        job = await jobs.get("email", "again")
        assert (job.data, job.priority) == ({"n": 2**70 + 1}, -3)
        await client.post("/job/new", data={"type": "email", "id": "later", "data": "", "delay": "1h"})
        assert (await jobs.get("email", "later")).run_at is not None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"data": "{"}, "data: not JSON (Expecting property name"),
        ({"data": "NaN"}, "NaN is not a JSON number"),
        ({"data": "[" * 5000}, "data"),
        ({"priority": "soon"}, "priority: 'soon' is no integer; a string is written in JSON's quotes"),
        ({"delay": "soon"}, "'soon' is no duration"),
        ({"id": "ready"}, "ready"),
        ({"type": "nothing"}, "nothing"),
    ],
)
async def test_what_is_wrong_with_a_new_job_is_said_above_the_form(change: dict[str, str], says: str) -> None:
    async with served() as (jobs, client):
        await fill(jobs)
        form = {"type": "email", "id": "new", "data": "1", "priority": "0", "delay": "", **change}
        answer = await client.post("/job/new", data=form)
        assert answer.status_code == 422
        assert says in text(answer.text)
        assert form["data"] in answer.text.replace("&#34;", '"')
        with pytest.raises(JobNotFound):
            await jobs.get("email", "new")


async def test_a_waiting_job_is_edited_in_place() -> None:
    async with served() as (jobs, client):
        await fill(jobs, data={"n": 1})

        async def edit(id: str, **change: str) -> httpx.Response:
            page = (await client.get(f"/job?type=email&id={id}")).text
            [seq] = set(re.findall(r'name="seq" value="(\w+)"', page))
            form = {"type": "email", "id": id, "seq": seq, "data": '{"n": 1}', "priority": "0", "delay": ""}
            return await client.post("/job/edit", data={**form, **change})

        assert (await edit("scheduled", data='{"n": 2}')).headers["location"].endswith("said=edited")
        job = await jobs.get("email", "scheduled")
        assert (job.data, job.priority, job.run_at) == ({"n": 2}, 0, datetime.fromtimestamp(4_000_000_000, UTC))
        await edit("ready", priority="-3", delay="1h")
        job = await jobs.get("email", "ready")
        assert (job.data, job.priority) == ({"n": 1}, -3)
        assert job.run_at is not None
        assert (await edit("ready", data="{")).status_code == 422
        assert (await edit("failed", data="{}")).headers["location"].endswith("said=meanwhile")
        assert 'action="/job/edit"' not in (await client.get("/job?type=email&id=failed")).text


async def test_what_is_secret_stays_as_it_is_when_a_job_is_edited() -> None:
    async with served() as (jobs, client):
        await jobs.set_type_timeout("email", 60)
        await jobs.set_redaction("email", ["password"])
        await jobs.add("email", "one", {"to": "ada", "password": "hunter2"})
        page = (await client.get("/job?type=email&id=one")).text
        shown = unescape(re.findall(r'name="data"[^>]*>([^<]+)</textarea>', page)[0])
        [seq] = set(re.findall(r'name="seq" value="(\w+)"', page))
        form = {"type": "email", "id": "one", "seq": seq, "data": shown.replace("ada", "bob"), "priority": "5"}
        answer = await client.post("/job/edit", data=form)
        assert (answer.status_code, "write what it is to be" in answer.text) == (422, True)
        await client.post("/job/edit", data={**form, "data": shown})
        job = await jobs.get("email", "one")
        assert (job.data["password"], job.priority) == ("hunter2", 5)


async def test_a_periodic_job_is_run_by_hand(address: str) -> None:
    service = JobsService(address)

    @service.every("1h", type="refresh")
    async def refresh() -> None: ...

    async with service:
        transport = httpx.ASGITransport(Application(service, ServerOptions(is_open=True)))
        async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
            answer = await client.post("/periodic/act", data={"type": "refresh"})
            assert answer.headers["location"] == "/periodic?said=ticked"
            assert (await service.counts("refresh"))["refresh"].ready == 1
            assert (await client.post("/periodic/act", data={"type": "other"})).status_code == 404


CHANGES = (
    ("/job/act", {"type": "email", "id": "ready", "action": "remove"}),
    ("/type/act", {"type": "email", "action": "pause"}),
    ("/job/new", {"type": "email", "id": "new"}),
    ("/bulk", {"type": "email", "action": "remove"}),
    ("/bulk/cancel", {"id": "x"}),
    ("/bulk/picked", {"type": "email", "action": "remove", "pick": "ready"}),
    ("/job/edit", {"type": "email", "id": "ready"}),
    ("/periodic/act", {"type": "email"}),
)


@pytest.mark.parametrize(("path", "form"), CHANGES)
async def test_a_server_that_changes_nothing_refuses_every_button(path: str, form: dict[str, str]) -> None:
    async with served(options=ServerOptions(is_open=True, read_only=True)) as (jobs, client):
        await fill(jobs)
        answer = await client.post(path, data=form)
        assert answer.status_code == 403
        assert "read-only" in answer.text
        assert (await jobs.counts("email"))["email"].jobs == 5
        assert not await jobs.paused("email")


@pytest.mark.parametrize(("path", "form"), CHANGES)
async def test_who_may_only_read_presses_nothing(path: str, form: dict[str, str]) -> None:
    async with served(options=ServerOptions(authenticate=lambda scope: ("grafana", "read"))) as (jobs, client):
        await fill(jobs)
        answer = await client.post(path, data=form)
        assert answer.status_code == 403
        assert "needs the role write; yours is read" in text(answer.text)
        assert (await jobs.counts("email"))["email"].jobs == 5
        for page in ("/", "/type?type=email", "/job?type=email&id=failed", "/periodic"):
            shown = (await client.get(page)).text
            assert 'action="/job/act"' not in shown
            assert 'action="/type/act"' not in shown
            assert "grafana, role read" in shown


async def test_nobody_is_led_to_the_login() -> None:
    async with served(options=ServerOptions()) as (_, client):
        answer = await client.get("/type?type=email&state=failed")
        assert answer.status_code == 303
        assert answer.headers["location"] == "/login?next=%2Ftype%3Ftype%3Demail%26state%3Dfailed"
        assert (await client.get("/live?of=types")).status_code == 403
        assert (await client.get("/static/style.css")).status_code == 200


@pytest.mark.parametrize(("path", "form"), CHANGES)
@pytest.mark.parametrize("headers", [{"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}])
async def test_a_page_of_others_presses_nothing(path: str, form: dict[str, str], headers: dict[str, str]) -> None:
    async with served() as (jobs, client):
        await fill(jobs)
        assert (await client.post(path, data=form, headers=headers)).status_code == 403
        assert (await jobs.counts("email"))["email"].jobs == 5
        assert not await jobs.paused("email")


async def test_commands_are_not_reached_through_pages() -> None:
    async with served() as (jobs, client):
        await jobs.set_type_timeout(COMMAND_TYPE, 60)
        await jobs.add(COMMAND_TYPE, "one", {"argv": ["true"]})
        name = COMMAND_TYPE if isinstance(COMMAND_TYPE, str) else "?"
        for path, form in (
            ("/job/new", {"type": name, "id": "two", "data": "{}"}),
            ("/job/act", {"type": name, "id": "one", "action": "resubmit"}),
            ("/bulk", {"type": name, "action": "resubmit"}),
        ):
            answer = await client.post(path, data=form)
            assert answer.status_code == 403
            assert "--commands" in answer.text


async def test_only_an_admin_ends_a_process() -> None:
    async with served(options=ServerOptions(authenticate=lambda scope: ("ada", "write"))) as (_, client):
        for action in ("quiet", "stop"):
            assert (await client.post("/processes/act", data={"action": action, "id": "0" * 12})).status_code == 403


@pytest.mark.parametrize(
    "back",
    [
        "",
        "//[",
        "http://[",
        "//x\u2100y/",
        "//evil.example",
        "/\\evil.example",
        "/\t/evil.example",
        "https://evil.example/",
    ],
)
async def test_after_a_form_nobody_is_led_elsewhere(back: str) -> None:
    async with served() as (_, client):
        answer = await client.post("/preferences", data={"theme": "dark", "back": back})
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        answer = await client.post("/preferences", data={"theme": "dark", "back": "/type?type=email"})
        assert answer.headers["location"] == "/type?type=email"
