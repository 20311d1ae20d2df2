"""The interface answers as its OpenAPI document says, whatever is asked: no 500, and every answer matches."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis import Case
from schemathesis.checks import not_a_server_error
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from jobs_service import JobsService, __version__
from jobs_service.http.daemon_endpoints import document
from jobs_service.http.endpoint import ENDPOINTS
from jobs_service.http.state import ServerLimits, ServerOptions
from tests.http.support import running

LONG = ("/v1/events", "/v1/types/{type}/events", "/v1/types/{type}/jobs/{id}/events")
CONFIG = SchemathesisConfig()
# What it tries beside random values takes long.
CONFIG.projects.default.phases.coverage.enabled = False
SCHEMA = schemathesis.openapi.from_dict(document(ENDPOINTS, __version__), config=CONFIG).exclude(path=list(LONG))


class Running:
    """A service over HTTP on a loop and a thread of its own, because schemathesis waits for its answers."""

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()
        assert self._ready.wait(60)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        options = ServerOptions(is_open=True, limits=ServerLimits(poll_time=0.01))
        async with JobsService("memory:") as jobs, running(jobs, options) as self.url:
            await jobs.set_type_timeout("0", 30)
            await jobs.add("0", "0")
            self._ready.set()
            await self._stop.wait()

    def stop(self) -> None:
        """End it."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    found = Running()
    yield found.url
    found.stop()


@SCHEMA.parametrize()
@settings(
    max_examples=6,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    database=None,
)
def test_every_address_answers_as_documented(case: Case[Any], served: str) -> None:
    case.call_and_validate(
        base_url=served,
        checks=[
            not_a_server_error,
            content_type_conformance,
            response_schema_conformance,
            status_code_conformance,
        ],
    )
