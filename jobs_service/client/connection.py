"""Sends requests to a server, repeats them if that is safe, and turns failures into errors of this package."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

from jobs_service import job_context, json_types, names, tracing
from jobs_service.arguments import json_of
from jobs_service.errors import (
    InvalidAddress,
    InvalidJob,
    JobsError,
    JobTooLarge,
    ServiceClosed,
    StoreUnavailable,
    a_kind_of,
    in_one_line,
    shown,
)
from jobs_service.http import problems, token_file
from jobs_service.model import UNSET
from jobs_service.sources import Sources

if TYPE_CHECKING:
    import ssl

    import httpx

T = TypeVar("T")

_FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 3.0
"""Seconds of the first and of the longest pause between two tries."""
MOST_JOBS: Final = 500
MOST_BYTES: Final = 500_000
"""Most jobs and bytes of one request: well below the limits of a server."""
_CONNECT: Final = 5.0
"""Seconds to establish a connection."""
_KEPT: Final = 3.0
"""Seconds that an idle connection is kept: fewer than servers keep it, so that none is closed as it is used."""
_MOST_CALLS: Final = 20
"""Most simultaneous calls, each over a connection of its own; further calls wait for their turn."""
_MOST_WAITING: Final = 500
"""Most simultaneous long polls and streams: the limit of open files is often 1,024 per process."""
_NDJSON: Final = "application/x-ndjson"
_SILENCE: Final = 45.0
"""Seconds without any byte until a stream counts as lost: three missing signs of life of the server."""
_GRACE: Final = 0.2
"""Seconds by which the limit of a whole answer exceeds the limits of its parts, so that a connection that cannot be
made in time is reported as such, and not as a missing answer."""
_BAD_GATEWAYS: Final = frozenset({502, 503, 504})
_NOTHING_BEGUN: Final = frozenset({"/problems/busy", "/problems/too-many-requests", "/problems/service-closed"})
"""Problems of requests without any effect, which may succeed on another try."""
_AUTHORIZATION: Final = "Authorization"
_NO_TOKEN: Final = "/problems/unauthorized"
_NO_ADDRESS: Final = "/problems/not-found"
"""The problem of a request below a wrong prefix."""
_KEY_BYTES: Final = 16
_LONGEST_SEGMENT: Final = 20_000
"""Characters: above the limit of every store, below the limit of HTTP servers."""


class Backoff:
    """Pauses that double up to the longest, each drawn from its upper half, so that clients come at different times."""

    def __init__(self, sources: Sources, longest: float = LONGEST_PAUSE) -> None:
        self._sources = sources
        self._longest = longest
        self._next = min(_FIRST_PAUSE, longest)

    def pause(self) -> float:
        """Return the seconds of the next pause."""
        longest = self._next
        self._next = min(2 * longest, self._longest)
        return self._sources.uniform(longest / 2, longest)

    def reset(self) -> None:
        """Start over with the shortest pause, after a success."""
        self._next = min(_FIRST_PAUSE, self._longest)


class Tries:
    """The state of a request's tries.

    Attributes:
        unsure: whether one of them may have taken effect although its answer was lost.
    """

    unsure = False


class Connection:
    """A server's address, and the open connections to it.

    Args:
        url: `http://HOST:PORT` or `https://...`, with any prefix.
        token: sent with each request; None for the token file of a server on this machine, if there is one.
        timeout: seconds until a call fails, tries and pauses included.
        verify: TLS verification: True for the system's certificate authorities, an ssl.SSLContext for others.
        transport: an httpx transport, for Unix sockets or proxies; None for TCP.
        sources: the source of randomness for pauses and keys.

    Raises:
        JobsError: httpx is not installed.
        InvalidAddress: the URL is invalid for a server.
    """

    def __init__(
        self,
        url: str,
        token: str | None,
        timeout: float,
        verify: bool | ssl.SSLContext,
        transport: httpx.AsyncBaseTransport | None,
        sources: Sources,
    ) -> None:
        try:
            import httpx
        except ImportError:
            raise JobsError("JobsClient needs httpx: pip install 'jobs-service[client]'") from None
        self._httpx = httpx
        self.url = _checked(url, httpx)
        self.timeout = timeout
        self._token = None if token is None else _checked_token(token)
        # The server behind the caller's own transport is unknown.
        self._finds_token = token is None and transport is None
        self._refused_headers: set[str] = set()
        self._verify = verify
        self._transport = transport
        self.sources = sources
        self._client: httpx.AsyncClient | None = None
        self._is_left = False

    async def open(self) -> None:
        """Get ready for requests; nothing is sent yet."""
        self._calls, self._waiting = asyncio.Semaphore(_MOST_CALLS), asyncio.Semaphore(_MOST_WAITING)
        headers = {"User-Agent": "jobs-service"}
        if authorization := _header(token_file.found(self.url) if self._finds_token else self._token):
            headers[_AUTHORIZATION] = authorization
        limits = self._httpx.Limits(max_connections=None, max_keepalive_connections=_MOST_CALLS, keepalive_expiry=_KEPT)
        self._client = self._httpx.AsyncClient(
            base_url=self.url,
            headers=headers,
            verify=self._verify,
            transport=self._transport,
            limits=limits,
            trust_env=False,
        )

    async def close(self) -> None:
        """End all connections."""
        client, self._client, self._is_left = self._client, None, True
        if client is not None:
            await client.aclose()

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return self._client is not None

    def check_open(self) -> None:
        """Raise ServiceClosed unless the connection is open."""
        if self._client is None:
            raise ServiceClosed(
                "the client was left: it takes nothing new"
                if self._is_left
                else "the client is not open: enter it with `async with`"
            )

    def _opened(self) -> httpx.AsyncClient:
        self.check_open()
        assert self._client is not None
        return self._client

    async def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | bytes | None = None,
        *,
        params: Mapping[str, str] | None = None,
        key: str | None = None,
        repeats: bool = True,
        wait: float = 0.0,
        tries: Tries | None = None,
        longest_pause: float = LONGEST_PAUSE,
    ) -> Any:
        """Return the server's answer as JSON.

        Args:
            method, path, params: method, path and query parameters of the request.
            body: a form, JSON, lines of JSON, or None.
            key: its idempotency key.
            repeats: whether it is sent again after its answer was lost; if not, only if the server has not begun it.
            wait: seconds that the server may wait before its answer, in addition to the timeout.
            tries: records whether one of the tries may have taken effect.
            longest_pause: most seconds between two tries.

        Raises:
            StoreUnavailable: the server cannot be reached, or has not answered in time.
            JobsError: the server answered with an error.
        """
        self.check_open()
        content = body if body is None or isinstance(body, bytes) else dumps(body)
        headers = tracing.headers() | job_context.headers()
        if content is not None:
            headers["Content-Type"] = _NDJSON if content.endswith(b"\n") else "application/json"
        if key is not None:
            headers["Idempotency-Key"] = key
        request = {"method": method, "url": path, "params": params, "content": content, "headers": headers}
        backoff = Backoff(self.sources, longest_pause)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.timeout
        while True:
            answer = await self._try(request, max(deadline - loop.time(), 0.1), wait)
            if not isinstance(answer, _Failure):
                return answer
            if not answer.is_unsent and tries is not None:
                tries.unsure = True
            pause = backoff.pause()
            if not (answer.is_unsent or repeats) or loop.time() + pause >= deadline:
                raise answer.error
            await asyncio.sleep(pause)

    async def _try(self, request: Mapping[str, Any], seconds: float, wait: float) -> Any:
        """Return the answer to one request, or a failure if it may be sent again."""
        timeout = self._httpx.Timeout(seconds + wait, connect=min(_CONNECT, seconds), pool=None)
        places = self._waiting if wait else self._calls
        try:
            async with asyncio.timeout(seconds + wait):
                await places.acquire()
        except TimeoutError:
            why = f"{self.url} has not answered other calls for {seconds + wait:.4g} s; nothing was begun"
            return _Failure(StoreUnavailable(why), True)
        try:
            async with asyncio.timeout(seconds + wait + _GRACE):  # httpx counts each read by itself
                response = await self._opened().request(**request, timeout=timeout)
        except self._httpx.TransportError as error:
            return self._away(error)
        except TimeoutError:
            why = f"{self.url} has not sent all of its answer within {seconds + wait:.4g} s; it may have taken effect"
            return _Failure(StoreUnavailable(why), False)
        except (self._httpx.RequestError, self._httpx.InvalidURL) as error:
            raise self._impossible(error) from None
        finally:
            places.release()
        if not response.is_success:
            return self._refused(response)
        try:
            if response.headers.get("content-type", "").startswith(_NDJSON):
                return [json_types.loads(line) for line in response.content.splitlines()]
            return json_types.loads(response.content) if response.content else None
        except ValueError:
            raise self._foreign(response) from None

    def read(self, read: Callable[[Any], T], answer: Any) -> T:
        """Return an answer as decoded by a function.

        Raises:
            JobsError: the answer has a form that this version does not know.
        """
        try:
            return read(answer)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            why = in_one_line(f"{type(error).__name__}: {error}", 100)
            raise JobsError(f"{self.url} answers what this version cannot read: {why}") from None

    def new_key(self) -> str:
        """Return an idempotency key: a request that is repeated with it takes effect once."""
        return self.sources.token(_KEY_BYTES).hex()

    def _refused(self, response: httpx.Response) -> _Failure:
        """Return a failure if the request may be sent again after this answer; raise an error otherwise."""
        try:
            found = json_types.loads(response.content)
        except ValueError:
            found = None
        if isinstance(found, dict) and str(found.get("type", "")).startswith(problems.PREFIX):
            if found["type"] == _NO_ADDRESS:
                asked = in_one_line(str(response.request.url.copy_with(query=None)), 200)
                raise JobsError(f"{asked}: no jobs-service answers there; is the prefix of the URL right?")
            error = problems.error_of(found)
            refused = response.request.headers.get(_AUTHORIZATION, "")
            if found["type"] in _NOTHING_BEGUN or (found["type"] == _NO_TOKEN and self._has_found_another(refused)):
                return _Failure(error, True)
            raise error
        if response.status_code in _BAD_GATEWAYS:  # a proxy on the way got no answer
            error = StoreUnavailable(f"{self.url} answers {response.status_code}; it may have taken effect")
            return _Failure(error, False)
        raise self._foreign(response)

    def _has_found_another(self, refused: str) -> bool:
        """Return whether there is another token than the refused one, or none; it is used from now on.

        The server may have been restarted with a new token in its file; or the file is that of a killed server, and the
        present server needs no token.

        Args:
            refused: the header that was sent, "" for none.
        """
        if not self._finds_token or self._client is None:
            return False
        sent = self._client.headers
        if refused == sent.get(_AUTHORIZATION, ""):
            self._refused_headers.add(refused)
            sent.pop(_AUTHORIZATION, None)
            another = _header(token_file.found(self.url))
            if another not in self._refused_headers:
                sent[_AUTHORIZATION] = another
        return bool(sent.get(_AUTHORIZATION, "") != refused)

    def _away(self, error: httpx.TransportError) -> _Failure:
        """Return the failure of a request without an answer."""
        httpx = self._httpx
        is_unsent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout | httpx.ProxyError)
        what = in_one_line(str(error), 100) or type(error).__name__
        effect = "nothing was begun" if is_unsent else "it may have taken effect"
        return _Failure(StoreUnavailable(f"{self.url} does not answer: {what}; {effect}"), is_unsent)

    def _impossible(self, error: Exception) -> JobsError:
        """Return the error of a request that fails on every try: it cannot be sent, or its answer cannot be read."""
        what = in_one_line(str(error), 100) or type(error).__name__
        return JobsError(f"{self.url} cannot be asked for this: {what}")

    def _foreign(self, response: httpx.Response) -> JobsError:
        kind = response.headers.get("content-type", "nothing")
        return JobsError(
            f"{self.url} answers {response.status_code} with {in_one_line(kind, 40)}: that is no jobs-service"
        )

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, form: Any = None, *, headers: Mapping[str, str], params: Any = None
    ) -> AsyncIterator[AsyncIterator[bytes] | None]:
        """Send a request with a streamed answer, and yield the iterator of its bytes; None for an empty answer.

        Raises:
            Lost: the connection could not be made, or has ended; another try may succeed.
            JobsError: the server answered with an error.
        """
        self.check_open()
        timeout = self._httpx.Timeout(_SILENCE, connect=_CONNECT, pool=None)
        body = None if form is None else dumps(form)
        every = {"Accept-Encoding": "identity", **headers}
        if body is not None:
            every["Content-Type"] = "application/json"
        try:
            async with (
                self._waiting,
                self._opened().stream(
                    method, path, content=body, headers=every, params=params, timeout=timeout
                ) as response,
            ):
                if not response.is_success:
                    await response.aread()
                    raise Lost(self._refused(response).error)
                is_empty = response.status_code == 204
                if not is_empty and not response.headers.get("content-type", "").startswith(headers["Accept"]):
                    raise self._foreign(response)
                yield None if is_empty else response.aiter_bytes()
        except self._httpx.TransportError as error:
            raise Lost(self._away(error).error) from None
        except (self._httpx.RequestError, self._httpx.InvalidURL) as error:
            raise self._impossible(error) from None


class Lines:
    """Requests of one line each: all within one turn of the loop share a request, which adds no job twice.

    Args:
        connection: to the server.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        # By path, and by the trace and the context of the request.
        self._waiting: dict[tuple[str, tuple[tuple[str, str], ...]], list[tuple[bytes, asyncio.Future[Any]]]] = {}
        self._sending: set[asyncio.Task[None]] = set()

    async def send(self, path: str, line: bytes) -> Any:
        """Return the server's answer to one line, as if it were alone; errors as of `Connection.call`."""
        self._connection.check_open()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        group = path, tuple((tracing.headers() | job_context.headers()).items())
        if group not in self._waiting:
            self._waiting[group] = []
            loop.call_soon(self._send_group, group)
        self._waiting[group].append((line, answer))
        return await answer

    async def send_all(self, path: str, lines: Sequence[bytes]) -> list[Any]:
        """Return the server's answer to each line: a form or an error."""
        key = self._connection.new_key()
        if len(lines) == 1:
            return [await self._connection.call("POST", path, lines[0], key=key)]
        forms = await self._connection.call("POST", path, b"".join(line + b"\n" for line in lines), key=key)
        found = self._connection.read(
            lambda forms: [problems.error_of(form["problem"]) if "problem" in form else form for form in forms], forms
        )
        if len(found) < len(lines):  # the server has stopped reading, and its last line says why
            last = found[-1] if found and isinstance(found[-1], JobsError) else JobsError("the answer is not complete")
            found += [copy.copy(last) for _ in range(len(lines) - len(found))]
        return found[: len(lines)]

    async def closed(self) -> None:
        """Wait until no request is under way."""
        await asyncio.gather(*self._sending, return_exceptions=True)

    def _send_group(self, group: tuple[str, tuple[tuple[str, str], ...]]) -> None:
        asked = {answer: line for line, answer in self._waiting.pop(group) if not answer.done()}
        answers = iter(asked)
        for part in in_parts(asked.values()):
            request = self._answer(group[0], part, [next(answers) for _ in part])
            task = asyncio.get_running_loop().create_task(request)
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _answer(self, path: str, lines: Sequence[bytes], answers: Sequence[asyncio.Future[Any]]) -> None:
        try:
            found = await self.send_all(path, lines)
        except Exception as error:
            # A copy for each caller: raising an error adds frames to its traceback.
            found = [copy.copy(error) for _ in lines]
        for answer, each in zip(answers, found, strict=True):
            if answer.done():
                continue
            if isinstance(each, Exception):
                answer.set_exception(each)
            else:
                answer.set_result(each)


