"""A service over HTTP, in the same process: what its tests talk to."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from jobs_service import JobsService
from jobs_service.http.application import Application
from jobs_service.http.server import Server, bound
from jobs_service.http.state import ServerOptions

BASE = "http://127.0.0.1:8700"
here = "memory:"
"""The address of the store that is served where none is named; the fixture `address` has it be that of its test."""
also_on_a_cluster = pytest.mark.usefixtures("address")
"""Marks a test that is about what is stored: it serves a memory store, and a cluster where there is one."""


@asynccontextmanager
async def served(
    store: str | None = None, options: ServerOptions | None = None, **more: Any
) -> AsyncIterator[tuple[JobsService, httpx.AsyncClient]]:
    """Yield an open service, and a client of its HTTP interface that calls the application directly."""
    async with JobsService(here if store is None else store, **more) as jobs:
        application = Application(jobs, ServerOptions(is_open=True) if options is None else options)
        transport = httpx.ASGITransport(application, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
            yield jobs, client


def problem(response: httpx.Response, status: int, kind: str) -> dict[str, Any]:
    """Return the problem that an answer has to be."""
    found: dict[str, Any] = response.json()
    assert response.headers["content-type"] == "application/problem+json", response.text
    assert (response.status_code, found["type"]) == (status, f"/problems/{kind}"), found
    assert found["status"] == status
    assert found["detail"]
    assert "\n" not in found["detail"]
    return found


@asynccontextmanager
async def listening(
    store: str | None = None, options: ServerOptions | None = None, **more: Any
) -> AsyncIterator[tuple[JobsService, httpx.AsyncClient]]:
    """Yield an open service, and a client that reaches it through a socket."""
    async with (
        JobsService(here if store is None else store, **more) as jobs,
        running(jobs, options) as url,
        httpx.AsyncClient(base_url=url, timeout=20) as client,
    ):
        yield jobs, client


@asynccontextmanager
async def running(jobs: JobsService, options: ServerOptions | None = None) -> AsyncIterator[str]:
    """Serve an open service as long as the block runs, and yield where."""
    application = Application(jobs, ServerOptions(is_open=True) if options is None else options)
    server = Server(application, bound("127.0.0.1", 0))
    await server.start()
    try:
        yield server.url
    finally:
        await server.stop()


async def events(response: httpx.Response) -> AsyncGenerator[tuple[str, str, Any]]:
    """Yield the events of a stream: what kind, its id, its data."""
    kind, id, data = "", "", ""
    async for line in response.aiter_lines():
        name, _, value = line.partition(": ")
        if name == "event":
            kind = value
        elif name == "id":
            id = value
        elif name == "data":
            data = value
        elif not line and data:
            yield kind, id, json.loads(data)
            kind, data = "", ""
