"""Hostile requests, drawn from a seed: what each sends, byte by byte, and what must become of it."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

BODY: Final = 1 << 14
"""The most bytes of a body that the server takes in these tests."""


@dataclass
class Hostile:
    """One connection.

    Attributes:
        kind: of the attack, for messages.
        parts: bytes that are sent one after the other.
        then: "wait" for the answer, "half" close the connection and wait, or "reset" it at once.
    """

    kind: str
    parts: list[bytes] = field(default_factory=list)
    then: str = "wait"


def head(line: str | bytes, *headers: str | bytes, host: str = "127.0.0.1") -> bytes:
    """Return the head of a request."""
    lines = [line, f"Host: {host}", *headers]
    return b"\r\n".join(each if isinstance(each, bytes) else each.encode("latin-1") for each in lines) + b"\r\n\r\n"


def post(path: str, body: bytes, *headers: str, host: str = "127.0.0.1", kind: str = "application/json") -> bytes:
    """Return a whole request that would change something."""
    about = f"Content-Type: {kind}", f"Content-Length: {len(body)}"
    return head(f"POST {path} HTTP/1.1", *about, *headers, host=host) + body


JOBS: Final = "/v1/types/email/jobs"
CHANGES: Final[tuple[tuple[str, dict[str, object]], ...]] = (
    (JOBS, {"id": "hostile"}),
    (f"{JOBS}/kept/resubmit", {}),
    (f"{JOBS}/kept/cancel", {}),
    ("/v1/types/email/pause", {}),
    ("/v1/types/email/bulk", {"action": "remove", "filter": {}}),
    ("/v1/types/email/accept", {"limit": 1}),
)
"""Requests that would change something, if whoever sends them were allowed to."""


def _change(draw: random.Random) -> tuple[str, bytes]:
    path, form = draw.choice(CHANGES)
    return path, json.dumps(form).encode()


def sizes(draw: random.Random) -> Hostile:
    """More than is allowed: bodies, heads, chunks, lines."""
    size = draw.choice([BODY + 1, 10 * BODY, 100 * BODY])
    filler = bytes([draw.randrange(33, 127)]) * size
    match draw.randrange(6):
        case 0:
            return Hostile("body", [post(JOBS, b'{"id": "x", "data": "' + filler + b'"}')])
        case 1:
            return Hostile(
                "announced body", [head(f"POST {JOBS} HTTP/1.1", f"Content-Length: {10 ** draw.randrange(6, 30)}")]
            )
        case 2:
            begin = head(f"POST {JOBS} HTTP/1.1", "Content-Type: application/json", "Transfer-Encoding: chunked")
            return Hostile("chunks", [begin, *(b"400\r\n" + filler[:1024] + b"\r\n" for _ in range(100))])
        case 3:
            return Hostile("header", [head("GET /v1/types HTTP/1.1", b"X: " + 3 * filler[:16_000])])
        case 4:
            return Hostile("headers", [head("GET /v1/types HTTP/1.1", *(f"X-{n}: {n}" for n in range(5000)))])
        case _:
            return Hostile("line", [head(f"GET /v1/types/{'a' * 50_000} HTTP/1.1")])


def unfinished(draw: random.Random) -> Hostile:
    """Requests that stop half-way: silent, half-closed, reset."""
    path, body = _change(draw)
    whole = post(path, body + b" " * 50)
    cut = draw.randrange(1, len(whole) - 1)
    pieces = [whole[:cut]] if draw.random() < 0.5 else [whole[at : at + 1] for at in range(min(cut, 60))]
    # A proxy ends the wait for the rest of a head.
    waits = b"\r\n\r\n" in b"".join(pieces)
    return Hostile("unfinished", pieces, draw.choice(["wait", "half", "reset"] if waits else ["half", "reset"]))


def tricks(draw: random.Random) -> Hostile:
    """Heads that two programs may read differently, one of them as a second request."""
    path, body = _change(draw)
    hidden = post(path, body, "Origin: https://evil.example")
    line = f"POST {JOBS} HTTP/1.1"
    kind = "Content-Type: text/plain"
    several = [
        head(line, kind, "Content-Length: 5", "Content-Length: 6") + b"hello",
        head(line, kind, f"Content-Length: {len(hidden)}", "Transfer-Encoding: chunked") + b"0\r\n\r\n" + hidden,
        head(line, kind, "Transfer-Encoding: chunked, identity") + b"0\r\n\r\n" + hidden,
        head(line, kind, "Transfer-Encoding : chunked") + b"0\r\n\r\n",
        head(line, kind, "Content-Length: -1") + hidden,
        head(line, kind, "Content-Length: +5") + b"hello",
        head(line, kind, "Content-Length: 0x5") + b"hello",
        head(line, kind, "Transfer-Encoding: chunked") + b"zz\r\nhello\r\n0\r\n\r\n",
        head(line, kind, "Transfer-Encoding: chunked") + b"-5\r\nhello\r\n0\r\n\r\n",
        head(line, kind, "Transfer-Encoding: chunked") + b"ffffffffffffffffff\r\nhello",
        head(line, kind, "Content-Length: 2", b"X: a\r\n b") + b"{}",
        head(line, kind, "Content-Length: 2", b"X: \x00") + b"{}",
        head(line, kind, "Content-Length: 2", b"X\x00: a") + b"{}",
        head(line, kind, "Content-Length: 2", b"X: a\rSet-Cookie: b") + b"{}",
        head(line, kind, "Content-Length: 2", b": a") + b"{}",
        head(f"POST http://evil.example{JOBS} HTTP/1.1", kind, "Content-Length: 2") + b"{}",
        head(f"POST {JOBS} HTTP/9.9", kind, "Content-Length: 2") + b"{}",
        head(f"POST {JOBS}", kind, "Content-Length: 2") + b"{}",
        f"POST {JOBS} HTTP/1.1\nHost: 127.0.0.1\nContent-Length: 2\n\n{{}}".encode(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
        head("CONNECT evil.example:443 HTTP/1.1"),
        head("TRACE / HTTP/1.1"),
        head(f"{draw.choice(['post', 'PROPFIND', 'PURGE', 'X' * 200])} {JOBS} HTTP/1.1", "Content-Length: 0"),
        head(line, "Connection: Upgrade", "Upgrade: websocket", "Content-Length: 2") + b"{}",
        head(line, kind, "Expect: 200-maybe", "Content-Length: 2") + b"{}",
        head(f"POST {JOBS}?_method=PUT HTTP/1.1", kind, "X-HTTP-Method-Override: PUT", "Content-Length: 2") + b"{}",
        bytes(draw.randrange(256) for _ in range(draw.randrange(1, 200))) + b"\r\n\r\n",
    ]
    return Hostile("trick", [draw.choice(several)])


OPEN: Final[tuple[Callable[[random.Random], Hostile], ...]] = (sizes, unfinished, tricks)


def drawn(seed: int, count: int, kinds: tuple[Callable[[random.Random], Hostile], ...]) -> Iterator[Hostile]:
    """Yield so many hostile requests."""
    draw = random.Random(seed)
    for _ in range(count):
        yield draw.choice(kinds)(draw)


async def sent(host: str, port: int, hostile: Hostile, patience: float) -> bytes:
    """Send a hostile request, and return all that comes back until the connection ends or an answer is complete.

    Raises:
        TimeoutError: nothing came, and the connection stayed open.
    """
    async with asyncio.timeout(patience):
        reader, writer = await asyncio.open_connection(host, port)
        try:
            received = asyncio.ensure_future(_answer(reader))
            try:
                for part in hostile.parts:
                    writer.write(part)
                    await writer.drain()
                if hostile.then == "half":
                    writer.write_eof()
                elif hostile.then == "reset":
                    received.cancel()
                    return b""
            except (ConnectionError, OSError):
                pass  # it has been cut off
            return await received
        finally:
            writer.close()


async def _answer(reader: asyncio.StreamReader) -> bytes:
    found = b""
    try:
        while part := await reader.read(1 << 16):
            found += part
            head, end, body = found.partition(b"\r\n\r\n")
            if end and b"content-length: " in head.lower():
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                if len(body) >= length:
                    return found
            elif end and found.endswith(b"0\r\n\r\n"):
                return found
    except ConnectionError:
        pass
    return found
