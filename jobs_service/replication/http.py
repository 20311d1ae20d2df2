"""Requests to one endpoint over aiohttp: with retries, a shared rate limit, and masked credentials.

Messages show the method of a request and its address without the query; exceptions of aiohttp, which contain headers,
are not chained to the errors that are raised here. The file has more than 600 lines because the parts of a request,
connection, cookie, pause and body, are read together.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from io import BytesIO
from typing import Any, Final, Literal, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import aiohttp
from yarl import URL

from jobs_service.replication.bodies import Upload, decompressed, reason_of
from jobs_service.replication.contract import (
    InvalidEndpoint,
    MaxBackoff,
    RequestFailed,
    ServerSilent,
    TooLarge,
    Unauthorized,
    UploadBroken,
)
from jobs_service.replication.endpoint import DatabaseAddress, Proxy, Secret, Tls

FAILURES: tuple[type[Exception], ...] = (aiohttp.ClientError, OSError, ValueError)
"""The errors of a failed request; TimeoutError is an OSError."""

try:
    from aiohttp_socks import ProxyConnectionError, ProxyConnector, ProxyError, ProxyTimeoutError, ProxyType

    FAILURES += (ProxyConnectionError, ProxyError, ProxyTimeoutError)
    _HAS_SOCKS = True
except ImportError:
    _HAS_SOCKS = False

_SOCKS_PORT: Final = 1080

_T = TypeVar("_T")
Query = Sequence[tuple[str, str]]

_REDIRECTS: Final = (301, 302, 303, 307, 308)
_MOST_REDIRECTS: Final = 10
_MOST_RENEWALS: Final = 2
_SLOWEST: Final = 32 * 1024
"""Least bytes of a body sent per second; a slower request fails."""
_PORTION: Final = 2**18
_MOST_OF_A_FAILURE: Final = 4096
"""Most bytes of an answer that are read for the reason of a failure."""
_USER_AGENT: Final = "jobs-service replication"


# Connections


def tls_context(tls: Tls) -> ssl.SSLContext:
    """Return the context of a client with these settings. Reads files."""
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
        if not tls.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if tls.cert_file is not None:
            password = None if tls.key_password is None else tls.key_password.reveal()
            context.load_cert_chain(tls.cert_file, tls.key_file, password)
    except OSError as error:
        raise InvalidEndpoint(f"the certificates cannot be used: {error.strerror or error}") from None
    return context


def connector_for(proxy: Proxy | None) -> aiohttp.BaseConnector:
    """Return a connector, through the proxy if it is a SOCKS proxy; the number of connections is bounded elsewhere."""
    if proxy is None or not proxy.url.startswith("socks"):
        return aiohttp.TCPConnector(limit=0)
    if not _HAS_SOCKS:
        raise InvalidEndpoint("a SOCKS proxy needs `pip install jobs-service[socks]`")
    parts = urlsplit(proxy.url)
    return ProxyConnector(
        host=parts.hostname or "",
        port=parts.port or _SOCKS_PORT,
        proxy_type=ProxyType.SOCKS4 if parts.scheme == "socks4" else ProxyType.SOCKS5,
        username=proxy.user,
        password=None if proxy.password is None else proxy.password.reveal(),
        rdns=True,  # The proxy may know names that are not known here.
        limit=0,
    )


# Cookies


RENEW_AFTER: Final = 550.0
"""Seconds after which a cookie without Max-Age is renewed."""
SHARE: Final = 0.9
"""The share of Max-Age after which a cookie is renewed."""
_MOST_DIGITS: Final = 12
"""Most digits of a server's Max-Age: `int` refuses thousands of digits, and hundreds fit in no float."""
LEAST_BETWEEN: Final = 5.0
"""Least seconds between two renewals, even if Max-Age is less: a server with useless cookies is not asked in a loop.
A cookie that ends earlier is renewed when it is refused."""


@dataclass(frozen=True, slots=True)
class SessionAnswer:
    """The answer to POST /_session."""

    status: int
    set_cookie: Iterable[str] = ()
    www_authenticate: bool = False


