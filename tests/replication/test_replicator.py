"""Whole replications over HTTP between two small servers: equal afterwards, resumed where they ended, never a hole."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from jobs_service import WorkerConflict
from jobs_service.replication import pipeline, revisions
from tests.replication.server import Fault, Oddities, Server
from tests.replication.support import LIMIT, Replication, asked, attachment, contents, fill, write_branch


def between(source: Server, target: Server, **options: Any) -> Replication:
    return Replication(f"{source.url}/db", f"{target.url}/db", **options)


class TestAfterwards:
    @pytest.mark.parametrize(
        "oddities",
        [
            {},
            {"multipart": False, "gzip_text": False},
            {"bulk_get": False},
            {"opaque_sequences": False, "one_line_changes": True, "pending": False},
            {"gzip_text": False, "part_lengths": False},
            {"bulk_get_missing_form": True, "possible_ancestors": False},
            {"compresses": "gzip"},
            {"compresses": "deflate", "multipart": False},
        ],
        ids=lambda given: "+".join(given) or "as CouchDB",
    )
    async def test_both_are_equal(self, oddities: dict[str, Any]) -> None:
        async with Server(Oddities(**oddities)) as source, Server(Oddities(**oddities)) as target:
            fill(source.database("db"), 150, attachments=20)
            target.database("db")
            summary = await between(source, target, worker_batch_size=20).run()
            assert contents(target.databases["db"]) == contents(source.databases["db"])
            assert summary["docs_written"] == summary["docs_read"] == summary["missing_found"]
            assert (summary["doc_write_failures"], summary["skipped"], summary["no_changes"]) == (0, [], False)

    @pytest.mark.parametrize("opaque", [True, False])
    async def test_it_ends_however_fast_its_source_grows(self, opaque: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("jobs_service.replication.database.PAGE", 5)
        async with Server(Oddities(opaque_sequences=opaque)) as source, Server() as target:
            fill(source.database("db"), 30)
            there = {*source.databases["db"].documents}

            class Growing(list[str]):
                def append(self, each: str) -> None:
                    if "_changes" in each:
                        for number in range(10):
                            write_branch(source.database("db"), f"later {len(self)} {number}", 1, "x")
                    super().append(each)

            source.requests = Growing()
            target.database("db")
            await between(source, target).run()
            assert there <= {*target.databases["db"].documents}

    async def test_a_second_run_reads_nothing_but_the_logs(self, source: Server, target: Server) -> None:
        fill(source.database("db"), 30, attachments=3)
        await between(source, target).run()
        for server in (source, target):
            server.requests.clear()
        summary = await between(source, target).run()
        assert summary["no_changes"]
        written = [each for each in source.requests + target.requests if not each.startswith("GET ")]
        assert written == []
        assert not asked(source, "open_revs")

    async def test_what_has_changed_since_is_copied_alone(self, source: Server, target: Server) -> None:
        fill(source.database("db"), 30)
        first = await between(source, target).run()
        write_branch(source.database("db"), "new", 3, "x", value=1)
        second = await between(source, target).run()
        assert contents(target.databases["db"]) == contents(source.databases["db"])
        assert second["docs_written"] == first["docs_written"] + 1

    async def test_large_documents_are_asked_for_a_few_at_a_time(self, source: Server, target: Server) -> None:
        for number in range(100):
            write_branch(source.database("db"), f"doc{number}", 1, "x", text="x" * 200_000)
        summary = await between(source, target, worker_processes=1).run()
        assert summary["bulk_get_docs"] == 100
        assert len(asked(source, "_bulk_get")) >= 5  # 4 MiB each, and those that were too large
        assert contents(target.databases["db"]) == contents(source.databases["db"])

    async def test_a_revision_that_an_answer_leaves_out_is_no_silent_hole(
        self, source: Server, target: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pipeline, "MISSING_PAUSE", 0.001)
        write_branch(source.database("db"), "doc", 1, "x", _attachments={"a": attachment(bytes(100_000))})
        source.oddities.multipart = False
        fault = Fault("open_revs", status=200, body=[])
        source.faults.append(fault)
        await between(source, target).run()
        assert fault.hits
        assert contents(target.databases["db"]) == contents(source.databases["db"])

    @pytest.mark.parametrize("multipart", [True, False])
    async def test_a_document_larger_than_all_limits_is_skipped_with_a_reason(
        self, source: Server, target: Server, multipart: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(revisions, "MOST_DOCUMENT", 100_000)
        source.oddities.multipart = multipart
        source.oddities.bulk_get = False
        write_branch(source.database("db"), "other", 1, "x")
        write_branch(source.database("db"), "doc", 2, "small")
        large = write_branch(source.database("db"), "doc", 2, "large", text="x" * 100_000)
        summary = await between(source, target).run()
        assert (summary["docs_written"], summary["doc_write_failures"]) == (2, 1)
        assert [(each["id"], each["rev"], each["error"]) for each in summary["skipped"]] == [
            ("doc", large, "document_too_large")
        ]
        assert "has more than 100000 bytes" in summary["skipped"][0]["reason"]

    async def test_winning_revisions_alone_leave_conflicts_out(self, source: Server, target: Server) -> None:
        for branch in range(3):
            write_branch(source.database("db"), "doc", 2, branch, value=branch)
        await between(source, target, winning_revs_only=True).run()
        winner = source.databases["db"].documents["doc"].leaves()[0]
        assert target.databases["db"].documents["doc"].leaves() == [winner]


class TestTheTarget:
    async def test_is_created_where_that_was_asked_for(self, source: Server, target: Server) -> None:
        target.databases.clear()
        fill(source.database("db"), 5)
        await between(source, target, create_target=True, create_target_params={"q": 2}).run()
        assert contents(target.databases["db"]) == contents(source.databases["db"])
        assert asked(target, "PUT /db/?q=2") or asked(target, "PUT /db?q=2")

    async def test_that_refuses_a_document_for_its_size_has_all_others(self, source: Server) -> None:
        async with Server(Oddities(max_request=10_000)) as target:
            target.database("db")
            write_branch(source.database("db"), "large", 1, "x", text="x" * 20_000)
            fill(source.database("db"), 10)
            summary = await between(source, target).run()
            expected = contents(source.databases["db"], lambda id: id != "large")
            assert contents(target.databases["db"]) == expected
            assert [each["id"] for each in summary["skipped"]] == ["large"]
            assert summary["doc_write_failures"] == 1

    async def test_that_forbids_some_documents_has_all_others(self, source: Server) -> None:
        def validate(document: dict[str, Any]) -> str | None:
            return "no odd numbers" if document.get("number", 0) % 2 else None

        async with Server(Oddities(validate=validate)) as target:
            target.database("db")
            for number in range(20):
                write_branch(source.database("db"), f"doc{number}", 1, "x", number=number)
            write_branch(source.database("db"), "with", 1, "x", number=3, _attachments={"a": attachment(b"abc")})
            summary = await between(source, target).run()
            assert len(target.databases["db"].documents) == 10
            assert summary["doc_write_failures"] == 11
            assert {each["error"] for each in summary["skipped"]} == {"forbidden"}
            assert {each["reason"] for each in summary["skipped"]} == {"no odd numbers"}


class TestWhatIsCopied:
    async def test_leaves_out_ids_that_are_too_long(self, source: Server, target: Server) -> None:
        write_branch(source.database("db"), "x" * 50, 1, "x")
        write_branch(source.database("db"), "short", 1, "x")
        summary = await between(source, target, max_document_id_length=10).run()
        assert list(target.databases["db"].documents) == ["short"]
        assert [each["error"] for each in summary["skipped"]] == ["id_too_long"]

    async def test_begins_after_a_sequence(self, source: Server, target: Server) -> None:
        write_branch(source.database("db"), "before", 1, "x")
        since = (await between(source, target).run())["source_last_seq"]
        write_branch(source.database("db"), "after", 1, "x")
        target.databases["db"].documents.clear()
        target.databases["db"].local.clear()
        await between(source, target, since_seq=since).run()
        assert list(target.databases["db"].documents) == ["after"]


class TestCheckpoints:
    async def test_a_checkpoint_wins_over_the_sequence_to_begin_after(self, source: Server, target: Server) -> None:
        write_branch(source.database("db"), "one", 1, "x")
        await between(source, target).run()
        write_branch(source.database("db"), "two", 1, "x")
        source.requests.clear()
        await between(source, target, since_seq=1).run()  # the id of these tests does not know it
        assert "since=1&" not in asked(source, "_changes")[0] + "&"
        assert sorted(target.databases["db"].documents) == ["one", "two"]

    async def test_a_run_that_is_stopped_writes_one(self, source: Server, target: Server) -> None:
        fill(source.database("db"), 20)
        replication = between(source, target, continuous=True)
        running = asyncio.create_task(replication.run())
        async with asyncio.timeout(LIMIT):
            await replication.tally.reached(20)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        assert len(source.databases["db"].local) == len(target.databases["db"].local) == 1
        source.requests.clear()
        await between(source, target).run()
        assert not asked(source, "_bulk_get")

    async def test_a_runner_that_has_lost_its_job_writes_none(self, source: Server, target: Server) -> None:
        async def lost() -> None:
            raise WorkerConflict("another has it")

        fill(source.database("db"), 5)
        with pytest.raises(WorkerConflict):
            await between(source, target, hold=lost).run()
        assert (source.databases["db"].local, target.databases["db"].local) == ({}, {})

    async def test_a_target_that_was_made_anew_gets_everything(self, source: Server, target: Server) -> None:
        fill(source.database("db"), 20)
        await between(source, target).run()
        del target.databases["db"]
        target.database("db")
        await between(source, target).run()
        assert contents(target.databases["db"]) == contents(source.databases["db"])
