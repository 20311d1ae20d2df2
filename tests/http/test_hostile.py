"""Two thousand hostile requests: each gets a problem or a closed connection, and nothing is changed."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable

import httpx

from jobs_service import JobsService
from jobs_service.http.endpoint import ENDPOINTS
from jobs_service.http.limits import Limits
from jobs_service.http.roles import Role
from jobs_service.http.state import Options
from jobs_service.http.tokens import add_token
from tests.copying.support import everything
from tests.http.support import running

REQUESTS = 2000
AT_ONCE = 50
LIMITS = Limits(head=8000, head_time=0.3, body=4000, body_time=0.3, send_time=1.0)

Headers = list[tuple[bytes, bytes]]


class Attacker:
    """Makes requests that nobody should send.

    Args:
        seed: of its choices.
        token: one that may do everything.
    """

    def __init__(self, seed: int, token: str) -> None:
        self._random = random.Random(seed)
        self._token = token.encode()
        self._guarded = [each for each in ENDPOINTS if each.role is not Role.NOBODY]
        self._tricks: list[Callable[[], bytes]] = [
            self.wrong_token,
            self.wrong_host,
            self.cross_site,
            self.wrong_body,
            self.large_body,
            self.slow_body,
            self.large_headers,
            self.slow_headers,
            self.two_lengths,
            self.two_framings,
            self.noise,
            self.wrong_path,
            self.wrong_header,
            self.wrong_kind,
            self.cookie,
        ]

    def next(self) -> tuple[str, bytes]:
        """Return the name of a trick, and its bytes."""
        trick = self._random.choice(self._tricks)
        return trick.__name__, trick()

    def wrong_token(self) -> bytes:
        offered = self._random.choice(
            [
                b"",
                b"Bearer",
                b"Bearer ",
                b"bearer jst_x",
                b"Bearer " + self._token[:-1],
                b"Basic " + self._token,
                b"Bearer " + self._token + b"x",
                b"Bearer \xff\xfe",
                b"Bearer " + b"j" * 3000,
                self._token,
            ]
        )
        return self._request([(b"Authorization", offered)])

    def wrong_host(self) -> bytes:
        name = self._random.choice(
            [b"evil.example", b"", b"localhost.evil.example", b"127.0.0.1@evil", b"\xff", b"[::1", b"a b"]
        )
        return self._request([self._bearer()], host=name)

    def cross_site(self) -> bytes:
        site = self._random.choice(
            [
                (b"Origin", b"http://evil.example"),
                (b"Origin", b"null"),
                (b"Sec-Fetch-Site", b"cross-site"),
                (b"Sec-Fetch-Site", b"same-site"),
                (b"Origin", b"http://localhost.evil"),
                (b"Origin", b""),
            ]
        )
        return self._request([self._bearer(), site], changing=True)

    def wrong_body(self) -> bytes:
        body = self._random.choice(
            [
                b"",
                b"{",
                b"[]",
                b"null",
                b"\xff\xfe",
                b"[" * 3000,
                b'{"jobs": 7}',
                b'{"timeout": NaN}',
                b'{"lock": 1, "x": 2}',
                b'{"timeout": "30", "lock": "zz", "action": "x", "jobs": {}, "id": [], "unknown": 1}',
                b'{"a": 1}\x00',
            ]
        )
        return self._request([self._bearer()], body=body, path=self._taking())

    def large_body(self) -> bytes:
        size = self._random.choice([5000, 10**6, 10**30])
        if self._random.random() < 0.5:
            return self._request([self._bearer(), (b"Content-Length", b"%d" % size)], path=self._taking()) + b"x" * 6000
        head = self._request([self._bearer(), (b"Transfer-Encoding", b"chunked")], path=self._taking())
        return head + b"1000\r\n" + b"[" * 4096 + b"\r\n1000\r\n" + b"[" * 4096 + b"\r\n"

    def slow_body(self) -> bytes:
        return self._request([self._bearer(), (b"Content-Length", b"50")], path=self._taking()) + b'{"id"'

    def large_headers(self) -> bytes:
        many = [(b"X-%d" % number, b"y" * 100) for number in range(200)]
        return self._request(self._random.choice([many, [(b"X", b"y" * 9000)], [(b"y" * 9000, b"")]]))

    def slow_headers(self) -> bytes:
        return self._request([self._bearer()])[: self._random.randrange(1, 60)]

    def two_lengths(self) -> bytes:
        lengths = [(b"Content-Length", b"5"), (b"Content-Length", b"50")]
        return self._request([self._bearer(), *lengths], path=self._taking()) + b'{"a":'

    def two_framings(self) -> bytes:
        framings = [(b"Content-Length", b"5"), (b"Transfer-Encoding", b"chunked")]
        inner = b"0\r\n\r\nDELETE /v1/types/email HTTP/1.1\r\nHost: localhost\r\n\r\n"
        return self._request([self._bearer(), *framings], path=self._taking()) + inner

    def noise(self) -> bytes:
        kinds = [
            self._random.randbytes(200),
            b"\r\n" * 300,
            b"GET\r\n\r\n",
            b"\x16\x03\x01\x02",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        ]
        return self._random.choice(kinds) + b"\r\n\r\n"

    def wrong_path(self) -> bytes:
        path = self._random.choice(
            [
                b"/v1/types/%FF",
                b"/v1/types/json:",
                b"/v1/types/../../etc",
                b"//evil.example/v1",
                b"/v1/types/a\x00b",
                b"/%",
                b"/v1/types/json:" + b"[" * 2000,
                b"/v1/types/x?%FF=1",
                b"/v1/nothing",
                b"*",
                b"",
                b"/v1/job?type=a",
                b"/v1/types//",
                b"http://evil.example/v1/types/" + b"%2e" * 50 + b"/none",
                b"/v1/types/a;b=c?x[]=1",
                b"/v1/types/%00",
            ]
        )
        return self._request([self._bearer()], path=(b"GET", path))

    def wrong_header(self) -> bytes:
        header = self._random.choice(
            [
                (b"Host", b"localhost"),
                (b"Authorization", b"Bearer x"),
                (b"X\x00", b"y"),
                (b"X y", b"z"),
                (b"", b"y"),
                (b"Content-Length", b"-1"),
                (b"Content-Length", b"0x5"),
                (b"Transfer-Encoding", b"xchunked"),
            ]
        )
        return self._request([self._bearer(), header], path=self._taking())

    def wrong_kind(self) -> bytes:
        kind = self._random.choice(
            [b"text/plain", b"application/x-www-form-urlencoded", b"multipart/form-data", b"", b"json"]
        )
        body = b'{"timeout": 5, "id": "x", "limit": 1}'
        return self._request([self._bearer()], body=body, path=self._taking(), kind=kind)

    def cookie(self) -> bytes:
        value = self._random.choice(
            [b"admin:99999999999:x", b"admin::", b"a" * 500, b"\xff", b'"', b"admin:1:" + self._token]
        )
        return self._request([(b"Cookie", b"jobs_service_session=" + value)])

    def _bearer(self) -> tuple[bytes, bytes]:
        return b"Authorization", b"Bearer " + self._token

    def _taking(self) -> tuple[bytes, bytes]:
        """Return method and path of something that takes a body of which not everything may be left out."""
        found = [
            each
            for each in self._guarded
            if each.takes is not None and any(field.is_required() for field in each.takes.model_fields.values())
        ]
        return self._of(self._random.choice(found).method, self._random.choice(found).path)

    def _of(self, method: str, path: str) -> tuple[bytes, bytes]:
        return method.encode(), path.replace("{type}", "email").replace("{id}", "a").encode()

    def _request(
        self,
        headers: Headers,
        *,
        host: bytes = b"localhost",
        body: bytes | None = None,
        path: tuple[bytes, bytes] | None = None,
        changing: bool = False,
        kind: bytes = b"application/json",
    ) -> bytes:
        endpoint = self._random.choice([each for each in self._guarded if each.changes or not changing])
        method, where = path or self._of(endpoint.method, endpoint.path)
        lines = [b"%s %s HTTP/1.1" % (method, where), b"Host: " + host, b"Content-Type: " + kind, b"Connection: close"]
        lines += [b"%s: %s" % header for header in headers]
        if body is not None:
            lines.append(b"Content-Length: %d" % len(body))
        return b"\r\n".join(lines) + b"\r\n\r\n" + (body or b"")


async def outcome(url: httpx.URL, request: bytes) -> str:
    """Send a request and return what came of it."""
    reader, writer = await asyncio.open_connection(url.host, url.port)
    try:
        writer.write(request)
        async with asyncio.timeout(30):
            try:
                answer = await reader.read()
            except ConnectionError:
                return "closed"
    finally:
        writer.close()
    if not answer:
        return "closed"
    head, _, body = answer.partition(b"\r\n\r\n")
    status = int(head.split()[1])
    assert b"application/problem+json" in head.lower(), (request[:300], answer[:500])
    assert 400 <= status < 500, (request[:300], answer[:500])
    found = json.loads(body[: int(head.lower().partition(b"content-length: ")[2].split()[0])])
    assert found["status"] == status
    return str(found["type"])


async def test_hostile_requests_change_nothing() -> None:
    async with JobsService("memory:") as jobs:
        await jobs.set_type_timeout("email", 300)
        await jobs.add("email", "a", {"n": 1})
        token = await add_token(jobs, "admin", "admin")
        async with running(jobs, Options(is_open=True, limits=LIMITS)) as text:
            before = await everything(jobs.store)
            url, attacker, found = httpx.URL(text), Attacker(1, token), Counter[str]()
            places = asyncio.Semaphore(AT_ONCE)

            async def attack(name: str, request: bytes) -> None:
                async with places:
                    found[f"{name}: {await outcome(url, request)}"] += 1

            await asyncio.gather(*(attack(*attacker.next()) for _ in range(REQUESTS)))
            assert await everything(jobs.store) == before
            async with httpx.AsyncClient(base_url=text, headers={"Authorization": f"Bearer {token}"}) as client:
                assert (await client.get("/v1/types/email/jobs/a")).json()["data"] == {"n": 1}
    assert sum(found.values()) == REQUESTS