Ask = Callable[[bool], Awaitable[SessionAnswer]]
"""Requests a cookie; the argument tells whether to send the credentials by Basic as well."""


class CookieSession:
    """The cookie of one endpoint. `mode` becomes "basic" if the server issues none; errors name `where`."""

    def __init__(self, ask: Ask, where: str = "the server", *, clock: Callable[[], float] = time.monotonic) -> None:
        self.mode: Literal["cookie", "basic"] = "cookie"
        self._ask = ask
        self._where = where
        self._clock = clock
        self._with_basic = False
        self._cookie: str | None = None
        self._has_held = False
        self._taken_at = 0.0
        self._renew_at = 0.0
        self._renewing = asyncio.Lock()

    async def cookie(self) -> str | None:
        """Return the current cookie as `AuthSession=...`, requested if there is none; None: use Basic.

        Raises `Unauthorized` if the server does not accept the credentials.
        """
        if self.mode == "cookie" and (self._cookie is None or self._clock() >= self._renew_at):
            await self._renew(self._cookie)
        return self._cookie if self.mode == "cookie" else None

    async def refused(self, used: str | None, status: int) -> bool:
        """Handle a 401 or 403 answer to a request with this cookie; tell whether another try at once is worth it."""
        if used is None:
            return False
        if used != self._cookie or self.mode == "basic":
            return True
        # A restarted server may know none of the cookies that it issued, and answers 401. A known user without the
        # permission gets 403.
        is_forgotten = status == 401 and self._has_held
        if not is_forgotten and self._clock() - self._taken_at < LEAST_BETWEEN:
            return False
        await self._renew(used)
        return True

    def given(self, set_cookie: Iterable[str], *, held: bool = False) -> None:
        """Take the cookie of an answer: servers send a new one shortly before the old one ends.

        Args:
            set_cookie: the headers of the answer.
            held: whether the server accepted the cookie of the request.
        """
        self._has_held = self._has_held or held
        for text in set_cookie:
            try:
                found = SimpleCookie(text).get("AuthSession")
            except CookieError:
                continue
            if found is not None and found.value:
                cookie, now = f"AuthSession={found.value}", self._clock()
                if cookie != self._cookie:
                    self._cookie, self._taken_at, self._has_held = cookie, now, False
                    self._renew_at = now + _lasts(str(found["max-age"]))

    async def _renew(self, old: str | None) -> None:
        async with self._renewing:
            if self._cookie != old or self.mode == "basic":
                return  # Another request has renewed it meanwhile.
            answer = await self._ask(self._with_basic)
            if answer.status == 401 and answer.www_authenticate and not self._with_basic:
                self._with_basic = True
                answer = await self._ask(True)
            if answer.status in (404, 405):
                self.mode = "basic"
                return
            if answer.status in (401, 403):
                raise Unauthorized(
                    f"{self._where}: the server gives out no session to these credentials", status=answer.status
                )
            if answer.status != 200:
                message = f"{self._where}: the server answered {answer.status} when asked for a session"
                raise RequestFailed(message, status=answer.status, transient=True)
            self.given(answer.set_cookie)
            if self._cookie is None:
                self.mode = "basic"
            elif self._cookie == old:
                self._taken_at = self._clock()
                self._renew_at = self._taken_at + LEAST_BETWEEN


def _lasts(max_age: str) -> float:
    """Return the seconds after which a cookie is renewed; a Max-Age that is no number counts as none."""
    is_number = max_age.isascii() and max_age.isdigit() and len(max_age) <= _MOST_DIGITS
    return max(int(max_age) * SHARE, LEAST_BETWEEN) if is_number else RENEW_AFTER


# The rate of requests


BASE: Final = 0.020
"""The first pause, in seconds, and the smallest."""
FACTOR: Final = 1.2
LONGEST: Final = 25.0
"""At this pause requests are given up."""
WINDOW: Final = 0.080
"""Seconds after a change of a pause in which other answers count as the same event: many jobs are refused at once."""
IDLE: Final = 1.0
"""Seconds without an answer after which a pause shrinks by twice the time that has passed."""
_DECAY: Final = 2.0
_SWEEP_ABOVE: Final = 1000


