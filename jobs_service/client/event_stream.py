"""Server-sent events, read from bytes as they come.

Lines end with a line feed, a carriage return, or both, and with nothing else: JSON has other line separators in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

_END_OF_LINE: Final = re.compile(rb"\r\n|\r(?!\Z)|\n")
_MOST_BYTES: Final = 16 << 20
"""Bytes of one event: far more than a server sends."""


class ServerEvent(NamedTuple):
    """One event.

    Attributes:
        kind: its name.
        data: its text.
        id: what to go on behind after the connection was lost; None where the stream has not said.
    """

    kind: str
    data: bytes
    id: str | None


class EventParser:
    """Takes the bytes of one stream, and gives its events."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._size = 0
        self._kind = ""
        self._data: list[bytes] = []
        self._id: str | None = None

    def feed(self, chunk: bytes) -> Iterator[ServerEvent]:
        """Yield the events that end in the next bytes.

        Raises:
            ValueError: one is larger than any that a server sends.
        """
        if self._rest and self._rest[-1] == b"\r":  # it may be half of an end
            chunk = self._rest.pop() + chunk
        *lines, rest = _END_OF_LINE.split(chunk)
        for line in lines:
            whole, self._rest = b"".join((*self._rest, line)), []
            self._size += len(line)
            if whole:
                self._take(whole)
                continue
            self._size = 0
            if (event := self._event()) is not None:
                yield event
        self._rest += [rest[:-1], b"\r"] if rest.endswith(b"\r") else [rest]
        self._size += len(rest)
        if self._size > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES} bytes")

    @property
    def last_id(self) -> str | None:
        """The id behind which the stream goes on; also of an event without data, which is none."""
        return self._id

    def _take(self, line: bytes) -> None:
        field, _, value = line.partition(b":")  # one that begins with a colon is a comment: it has no field
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._kind = value.decode(errors="replace")
        elif field == b"id" and b"\x00" not in value:
            self._id = value.decode(errors="replace")

    def _event(self) -> ServerEvent | None:
        kind, data = self._kind or "message", self._data
        self._kind, self._data = "", []
        return ServerEvent(kind, b"\n".join(data), self._id) if data else None
