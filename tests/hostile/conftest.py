"""A directory that hostile paths do not lead out of."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def tmp_path(tmp_path: Path) -> Path:
    """The test's own directory, far enough inside of what is removed after it for `../../etc/passwd`."""
    inside = tmp_path / "two" / "below"
    inside.mkdir(parents=True)
    return inside
