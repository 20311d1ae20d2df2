"""Bulk actions: counted, confirmed, run on the server, canceled, and gone on with after their process has died."""

import asyncio
import re
from html import unescape
from typing import Any

import httpx
import pytest

from jobs_service import Job, JobError, JobsService, JobState, Outcome
from jobs_service.names import shown
from jobs_service.runner.commands import COMMAND_TYPE
from jobs_service.service import bulk_actions
from jobs_service.service.bulk_actions import BulkActions
from jobs_service.service.selection import Filter
from tests.http.support import served


async def fail(jobs: JobsService, number: int, type: Any = "email") -> None:
    """Add jobs that have failed, every second one with another error."""
    await jobs.set_type_timeout(type, 60)
    for at in range(number):
        await jobs.add(type, f"{at:04}", {"n": at})
        job = await jobs.accept(type)
        assert job is not None
        error = JobError("TimeoutError" if at % 2 else "KeyError", f"number {at}")
        await job.finish(outcome=Outcome.FAILED, error=error)


async def ended(jobs: JobsService, id: Any) -> Job:
    await jobs.wait(bulk_actions.TYPE, id, "finished", timeout=30)
    return await jobs.get(bulk_actions.TYPE, id)


def id_of(answer: httpx.Response) -> str:
    assert answer.status_code == 303, answer.text
    return str(httpx.URL(answer.headers["location"]).params["id"])


def hidden_fields(page: str, button: str) -> dict[str, str]:
    """Return what the form of a button sends."""
    [form] = [form for form in page.split("<form")[1:] if f">{button}" in form.partition("</form>")[0]]
    return {
        name: unescape(value)
        for name, value in re.findall(
            r'<input type="hidden" name="(\w+)" value="([^"]*)"', form.partition("</form>")[0]
        )
    }


@pytest.mark.parametrize(
    ("action", "query", "number"),
    [
        ("cancel", "", 3),
        ("cancel", "&prefix=0", 1),
        ("cancel", "&state=failed", 0),
        ("resubmit", "", 2),
        ("resubmit", "&state=finished", 4),
        ("remove", "", 7),
        ("remove", "&state=running", 1),
        ("remove", "&data=n~0", 2),
    ],
)
async def test_what_is_confirmed_is_what_is_changed_and_twice_is_once(action: str, query: str, number: int) -> None:
    async with served() as (jobs, client):
        await fail(jobs, 2)
        for id in ("succeeds", "is-canceled", "canceled-runs", "runs"):
            await jobs.add("email", id, {"n": 0} if id == "succeeds" else None)
            job = await jobs.accept("email")
            assert job is not None
            if "canceled" in id:
                await jobs.remove("email", id)
            if "runs" not in id:
                await job.finish()
        await jobs.add("email", "0-waits")
        await jobs.add("email", "later", run_at=4e9)
        page = (await client.get(f"/bulk/new?type=email&action={action}{query}")).text
        said = re.search(r"<h1>\w+ (\d+) job", page)
        assert said is not None, page
        assert int(said[1]) == number
        if not number:
            return
        form = {**hidden_fields(page, action.replace("resubmit", "retry").capitalize()), "action": action}
        # What comes into a state after the page was made was not confirmed.
        await fail_one(jobs, "fails-later")
        await jobs.add("email", "0-comes-later")
        first, second = [id_of(await client.post("/bulk", data=form)) for _ in range(2)]
        assert first == second
        done = await ended(jobs, first)
        assert (done.result["matched"], done.result["changed"], done.data["counted"]) == (number, number, number)
        assert (await jobs.counts(bulk_actions.TYPE))[bulk_actions.TYPE].jobs == 1
        assert (await jobs.get("email", "fails-later")).outcome is Outcome.FAILED
        assert (await jobs.get("email", "0-comes-later")).state is JobState.PENDING


