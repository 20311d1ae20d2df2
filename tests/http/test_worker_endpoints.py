"""Workers over HTTP: the lock is the right to go on."""

from __future__ import annotations

from pathlib import Path

from tests.http.support import also_on_a_cluster, problem, served

JOBS = "/v1/types/email/jobs"


@also_on_a_cluster
async def test_a_worker_takes_updates_and_finishes_a_job() -> None:
    async with served() as (jobs, client):
        await jobs.set_type_timeout("email", 30)
        await jobs.add("email", "a", {"n": 1})
        [job] = (await client.post("/v1/types/email/accept", json={"worker": "node 1"})).json()["jobs"]
        assert (job["id"], job["state"], len(job["lock"])) == ("a", "running", 32)
        assert job["history"][0]["detail"] == "node 1"
        lock = {"lock": job["lock"]}
        updated = (await client.post(f"{JOBS}/a/update", json={**lock, "data": {"n": 2}})).json()
        assert updated["data"] == {"n": 2}
        said = (await client.post(f"{JOBS}/a/progress", json={**lock, "done": 1, "total": 2})).json()
        assert said["progress"] == {"done": 1.0, "total": 2.0, "message": "", "attempt": 1}
        assert "lock" not in (await client.get(f"{JOBS}/a")).json()
        ended = (await client.post(f"{JOBS}/a/finish", json={**lock, "result": [1]})).json()
        assert (ended["outcome"], ended["result"]) == ("succeeded", [1])
        problem(await client.post(f"{JOBS}/a/finish", json=lock), 409, "worker-conflict")


@also_on_a_cluster
async def test_a_worker_fails_gives_back_and_asks_for_another_run() -> None:
    async with served() as (jobs, client):
        await jobs.set_type_timeout("email", 30)
        for id in "abc":
            await jobs.add("email", id)
        accepted = (await client.post("/v1/types/email/accept", json={"limit": 3})).json()["jobs"]
        a, b, c = ({"lock": job["lock"]} for job in accepted)
        error = {"type": "Oops", "message": "no"}
        failed = {**a, "outcome": "failed", "error": error}
        assert (await client.post(f"{JOBS}/a/finish", json=failed)).json()["outcome"] == "failed"
        assert (await client.post(f"{JOBS}/b/release", json=b)).json()["state"] == "pending"
        assert (await client.post(f"{JOBS}/c/resubmit", json={**c, "priority": 5})).json()["resubmit"] is True
        other = {"lock": "00" * 16}
        problem(await client.post(f"{JOBS}/c/progress", json={**other, "done": 1}), 409, "worker-conflict")
        problem(await client.post(f"{JOBS}/c/finish", json={"lock": "0"}), 422, "invalid-request")
        problem(await client.post(f"{JOBS}/c/finish", json={"lock": "00"}), 422, "invalid-job")


async def test_runs_of_a_handler_end_each_as_if_alone_beside_a_result_that_no_store_takes() -> None:
    async with served() as (jobs, client):
        await jobs.set_type_timeout("email", 30)
        for n in range(3):
            await jobs.add("email", str(n))
        accepted = (await client.post("/v1/types/email/accept", json={"limit": 3})).json()["jobs"]
        ends = [{"id": job["id"], "lock": job["lock"], "end": "finish", "result": 7} for job in accepted]
        ends[1]["result"] = [0] * 100_001
        for sent in (ends, ends[1:2]):
            said = (await client.post("/v1/types/email/ends", json={"jobs": sent})).json()["ends"]
            assert [each and each["type"] for each in said][-2:] == ["/problems/job-too-large", None][: len(sent)]
        assert [(await jobs.get("email", str(n))).result for n in range(3)] == [7, None, 7]


async def test_a_lock_outlives_the_daemon(lasting: str) -> None:
    async with served(lasting) as (jobs, client):
        await jobs.set_type_timeout("email", 30)
        await jobs.add("email", "a")
        [job] = (await client.post("/v1/types/email/accept")).json()["jobs"]
    async with served(lasting) as (_, client):
        ended = await client.post(f"{JOBS}/a/finish", json={"lock": job["lock"], "result": 1})
        assert ended.json()["result"] == 1


async def test_the_jobs_of_clients_do_not_end_with_the_daemon(tmp_path: Path) -> None:
    # Jobs of processes that have died are found by the id of their store's instance in the lock.
    async with served(f"lmdb:{tmp_path}") as (jobs, client):
        await jobs.set_type_timeout("email", 30)
        await jobs.add("email", "a")
        [job] = (await client.post("/v1/types/email/accept")).json()["jobs"]
        await jobs.add("email", "b")
        own = await jobs.accept("email")
        assert own is not None
        assert own.lock[:8] == jobs.store.instance
        assert not job["lock"].startswith(jobs.store.instance.hex())
