"""`handlers`: what an application has registered."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Invoke
from tests.cli.support import rows


def test_handlers_are_shown_with_the_options_that_differ(
    invoke: Invoke, application: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "settings.toml").write_text("[handlers.slow]\nslots = 3\n")
    monkeypatch.setenv("JOBS_SERVICE_SETTINGS", "settings.toml")
    slow, refresh, nightly = invoke("handlers", application, "-o", "json").json_lines
    assert (slow["type"], slow["function"], slow["kind"], slow["comes"]) == ("slow", "operated.slow", "coroutine", None)
    assert (slow["options"]["max_attempts"], slow["options"]["grace"]) == (None, 10.0)
    assert (refresh["comes"], nightly["comes"]) == ("every 1h30m", "0 3 * * * Europe/Berlin")
    heading, first, *_ = rows(invoke("handlers", application).out)
    assert heading == ["TYPE", "FUNCTION", "COMES", "OPTIONS"]
    assert first[:2] == ["slow", "operated.slow"]
    assert "max_attempts=None" in first
    assert not (tmp_path / "store").exists()