async def fail_one(jobs: JobsService, id: str) -> None:
    await jobs.add("email", id, priority=-1)
    job = await jobs.accept("email")
    assert job is not None
    assert job.id == id
    await job.finish(outcome=Outcome.FAILED, error=JobError("KeyError", "later"))


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize(
    "change", [{"action": "remove"}, {"filter": {}}, {"type": "sms"}, {"who": "bob"}, {"asked": 4e9}]
)
async def test_an_action_whose_data_was_changed_is_refused(change: dict[str, Any], by_hand: bool) -> None:
    async with JobsService("memory:") as jobs:
        await fail(jobs, 3)
        await fail(jobs, 3, "sms")
        bulk = BulkActions(jobs)
        bulk.start = lambda: None  # type: ignore[method-assign]
        id = await bulk.add("resubmit", "email", Filter.of({"data": ["n=1"]}), "ada")
        if by_hand:
            await jobs.remove(bulk_actions.TYPE, id)
            await jobs.add(
                bulk_actions.TYPE, id := "mine", {"action": "resubmit", "type": "email", "filter": {"data": ["n=1"]}}
            )
        taken = await jobs.accept(bulk_actions.TYPE)
        assert taken is not None
        await taken.update({**taken.data, **change})
        await taken.release()
        del bulk.start
        bulk.start()
        job = await ended(jobs, id)
        await bulk.close()
        assert job.outcome is Outcome.FAILED
        assert job.error is not None
        assert "ask anew" in job.error.message
        assert [(await jobs.counts(type))[type].failed for type in ("email", "sms")] == [3, 3]


@pytest.mark.parametrize(
    "empty",
    [
        {"prefix": ""},
        {"data": ""},
        {"state": " "},
        {"asked": "soon"},
        {"asked": "1e300"},
        {"asked": "-1"},
        {"bound": "00"},
        {"counted": "7.5"},
    ],
)
async def test_a_form_with_something_empty_or_odd_starts_nothing(empty: dict[str, str]) -> None:
    async with served() as (jobs, client):
        await fail(jobs, 1)
        answer = await client.post("/bulk", data={"type": "email", "action": "remove", **empty})
        assert answer.status_code == 422
        assert (await jobs.counts("email"))["email"].jobs == 1


async def test_canceled_it_ends_and_what_it_has_done_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_actions, "READ_AT_ONCE", 5)
    async with served() as (jobs, client):
        await fail(jobs, 20)
        begun, go_on = asyncio.Event(), asyncio.Event()
        page = jobs.page

        async def slow(type: Any, **more: Any) -> Any:
            if type == "email" and more.get("after"):
                begun.set()
                await go_on.wait()
            return await page(type, **more)

        monkeypatch.setattr(jobs, "page", slow)
        id = id_of(await client.post("/bulk", data={"type": "email", "action": "remove", "state": "failed"}))
        await begun.wait()
        answer = await client.post("/bulk/cancel", data={"id": id})
        assert answer.headers["location"].endswith("said=stopping")
        go_on.set()
        job = await ended(jobs, id)
        assert job.outcome is Outcome.CANCELED
        assert 5 <= job.result["changed"] < 20
        assert (await jobs.counts("email"))["email"].failed == 20 - job.result["changed"]


