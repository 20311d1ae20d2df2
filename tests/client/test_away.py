"""A server that is not there, is something else, or refuses: one clear line each."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from jobs_service import (
    AccessDenied,
    InvalidAddress,
    InvalidJob,
    JobsClient,
    JobsError,
    JobsService,
    JobState,
    ServiceClosed,
    StoreUnavailable,
)
from jobs_service.http.state import ServerOptions
from tests.client.lossy import LossyTransport
from tests.client.served import listening
from tests.service.support import J1, PATIENCE, T1, TIMEOUT, eventually

SHORT = 0.2
"""Seconds that a client tries to reach a server which never comes."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


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
    ("answer", "text"),
    [
        (b"HTTP/1.1 302 Found\r\nLocation: /login\r\n\r\n", "answers 302 with nothing: that is no jobs-service"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>log in",
            "answers 200 with text/html: that is no jobs-service",
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: gzip\r\n\r\nplain",
            "cannot be asked for this: Error -3 while",
        ),
    ],
)
async def test_who_waits_for_a_job_of_what_is_no_server_of_jobs_is_told(answer: bytes, text: str) -> None:
    async with answering(answer) as url, JobsClient(url, timeout=SHORT) as jobs, asyncio.timeout(PATIENCE):
        with pytest.raises(JobsError) as caught:
            await jobs.wait(T1, J1)
        assert type(caught.value) is JobsError
        assert f"{url} {text}" in str(caught.value)


async def test_a_wrong_prefix_is_told_by_the_address_that_was_asked() -> None:
    async with JobsService("memory:") as served, listening(served) as url, JobsClient(f"{url}/inner/jobs") as jobs:
        for call in (jobs.types(), jobs.page(T1, limit=5), jobs.wait(T1, J1)):
            with pytest.raises(JobsError) as caught:
                await call
            assert type(caught.value) is JobsError
            assert str(caught.value).startswith(f"{url}/inner/jobs/v1/")
            assert str(caught.value).endswith(": no jobs-service answers there; is the prefix of the URL right?")


async def test_an_empty_answer_that_leads_elsewhere_is_no_success() -> None:
    async with (
        answering(b"HTTP/1.1 307 Temporary Redirect\r\nLocation: https://x/\r\nContent-Length: 0\r\n\r\n") as url,
        JobsClient(url, timeout=SHORT) as jobs,
    ):
        for call in (jobs.set_type_timeout(T1, TIMEOUT), jobs.clear_type_timeout(T1), jobs.pause(T1)):
            with pytest.raises(JobsError, match="answers 307 with nothing: that is no jobs-service"):
                await call


async def test_what_is_too_long_for_an_address_is_one_line() -> None:
    async with JobsService("memory:") as served, listening(served) as url, JobsClient(url) as jobs:
        with pytest.raises(JobsError, match="cannot be asked for this: URL"):
            await jobs.page(T1, after="x" * 70_000)


@pytest.mark.parametrize("call", [lambda jobs: jobs.get(T1, J1), lambda jobs: jobs.set_type_timeout(T1, TIMEOUT)])
async def test_an_answer_that_comes_too_slowly_is_waited_for_no_longer_than_allowed(
    call: Callable[[JobsClient], Awaitable[Any]],
) -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
        with contextlib.suppress(ConnectionError), contextlib.closing(writer):
            while True:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(SHORT / 4)

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, JobsClient(url, timeout=SHORT) as jobs:
        with pytest.raises(
            StoreUnavailable, match=r"has not sent all of its answer within .* it may have taken effect"
        ):
            async with asyncio.timeout(PATIENCE):
                await call(jobs)


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


@pytest.mark.parametrize("timeout", [0, -1, None, "soon", float("nan")])
def test_a_timeout_that_cannot_be_is_refused(timeout: Any) -> None:
    with pytest.raises(InvalidJob):
        JobsClient("http://host", timeout=timeout)


async def test_without_a_token_a_server_that_wants_one_is_an_error_of_its_own() -> None:
    async with JobsService("memory:") as served, listening(served, ServerOptions()) as url, JobsClient(url) as jobs:
        for call in (jobs.types(), jobs.add(T1, J1), jobs.wait(T1, J1)):
            with pytest.raises(AccessDenied, match="token"):
                await call


async def test_a_client_that_is_not_open_says_so() -> None:
    jobs = JobsClient("http://127.0.0.1:1")
    with pytest.raises(ServiceClosed, match="async with"):
        await jobs.get(T1, J1)
    with pytest.raises(ServiceClosed, match="async with"):
        await anext(jobs.subscribe(T1, J1))
    async with JobsService("memory:") as served, listening(served) as url:
        await served.set_type_timeout(T1, TIMEOUT)
        await served.add(T1, J1)
        async with JobsClient(url) as jobs:
            events = jobs.subscribe(T1, J1)
            assert (await anext(events)).state is JobState.PENDING
            waiting = asyncio.create_task(anext(events))
            await asyncio.sleep(0)
        with pytest.raises(ServiceClosed, match="was left"):
            await waiting
        with pytest.raises(ServiceClosed, match="was left"):
            await jobs.types()


async def test_finishing_with_a_function_is_refused_in_one_line() -> None:
    async with JobsService("memory:") as served, listening(served) as url, JobsClient(url) as jobs:
        await jobs.set_type_timeout(T1, TIMEOUT)
        await jobs.add(T1, J1)
        job = await jobs.accept(T1)
        assert job is not None
        with pytest.raises(JobsError, match="finish_with needs the store itself"):
            await job.finish_with(lambda tx: None)