class RateLimiter:
    """The pauses by a key such as (database, method). `clock` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pauses: dict[Hashable, tuple[float, float]] = {}

    def pause(self, key: Hashable) -> float:
        """Return the seconds to wait before the next request; `LONGEST` means: give up."""
        return self._pauses.get(key, (0.0, 0.0))[0]

    def refused(self, key: Hashable) -> float:
        """Record that the server asked to slow down; return the pause."""
        now = self._clock()
        pause, at = self._pauses.get(key, (0.0, None))
        if at is not None and now - at <= WINDOW:
            return pause
        return self._keep(key, min(max(pause, BASE) * FACTOR, LONGEST), now)

    def succeeded(self, key: Hashable) -> float:
        """Record an answered request; return the pause."""
        found = self._pauses.get(key)
        if found is None:
            return 0.0
        now = self._clock()
        pause, at = found
        if now - at <= WINDOW:
            return pause
        if now - at > IDLE:
            pause = max(pause - _DECAY * (now - at), 0.0)
        pause -= _step(pause)
        if pause <= 0:
            del self._pauses[key]
            return 0.0
        return self._keep(key, max(pause, BASE), now)

    async def wait(self, key: Hashable) -> bool:
        """Wait for the length of the pause. False: the longest pause was reached, so give up."""
        pause, at = self._pauses.get(key, (0.0, 0.0))
        if pause and self._clock() - at >= LONGEST:
            del self._pauses[key]
            return True
        if pause >= LONGEST:
            return False
        if pause > 0:
            await asyncio.sleep(pause)
        return True

    def _keep(self, key: Hashable, pause: float, now: float) -> float:
        if len(self._pauses) > _SWEEP_ABOVE:
            self._pauses = {key: found for key, found in self._pauses.items() if now - found[1] < LONGEST}
        self._pauses[key] = (pause, now)
        return pause


def _step(pause: float) -> float:
    if pause > 10:
        return BASE * 50
    if pause > 1:
        return BASE * 5
    return BASE * 2 if pause > 0.1 else BASE


SHARED: Final = RateLimiter()
"""The limiter of this process."""


# Requests


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Settings of requests; times in seconds."""

    retries: int = 5
    first_wait: float = 0.25
    longest_wait: float = 300.0
    budget: float = 60.0
    """Time for all retries of a request: half of the time after which a job without errors counts as healthy."""
    connect_timeout: float = 30.0
    read_timeout: float = 30.0
    """Longest silence of the other side."""
    connections: int = 20


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that was read completely."""

    status: int
    headers: Mapping[str, str]
    body: bytes | bytearray


@dataclass(slots=True)
class AnswerStream:
    """An answer with a body that is still coming."""

    status: int
    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes]


@dataclass(frozen=True, slots=True)
class _Ask:
    method: str
    path: str
    query: Query = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    upload: Upload | None = None
    read_timeout: float | None = None
    expect: bool = False


class HttpClient:
    """The connections to one endpoint with resolved secrets. Use it on one event loop, and close it."""

    def __init__(
        self, endpoint: DatabaseAddress, settings: HttpSettings | None = None, limiter: RateLimiter = SHARED
    ) -> None:
        self.endpoint = endpoint
        self.settings = settings or HttpSettings()
        self._limiter = limiter
        self._slots = asyncio.Semaphore(self.settings.connections)
        self._session: aiohttp.ClientSession | None = None
        self._opening = asyncio.Lock()
        self._tls: ssl.SSLContext | bool = True
        self._moved: dict[str, str] = {}
        self._cookies = CookieSession(self._ask_session, endpoint.masked) if endpoint.password is not None else None

    async def close(self) -> None:
        """Close the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def request(
        self,
        method: str,
        path: str = "",
        *,
        query: Query = (),
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        most: int | None = None,
        retries: int | None = None,
    ) -> Answer:
        """Send a request and read the answer.

        Args:
            method: GET, PUT, POST.
            path: the path after the database's address, encoded, with the slash.
            query: the query, not encoded.
            headers: headers beside the endpoint's; JSON is accepted and sent unless they say otherwise.
            body: the body to send.
            most: most bytes of the answer; beyond them `TooLarge` is raised.
            retries: number of retries instead of the settings' number.

        Returns:
            The answer, with any status but 408, 429 and those from 500 on.

        Raises:
            RequestFailed: no answer, or one of these statuses, in all tries; MaxBackoff: 429 for too long.
            Unauthorized: the server issues no session for the credentials.
        """
        ask = _Ask(method, path, query, headers or {}, body)

        async def read(response: aiohttp.ClientResponse) -> Answer:
            collected = bytearray()
            async for chunk in self._chunks(ask, response):
                collected += chunk
                if most is not None and len(collected) > most:
                    raise TooLarge(f"the answer to {self._shown(ask)} has more than {most} bytes")
            return Answer(response.status, response.headers, collected)

        async with self._slots:
            return await self._repeated(ask, read, self.settings.retries if retries is None else retries)

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        query: Query = (),
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        read_timeout: float | None = None,
    ) -> AsyncIterator[AnswerStream]:
        """As `request`, but with a streamed body; only failures before its first piece are retried.

        `read_timeout` (seconds) is the longest silence of the server. A body that is cut off raises `RequestFailed`.
        """
        ask = _Ask(method, path, query, headers or {}, body, read_timeout=read_timeout)

        async def keep(response: aiohttp.ClientResponse) -> aiohttp.ClientResponse:
            return response

        async with self._slots:
            response = await self._repeated(ask, keep, self.settings.retries)
            try:
                yield AnswerStream(response.status, response.headers, self._chunks(ask, response))
            finally:
                response.close()

    async def upload(
        self,
        path: str,
        *,
        query: Query,
        headers: Mapping[str, str],
        chunks: AsyncGenerator[bytes, None],
        expect: bool = False,
    ) -> Answer:
        """PUT a body that can be read only once, so without retries.

        `expect` asks the server for its consent before the body is sent.
        """
        async with self._slots, Upload(chunks) as upload:
            ask = _Ask("PUT", path, query, headers, upload=upload, expect=expect)
            response = await self._attempt(ask)
            try:
                if response.status == 429 or response.status == 408 or response.status >= 500:
                    raise await self._answered_with_failure(ask, response)
                body = b"".join([chunk async for chunk in self._chunks(ask, response)])
                return Answer(response.status, response.headers, body)
            finally:
                response.close()

    async def _repeated(self, ask: _Ask, use: Callable[[aiohttp.ClientResponse], Awaitable[_T]], retries: int) -> _T:
        wait, left, first_failure = self.settings.first_wait, retries, None
        while True:
            try:
                response = await self._attempt(ask)
                if response.status == 429:
                    response.release()
                    continue  # The limiter waits, and gives up at its longest pause.
                if response.status != 408 and response.status < 500:
                    try:
                        return await use(response)
                    except BaseException:
                        response.close()
                        raise
                failure = await self._answered_with_failure(ask, response)
            except RequestFailed as error:
                if not error.transient:
                    raise
                failure = error
            first_failure = first_failure or time.monotonic()
            if left <= 0 or time.monotonic() + wait - first_failure > self.settings.budget:
                raise failure
            await asyncio.sleep(wait)
            left, wait = left - 1, min(wait * 2, self.settings.longest_wait)

    async def _answered_with_failure(self, ask: _Ask, response: aiohttp.ClientResponse) -> RequestFailed:
        """Return an error with the server's reason, and give the connection up."""
        said = b""
        with suppress(aiohttp.ClientError, OSError):
            async with asyncio.timeout(self.settings.read_timeout):
                said = await response.content.read(_MOST_OF_A_FAILURE)
        response.release()
        what = f"{self._shown(ask)} was answered {response.status}"
        reason = self.endpoint.redacted(reason_of(said))
        return RequestFailed(f"{what}: {reason}" if reason else what, status=response.status, transient=True)

    async def _attempt(self, ask: _Ask) -> aiohttp.ClientResponse:
        """Try a request once, with redirects and a renewed session; the answer may have any status."""
        url = self.endpoint.url + ask.path
        if ask.query:
            url += "?" + "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in ask.query)
        method, body, renewals = ask.method, ask.body, 0
        url = self._moved.get(url, url)
        for _ in range(_MOST_REDIRECTS):
            key = (self.endpoint.url, ask.method)
            if not await self._limiter.wait(key):
                raise MaxBackoff(f"{self._shown(ask)}: the server asked to slow down for too long", status=429)
            cookie, credentials = await self._credentials(url)
            response = await self._send(ask, method, url, body, credentials)
            status = response.status
            if status == 429 or (status == 503 and "Retry-After" in response.headers):
                self._limiter.refused(key)
                return response
            if status < 500:
                self._limiter.succeeded(key)
            if status in _REDIRECTS and "Location" in response.headers:
                response.release()
                target = str(URL(url, encoded=True).join(URL(response.headers["Location"], encoded=True)))
                if ask.upload is not None:
                    self._moved[url] = target
                    raise RequestFailed(f"{self._shown(ask)} was sent elsewhere", status=status, transient=True)
                url, method, body = target, *(("GET", None) if status == 303 else (method, body))
                continue
            if cookie is not None and self._cookies is not None:
                self._cookies.given(response.headers.getall("Set-Cookie", ()), held=status < 400)
                if status in (401, 403) and renewals < _MOST_RENEWALS and await self._cookies.refused(cookie, status):
                    renewals += 1
                    if ask.upload is not None:
                        response.release()
                        raise RequestFailed(f"{self._shown(ask)} came after its session", status=401, transient=True)
                    response.release()
                    continue
            return response
        raise RequestFailed(f"{self._shown(ask)} was sent elsewhere more than {_MOST_REDIRECTS} times")

    async def _send(
        self, ask: _Ask, method: str, url: str, body: bytes | None, credentials: Mapping[str, str]
    ) -> aiohttp.ClientResponse:
        session = await self._opened()
        if url.startswith("https://"):
            await self._load_certificates()
        read_timeout = ask.read_timeout or self.settings.read_timeout
        headers: dict[str, str] = {"Accept": "application/json", "Accept-Encoding": "identity"}
        headers |= {"Content-Type": "application/json"} if body is not None else {}
        headers |= {**ask.headers, **credentials}
        proxy = self.endpoint.proxy
        if proxy is not None and proxy.user is not None and url.startswith("http://") and proxy.url.startswith("http"):
            headers["Proxy-Authorization"] = _basic(proxy.user, proxy.password)
        size = len(body) if body is not None else 0
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.settings.connect_timeout + read_timeout + size / _SLOWEST) as deadline:

                async def sent(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
                    async for chunk in chunks:
                        deadline.reschedule(loop.time() + read_timeout + len(chunk) / _SLOWEST)
                        yield chunk
                    deadline.reschedule(loop.time() + read_timeout)

                return await session.request(
                    method,
                    URL(url, encoded=True),
                    data=sent(ask.upload.body()) if ask.upload is not None else _sendable(body),
                    headers=headers,
                    allow_redirects=False,
                    expect100=ask.expect,
                    timeout=aiohttp.ClientTimeout(
                        total=None, sock_connect=self.settings.connect_timeout, sock_read=read_timeout
                    ),
                    **self._way(url),
                )
        except FAILURES as error:
            if ask.upload is not None and ask.upload.error is not None:
                raise ask.upload.error from None  # The attachment that was being sent failed, not this request.
            if ask.upload is not None:
                raise UploadBroken(str(self._failure(ask, error))) from None
            raise self._failure(ask, error) from None

    def _way(self, url: str) -> dict[str, Any]:
        way: dict[str, Any] = {"ssl": self._tls} if url.startswith("https://") else {}
        proxy = self.endpoint.proxy
        if proxy is not None and not proxy.url.startswith("socks"):
            way["proxy"] = URL(proxy.url, encoded=True)
            if proxy.user is not None and way.get("ssl"):
                way["proxy_headers"] = {"Proxy-Authorization": _basic(proxy.user, proxy.password)}
        return way

    def _chunks(self, ask: _Ask, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        chunks, encoding = self._raw_chunks(ask, response), response.headers.get("Content-Encoding", "identity")
        was_wanted = encoding == ask.headers.get("Accept-Encoding", "identity")
        return chunks if was_wanted or encoding not in ("gzip", "x-gzip", "deflate") else decompressed(chunks)

    async def _raw_chunks(self, ask: _Ask, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        try:
            async for chunk in response.content.iter_any():
                # A burst may be as large as the receive buffer: readers that count bytes need smaller portions.
                for start in range(0, len(chunk), _PORTION):
                    yield chunk[start : start + _PORTION]
        except (aiohttp.ClientError, OSError) as error:
            raise self._failure(ask, error) from None

    async def _credentials(self, url: str) -> tuple[str | None, dict[str, str]]:
        endpoint = self.endpoint
        if not (url + "/").startswith(endpoint.origin + "/"):
            return None, {}  # The credentials are for another host.
        headers = {name: value.reveal() for name, value in endpoint.headers.items()}
        if self._cookies is None or endpoint.password is None:
            return None, headers
        headers = {name: value for name, value in headers.items() if name.lower() != "authorization"}  # as CouchDB does
        cookie = await self._cookies.cookie()
        if cookie is None:
            return None, {**headers, "Authorization": _basic(endpoint.user or "", endpoint.password)}
        return cookie, {**headers, "Cookie": cookie}

    async def _ask_session(self, with_basic: bool) -> SessionAnswer:
        assert self.endpoint.password is not None
        form = {"name": self.endpoint.user or "", "password": self.endpoint.password.reveal()}
        url, body = self.endpoint.session_url, urlencode(form).encode()
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        if with_basic:
            headers["Authorization"] = _basic(self.endpoint.user or "", self.endpoint.password)
        response = await self._send(_Ask("POST", "/_session"), "POST", url, body, headers)
        try:
            cookies = response.headers.getall("Set-Cookie", ())
            return SessionAnswer(response.status, cookies, "WWW-Authenticate" in response.headers)
        finally:
            response.release()

    async def _opened(self) -> aiohttp.ClientSession:
        async with self._opening:
            if self._session is None:
                self._session = aiohttp.ClientSession(
                    connector=connector_for(self.endpoint.proxy),
                    cookie_jar=aiohttp.DummyCookieJar(),
                    auto_decompress=False,
                    headers={"User-Agent": _USER_AGENT},
                    trust_env=False,
                )
            return self._session

    async def _load_certificates(self) -> None:
        async with self._opening:  # only where TLS is used: the system's authorities take 50 ms
            if self._tls is True:
                self._tls = await asyncio.to_thread(tls_context, self.endpoint.tls)

    def _shown(self, ask: _Ask) -> str:
        return f"{ask.method} {self.endpoint.masked}{ask.path}"

    def _failure(self, ask: _Ask, error: Exception) -> RequestFailed:
        reason = self.endpoint.redacted(" ".join(str(error).split())) or type(error).__name__
        what = f"{self._shown(ask)} failed: {reason}"
        if isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ConnectionTimeoutError):
            return ServerSilent(what)
        return RequestFailed(what, transient=not isinstance(error, ValueError))


def _sendable(body: bytes | None) -> bytes | BytesIO | None:
    """Return a body that is sent in pieces if it is large, so that other tasks have their turn in between."""
    return BytesIO(body) if body is not None and len(body) > _PORTION else body


def _basic(user: str, password: Secret | None) -> str:
    text = f"{user}:{password.reveal() if password is not None else ''}"
    return f"Basic {b64encode(text.encode()).decode()}"
