"""Marks of tests that need a cluster."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.stores import FDB_VARIABLE

CLUSTER = os.environ.get(FDB_VARIABLE, "")
needs_cluster = [
    pytest.mark.skipif(not CLUSTER, reason=f"{FDB_VARIABLE} names no cluster file"),
    pytest.mark.cluster,
]


def cluster_test(test: Any) -> Any:
    """Mark a test that needs a cluster."""
    for mark in needs_cluster:
        test = mark(test)
    return test
