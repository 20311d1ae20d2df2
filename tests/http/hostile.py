"""Hostile requests, drawn from a seed: what each sends, byte by byte, and what must become of it."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

TYPES: Final = (
    "email",
    "absent",
    'json:["a",1]',
    "%00",
    "..%2f..%2fetc",
    "%ff%fe",
    "json:[",
    "a" * 700,
    "%",
    "email%0a",
)
ORIGINS: Final = ("https://evil.example", "null", "http://127.0.0.1:1", "http://localhost.evil.example", "file://")
TOKEN: Final = "a" * 43
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


def encodings(draw: random.Random) -> Hostile:
    """Bodies that are no JSON, or that are encoded otherwise."""
    body = draw.choice(
        [
            b'{"id": "\xff\xfe"}',
            b'{"id": "x", "data": ',
            b'{"id": "x"}{"id": "y"}',
            b"\xef\xbb\xbf{'id': 'x'}",
            '{"id": "x"}'.encode("utf-16"),
            b'{"id": "x", "data": NaN}',
            b'{"id": "x", "data": 1e999}',
            b'{"id": "x", "data": ' + b"[" * 5000 + b"]" * 5000 + b"}",
            b'{"id": "x", "data": ' + b"9" * 6000 + b"}",
            b'{"id": "x", "unknown": 1}',
            b'{"id": ["x"]}',
            b'{"id": 7.5}',
            b"[]",
            b'"text"',
            b"7",
            b'{"id": true}',
            bytes(draw.randrange(256) for _ in range(40)),
        ]
    )
    match draw.randrange(4):
        case 0:
            return Hostile("gzip", [post(JOBS, gzip.compress(b'{"id": "x"}', mtime=0), "Content-Encoding: gzip")])
        case 1:
            kind = draw.choice(
                ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "a" * 300]
            )
            return Hostile("media type", [post(JOBS, b'{"id": "x"}', kind=kind)])
        case 2:
            lines = body.replace(b"\n", b"") + b"\n"
            return Hostile("lines", [post(JOBS, lines, kind="application/x-ndjson")])
        case _:
            return Hostile("encoding", [post(JOBS, body)])


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


def paths(draw: random.Random) -> Hostile:
    """Names in paths that are none, or lead elsewhere."""
    type = draw.choice(TYPES[1:])
    tail = draw.choice(
        ["", "/jobs/kept", "/jobs/kept/resubmit", "/jobs/%2e%2e", "/../../email/pause", "/jobs/json:%7b"]
    )
    path = f"/v1/types/{type}{tail}" if draw.random() < 0.7 else f"/v1/job/resubmit?type={type}&id=kept"
    return Hostile("path", [post(path, b'{"unknown": 1}')])


def tokens(draw: random.Random) -> Hostile:
    """Wrong tokens, in every place; of the server that has tokens."""
    path, body = _change(draw)
    wrong = "".join(
        draw.choice("abcdefghijklmnop0123456789-_.~+/=") for _ in range(draw.choice([0, 1, 43, 44, 500, 8000]))
    )
    headers = draw.choice(
        [
            [],
            [f"Authorization: Bearer {wrong}"],
            [f"Authorization: Basic {wrong}"],
            [f"Authorization: bearer  {wrong}"],
            [f"Authorization: {wrong}"],
            [f"Authorization: Bearer {wrong}", f"Authorization: Bearer {TOKEN}"],
            ["Authorization: Bearer \xe9\xff"],
            [f"Cookie: jobs_service_session={wrong}"],
            [f"Cookie: jobs_service_session={wrong}; jobs_service_session=b"],
            [f"X-API-Key: {wrong}", f"X-Forwarded-For: 127.0.0.1, {wrong[:9]}"],
            ["X-Forwarded-User: admin", "Forwarded: for=127.0.0.1;host=localhost", "X-Real-IP: 127.0.0.1"],
        ]
    )
    if draw.random() < 0.2:
        path += f"{'&' if '?' in path else '?'}token={wrong[:100]}&access_token={TOKEN}"
    return Hostile("token", [post(path, body, *headers)])


def sites(draw: random.Random) -> Hostile:
    """What pages of other sites have a browser send."""
    path, body = _change(draw)
    host = "127.0.0.1"
    match draw.randrange(5):
        case 0:
            host = draw.choice(
                ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "evil.example#", "[::ffff]x"]
            )
            headers = []
        case 1:
            headers = [f"Origin: {draw.choice(ORIGINS)}"]
        case 2:
            headers = [f"Sec-Fetch-Site: {draw.choice(['cross-site', 'same-site', 'CROSS-SITE', 'nonsense'])}"]
        case 3:
            headers = ["Origin: http://127.0.0.1", "Sec-Fetch-Site: cross-site"]
        case _:
            headers = ["Sec-Fetch-Site: same-origin", "Origin: https://evil.example"]
    return Hostile("site", [post(path, body, *headers, host=host)])


OPEN: Final[tuple[Callable[[random.Random], Hostile], ...]] = (sizes, encodings, unfinished, tricks, paths, sites)
"""Against a server on which everybody may do everything."""

CLOSED: Final = (tokens, tokens, tokens, sizes, unfinished, tricks, sites)
"""Against one that wants tokens."""


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
