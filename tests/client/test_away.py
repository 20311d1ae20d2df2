"""A server that is not there, is something else, or refuses: one clear line each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from jobs_service import InvalidAddress, JobsClient, JobsError, JobsService, StoreUnavailable
from tests.cli.support import free_port
from tests.client.lossy import LossyTransport
from tests.client.served import listening
from tests.service.support import J1, PATIENCE, T1, TIMEOUT, eventually

SHORT = 0.2
"""Seconds that a client tries to reach a server which never comes."""


@pytest.mark.parametrize(
    "call",
    [
        lambda jobs: jobs.get(T1, J1),
        lambda jobs: jobs.add(T1, J1),
        lambda jobs: jobs.remove(T1, J1),
        lambda jobs: jobs.accept(T1, timeout=0),
        lambda jobs: jobs.wait(T1, J1),
        lambda jobs: anext(jobs.list(T1)),
    ],
    ids=["get", "add", "remove", "accept", "wait", "list"],
)
async def test_a_server_that_is_not_there_is_one_line(call: Callable[[JobsClient], Awaitable[Any]]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    async with JobsClient(url, timeout=SHORT) as jobs:
        with pytest.raises(StoreUnavailable) as caught:
            async with asyncio.timeout(PATIENCE):
                await call(jobs)
    assert caught.value.retryable
    assert str(caught.value) == f"{url} does not answer: All connection attempts failed; nothing was begun"


async def test_a_server_that_comes_in_time_is_waited_for() -> None:
    port = free_port()
    network = LossyTransport()
    async with JobsService("memory:") as served, JobsClient(f"http://127.0.0.1:{port}", transport=network) as jobs:
        calls = [
            asyncio.create_task(jobs.set_type_timeout(T1, TIMEOUT)),
            asyncio.create_task(jobs.types()),
        ]

        async def both_have_tried() -> bool:
            return network.tried > 2

        await eventually(both_have_tried)
        assert not any(call.done() for call in calls)
        async with asyncio.timeout(PATIENCE), listening(served, port=port):
            await asyncio.gather(*calls)
        assert await served.types() == [T1]


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[str]:
    """Serve the same answer to whatever is asked."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        (
            b"HTTP/1.1 404 Not Found\r\nContent-Type: text/html\r\n\r\n<p>no",
            JobsError,
            "answers 404 with text/html: that",
        ),
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>hello", JobsError, "answers 200 with text/html: that"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n[7]",
            JobsError,
            "answers what this version cannot",
        ),
        (b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Type: x/y\r\n\r\nx", JobsError, "answers 302 with x/y: that"),
        (b"HTTP/1.1 301 Moved\r\nLocation: https://x/\r\n\r\n", JobsError, "answers 301 with nothing: that"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\nplain",
            JobsError,
            "cannot be asked for this: Error -3 while",
        ),
        (b"HTTP/1.1 502 Bad Gateway\r\n\r\n<p>", StoreUnavailable, "answers 502; it may have taken effect"),
        (b"garbage\r\n\r\n", StoreUnavailable, "does not answer: "),
        (b"", StoreUnavailable, "does not answer: Server disconnected"),
    ],
)
async def test_what_is_no_server_of_jobs_is_one_line(answer: bytes, kind: type[JobsError], text: str) -> None:
    async with answering(answer) as url, JobsClient(url, timeout=SHORT) as jobs:
        with pytest.raises(JobsError) as caught:
            await jobs.get(T1, J1)
        assert type(caught.value) is kind
        assert f"{url} {text}" in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:8700",
        "ftp://host",
        "http://",
        "http://host:99999",
        "http://h?x=1",
        "http://h#x",
        "http://h/\x00",
        None,
        7,
    ],
)
def test_what_can_be_no_address_is_refused(url: Any) -> None:
    with pytest.raises(InvalidAddress, match="http://"):
        JobsClient(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://user:secret@host",
        "ftp://user:secret@host",
        "https://user:secret@host:99999",
        "http://host?token=secret",
        "http://host/#secret",
        "user:secret@host",
        "http://secret@[::1",
    ],
)
def test_a_token_in_an_address_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(InvalidAddress, match="a token is given as token=") as caught:
        JobsClient(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("token", ["", "two words", "ü", "a\nb", 7])
def test_what_can_be_no_token_is_refused(token: Any) -> None:
    with pytest.raises(JobsError, match="token") as caught:
        JobsClient("http://host", token=token)
    assert str(token or "two words") not in str(caught.value)
