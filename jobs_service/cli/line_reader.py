"""Reads lines from a file, pipe or terminal without blocking the event loop, so that Ctrl-C works."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import NamedTuple

import anyio

CHUNK = 1 << 18
MAX_LINE = 1_000_000
"""Most bytes of a line: more than any job can hold. Without a limit, input could fill the memory."""


class Unreadable(Exception):
    """A line is too long, or the input cannot be read; the message says which."""


class Line(NamedTuple):
    """One line.

    Attributes:
        number: its number, from 1.
        text: its text without the line feed.
        size: its bytes in the input, including the line feed.
        pause: whether the next line may take long to arrive.
    """

    number: int
    text: bytes
    size: int
    pause: bool


async def lines(descriptor: int) -> AsyncGenerator[Line, None]:
    """Yield the lines from a file descriptor; the last one may have no line feed.

    Raises:
        Unreadable: a line is longer than MAX_LINE, or reading fails.
    """
    is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
    number = 0
    rest = b""
    while chunk := await _read(descriptor, is_file):
        *whole, rest = (rest + chunk).split(b"\n")
        for at, text in enumerate(whole, 1):
            number += 1
            yield Line(number, text, len(text) + 1, pause=not is_file and at == len(whole))
        if len(rest) > MAX_LINE:
            raise Unreadable(f"line {number + 1} is longer than {MAX_LINE} bytes; one JSON object per line")
    if rest:
        yield Line(number + 1, rest, len(rest), pause=True)


async def _read(descriptor: int, is_file: bool) -> bytes:
    try:
        if not is_file:
            # The selector accepts pipes, terminals and sockets. Files that it refuses, such as /dev/null, never block.
            with suppress(PermissionError):
                await anyio.wait_readable(descriptor)
        return os.read(descriptor, CHUNK)
    except OSError as error:
        raise Unreadable(f"reading the lines failed: {error.strerror}") from None
