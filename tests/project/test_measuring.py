"""That coverage is left out of the tests that are marked so: it would make them take three times as long."""

from __future__ import annotations

import os
import sys

import pytest


@pytest.mark.unmeasured
@pytest.mark.skipif(sys.version_info >= (3, 14), reason="coverage no longer measures by tracing")
def test_nothing_traces_what_an_unmeasured_test_runs_nor_measures_its_processes() -> None:
    assert sys.gettrace() is None
    assert "COVERAGE_PROCESS_CONFIG" not in os.environ
