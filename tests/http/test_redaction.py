"""That no byte which leaves the HTTP interface has what is secret, but for the worker that runs the job."""

from __future__ import annotations

import json
from contextlib import aclosing

import pytest

from jobs_service import (
    InvalidJob,
    JobError,
    JobsError,
    JobsService,
    NewJob,
    Outcome,
    Redaction,
    ServiceClosed,
    StoreUnavailable,
    SupervisorFailed,
)
from jobs_service.client import JobsClient
from jobs_service.http.tokens import add_token
from jobs_service.redaction import REDACTED
from tests.http.support import events, listening, problem, served

SECRET = "S3cret-4111-1111"
JOBS = "/v1/types/pay/jobs"
LINES = {"Accept": "application/x-ndjson"}


async def test_no_answer_has_what_is_secret() -> None:
    async with served() as (jobs, client):
        await jobs.set_type_timeout("pay", 60)
        await jobs.set_redaction("pay", ["card.number", "result:token"])
        seen: list[str] = []

        async def said(method: str, path: str, **more: object) -> None:
            answer = await client.request(method, path, **more)  # type: ignore[arg-type]
            assert answer.status_code < 300, answer.text
            seen.append(answer.text + repr(answer.headers))

        data = {"card": {"number": SECRET, "of": "Ada"}}
        await said("POST", JOBS, json={"id": "1", "data": data})
        await said("POST", JOBS, json={"jobs": [{"id": "2", "data": data}]})
        await said("POST", JOBS, json={"data": data, "unique": "3"}, headers={"Idempotency-Key": "k"})
        await said("POST", JOBS, json={"data": data, "unique": "3"}, headers={"Idempotency-Key": "k"})
        line = json.dumps({"id": "4", "data": data}) + "\n"
        await said("POST", JOBS, content=line, headers={"Content-Type": "application/x-ndjson"})
        accepted = await client.post("/v1/types/pay/accept", json={"limit": 1})
        [own] = accepted.json()["jobs"]
        assert own["data"] == data  # its worker sees everything
        path = f"{JOBS}/{own['id']}"
        await client.post(f"{path}/progress", json={"lock": own["lock"], "done": 1, "message": f"charging {SECRET}"})
        error = {"type": "E", "message": f"{SECRET!r} is refused", "traceback": f"pay({SECRET!r})"}
        end = {"lock": own["lock"], "outcome": "failed", "result": {"token": SECRET}, "error": error}
        await said("POST", f"{path}/finish", json=end)
        await said("GET", path)
        await said("GET", f"/v1/job?type=pay&id={own['id']}")
        await said("GET", JOBS)
        await said("GET", f"{JOBS}?state=failed")
        await said("GET", JOBS, headers=LINES)
        await said("GET", "/v1/jobs", headers=LINES)
        again = (await client.post("/v1/types/pay/accept", json={"limit": 1})).json()["jobs"][0]
        other = await jobs.accept("pay")
        assert other is not None
        failed = {"lock": again["lock"], "outcome": "failed", "error": error}
        await client.post(f"{JOBS}/{again['id']}/progress", json={"lock": again["lock"], "done": 1, "message": SECRET})
        await said("POST", f"{JOBS}/{again['id']}/finish", json=failed)
        await said("GET", "/v1/failures")
        await said("GET", "/v1/types/pay/oldest")
        await said("POST", f"{path}/resubmit", json={})
        for text in seen:
            assert SECRET[:8] not in text
            assert SECRET[-8:] not in text
        assert sum("[redacted]" in text for text in seen) >= 12


