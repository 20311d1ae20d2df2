"""Attachments from one `HttpDatabase` to another, over real connections."""

import base64
import gzip
from typing import Any

import pytest

from jobs_service.replication.contract import (
    Document,
    MissingStub,
    ProtocolError,
    RequestFailed,
    RevisionRefusal,
    UploadBroken,
)
from jobs_service.replication.http import HttpSettings
from tests.replication.opened import copy, database, opened, revision
from tests.replication.server import Fault, Oddities


@pytest.mark.parametrize("multipart", [True, False])
@pytest.mark.parametrize("lengths", [True, False])
async def test_attachments_are_copied_whatever_form_they_come_in(multipart: bool, lengths: bool) -> None:
    large = bytes(range(256)) * 2000
    async with (
        database(Oddities(multipart=multipart, part_lengths=lengths)) as (source, from_db),
        database() as (target, to_db),
    ):
        contents = {"t.txt": b"text " * 100, "large/\u00e4": large, "empty": b""}
        stubs = {
            name: {
                "content_type": "text/plain" if name == "t.txt" else "x/y",
                "revpos": 1,
                "data": base64.b64encode(data).decode(),
            }
            for name, data in contents.items()
        }
        source.database("db").write(revision("x/y", "1-a", _attachments=stubs, n=1), False)
        source.database("db").write(revision("x/y", "1-b", _attachments=stubs, n=2), False)
        assert await copy(from_db, to_db, "x/y", ["1-a", "1-b"]) == [None, None]
        stored = target.database("db").documents["x/y"]
        for rev, number in (("1-a", 1), ("1-b", 2)):
            assert stored.nodes[rev].body == {"n": number}
            assert {name: each.content for name, each in stored.nodes[rev].attachments.items()} == contents
        assert stored.nodes["1-a"].attachments["t.txt"].encoding == "gzip"
        assert stored.nodes["1-a"].attachments["t.txt"].data == gzip.compress(b"text " * 100, mtime=0)


@pytest.mark.parametrize("multipart", [True, False])
async def test_attachments_that_an_ancestor_has_are_left_out(multipart: bool) -> None:
    async with database(Oddities(multipart=multipart)) as (server, db), database() as (target, to_db):
        stored = server.database("db")
        old = {"content_type": "x/y", "revpos": 1, "data": base64.b64encode(b"old").decode()}
        new = {"content_type": "x/y", "revpos": 2, "data": base64.b64encode(b"new").decode()}
        stored.write(revision("x", "1-a", _attachments={"old": old}), False)
        stored.write(revision("x", "2-b", "1-a", _attachments={"old": {"stub": True}, "new": new}), False)
        [(rev, body, contents)] = await opened(db, "x", ["2-b"], ["1-a", "1-z"])
        assert (rev, contents) == ("2-b", {"new": b"new"})
        assert body["_attachments"]["old"]["stub"]
        with pytest.raises(MissingStub):
            await copy(db, to_db, "x", ["2-b"], ["1-a"])
        assert [contents for _, _, contents in await opened(db, "x", ["2-b"])] == [{"old": b"old", "new": b"new"}]
        assert not target.database("db").documents


async def test_an_attachment_that_is_cut_off_or_changed_does_not_reach_the_target() -> None:
    async with database() as (source, from_db), database() as (target, to_db):
        stub = {"content_type": "x/y", "revpos": 1, "data": base64.b64encode(b"x" * 500_000).decode()}
        source.database("db").write(revision("x", "1-a", _attachments={"a": stub}), False)
        source.faults = [
            Fault("GET /db/x", cut=300_000),
            Fault("GET /db/x", replace=(b"x" * 65536, b"x" * 65535 + b"y")),
            Fault("GET /db/x", replace=(b"x" * 100, b"x" * 101)),
        ]
        for _ in range(3):
            with pytest.raises((RequestFailed, ProtocolError)) as caught:
                await copy(from_db, to_db, "x", ["1-a"])
            assert caught.value.transient
            assert not target.database("db").documents
        assert await copy(from_db, to_db, "x", ["1-a"]) == [None]
        assert len(target.database("db").documents["x"].nodes["1-a"].attachments["a"].data) == 500_000


async def test_what_one_document_is_refused_for() -> None:
    oddities = Oddities(
        validate=lambda document: "no" if document.get("bad") else None, max_document=1000, max_attachment=10
    )
    async with database(oddities) as (_, db), database() as (source, from_db):

        async def put(**body: Any) -> tuple[str, int | None]:
            form = revision("x", "1-a", **body)
            refusal = await db.put(Document("x", "1-a", form))
            assert refusal is not None
            return refusal.error, refusal.status

        assert await put(bad=True) == ("forbidden", 403)
        assert await put(text="x" * 2000) == ("document_too_large", 413)
        assert await put(_attachments={"_a": {"data": ""}}) == ("bad_request", 400)
        assert await put(_unknown=1) == ("doc_validation", 400)
        stub = {"content_type": "x/y", "revpos": 1, "data": base64.b64encode(b"x" * 100).decode()}
        source.database("db").write(revision("x", "1-a", _attachments={"a": stub}), False)
        assert await copy(from_db, db, "x", ["1-a"]) == [RevisionRefusal("x", "1-a", "attachment_too_large", "a", 413)]


async def test_an_upload_that_is_refused_before_it_was_sent_is_told_why() -> None:
    oddities = Oddities(max_request=1_000_000)
    async with database(oddities) as (_, db), database() as (source, from_db):
        stub = {"content_type": "x/y", "revpos": 1, "data": base64.b64encode(b"x" * 30_000_000).decode()}
        source.database("db").write(revision("x", "1-a", _attachments={"a": stub}), False)
        source.database("db").write(revision("x", "1-b"), False)
        assert await copy(from_db, db, "x", ["1-a", "1-b"]) == [
            RevisionRefusal("x", "1-a", "too_large", "the request entity is too large", 413),
            None,
        ]


@pytest.mark.parametrize("agrees", [True, False])
async def test_an_upload_that_broke_twice_is_asked_about_before_it_is_sent(agrees: bool) -> None:
    settings = HttpSettings(read_timeout=0.1, connect_timeout=0.1)
    async with database() as (source, from_db), database(Oddities(agrees=agrees), settings) as (target, to_db):
        stub = {"content_type": "x/y", "revpos": 1, "data": base64.b64encode(b"x" * 100).decode()}
        source.database("db").write(revision("x", "1-a", _attachments={"a": stub}), False)
        target.faults = [Fault("PUT", drop=True, times=2)]
        for _ in range(2 if agrees else 3):
            with pytest.raises(UploadBroken):
                await copy(from_db, to_db, "x", ["1-a"])
        assert await copy(from_db, to_db, "x", ["1-a"]) == [None]
        assert ["Expect" in headers for headers in target.seen_headers] == [False, False, True, False][
            : 3 + (not agrees)
        ]
