"""Decodes compressed attachments for targets that would take the compressed bytes for the content."""

from __future__ import annotations

import zlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from jobs_service.replication.contract import Attachment, DatabaseInfo, Document
from jobs_service.replication.errors import ProtocolError

_PIECE: Final = 1 << 18
"""Bytes decoded at a time: compressed bytes may expand a thousandfold."""

_ANY_HEADER: Final = 47
"""zlib's number for a window of the usual size with a gzip or zlib header."""

_GZIP: Final = 31
"""zlib's number for a window of the usual size with a gzip header."""


@dataclass(slots=True)
class DecodedAttachment:
    """An attachment that is decoded while it is streamed."""

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
        """The number of bytes that `chunks` yields."""
        return self.length

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the decoded bytes.

        Raises:
            ProtocolError: the bytes are not compressed as the document says.
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
    """Decompress an answer that a proxy has compressed unasked, by gzip or deflate.

    Raises:
        ProtocolError: the bytes are not compressed, or the end is missing.
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
    """Return whether a target supports compressed attachments: CouchDB does, other servers store the bytes."""
    return "disk_format_version" in target.raw


def decoded_document(document: Document) -> Document:
    """Return a document with its compressed attachments decoded while they are streamed."""
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