def in_parts(bodies: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yield jobs in parts of one request each, and read them lazily."""
    part: list[bytes] = []
    size = 0
    for body in bodies:
        if part and (len(part) == MOST_JOBS or size + len(body) > MOST_BYTES):
            yield part
            part, size = [], 0
        part.append(body)
        size += len(body)
    if part:
        yield part


class Lost(Exception):
    """A stream has ended too soon, or did not begin; another try may succeed.

    Attributes:
        error: the error to raise if no further try succeeds.
    """

    def __init__(self, error: JobsError) -> None:
        super().__init__(str(error))
        self.error = error


class _Failure:
    """The reason for a request without a result.

    Attributes:
        error: the error to raise if the request is not sent again.
        is_unsent: whether the request certainly had no effect.
    """

    __slots__ = ("error", "is_unsent")

    def __init__(self, error: JobsError, is_unsent: bool) -> None:
        self.error = error
        self.is_unsent = is_unsent


def of_type(type: Any, rest: str = "") -> str:
    """Return the path of a type. Raises InvalidJob, JobTooLarge: no path can name it."""
    return f"/v1/types/{segment(type)}{rest}"


def of_job(type: Any, id: Any, rest: str = "") -> str:
    """Return the path of a job. Raises like `of_type`."""
    return f"{of_type(type)}/jobs/{segment(id)}{rest}"


def segment(value: Any) -> str:
    """Return a type or an id as one segment of a path. Raises like `of_type`."""
    found: str = named(value, names.segment)
    if len(found) > _LONGEST_SEGMENT:
        refused = f"{shown(value)}: {len(found)} characters in an address; at most {_LONGEST_SEGMENT} are sent"
        raise JobTooLarge(refused)
    return found


def named(value: Any, form: Callable[[Any], Any] = names.name) -> Any:
    """Return a type, an id or a priority in a form for requests, usually as JSON; the server checks ids.

    Raises:
        InvalidJob, JobTooLarge: it has no such form.
    """
    names.check_name("name", value)
    try:
        return form(value)
    except UnicodeEncodeError:
        raise InvalidJob(f"name {shown(value)}: not UTF-8 (a lone surrogate)") from None


def time(value: Any) -> Any:
    """Return a time in JSON; the server checks it."""
    return value.isoformat() if isinstance(value, datetime) else value


def dumps(form: Any) -> bytes:
    """Return a request as JSON. The server refuses NaN, which is none.

    Raises:
        InvalidJob: it has a value that JSON cannot represent.
    """
    try:
        return json.dumps(form, separators=(",", ":")).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidJob(f"an argument that JSON cannot say: {in_one_line(str(error), 100)}") from None


def with_json(form: Mapping[str, Any], **members: bytes | None) -> bytes:
    """Return a JSON object with more members in encoded form; None adds no member."""
    found = [dumps(form)[1:-1]] if form else []
    found += [b'"%b":%b' % (name.encode(), json or b"null") for name, json in members.items() if json is not None]
    return b"{%b}" % b",".join(found)


def changes(form: dict[str, Any], type: Any, id: Any, data: Any, priority: Any, run_at: Any) -> bytes:
    """Return a request to change a job, with the given fields only.

    Raises:
        InvalidJob, JobTooLarge: JSON cannot carry a given value.
    """
    if priority is not UNSET:
        form["priority"] = named(priority)
    if run_at is not UNSET:
        form["run_at"] = time(run_at)
    return with_json(form, data=json_of(type, id, data))


def _checked(url: Any, httpx: Any) -> str:
    """Return a server's URL without a slash at its end. Raises InvalidAddress."""
    if not isinstance(url, str):
        raise InvalidAddress(f"{shown(url)}: {a_kind_of(url)}; allowed is a URL, as http://127.0.0.1:8700")
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and httpx.URL(url)
    except (ValueError, httpx.InvalidURL):
        good = False
    if not good or parts.username is not None or parts.query or parts.fragment:
        # The parts before an @ and after a ? may be secret.
        is_secret = any(mark in url for mark in "@?#")
        hint = "; a token is given as token=" if is_secret else ""
        name = "the URL" if is_secret else shown(url, 100)
        allowed = "allowed is http://HOST:PORT or https://..., with any prefix"
        raise InvalidAddress(f"{name} can be no server's: {allowed}{hint}")
    return url.rstrip("/")


def _header(token: str | None) -> str:
    return "" if token is None else f"Bearer {token}"


def _checked_token(token: Any) -> str:
    if not isinstance(token, str) or not token or not token.isascii() or not token.isprintable() or " " in token:
        raise JobsError("token=...: allowed is a token as `jobs-service token add` prints it")
    return token
