"""Every test here keeps its log events as data: to look at them, and because tracebacks are slow to print."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest
from structlog.testing import capture_logs


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[MutableMapping[str, Any]]]:
    """The events logged so far, oldest first."""
    with capture_logs() as events:
        yield events
