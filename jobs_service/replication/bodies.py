"""Bodies of requests and answers: JSON without a change of values, multipart, compressed attachments, uploads."""

from __future__ import annotations

import asyncio
import json
import secrets
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from email.message import Message
from types import TracebackType
from typing import Any, Final, Self

import pydantic_core

from jobs_service import json_data
from jobs_service.replication.contract import Attachment, DatabaseInfo, Document, ProtocolError, TooLarge

MOST_SHOWN: Final = 300
"""Most characters shown of a server's reason."""

_MOST_HEADERS: Final = 64 * 1024

_PIECE: Final = 1 << 18
"""Bytes decoded at a time: compressed bytes may expand a thousandfold."""

_ANY_HEADER: Final = 47
"""zlib's number for a window of the usual size with a gzip or zlib header."""


# JSON


def decoded(text: bytes | bytearray) -> Any:
    """Return the value of a JSON text. Raises `ProtocolError` for invalid JSON."""
    try:
        return pydantic_core.from_json(text, allow_inf_nan=False, cache_strings="keys")
    except ValueError:
        pass
    try:  # The standard library's decoder takes half a surrogate pair, which documents may hold.
        return json_data.parsed(text.decode(json.detect_encoding(text), "surrogatepass"))
    except ValueError:
        raise ProtocolError("an answer is not JSON") from None


def encoded(value: Any) -> bytes:
    """Return the value as compact JSON. An infinite number stays one; the target refuses it."""
    try:
        return pydantic_core.to_json(value, inf_nan_mode="constants")
    except (ValueError, UnicodeEncodeError):
        return json.dumps(value, separators=(",", ":")).encode()


def reason_of(body: bytes | bytearray) -> str:
    """Return the reason in an error answer as one short line; "" without a reason."""
    try:
        form = decoded(body)
    except ProtocolError:
        return ""  # A proxy answers errors with HTML pages.
    if not isinstance(form, dict):
        return ""
    text = ": ".join(str(form[name]) for name in ("error", "reason") if form.get(name))
    return " ".join(text.split())[:MOST_SHOWN]


# Multipart


def content_type(value: str) -> tuple[str, dict[str, str]]:
    """Return the type in lower case, and its parameters."""
    message = Message()
    message["content-type"] = value
    parameters = message.get_params() or []
    return message.get_content_type(), {name.lower(): text for name, text in parameters[1:]}


class _Source:
    """Incoming bytes, with a buffer for bytes that were read ahead."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self.buffer = bytearray()

    async def more(self) -> None:
        """Wait for bytes. Raises `ProtocolError` at the end."""
        async for chunk in self._chunks:
            if chunk:
                self.buffer += chunk
                return
        raise ProtocolError("a multipart answer was cut off")


class Part:
    """One part: its headers (names in lower case) and its bytes."""

    def __init__(self, headers: dict[str, str], source: _Source, delimiter: bytes) -> None:
        self.headers = headers
        self._source = source
        self._delimiter = delimiter
        self._ended = False

    @property
    def content_type(self) -> tuple[str, dict[str, str]]:
        """The type and its parameters; JSON if none is given, as in CouchDB."""
        return content_type(self.headers.get("content-type", "application/json"))

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the part's bytes, once. Unread bytes are skipped when the next part is requested."""
        buffer, keep = self._source.buffer, len(self._delimiter) - 1
        searched = 0
        while not self._ended:
            found = buffer.find(self._delimiter, searched)
            if found >= 0:
                self._ended = True
                chunk = bytes(buffer[:found])
                del buffer[: found + len(self._delimiter)]
                if chunk:
                    yield chunk
            elif len(buffer) > keep:
                chunk = bytes(buffer[: len(buffer) - keep])
                del buffer[: len(chunk)]
                yield chunk
            else:
                searched = 0
                await self._source.more()

    async def read(self, most: int | None = None) -> bytes:
        """Return all bytes of the part. Raises `TooLarge` beyond `most` of them."""
        body = bytearray()
        async for chunk in self.chunks():
            body += chunk
            if most is not None and len(body) > most:
                raise TooLarge(f"a part of a multipart answer has more than {most} bytes")
        return bytes(body)

    def parts(self) -> Parts:
        """Return the parts within this part, which is multipart itself."""
        return Parts(self.chunks(), self.content_type[1].get("boundary", ""))


class Parts:
    """The parts of a multipart body, one after the other: `async for part in Parts(chunks, boundary)`."""

    def __init__(self, chunks: AsyncIterator[bytes], boundary: str) -> None:
        if not boundary:
            raise ProtocolError("a multipart answer names no boundary")
        self._source = _Source(chunks)
        # As if a line had ended before the first delimiter, which may stand at the very beginning.
        self._source.buffer += b"\r\n"
        self._delimiter = b"\r\n--" + boundary.encode()
        self._part = Part({}, self._source, self._delimiter)
        self._ended = False

    def __aiter__(self) -> Parts:
        return self

    async def __anext__(self) -> Part:
        if self._ended:
            raise StopAsyncIteration
        async for _ in self._part.chunks():
            pass
        buffer = self._source.buffer
        while len(buffer) < 2:
            await self._source.more()
        if buffer[:2] == b"--":
            self._ended = True
            raise StopAsyncIteration
        while (end := buffer.find(b"\r\n\r\n")) < 0:
            if len(buffer) > _MOST_HEADERS:
                raise ProtocolError("a part of a multipart answer has too long headers")
            await self._source.more()
        lines = bytes(buffer[:end]).decode("utf-8", "replace").split("\r\n")
        del buffer[: end + 4]
        if lines[0].strip():
            raise ProtocolError("a multipart answer goes on after its boundary")
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        self._part = Part(headers, self._source, self._delimiter)
        return self._part

    async def finish(self) -> None:
        """Read the rest, so that a cut-off body is noticed."""
        async for _ in self:
            pass


