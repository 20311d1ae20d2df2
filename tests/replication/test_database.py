"""`HttpDatabase` against the project's own server, over real connections."""

from contextlib import aclosing
from typing import Any

import pytest

from jobs_service.replication.bodies import encoded
from jobs_service.replication.contract import (
    BadBatch,
    Change,
    ChangesFeed,
    DatabaseMissing,
    EndOfChanges,
    FeedHeartbeat,
    Forbidden,
    NotSupported,
    ProtocolError,
    RequestFailed,
    RevisionRefusal,
    TooLarge,
    Unauthorized,
)
from tests.replication.opened import database, opened, revision, rows_of
from tests.replication.server import Fault, Oddities
from tests.replication.support import asked


async def test_info_create_and_a_missing_database() -> None:
    async with database() as (server, db):
        assert (await db.info()).name == "db"
        assert not await db.create()
        del server.databases["db"]
        with pytest.raises(DatabaseMissing, match=r"http://127.0.0.1:\d+/db"):
            await db.info()
        for asking in (db.revs_diff({"x": ["1-a"]}), db.local("x"), db.bulk_get([("x", "1-a", ())]), rows_of(db)):
            with pytest.raises(DatabaseMissing):
                await asking
        assert await db.create({"q": 2, "n": "1"})
        assert server.requests[-1] == "PUT /db?q=2&n=1"