async def test_paths_are_set_and_read_over_http() -> None:
    async with listening() as (jobs, client):
        answer = await client.put("/v1/types/pay/redaction", json={"paths": ["card", "**.token", "card"]})
        assert answer.json() == {"paths": ["card", "**.token"]}
        assert await jobs.get_redaction("pay") == Redaction(["card", "**.token"])
        assert (await client.get("/v1/types/pay/redaction")).json() == {"paths": ["card", "**.token"]}
        assert (await client.get("/v1/redactions")).json() == {
            "types": [{"type": "pay", "paths": ["card", "**.token"]}]
        }
        problem(await client.put("/v1/types/pay/redaction", json={"paths": ["a..b"]}), 422, "invalid-settings")
        writer = {"Authorization": f"Bearer {await add_token(jobs, 'writer', 'write')}"}
        problem(await client.put("/v1/types/pay/redaction", json={"paths": []}, headers=writer), 403, "forbidden")
        admin = await add_token(jobs, "admin", "admin")
        async with JobsClient(str(client.base_url), token=admin) as remote:
            assert await remote.get_redaction("pay") == Redaction(["card", "**.token"])
            await remote.set_redaction(("a", 1), ["x"])
            assert await remote.redactions() == await jobs.redactions()


async def test_nobody_finds_a_job_by_what_is_secret() -> None:
    async with served() as (jobs, client):
        await jobs.set_type_timeout("pay", 60)
        await jobs.set_redaction("pay", ["card"])
        await jobs.add("pay", "1", {"card": SECRET, "to": "Ada"})
        job = await jobs.accept("pay")
        assert job is not None
        await job.finish(outcome=Outcome.FAILED, error=JobError("E", f"no {SECRET}"))

        async def matched(filter: dict[str, object]) -> int:
            form = {"action": "resubmit", "filter": filter, "dry_run": True}
            answer = await client.post("/v1/types/pay/bulk", json=form)
            assert answer.status_code == 200, answer.text
            found: int = answer.json()["matched"]
            return found

        assert await matched({"data": {"to": "Ada"}}) == 1
        assert await matched({"data": {"card": SECRET}}) == 0
        assert await matched({"text": SECRET[:6]}) == 0


async def test_no_event_has_what_is_secret_and_a_change_of_the_rules_counts_at_once() -> None:
    async with listening() as (jobs, client):
        await jobs.set_type_timeout("pay", 60)
        await jobs.set_redaction("pay", ["card"])
        data = {"card": SECRET, "pin": SECRET, "to": "Ada"}
        await jobs.add("pay", "1", data)
        path = "/v1/types/pay/jobs/1/events"
        async with client.stream("GET", path) as one, aclosing(events(one)) as told:
            first = (await anext(told))[2]
            assert first["data"] == {"card": "[redacted]", "pin": SECRET, "to": "Ada"}
            await jobs.set_redaction("pay", ["card", "pin"])
            job = await jobs.accept("pay")
            assert job is not None
            assert SECRET not in repr((await anext(told))[2])
            async with client.stream("GET", path) as other, aclosing(events(other)) as anew:
                assert SECRET not in repr((await anext(anew))[2])
            async with client.stream("GET", "/v1/types/pay/events") as changes, aclosing(events(changes)) as all_told:
                await job.progress(1, 2, f"charging {SECRET}")
                said = (await anext(told))[2]
                assert said["progress"]["message"] == "charging [redacted]"
                await job.finish(outcome=Outcome.FAILED, error=JobError("E", SECRET), result=SECRET)
                last = (await anext(told))[2]
                assert last["error"]["message"] == "[redacted]"
                async for _, _, change in all_told:
                    assert SECRET not in repr(change)
                    if change.get("state") == "finished":
                        break


