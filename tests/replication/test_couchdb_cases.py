"""The cases of CouchDB's own tests of its replicator (`src/couch_replicator/test/eunit`), by their names there.

Those of job scheduling that concern no replication are the runner's; `update_bulk_get_ratio` and `bulk_get_attempt`
are in `test_attempt_ratio.py`, the rate limiter's in `test_rate_limit.py`.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from jobs_service.replication import replicate
from jobs_service.replication.contract import ReplicationError
from jobs_service.replication.http import HttpSettings
from tests.replication.jobs import ends, equal, running, until
from tests.replication.server import Fault, Oddities, Server
from tests.replication.support import LIMIT, Replication, asked, attachment, contents, write_branch

QUICK = HttpSettings(retries=1, first_wait=0.001)


def populate(server: Server, first: int, last: int, *, with_attachments: bool = False) -> None:
    for number in range(first, last + 1):
        fields = {"_attachments": {"att": attachment(b"x" * 100_000)}} if with_attachments else {}
        write_branch(server.database("db"), f"{number}", 1, "x", number=number, **fields)


def between(source: Server, target: Server, **options: Any) -> Replication:
    return Replication(f"{source.url}/db", f"{target.url}/db", settings=QUICK, **options)


class TestErrorReporting:
    """error_reporting_tests: what a request is answered with is what the job says."""

    @pytest.mark.parametrize(
        ("where", "pattern", "status", "body", "attachments"),
        [
            ("target", "POST /db/_bulk_docs", 403, {"x": "y"}, False),
            ("source", "GET /db/_changes", 418, {"x": "y"}, False),
            ("target", "PUT /db/6", 400, {"error": "x", "reason": "y"}, True),
            ("target", "PUT /db/6", 400, {"a": "b"}, True),
            ("target", "POST /db/_revs_diff", 407, {"x": "y"}, False),
            ("source", "POST /db/_bulk_get", 408, {"x": "y"}, False),
            ("source", "GET /db/6", 418, {"x": "y"}, True),
        ],
        ids=[
            "t_fail_bulk_docs",
            "t_fail_changes_reader",
            "t_fail_doc_put_4xx_well_formed_json_error",
            "t_fail_doc_put_4xx_unexpected_json_error",
            "t_fail_revs_diff",
            "t_fail_bulk_get",
            "t_fail_open_docs_get",
        ],
    )
    async def test_t_fail(
        self,
        source: Server,
        target: Server,
        where: str,
        pattern: str,
        status: int,
        body: dict[str, str],
        attachments: bool,
    ) -> None:
        populate(source, 1, 5)
        replication = between(source, target, continuous=True, retries_per_request=1)
        copying = asyncio.create_task(replication.run())
        async with asyncio.timeout(LIMIT):
            await replication.tally.reached(5)
            server = {"source": source, "target": target}[where]
            server.faults.append(Fault(pattern, status=status, body=body, times=100))
            if where == "source" and "_changes" in pattern:
                source.databases["db"].touched()
                for request in source.faults:
                    request.times = 100
                restarted = between(source, target, retries_per_request=1)
                with pytest.raises(ReplicationError) as failed:
                    await restarted.run()
                copying.cancel()
                await asyncio.wait([copying])
            else:
                populate(source, 6, 6, with_attachments=attachments)
                with pytest.raises(ReplicationError) as failed:
                    await copying
        method, _, path = pattern.partition(" ")
        shown = str(failed.value)
        assert failed.value.status == status
        assert str(status) in shown or body.get("reason", "?") in shown
        assert (method in shown and path in shown) or "'6'" in shown
        assert "6" not in target.databases["db"].documents

    @pytest.mark.parametrize(
        ("status", "body"),
        [
            (401, {"error": "unauthorized", "reason": "vdu"}),
            (403, {"error": "forbidden", "reason": "vdu"}),
            (413, {"error": "too_large", "reason": "too_large"}),
            (415, {"error": "unsupported_media_type", "reason": "bad_media"}),
            (400, {"error": "bad_request", "reason": "Attachment name 'badname' starts with prohibited '_'"}),
        ],
        ids=[
            "t_skip_doc_put_401_errors",
            "t_skip_doc_put_403_errors",
            "t_skip_doc_put_413_errors",
            "t_skip_doc_put_415_errors",
            "t_skip_doc_put_invalid_attachment_name",
        ],
    )
    async def test_t_skip_doc_put(self, source: Server, target: Server, status: int, body: dict[str, str]) -> None:
        populate(source, 1, 5)
        populate(source, 6, 6, with_attachments=True)
        target.faults.append(Fault("PUT /db/6", status=status, body=body, times=100))
        summary = await between(source, target).run()
        assert (summary["docs_written"], summary["doc_write_failures"]) == (5, 1)
        assert [(each["id"], each["error"]) for each in summary["skipped"]] == [("6", body["error"])]

    async def test_t_dont_start_duplicate_job(self, source: Server, target: Server) -> None:
        async with running() as jobs:
            jobs_asked = [await replicate(jobs, *ends(source, target), continuous=True) for _ in range(3)]
            assert len({job.id for job in jobs_asked}) == 1

    async def test_t_can_start_multiple_jobs(self, source: Server, target: Server) -> None:
        populate(source, 1, 5)
        target.database("other")
        async with running() as jobs:
            await replicate(jobs, *ends(source, target), continuous=True)
            await replicate(jobs, f"{source.url}/db", f"{target.url}/other", continuous=True)
            await equal(source, target)
            while contents(target.databases["other"]) != contents(source.databases["db"]):
                await target.databases["other"].changed.wait()


class TestRetainStatsBetweenJobRuns:
    async def test_t_stats_retained_by_scheduler(self, source: Server) -> None:
        def reject_even(document: dict[str, Any]) -> str | None:
            return "even" if document.get("number", 1) % 2 == 0 else None

        async with Server(Oddities(validate=reject_even)) as target:
            target.database("db")
            populate(source, 1, 42)
            options: dict[str, Any] = {"continuous": True, "checkpoint_interval": 0.05}
            async with running(slots=1) as jobs:
                job = await replicate(jobs, *ends(source, target), **options)

                def counted(read: int) -> Any:
                    def holds(job: Any) -> bool:  # a checkpoint may be written between a document's read and its write
                        statistics = job.data.get("statistics", {})
                        dealt_with = statistics.get("docs_written", 0) + statistics.get("doc_write_failures", 0)
                        return bool(statistics.get("docs_read") == dealt_with == read)

                    return holds

                first = await until(jobs, job, counted(42))
                assert first.data["statistics"]["doc_write_failures"] == 21
                jobs.configure("continuous-replication", slots=0)
                await until(jobs, job, lambda job: job.state == "pending")
                populate(source, 43, 50)
                jobs.configure("continuous-replication", slots=1)
                second = await until(jobs, job, counted(50))
                assert second.data["statistics"]["docs_written"] == 25
                assert second.data["statistics"]["doc_write_failures"] == 25

    async def test_t_stats_retained_on_job_removal(self, source: Server, target: Server) -> None:
        populate(source, 1, 10)
        async with running() as jobs:
            job = await replicate(jobs, *ends(source, target), continuous=True, checkpoint_interval=0.05)
            await until(jobs, job, lambda job: job.data.get("statistics", {}).get("docs_read") == 10)
            await jobs.stop_and_remove(job.type, job.id, timeout=LIMIT)
            populate(source, 11, 15)
            job = await replicate(jobs, *ends(source, target), continuous=True, checkpoint_interval=0.05)
            await until(jobs, job, lambda job: job.data.get("statistics", {}).get("docs_read") == 15)


class TestMissingStubs:
    async def test_replicate_docs_with_missing_att_stubs(self, source: Server) -> None:
        async with Server(Oddities(revs_limit=3)) as target:
            database = source.database("db")
            target.database("db")
            write_branch(database, "doc", 1, "x", _attachments={"old": attachment(b"old" * 1000)})
            await between(source, target).run()
            for number in range(8):
                rev = database.documents["doc"].leaves()[0]
                stubs = {name: {"stub": True} for name in database.documents["doc"].nodes[rev].attachments}
                new = {f"new{number}": attachment(b"new" * number)}
                database.write({"_id": "doc", "_rev": rev, "n": number, "_attachments": {**stubs, **new}}, True)
            await between(source, target).run()
            there, copied = contents(database)["doc"], contents(target.databases["db"])["doc"]
            assert {rev: leaf[3] for rev, leaf in copied.items()} == {rev: leaf[3] for rev, leaf in there.items()}


class TestSmallMaxRequestSizeTarget:
    async def test_should_replicate_all_docs(self, source: Server) -> None:
        async with Server(Oddities(max_request=10_000)) as target:
            target.database("db")
            for number in range(50):
                write_branch(source.database("db"), f"{number}", 1, "x", text="x" * 800)
            await between(source, target).run()
            assert contents(target.databases["db"]) == contents(source.databases["db"])

    async def test_should_replicate_one(self, source: Server) -> None:
        async with Server(Oddities(max_request=10_000)) as target:
            target.database("db")
            write_branch(source.database("db"), "large", 1, "x", text="x" * 12_000)
            write_branch(source.database("db"), "small", 1, "x", text="x" * 100)
            await between(source, target).run()
            assert list(target.databases["db"].documents) == ["small"]

    async def test_should_replicate_one_with_attachment(self, source: Server) -> None:
        async with Server(Oddities(max_document=10_000)) as target:
            target.database("db")
            write_branch(
                source.database("db"), "one", 1, "x", text="x" * 100, _attachments={"att": attachment(b"x" * 60_000)}
            )
            await between(source, target).run()
            assert contents(target.databases["db"]) == contents(source.databases["db"])


class TestAttachmentsTooLarge:
    @pytest.mark.parametrize(("most", "written"), [(100_000, 1), (99_999, 0)], ids=["should_succeed", "should_fail"])
    async def test_attachment_too_large(self, source: Server, most: int, written: int) -> None:
        async with Server(Oddities(max_attachment=most)) as target:
            target.database("db")
            write_branch(source.database("db"), "doc", 1, "x", _attachments={"att": attachment(bytes(100_000))})
            summary = await between(source, target).run()
            assert (summary["docs_written"], summary["doc_write_failures"]) == (written, 1 - written)


class TestIdTooLong:
    @pytest.mark.parametrize(("most", "written"), [(3, 1), (2, 0)], ids=["should_succeed", "should_fail"])
    async def test_id_too_long(self, source: Server, target: Server, most: int, written: int) -> None:
        write_branch(source.database("db"), "doc", 1, "x")
        summary = await between(source, target, max_document_id_length=most).run()
        assert (summary["docs_written"], summary["doc_write_failures"]) == (written, 1 - written)


class TestBulkGet:
    @pytest.mark.parametrize("kind", ["documents", "ddocs", "attachments"])
    @pytest.mark.parametrize("uses", [True, False], ids=["use_bulk_get", "dont_use_bulk_get"])
    async def test_bulk_get(self, source: Server, target: Server, uses: bool, kind: str) -> None:
        for number in range(6):
            id = f"_design/{number}" if kind == "ddocs" else f"{number}"
            fields = {"_attachments": {"att": attachment(bytes(100_000))}} if kind == "attachments" else {}
            write_branch(source.database("db"), id, 1, "x", **fields)
        await between(source, target, use_bulk_get=uses).run()
        assert contents(target.databases["db"]) == contents(source.databases["db"])
        alone = [each for each in asked(source, "open_revs") if re.match("GET /db/(_design/)?[0-9]", each)]
        assert bool(asked(source, "_bulk_get")) == (uses and kind != "ddocs")
        assert len(alone) == (0 if uses and kind == "documents" else 6)


class TestRevsDiff:
    async def test_use_revs_diff_when_most_docs_are_present(self, source: Server, target: Server) -> None:
        populate(source, 1, 100)
        await between(source, target, use_checkpoints=False).run()
        target.requests.clear()
        await between(source, target, worker_batch_size=5, worker_processes=1).run()
        assert len(asked(target, "_revs_diff")) == 20

    async def test_skip_revs_diff_when_most_docs_are_missing(self, source: Server, target: Server) -> None:
        populate(source, 1, 100)
        await between(source, target, worker_batch_size=5, worker_processes=1).run()
        assert len(asked(target, "_revs_diff")) < 10
        assert contents(target.databases["db"]) == contents(source.databases["db"])


class TestSchedulerJob:
    @pytest.mark.parametrize("persistent", [False, True], ids=["t_replicate", "t_replicator"])
    async def test_since_seq(self, source: Server, target: Server, persistent: bool) -> None:
        populate(source, 1, 1)
        async with running() as jobs:

            async def run(**options: Any) -> list[str]:
                job = await replicate(jobs, *ends(source, target), continuous=persistent, **options)
                if persistent:
                    wanted = set(source.databases["db"].documents)
                    while not wanted <= set(target.databases["db"].documents) | skipped:
                        await target.databases["db"].changed.wait()
                    await jobs.stop_and_remove(job.type, job.id, timeout=LIMIT)
                else:
                    await jobs.result(job.type, job.id)
                return sorted(target.databases["db"].documents)

            skipped: set[str] = set()
            assert await run() == ["1"]  # without_since_seq
            since = next(iter(source.databases["db"].local.values()))["source_last_seq"]
            populate(source, 2, 3)
            target.databases["db"].documents.clear()
            skipped = {"1"}
            assert await run(since_seq=since) == ["2", "3"]  # with_since_seq_only: the id is another
            populate(source, 4, 4)
            target.databases["db"].documents.clear()
            skipped = {"1", "2", "3"}
            assert await run(since_seq=since) == ["4"]  # with_checkpoint_and_since_seq


class TestUseCheckpoints:
    @pytest.mark.parametrize("uses", [True, False], ids=["use_checkpoints", "dont_use_checkpoints"])
    async def test_checkpoints(self, source: Server, target: Server, uses: bool) -> None:
        populate(source, 1, 5)
        await between(source, target, use_checkpoints=uses).run()
        assert bool(source.databases["db"].local) == bool(target.databases["db"].local) == uses
