"""A directory that hostile paths do not lead out of, and hostile values only as long as they are wanted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.inputs import nested


@pytest.fixture
def tmp_path(tmp_path: Path) -> Path:
    """The test's own directory, far enough inside of what is removed after it for `../../etc/passwd`."""
    inside = tmp_path / "two" / "below"
    inside.mkdir(parents=True)
    return inside


@pytest.fixture(scope="package", autouse=True)
def _forget() -> Iterator[None]:
    """Leave no hundreds of thousands of containers for the garbage collection of all later tests."""
    yield
    nested.cache_clear()
