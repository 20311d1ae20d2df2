"""Pipes and programs for the tests of commands."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runner.commands.programs import Fifo


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[Fifo]:
    fifo = Fifo(tmp_path / "fifo")
    yield fifo
    os.close(fifo.descriptor)


@pytest.fixture(params=["pidfd", "thread", "thread that reaps"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every way in which the end of a process is noticed: what a platform does not have is missing in os."""
    if request.param != "pidfd":
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    elif not hasattr(os, "pidfd_open"):
        pytest.skip("only Linux has pidfd_open")
    if request.param == "thread that reaps":
        monkeypatch.delattr(os, "waitid", raising=False)
