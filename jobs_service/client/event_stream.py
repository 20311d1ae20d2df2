"""Parses server-sent events incrementally from bytes.

A line ends with a line feed, a carriage return, or both. Other line separators are text, because JSON may contain them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

_END_OF_LINE: Final = re.compile(rb"\r\n|\r(?!\Z)|\n")
_MOST_BYTES: Final = 16 << 20
"""Most bytes of one event: far above a server's largest."""


class ServerEvent(NamedTuple):
    """One event.

    Attributes:
        kind: its name.
        data: its text.
        id: the position to resume after when the connection is lost; None if the stream has not sent one.
    """

    kind: str
    data: bytes
    id: str | None


class EventParser:
    """Parses the bytes of one stream into its events."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._size = 0
        self._kind = ""
        self._data: list[bytes] = []
        self._id: str | None = None

    def feed(self, chunk: bytes) -> Iterator[ServerEvent]:
        """Yield the events that the next bytes complete.

        Raises:
            ValueError: an event is too large.
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
        """The id to resume after; an id without data, which makes no event, counts as well."""
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
