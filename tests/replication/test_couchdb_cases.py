"""The cases of CouchDB's own tests of its replicator (`src/couch_replicator/test/eunit`), by their names there.

Those that other tests hold are left out; `update_bulk_get_ratio` and `bulk_get_attempt` are in `test_attempt_ratio.py`,
the rate limiter's in `test_rate_limit.py`.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from jobs_service.replication.contract import ReplicationError
from jobs_service.replication.http import HttpSettings
from tests.replication.server import Fault, Oddities, Server
from tests.replication.support import Replication, asked, attachment, contents, write_branch

QUICK = HttpSettings(retries=1, first_wait=0.001)


def populate(server: Server, first: int, last: int, *, with_attachments: bool = False) -> None:
    for number in range(first, last + 1):
        fields = {"_attachments": {"att": attachment(b"x" * 100_000)}} if with_attachments else {}
        write_branch(server.database("db"), f"{number}", 1, "x", number=number, **fields)


def between(source: Server, target: Server, **options: Any) -> Replication:
    return Replication(f"{source.url}/db", f"{target.url}/db", settings=QUICK, **options)


@pytest.mark.parametrize(
    ("which", "pattern", "status", "attachments"),
    [
        ("target", "POST /db/_bulk_docs", 403, False),
        ("source", "GET /db/_changes", 418, False),
        ("target", "PUT /db/1", 400, True),
        ("target", "POST /db/_revs_diff", 407, False),
        ("source", "POST /db/_bulk_get", 408, False),
        ("source", "GET /db/1", 418, True),
    ],
)
async def test_what_a_request_was_answered_with_is_what_the_error_says(
    source: Server, target: Server, which: str, pattern: str, status: int, attachments: bool
) -> None:
    """error_reporting_tests"""
    populate(source, 1, 1, with_attachments=attachments)
    {"source": source, "target": target}[which].faults.append(Fault(pattern, status=status, times=100))
    with pytest.raises(ReplicationError) as failed:
        await between(source, target, retries_per_request=1).run()
    method, _, path = pattern.partition(" ")
    shown = str(failed.value)
    assert failed.value.status == status
    assert str(status) in shown or "as the test wants it" in shown
    assert (method in shown and path in shown) or "'1'" in shown
    assert not target.databases["db"].documents


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
