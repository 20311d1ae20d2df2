"""A service over HTTP, in the same process: what its tests talk to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from jobs_service import JobsService
from jobs_service.http.application import Application
from jobs_service.http.state import Options

BASE = "http://127.0.0.1:8700"


@asynccontextmanager
async def served(
    store: str = "memory:", options: Options | None = None, **more: Any
) -> AsyncIterator[tuple[JobsService, httpx.AsyncClient]]:
    """Yield an open service, and a client of its HTTP interface that calls the application directly."""
    async with JobsService(store, **more) as jobs:
        application = Application(jobs, Options(is_open=True) if options is None else options)
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