@pytest.mark.parametrize("kind", [StoreUnavailable, SupervisorFailed, ServiceClosed])
async def test_what_was_changed_is_told_even_if_what_is_secret_cannot_be_read_then(
    kind: type[JobsError], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(type: object) -> None:
        raise kind("it has failed")

    async with served() as (jobs, client):
        await jobs.set_type_timeout("pay", 60)
        monkeypatch.setattr(jobs, "get_redaction", fails)
        data = {"card": {"number": SECRET}}
        added = await client.post(JOBS, json={"id": "1", "data": data})
        several = await client.post(JOBS, json={"jobs": [{"id": "2", "data": data}]})
        again = await client.post(f"{JOBS}/1/resubmit", json={})
        locks = [job.lock.hex() for job in await jobs.accept_many("pay", 2)]
        released = await client.post(f"{JOBS}/1/release", json={"lock": locks[0]})
        finished = await client.post(f"{JOBS}/2/finish", json={"lock": locks[1]})
        for answer in (added, several, again, released, finished):
            assert answer.status_code in (200, 201), answer.text
            assert SECRET not in answer.text
        assert (await client.get(f"{JOBS}/1")).status_code == 503
        monkeypatch.undo()
        states = {job.id: job.state async for job in jobs.list("pay")}
        assert states == {"1": "pending", "2": "finished"}


MARKED = {"card": {"number": REDACTED}, "note": "again"}


async def test_a_client_cannot_write_the_mark_in_the_place_of_a_secret() -> None:
    async with listening() as (jobs, http), JobsClient(str(http.base_url)) as client:
        await jobs.set_type_timeout("pay", 60)
        await jobs.set_redaction("pay", ["card.number"])
        data = {"card": {"number": SECRET}}
        await jobs.add("pay", "1", data)
        read = await client.get("pay", "1")
        assert read.data == {"card": {"number": REDACTED}}
        await jobs.add("pay", "0", data, priority=-1)
        running = await client.accept("pay", timeout=0)
        assert running is not None
        refusals = [
            client.resubmit("pay", "1", data={**read.data, "note": "again"}),
            client.add("pay", "2", MARKED),
            client.add("pay", "1", MARKED, if_exists="resubmit"),
            client.add_many("pay", [NewJob("2", data), NewJob("3", MARKED)]),
            client.enqueue("pay", MARKED),
            client.enqueue_many("pay", [MARKED]),
            running.update(MARKED),
            running.resubmit(data=MARKED),
            running.finish(MARKED),
            jobs.resubmit("pay", "1", data=MARKED),
            jobs.add("pay", "2", MARKED),
            jobs.transact(lambda tx: tx.add("pay", "2", MARKED)),
        ]
        for each in refusals:
            with pytest.raises(InvalidJob, match=r"\[redacted\] where the type 'pay' has a secret"):
                await each
        assert [(job.id, job.data) async for job in jobs.list("pay")] == [("0", data), ("1", data)]
        kept = {"card": {"number": f"not {REDACTED}", "of": REDACTED}}
        assert (await jobs.add("pay", "4", kept)).data == kept
        await running.finish({**data, "note": "again"})
        assert (await jobs.get("pay", "0")).data == {**data, "note": "again"}


async def test_who_runs_a_job_reads_all_of_it_and_nobody_else_does() -> None:
    async with listening() as (jobs, http), JobsClient(str(http.base_url)) as client:
        await jobs.set_type_timeout("pay", 60)
        await jobs.set_redaction("pay", ["card.number", "result:token"])
        data = {"card": {"number": SECRET}}
        await jobs.add("pay", "1", data)
        running = await client.accept("pay")
        assert running is not None
        assert running.data == (await client.get("pay", "1")).data == data
        async with JobsClient(str(http.base_url)) as other:
            assert (await other.get("pay", "1")).data == {"card": {"number": REDACTED}}
        wrong = await http.get(f"{JOBS}/1", params={"lock": "00" * 16})
        assert problem(wrong, 409, "worker-conflict")
        await running.finish(result={"token": SECRET})
        assert (await client.get("pay", "1")).data == {"card": {"number": REDACTED}}


async def test_what_a_handler_declares_as_secret_is_known_with_the_first_job_that_is_enqueued_over_http() -> None:
    app = JobsService("memory:")

    @app.handler("pay", redact=["card"])
    async def pay(card: str, note: str) -> None: ...

    @app.handler("mail", redact=["to"])
    async def mail(to: str, text: str) -> None: ...

    async with listening() as (jobs, http), JobsClient(str(http.base_url)) as client:
        job = await client.enqueue(pay, card=SECRET, note="")
        assert await jobs.get_redaction("pay") == Redaction(["card"])
        assert job.data == (await client.get("pay", job.id)).data == {"card": REDACTED, "note": ""}
        await client.enqueue_many(mail, [{"to": SECRET, "text": ""}])
        assert await jobs.get_redaction("mail") == Redaction(["to"])
        await jobs.set_redaction("pay", [])  # an operator's word stays
        await client.enqueue(pay, card=SECRET, note="")
        assert await jobs.get_redaction("pay") == Redaction()