async def test_it_goes_on_where_a_process_that_died_has_ended(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setattr(bulk_actions, "READ_AT_ONCE", 5)
    async with JobsService(address) as jobs:
        await fail(jobs, 20)
        first = BulkActions(jobs)
        reads = 0
        page = jobs.page
        stuck = asyncio.Event()

        async def stops(type: Any, **more: Any) -> Any:
            nonlocal reads
            reads += 1
            if reads == 3:
                stuck.set()
                await asyncio.Event().wait()
            return await page(type, **more)

        monkeypatch.setattr(jobs, "page", stops)
        id = await first.add("remove", "email", Filter(state="failed"), "")
        await stuck.wait()
        await first.close()
        monkeypatch.undo()
        monkeypatch.setattr(bulk_actions, "READ_AT_ONCE", 5)
        second = BulkActions(jobs)
        second.start()
        job = await ended(jobs, id)
        await second.close()
        assert job.result == {"read": 20, "matched": 20, "changed": 20, "too_large": 0}
        assert (await jobs.counts("email"))["email"].jobs == 0


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"action": "remove", "type": "email", "filter": {"stat": "failed"}}, "stat: unknown; allowed are"),
        ({"action": "remove", "type": "email", "filter": {"error": ""}}, "error is empty"),
        ({"action": "remove", "type": "email"}, "here is no filter"),
        (["remove"], "here is no action"),
    ],
)
async def test_an_action_that_is_misspelled_changes_nothing_and_its_page_says_why(data: Any, says: str) -> None:
    async with served() as (jobs, client):
        await fail(jobs, 2)
        bulk = BulkActions(jobs)
        await ended(jobs, await bulk.add("count", "email", Filter(), ""))
        await jobs.add(bulk_actions.TYPE, "mine", data)
        assert (await ended(jobs, "mine")).outcome is Outcome.FAILED
        await bulk.close()
        assert (await jobs.counts("email"))["email"].failed == 2
        assert says in (await client.get("/bulk/show?id=mine")).text


async def test_what_others_have_added_does_only_what_pages_do(address: str) -> None:
    async with JobsService(address) as jobs:
        await fail(jobs, 1)
        await fail(jobs, 1, COMMAND_TYPE)
        bulk = BulkActions(jobs)
        await ended(jobs, await bulk.add("count", "email", Filter(), ""))
        for action, type in (("odd", "email"), ("resubmit", shown(COMMAND_TYPE))):
            data = {"action": action, "type": type, "filter": {}, "asked": 4_000_000_000}
            await jobs.add(bulk_actions.TYPE, action, data)
            job = await ended(jobs, action)
            assert job.outcome is Outcome.FAILED
        await bulk.close()
        assert (await jobs.counts("email"))["email"].failed == 1
        assert (await jobs.counts(COMMAND_TYPE))[COMMAND_TYPE].failed == 1


async def test_checked_jobs_are_changed_as_they_were_listed_and_no_others() -> None:
    async with served() as (jobs, client):
        await fail(jobs, 4)
        page = (await client.get("/type?type=email&order=id")).text
        listed = hidden_fields(page, "Remove…")
        assert {"asked", "bound", "type"} <= listed.keys()
        await jobs.resubmit("email", "0001")  # after the list was made
        form = {**listed, "action": "resubmit", "pick": ["0000", "0001", "0002", "gone"]}
        asked = await client.post("/bulk/picked", data=form)
        assert "Retry 2 jobs?" in asked.text
        assert "2 other checked jobs cannot, or have changed since" in asked.text
        confirmed = {**listed, "action": "resubmit", "pick": re.findall(r'name="pick" value="(\w+)"', asked.text)}
        for _ in range(2):
            answer = await client.post("/bulk", data=confirmed)
            assert answer.headers["location"] == "/type?type=email&said=picked"
        counts = (await jobs.counts("email"))["email"]
        assert (counts.ready, counts.failed) == (3, 1)
        assert (await jobs.get("email", "0003")).outcome is Outcome.FAILED


async def test_without_a_check_the_buttons_of_a_list_are_for_all_that_match() -> None:
    async with served() as (jobs, client):
        await fail(jobs, 4)
        page = (await client.get("/type?type=email&state=failed&error=KeyError&data=n%3D2")).text
        answer = await client.post("/bulk/picked", data={**hidden_fields(page, "Remove…"), "action": "remove"})
        assert answer.headers["location"] == (
            "/bulk/new?type=email&action=remove&data=n%3D2&state=failed&error=KeyError"
        )
        assert "Remove 1 job?" in (await client.get(answer.headers["location"])).text
        for wrong in ({"action": "count"}, {"asked": "soon"}, {"bound": ""}):
            form = {**hidden_fields(page, "Remove…"), "action": "remove", "pick": "0000", **wrong}
            assert (await client.post("/bulk/picked", data=form)).status_code in (400, 422)
        assert (await jobs.counts("email"))["email"].failed == 4
