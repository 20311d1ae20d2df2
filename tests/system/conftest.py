"""Processes for the tests of several."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.forking import ForkServer


@pytest.fixture(scope="package")
def forks() -> Iterator[ForkServer]:
    """Processes that begin within milliseconds."""
    with ForkServer() as server:
        yield server
