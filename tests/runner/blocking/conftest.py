"""A service for plain functions in threads, of which none is left."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from jobs_service import JobsService
from tests.checker import assert_sound
from tests.runner.support import PATIENCE_OF_THREADS, THREAD


@pytest.fixture(params=["memory", "lmdb"])
async def jobs(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[JobsService]:
    """A service whose handlers run as soon as `begin` is called; its store is sound afterwards, no task is left."""
    address = "memory:" if request.param == "memory" else f"lmdb:{tmp_path / 'store'}"
    with capture_logs():
        async with asyncio.timeout(PATIENCE_OF_THREADS), JobsService(address) as service:
            yield service
            await assert_sound(service.store)
    assert asyncio.all_tasks() <= {asyncio.current_task()}


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    """Fail unless the handlers' threads have ended with the test."""
    yield
    for thread in threading.enumerate():
        if thread.name == THREAD:
            thread.join(PATIENCE_OF_THREADS)
    assert [thread for thread in threading.enumerate() if thread.name == THREAD] == []
