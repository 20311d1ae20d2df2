"""`HttpDatabase` against each kind of server: what the pipeline relies on holds for all of them."""

import base64
import os
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from jobs_service.replication.bodies import encoded
from jobs_service.replication.contract import (
    Change,
    ChangesFeed,
    Document,
    EndOfChanges,
    LocalConflict,
    Missing,
    RevisionRefusal,
)
from jobs_service.replication.database import HttpDatabase, open_database
from tests.replication.partners import couch_database, pouch_server
from tests.replication.server import Oddities, Server

pytestmark = pytest.mark.parametrize("kind", ["own", "own, without multipart", "pouchdb", "couchdb"])

_UNUSUAL = ["a/b", "a+b", "50%", "\u00e4\u4e2d\U0001f600", "x y", "a?b#c&d=e", '"q"', "_design/d/e", ":", "..", "%2F"]


@asynccontextmanager
async def _database(kind: str, directory: Path) -> AsyncIterator[HttpDatabase]:
    async with _url(kind, directory) as url:
        db = await open_database(url)
        try:
            await db.create()
            yield db
        finally:
            await db.close()


@asynccontextmanager
async def _url(kind: str, directory: Path) -> AsyncIterator[str]:
    if kind == "couchdb":
        async with couch_database() as url:
            yield url
    elif kind == "pouchdb":
        async with pouch_server(directory) as pouch:
            yield f"{pouch.url}/db"
    else:
        async with Server(Oddities(multipart=kind == "own")) as server:
            yield f"{server.url}/db"


def _document(id: str, rev: str, *ancestors: str, **body: Any) -> dict[str, Any]:
    start, ids = int(rev.partition("-")[0]), [each.partition("-")[2] for each in (rev, *ancestors)]
    return {"_id": id, "_rev": rev, "_revisions": {"start": start, "ids": ids}, **body}


def _rev(number: int, letter: str) -> str:
    return f"{number}-{f'{letter}{number}' * 16}"


async def test_what_a_replication_asks_of_a_database(kind: str, tmp_path: Path) -> None:
    a1, b1, a2, a3, d1 = _rev(1, "a"), _rev(1, "b"), _rev(2, "a"), _rev(3, "a"), _rev(1, "d")
    async with _database(kind, tmp_path) as db:
        info = await db.info()
        assert info.instance_start_time
        assert not await db.create()
        documents = [
            _document("x", a2, a1, n=2),
            _document("x", b1, n=1),
            _document("gone", a2, a1, _deleted=True),
            *(_document(id, a1, name=id) for id in _UNUSUAL),
        ]
        assert await db.bulk_docs([encoded(each) for each in documents]) == []
        # once more: nothing happens
        assert await db.bulk_docs([encoded(each) for each in documents]) == []

        async with aclosing(db.changes(0, ChangesFeed())) as feed:
            rows = [row async for row in feed]
        changes = {row.id: row for row in rows if isinstance(row, Change)}
        assert set(changes) == {"x", "gone", *_UNUSUAL}
        assert set(changes["x"].revs) == {a2, b1}
        assert changes["gone"].deleted
        assert isinstance(rows[-1], EndOfChanges)
        async with aclosing(db.changes(rows[-1].last_seq, ChangesFeed())) as feed:
            assert [row async for row in feed if isinstance(row, Change)] == []

        diff = await db.revs_diff({"x": [a2, a3, b1], "none": [a1], "gone": [a2]})
        assert {id: missing.revs for id, missing in diff.items()} == {"x": (a3,), "none": (a1,)}
        assert all(isinstance(each, Missing) for each in diff.values())

        wanted = [("x", a2, ()), ("x", b1, ()), ("gone", a2, ()), *((id, a1, ()) for id in _UNUSUAL)]
        answers = await db.bulk_get(wanted)
        assert [[(each.id, each.rev) for each in answer] for answer in answers] == [[each[:2]] for each in wanted]
        [first] = answers[0]
        assert isinstance(first, Document)
        assert first.body == _document("x", a2, a1, n=2)
        for id in _UNUSUAL:
            async with aclosing(db.open_revs(id, [a1])) as opened:
                found = [each async for each in opened]
            assert [type(each) for each in found] == [Document]
            assert isinstance(found[0], Document)
            assert found[0].body["name"] == id
            assert await db.put(Document(id, d1, _document(id, d1, put=True))) is None
        if kind != "pouchdb":  # It dies of it.
            async with aclosing(db.open_revs("x", [_rev(9, "c")])) as opened:
                assert [type(each) for each in [each async for each in opened]] == [RevisionRefusal]


async def test_attachments_come_back_with_the_same_bytes(kind: str, tmp_path: Path) -> None:
    large = os.urandom(3_000_000)
    contents = {"t.txt": b"text " * 1000, 'l/\u00e4 "1"': large, "e": b"", "z.json": b'{"a":1}' * 100}
    kinds = {"t.txt": "text/plain", "z.json": "application/json"}
    stubs = {
        name: {
            "content_type": kinds.get(name, "application/octet-stream"),
            "revpos": 1,
            "data": base64.b64encode(data).decode(),
        }
        for name, data in contents.items()
    }
    a1, a2 = _rev(1, "a"), _rev(2, "a")
    async with _database(kind, tmp_path / "one") as db, _database(kind, tmp_path / "two") as target:
        assert await db.bulk_docs([encoded(_document("x/y", a1, _attachments=stubs))]) == []
        for _ in range(2):  # from the first to the second, and from there to itself
            async with aclosing(db.open_revs("x/y", [a1])) as opened:
                async for each in opened:
                    assert isinstance(each, Document)
                    assert [one.name for one in each.attachments] == list(contents)
                    assert await target.put(each) is None
            db = target
        found = {}
        async with aclosing(target.open_revs("x/y", [a1])) as opened:
            async for each in opened:
                assert isinstance(each, Document)
                known = each.body["_attachments"]
                for one in each.attachments:
                    found[one.name] = (one.length, [chunk async for chunk in one.chunks()])
        assert {name: length for name, (length, _) in found.items()} == {n: len(c) for n, c in contents.items()}
        assert b"".join(found['l/\u00e4 "1"'][1]) == large
        kept = {name: {key: each for key, each in stub.items() if key != "follows"} for name, stub in known.items()}
        second = _document("x/y", a2, a1, _attachments={name: {**stub, "stub": True} for name, stub in kept.items()})
        assert await target.put(Document("x/y", a2, second)) is None
        async with aclosing(target.open_revs("x/y", [a2], [a1])) as opened:
            found_again = [each async for each in opened]
        assert isinstance(found_again[0], Document)
        assert list(found_again[0].attachments) == []


async def test_local_documents_and_commits(kind: str, tmp_path: Path) -> None:
    async with _database(kind, tmp_path) as db:
        assert await db.local("a+b/c") is None
        rev = await db.put_local("a+b/c", {"n": 1})
        found = await db.local("a+b/c")
        assert found is not None
        assert (found["n"], found["_rev"]) == (1, rev)
        await db.put_local("a+b/c", {"n": 2, "_rev": rev})
        if kind == "pouchdb":
            with pytest.raises(LocalConflict):
                await db.put_local("a+b/c", {"n": 3, "_rev": rev})
        assert await db.ensure_full_commit() == (await db.info()).instance_start_time
        async with aclosing(db.changes(0, ChangesFeed())) as feed:
            assert [row async for row in feed if isinstance(row, Change)] == []
