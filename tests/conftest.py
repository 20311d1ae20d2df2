"""What holds for every test."""

from __future__ import annotations

import signal

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