def related(body: dict[str, Any], attachments: Sequence[Attachment]) -> tuple[str, int, AsyncGenerator[bytes, None]]:
    """Return a document with the attachments that follow: the content type, the exact length, and the bytes.

    The iterator raises `ProtocolError` if an attachment has another length than it said.
    """
    boundary = secrets.token_hex(16)
    edge = f"\r\n--{boundary}".encode()
    heads = [edge[2:] + b"\r\nContent-Type: application/json\r\n\r\n" + encoded(body)]
    heads += [edge + _head(attachment) for attachment in attachments]
    end = edge + b"--"
    length = sum(map(len, heads)) + sum(each.bytes_to_come for each in attachments) + len(end)
    return f'multipart/related; boundary="{boundary}"', length, _chunks(heads, attachments, end)


async def _chunks(heads: list[bytes], attachments: Sequence[Attachment], end: bytes) -> AsyncGenerator[bytes, None]:
    yield heads[0]
    for head, attachment in zip(heads[1:], attachments, strict=True):
        yield head
        left = attachment.bytes_to_come
        async with aclosing(attachment.chunks()) as chunks:
            async for chunk in chunks:
                left -= len(chunk)
                if left < 0:
                    break
                yield chunk
        if left:
            raise ProtocolError(f"attachment {attachment.name!r} has another length than its document says")
    yield end


def _head(attachment: Attachment) -> bytes:
    name = attachment.name.replace("\\", "\\\\").replace('"', '\\"').replace("\r", "%0D").replace("\n", "%0A")
    kind = attachment.content_type.replace("\r", " ").replace("\n", " ")
    head = f'\r\nContent-Disposition: attachment; filename="{name}"\r\nContent-Type: {kind}'
    head += f"\r\nContent-Length: {attachment.bytes_to_come}"
    if attachment.encoding:
        head += f"\r\nContent-Encoding: {attachment.encoding}"
    return f"{head}\r\n\r\n".encode()


# Compressed bytes


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
        count, wrong = 0, f"attachment {self.name!r} is not compressed as its document says"
        async with aclosing(self.compressed.chunks()) as chunks:
            async for piece in decompressed(chunks, _GZIP, wrong):
                count += len(piece)
                if count <= self.length:
                    yield piece
        if count != self.length:
            raise ProtocolError(wrong)


async def decompressed(
    chunks: AsyncIterator[bytes],
    header: int = _ANY_HEADER,
    wrong: str = "an answer is not compressed as its headers say",
) -> AsyncGenerator[bytes, None]:
    """Decompress bytes, such as an answer that a proxy has compressed unasked.

    Args:
        chunks: the compressed bytes.
        header: zlib's number for the kinds of headers allowed.
        wrong: the message of the error.

    Raises:
        ProtocolError: the bytes are not compressed, or the end is missing.
    """
    decoder = zlib.decompressobj(header)
    try:
        async for chunk in chunks:
            rest = chunk
            while rest:
                piece = decoder.decompress(rest, _PIECE)
                rest = decoder.unconsumed_tail
                if piece:
                    yield piece
    except zlib.error:
        raise ProtocolError(wrong) from None
    if not decoder.eof:
        raise ProtocolError(wrong)


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


# Uploads


class Upload:
    """Reads `chunks` ahead by one. An asynchronous context manager around the request that sends `body`."""

    def __init__(self, chunks: AsyncGenerator[bytes, None]) -> None:
        self.error: Exception | None = None
        """The error of the source, if it failed."""
        self._chunks = chunks
        self._chunk: bytes | None = None
        self._filled, self._wanted = asyncio.Event(), asyncio.Event()
        self._stopped = False
        self._reader: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._reader is not None
        self._stopped = True
        self._filled.set()
        self._wanted.set()
        if isinstance(error, asyncio.CancelledError):
            self._reader.cancel()
        try:
            # Not canceled otherwise: that would end the source's answer, and its rest may still be needed.
            await asyncio.wait([self._reader])
        except asyncio.CancelledError:
            self._reader.cancel()
            raise

    async def body(self) -> AsyncGenerator[bytes, None]:
        """Yield the bytes. Raises `ConnectionAbortedError` if the source fails or the upload is stopped."""
        while True:
            await self._filled.wait()
            self._filled.clear()
            chunk = self._chunk
            if self._stopped or self.error is not None:
                raise ConnectionAbortedError("the upload was given up")
            if chunk is None:
                return
            self._wanted.set()
            yield chunk

    async def _read(self) -> None:
        try:
            async with aclosing(self._chunks) as chunks:
                async for chunk in chunks:
                    self._chunk = chunk
                    self._filled.set()
                    await self._wanted.wait()
                    self._wanted.clear()
                    if self._stopped:
                        return
        except Exception as error:
            self.error = error
        self._chunk = None
        self._filled.set()
