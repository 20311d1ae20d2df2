"""What holds for every test."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings


def pytest_configure(config: pytest.Config) -> None:
    """Let examples of property-based tests take the time they take: a busy machine must not fail a test."""
    if config.getoption("--hypothesis-profile", None) is None:
        unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
        settings.register_profile("unhurried", unhurried)
        settings.load_profile("unhurried")
    # A shell that starts the tests in the background has them ignore Ctrl-C, and every process they start as well.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


TESTS = Path(__file__).parent
UNMEASURED = tuple(
    TESTS / name
    for name in (
        "hostile",
        "service/test_reruns.py",
        "simulation",
        "system/test_scale.py",
        "system/test_unsure_commits.py",
        "testing/storms",
    )
)
"""Tests that run the same lines very often, which others cover: measuring would make them take three times as long."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave coverage out of tests where it would cost the most."""
    for item in items:
        # A suite of the service runs the same lines on every store; the suites of the stores themselves are measured.
        again = "simulated" in item.name or ("lmdb" in item.name and item.path.is_relative_to(TESTS / "service"))
        if again or any(item.path.is_relative_to(path) for path in UNMEASURED):
            item.add_marker(pytest.mark.no_cover)