@pytest.mark.parametrize("opaque", [True, False])
@pytest.mark.parametrize("one_line", [True, False])
async def test_a_normal_feed_is_read_whole_or_in_pages(
    opaque: bool, one_line: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs_service.replication.database.PAGE", 3)
    oddities = Oddities(opaque_sequences=opaque, one_line_changes=one_line, pending=not one_line)
    async with database(oddities) as (server, db):
        for number in range(7):
            server.database("db").write({"_id": f"d{number}", "_deleted": number == 6}, True)
        feed = ChangesFeed() if opaque else ChangesFeed(until=7)
        *rows, end = await rows_of(db, feed=feed)
        assert len(asked(server, "_changes")) == (1 if opaque else 3)
        assert [row.id for row in rows] == [f"d{number}" for number in range(7)]
        assert [row.deleted for row in rows] == [False] * 6 + [True]
        assert isinstance(end, EndOfChanges)
        assert [type(row) for row in await rows_of(db, end.last_seq) if row != FeedHeartbeat()] == [EndOfChanges]
        assert [row.id for row in await rows_of(db, rows[3].seq) if isinstance(row, Change)] == ["d4", "d5", "d6"]
        *some, _ = await rows_of(db, feed=ChangesFeed(limit=4))
        assert [row.id for row in some] == ["d0", "d1", "d2", "d3"]
        if not opaque:
            *some, _ = await rows_of(db, feed=ChangesFeed(until=2))
            assert [row.id for row in some] == ["d0", "d1", "d2"]


async def test_the_end_of_a_feed_is_never_before_where_the_source_was() -> None:
    async with database(Oddities(opaque_sequences=False)) as (server, db):
        server.database("db")
        left_out = {"results": [], "last_seq": 3}
        server.faults.append(Fault("_changes", status=200, body=left_out, times=2))
        assert await rows_of(db, 3, ChangesFeed(until=7)) == [EndOfChanges(7)]
        assert await rows_of(db, 3, ChangesFeed(until=2)) == [EndOfChanges(3)]


async def test_a_feed_says_which_documents_it_wants() -> None:
    filters = {"design/even": lambda document, query: document["n"] % int(query["by"]) == 0}
    async with database(Oddities(filters=filters)) as (server, db):
        for number in range(6):
            server.database("db").write({"_id": f"d{number}", "n": number}, True)

        async def ids(**feed: Any) -> list[str]:
            return [row.id for row in await rows_of(db, feed=ChangesFeed(**feed)) if isinstance(row, Change)]

        assert await ids(doc_ids=["d3", "d5", "x"]) == ["d3", "d5"]
        assert await ids(selector={"n": {"$gt": 3}}) == ["d4", "d5"]
        assert await ids(filter="design/even", query_params={"by": 3}) == ["d0", "d3"]
        with pytest.raises(RequestFailed, match="missing"):
            await ids(filter="design/none")


async def test_a_continuous_feed_brings_changes_and_heartbeats_and_says_when_it_is_cut_off() -> None:
    async with database() as (server, db):
        stored = server.database("db")
        stored.write({"_id": "x"}, True)
        async with aclosing(db.changes(0, ChangesFeed(continuous=True, heartbeat=0.02))) as rows:
            first = await anext(rows)
            assert isinstance(first, Change)
            assert isinstance(await anext(rows), FeedHeartbeat)
            stored.write({"_id": "y"}, True)
            while isinstance(row := await anext(rows), FeedHeartbeat):
                pass
            assert isinstance(row, Change)
            assert row.id == "y"
            server.closing.set()
            stored.touched()
            with pytest.raises(RequestFailed, match="cut off") as caught:
                _ = [row async for row in rows]
            assert caught.value.transient


async def test_a_silent_continuous_feed_is_given_up() -> None:
    async with database(Oddities(heartbeats=False)) as (server, db):
        server.database("db").write({"_id": "x"}, True)
        with pytest.raises(RequestFailed) as caught:
            await rows_of(db, feed=ChangesFeed(continuous=True, heartbeat=0.02))
        assert caught.value.transient


async def test_bulk_get_that_is_not_there_or_too_large() -> None:
    async with database(Oddities(bulk_get=False)) as (_, db):
        with pytest.raises(NotSupported):
            await db.bulk_get([("a", "1-a", ())])
    async with database(most_answer=1000) as (server, db):
        server.database("db").write(revision("a", "1-a", text="x" * 1000), False)
        with pytest.raises(TooLarge):
            await db.bulk_get([("a", "1-a", ())])


async def test_a_batch_is_refused_as_a_whole() -> None:
    async with database(Oddities(max_document=1000, max_request=5000)) as (_, db):
        small = encoded(revision("a", "1-a"))
        with pytest.raises(BadBatch, match="illegal_docid"):
            await db.bulk_docs([small, encoded(revision("_bad", "1-a"))])
        with pytest.raises(TooLarge):
            await db.bulk_docs([small, encoded(revision("b", "1-a", text="x" * 1100))])
        with pytest.raises(TooLarge):
            await db.bulk_docs([encoded(revision("b", "1-a", text="x" * 900))] * 10)


async def test_revisions_that_are_not_there_and_later_ones() -> None:
    async with database() as (server, db):
        server.database("db").write(revision("x", "2-b", "1-a"), False)
        answers = await opened(db, "x", ["1-a", "3-z"])
        assert [each if isinstance(each, RevisionRefusal) else each[0] for each in answers] == [
            "2-b",
            RevisionRefusal("x", "3-z", "not_found", "missing"),
        ]
        assert await opened(db, "none", ["1-a"]) == [RevisionRefusal("none", "1-a", "not_found", "missing")]


@pytest.mark.parametrize(
    ("status", "kind"), [(401, Unauthorized), (403, Forbidden), (413, TooLarge), (418, RequestFailed)]
)
async def test_an_answer_that_is_an_error_is_one_clear_line(status: int, kind: type[Exception]) -> None:
    async with database() as (server, db):
        body = {"error": "e", "reason": "see http://me:hidden@host/\n and http://x:hidden@y"}
        server.faults = [Fault("POST /db/_revs_diff", status=status, body=body)]
        with pytest.raises(kind, match=rf"POST {server.url}/db/_revs_diff was answered {status}: e: see") as caught:
            await db.revs_diff({})
        assert "hidden" not in str(caught.value)
        assert "\n" not in str(caught.value)


async def test_an_answer_that_is_no_json_is_an_error_that_may_pass() -> None:
    async with database() as (server, db):
        server.faults = [Fault("POST /db/_revs_diff", replace=(b"{", b"<"))]
        with pytest.raises(ProtocolError) as caught:
            await db.revs_diff({"x": ["1-a"]})
        assert caught.value.transient
        assert await db.revs_diff({}) == {}
