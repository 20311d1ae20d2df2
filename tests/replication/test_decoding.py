"""Compressed attachments, decoded as they pass to targets that know no compression."""

from __future__ import annotations

import gzip
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import pytest

from jobs_service.replication.bodies import decoded_document, takes_encoded
from jobs_service.replication.contract import DatabaseInfo, Document, ProtocolError


@dataclass
class Compressed:
    """An attachment as a source gives it."""

    pieces: list[bytes]
    length: int
    encoding: str | None = "gzip"
    name: str = "text"
    content_type: str = "text/plain"
    encoded_length: int | None = None
    digest: str | None = "md5-of-the-compressed"
    revpos: int | None = 1

    @property
    def bytes_to_come(self) -> int:
        return sum(map(len, self.pieces))

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        for piece in self.pieces:
            yield piece


def document(attachment: Compressed) -> Document:
    form = {"follows": True, "digest": "md5-x", "length": attachment.length}
    if attachment.encoding:
        form |= {"encoding": attachment.encoding, "encoded_length": attachment.bytes_to_come}
    return Document("doc", "1-a", {"_id": "doc", "_attachments": {"text": form}}, [attachment])


async def content(given: Document) -> bytes:
    (attachment,) = given.attachments
    return b"".join([chunk async for chunk in attachment.chunks()])


@pytest.mark.parametrize("data", [b"", b"abc", b"ab" * 2_000_000], ids=["nothing", "little", "a bomb"])
async def test_the_bytes_are_those_of_the_content(data: bytes) -> None:
    packed = gzip.compress(data)
    given = decoded_document(document(Compressed([packed[:5], packed[5:]], len(data))))
    assert given.attachments[0].bytes_to_come == len(data)
    assert given.body["_attachments"]["text"] == {"follows": True, "length": len(data)}
    assert await content(given) == data


async def test_what_is_not_compressed_stays_as_it_is() -> None:
    plain = document(Compressed([b"abc"], 3, encoding=None))
    assert decoded_document(plain) is plain


@pytest.mark.parametrize(
    ("pieces", "length"),
    [([b"no gzip"], 7), ([gzip.compress(b"abc")[:-3]], 3), ([gzip.compress(b"abcd")], 3), ([gzip.compress(b"ab")], 3)],
    ids=["no gzip", "cut", "more", "less"],
)
async def test_what_is_not_as_the_document_says_is_refused(pieces: list[bytes], length: int) -> None:
    given = decoded_document(document(Compressed(pieces, length)))
    with pytest.raises(ProtocolError, match="'text'"):
        await content(given)


def test_an_encoding_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ProtocolError, match="'br'"):
        decoded_document(document(Compressed([b"x"], 1, encoding="br")))


@pytest.mark.parametrize(
    ("raw", "takes"), [({"disk_format_version": 8}, True), ({"backend_adapter": "LevelDOWN"}, False), ({}, False)]
)
def test_couchdb_alone_takes_them_compressed(raw: dict[str, object], takes: bool) -> None:
    assert takes_encoded(DatabaseInfo("db", 1, raw=raw)) is takes
