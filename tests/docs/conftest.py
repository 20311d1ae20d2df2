"""What the examples of several pages take for granted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from jobs_service import JobsService

PATIENCE = 60.0


@pytest.fixture
async def jobs() -> AsyncIterator[JobsService]:
    """A service with the type `email`."""
    async with asyncio.timeout(PATIENCE), JobsService("memory:") as service:
        await service.set_type_timeout("email", 30)
        yield service
