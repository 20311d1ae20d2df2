"""Streamed multipart bodies: a reader that nests, and a writer with a length known beforehand."""

import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from email.message import Message
from typing import Any, Final

from jobs_service.replication.contract import Attachment
from jobs_service.replication.errors import ProtocolError, TooLarge
from jobs_service.replication.json_text import encoded

_MOST_HEADERS: Final = 64 * 1024


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

    def parts(self) -> "Parts":
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

    def __aiter__(self) -> "Parts":
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
