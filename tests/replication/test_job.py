"""Replications as jobs: retried, stopped and resumed by the runner, with what they tell of themselves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from jobs_service import Job, JobFailed
from jobs_service.replication import InvalidReplication, http, pipeline, replicate, replicate_database
from jobs_service.replication import job as progress
from jobs_service.replication.job import FAILING_RUNS
from jobs_service.replication.stored import ReplicationStatus
from tests.replication.jobs import ends, equal, running, until
from tests.replication.server import Fault, Oddities, Server
from tests.replication.support import asked, contents, fill, write_branch

SECRET = "hunter2-marker"


async def test_a_revision_that_never_comes_is_skipped_in_the_end(
    source: Server, target: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "MISSING_PAUSE", 0.001)
    rev = write_branch(source.database("db"), "gone", 1, "x")
    write_branch(source.database("db"), "there", 1, "x")
    source.databases["db"].documents["gone"].nodes[rev].body = None
    async with running(backoff=0.01) as jobs:
        job = await replicate(jobs, *ends(source, target))
        result = await jobs.result(job.type, job.id)
        attempts = (await jobs.get(job.type, job.id)).attempts
    assert attempts == FAILING_RUNS + 1
    assert [*target.databases["db"].documents] == ["there"]
    assert result["doc_write_failures"] == 1
    assert [(each["id"], each["rev"], each["error"]) for each in result["skipped"]] == [("gone", rev, "not_found")]


def breaks_at_deletions(form: dict[str, Any]) -> bool:
    return bool(form.get("_deleted"))


async def test_documents_at_which_a_validation_function_breaks_down_are_skipped_in_the_end(source: Server) -> None:
    stubs = [write_branch(source.database("db"), f"stub-{number}", 1, "x", _deleted=True) for number in range(2)]
    write_branch(source.database("db"), "there", 1, "x")
    async with Server(Oddities(breaks_down=breaks_at_deletions)) as target, running(backoff=0.01) as jobs:
        target.database("db")
        job = await replicate(jobs, *ends(source, target), retries_per_request=0)
        result = await jobs.result(job.type, job.id)
        ended = await jobs.get(job.type, job.id)
    assert ended.attempts == FAILING_RUNS + 1
    assert any("TypeError: {[]}" in each.detail for each in ended.history)
    assert [*target.databases["db"].documents] == ["there"]
    assert sorted(each["rev"] for each in result["skipped"]) == sorted(stubs)
    assert (result["docs_written"], result["doc_write_failures"]) == (1, 2)
    assert all("TypeError: {[]}" in each["reason"] for each in result["skipped"])


async def test_no_document_is_skipped_of_a_target_that_takes_nothing(source: Server, target: Server) -> None:
    write_branch(source.database("db"), "doc", 1, "x")
    full = [Fault("POST /db/_bulk_docs", status=500, times=10_000), Fault("PUT /db/", status=500, times=10_000)]
    target.faults += full
    async with running(backoff=0.01, jitter=0) as jobs:
        job = await replicate(jobs, *ends(source, target), retries_per_request=0)
        await until(jobs, job, lambda job: job.attempts > FAILING_RUNS + 2)
        target.faults.clear()
        result = await jobs.result(job.type, job.id)
    assert (result["docs_written"], result["skipped"]) == (1, [])


async def test_names_that_a_partitioned_target_cannot_have_are_skipped(source: Server) -> None:
    for id in ("p:1", "plain", "p:2", "other", "p:3"):
        write_branch(source.database("db"), id, 1, "x")
    async with Server(Oddities(partitioned=True)) as target, running() as jobs:
        target.database("db")
        job = await replicate(jobs, *ends(source, target))
        result = await jobs.result(job.type, job.id)
    assert sorted(target.databases["db"].documents) == ["p:1", "p:2", "p:3"]
    assert sorted(each["id"] for each in result["skipped"]) == ["other", "plain"]


async def test_other_options_of_a_continuous_one_that_runs_count_within_seconds(source: Server, target: Server) -> None:
    write_branch(source.database("db"), "one", 1, "x")
    async with running() as jobs:
        job = await replicate(jobs, *ends(source, target), continuous=True, worker_batch_size=7)
        await until(jobs, job, lambda job: bool(target.databases["db"].documents))
        await replicate(jobs, *ends(source, target), continuous=True, worker_batch_size=9)
        job = await until(jobs, job, lambda job: job.data["options"]["worker_batch_size"] == 9)
        write_branch(source.database("db"), "two", 1, "x")
        await equal(source, target)
        assert (await jobs.get(job.type, job.id)).error is None
    assert not asked(source, "since=0.*feed=continuous")[1:]


async def test_a_replication_that_was_added_by_hand_runs(source: Server, target: Server) -> None:
    write_branch(source.database("db"), "doc", 1, "x")
    one, other = ends(source, target)
    async with running() as jobs:
        job = await jobs.add("replication", "by hand", {"source": one, "target": other})
        result = await jobs.result(job.type, job.id)
        assert result["docs_written"] == 1
        wrong = await jobs.add("replication", "wrong", {"source": one})
        with pytest.raises(JobFailed, match="target: it is missing"):
            await jobs.result(wrong.type, wrong.id)


async def test_a_database_of_replications_is_taken_over_but_for_what_is_completed(
    source: Server, target: Server
) -> None:
    write_branch(source.database("db"), "doc", 1, "x")
    one, other = ends(source, target)
    documents: dict[str, dict[str, Any]] = {
        "mine": {"source": one, "target": other, "owner": "ada"},
        "done": {"source": one, "target": other, "since_seq": 7},
        "local": {"source": "db", "target": other},
        "_design/_replicator": {"language": "javascript"},
    }
    for id, document in documents.items():
        rev = write_branch(source.database("replicator"), id, 1, "x", **document)
        body = source.databases["replicator"].documents[id].nodes[rev].body
        assert body is not None
        body |= {"_replication_state": "completed"} if id == "done" else {}
    async with running() as jobs:
        found = {name: job async for name, job in replicate_database(jobs, f"{source.url}/replicator")}
        assert found.keys() == {"mine", "local"}
        assert isinstance(found["local"], InvalidReplication)
        job = found["mine"]
        assert isinstance(job, Job)
        await jobs.result(job.type, job.id)
        status = ReplicationStatus.of(await jobs.get(job.type, job.id))
    assert status is not None
    assert (status.name, status.missing_found, status.checkpoint["written"]) == ("mine", 1, 1)
    assert status.checkpoint["checkpointed_source_seq"] is not None


async def test_skipped_documents_are_in_the_result(source: Server) -> None:
    async with Server(Oddities(validate=lambda document: "no")) as target, running() as jobs:
        target.database("db")
        revision = write_branch(source.database("db"), "doc", 1, "x")
        job = await replicate(jobs, *ends(source, target))
        result = await jobs.result(job.type, job.id)
        assert result["skipped"] == [{"id": "doc", "rev": revision, "error": "forbidden", "reason": "no"}]
        strict = await replicate(jobs, *ends(source, target), strict=True, since_seq=0)
        with pytest.raises(JobFailed, match="'doc'"):
            await jobs.result(strict.type, strict.id)


async def test_a_missing_database_is_tried_again(source: Server, target: Server) -> None:
    target.databases.clear()
    write_branch(source.database("db"), "doc", 1, "x")
    async with running(backoff=0.05, jitter=0) as jobs:
        job = await replicate(jobs, *ends(source, target))
        crashed = await until(jobs, job, lambda job: job.error is not None)
        assert crashed.error is not None
        assert crashed.error.type == "DatabaseMissing"
        target.database("db")
        await jobs.result(job.type, job.id)
    assert list(target.databases["db"].documents) == ["doc"]


async def test_it_tells_its_progress_and_what_is_still_to_come(
    source: Server, target: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "INTERVAL", 0.01)
    fill(source.database("db"), 40)
    held = Fault("POST /db/_bulk_docs", until=asyncio.Event(), times=1)
    target.faults.append(held)
    async with running() as jobs:
        job = await replicate(jobs, *ends(source, target), worker_batch_size=10, worker_processes=2)
        # One batch is held up, and those behind it are copied.
        told = (await until(jobs, job, lambda job: job.progress is not None and job.progress.done == 30)).progress
        assert told is not None
        assert told.total == 40
        assert "documents/s" in told.message
        assert held.until is not None
        held.until.set()
        await jobs.result(job.type, job.id)


async def test_what_waits_while_the_target_hangs_is_told_and_a_rate_falls_to_nothing(
    source: Server, target: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "INTERVAL", 0.01)

    def status(job: Job) -> ReplicationStatus:
        found = ReplicationStatus.of(job)
        assert found is not None
        return found

    async with running() as jobs:
        job = await replicate(jobs, *ends(source, target), continuous=True)
        fill(source.database("db"), 10)
        await equal(source, target)
        await until(jobs, job, lambda job: status(job).rate.startswith("0 ") and status(job).pending == 0)
        held = Fault("POST /db/_revs_diff", until=asyncio.Event(), times=99)
        target.faults.append(held)
        for number in range(30):
            write_branch(source.database("db"), f"late {number}", 1, "x")
        waits = await until(jobs, job, lambda job: (status(job).pending or 0) >= 30 and status(job).lag is None)
        assert waits.error is None
        assert held.until is not None
        held.until.set()
        await equal(source, target)


async def test_a_runner_that_ends_leaves_a_checkpoint_from_which_the_next_goes_on(
    source: Server, target: Server, tmp_path: Path
) -> None:
    address = f"lmdb:{tmp_path / 'store'}"
    fill(source.database("db"), 20)
    total = sum(len(each.leaves()) for each in source.databases["db"].documents.values())
    async with running(address) as jobs:
        job = await replicate(jobs, *ends(source, target), continuous=True, checkpoint_interval=0.05)
        await until(jobs, job, lambda job: job.data.get("statistics", {}).get("missing_checked", 0) >= total)
    source.requests.clear()
    write_branch(source.database("db"), "new", 1, "x")
    async with running(address) as jobs:
        await equal(source, target)
        stopped = await jobs.get(job.type, job.id)
        assert stopped.data["statistics"]["docs_written"] >= 20
    assert len(asked(source, "_bulk_get")) == 1


async def test_a_run_after_the_longest_pause_asks_for_less_at_a_time(
    source: Server, target: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "FACTOR", 10)
    monkeypatch.setattr(http, "LONGEST", 0.5)
    fill(source.database("db"), 150)
    source.faults.append(Fault("GET /db$", status=429, times=999))
    async with running(backoff=0.05, jitter=0) as jobs:
        job = await replicate(jobs, *ends(source, target))
        crashed = await until(jobs, job, lambda job: job.error is not None)
        assert crashed.error is not None
        assert crashed.error.type == "MaxBackoff"
        source.faults.clear()
        await jobs.result(job.type, job.id)
    assert len(asked(target, "_revs_diff")) == 2  # of 100 documents and of 50; the first run would have asked once
    assert contents(target.databases["db"]) == contents(source.databases["db"])


class TestCredentials:
    @pytest.fixture
    async def guarded(self) -> AsyncIterator[Server]:
        async with Server(Oddities(users={"ada": SECRET})) as server:
            write_branch(server.database("db"), "doc", 1, "x")
            yield server

    @pytest.mark.parametrize(
        "given",
        [
            {"auth": {"basic": {"username": "ada", "password": f"{SECRET}-wrong"}}},
            {"headers": {"Cookie": f"AuthSession={SECRET}"}},
            {"headers": {"Authorization": f"Bearer {SECRET}"}},
            {"headers": {"X-Anything": SECRET}},
            {"proxy": f"http://ada:{SECRET}@127.0.0.1:9"},
            {"proxy": f"socks5://ada:{SECRET}@127.0.0.1:9"},
        ],
        ids=["auth", "cookie", "authorization", "header", "proxy", "socks"],
    )
    async def test_in_whatever_place_are_not_in_what_is_told_of_a_failure(
        self,
        guarded: Server,
        target: Server,
        given: dict[str, Any],
        capfd: pytest.CaptureFixture[str],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        async with running() as jobs:
            endpoint = {"url": f"{guarded.url}/db", **given}
            job = await replicate(jobs, endpoint, f"{target.url}/db", retries_per_request=0)
            crashed = await until(jobs, job, lambda job: job.error is not None)
        printed = capfd.readouterr()
        assert "job_crashed" in printed.out + printed.err + caplog.text
        assert SECRET not in json.dumps(crashed.to_dict()) + repr(crashed) + printed.out + printed.err + caplog.text
