"""Attachments that a source keeps compressed, for targets that would take the compressed bytes for the content."""

from __future__ import annotations

import zlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from jobs_service.replication.contract import Attachment, DatabaseInfo, Document
from jobs_service.replication.errors import ProtocolError

_PIECE: Final = 1 << 18
"""Bytes that are decoded at a time: a few compressed ones may stand for a thousand times as many."""

_ANY_HEADER: Final = 47
"""What zlib calls a window of the usual size behind a header of gzip, or of its own."""

_GZIP: Final = 31
"""What zlib calls a window of the usual size behind a header of gzip."""


@dataclass(slots=True)
class DecodedAttachment:
    """An attachment whose bytes are decoded as they pass."""

    name: str
    content_type: str
    length: int
    digest: str | None
    revpos: int | None
    compressed: Attachment
    encoding: str | None = None
    encoded_length: int | None = None

    @property
    def bytes_to_come(self) -> int:
        """How many bytes `chunks` yields."""
        return self.length

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The bytes, decoded.

        Raises:
            ProtocolError: they are not what the document says.
        """
        decoder, count = zlib.decompressobj(_GZIP), 0
        try:
            async with aclosing(self.compressed.chunks()) as chunks:
                async for chunk in chunks:
                    rest = chunk
                    while rest:
                        piece = decoder.decompress(rest, _PIECE)
                        rest = decoder.unconsumed_tail
                        count += len(piece)
                        if piece and count <= self.length:
                            yield piece
        except zlib.error:
            count = -1
        if count != self.length or not decoder.eof:
            raise ProtocolError(f"attachment {self.name!r} is not compressed as its document says")


async def decompressed(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """The bytes of an answer that something in between has compressed, by gzip or deflate, without being asked to.

    Raises:
        ProtocolError: they are not compressed, or the last are missing.
    """
    decoder = zlib.decompressobj(_ANY_HEADER)
    try:
        async for chunk in chunks:
            rest = chunk
            while rest:
                piece = decoder.decompress(rest, _PIECE)
                rest = decoder.unconsumed_tail
                if piece:
                    yield piece
    except zlib.error:
        raise ProtocolError("an answer is not compressed as its headers say") from None
    if not decoder.eof:
        raise ProtocolError("a compressed answer was cut off")


def takes_encoded(target: DatabaseInfo) -> bool:
    """Return whether a target knows that attachments can be compressed: CouchDB does, other servers store the bytes."""
    return "disk_format_version" in target.raw


def decoded_document(document: Document) -> Document:
    """Return a document with its compressed attachments decoded as they pass."""
    if not any(each.encoding for each in document.attachments):
        return document
    forms = {name: dict(form) for name, form in document.body["_attachments"].items()}
    attachments: list[Attachment] = []
    for each in document.attachments:
        if each.encoding is None:
            attachments.append(each)
            continue
        if each.encoding != "gzip":
            raise ProtocolError(f"attachment {each.name!r} has the encoding {each.encoding!r}", transient=False)
        # The digest is that of the compressed bytes.
        for name in ("encoding", "encoded_length", "digest"):
            forms[each.name].pop(name, None)
        attachments.append(
            DecodedAttachment(each.name, each.content_type, each.length, None, each.revpos, compressed=each)
        )
    return Document(document.id, document.rev, {**document.body, "_attachments": forms}, attachments)
