"""What the tests of subscriptions have in common."""

from __future__ import annotations

import pytest

from jobs_service import JobsService
from tests.service.subscriptions.support import Witness
from tests.service.support import running


@pytest.fixture
async def witness(jobs: JobsService) -> Witness:
    """A witness for the type T1."""
    return Witness(jobs, await running(jobs, "witness"))
