"""The stores that suites run against, in one place: another store joins all of them by one line in KINDS."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

FDB_VARIABLE = "JOBS_SERVICE_TEST_FDB"
"""Names the cluster file of a FoundationDB that tests may write to."""


@dataclass(frozen=True)
class StoreKind:
    """One kind of store.

    Attributes:
        name: stands in the tests' ids.
        address: makes the address of the store that a test uses, given a directory of the test's own.
        persistent: what was written is there again when the same address is opened anew.
        shared: every test meets the same store, so that it must be emptied before use.
        missing: why it cannot be tested here, None when it can.
    """

    name: str
    address: Callable[[Path], str]
    persistent: bool = True
    shared: bool = False
    missing: str | None = None


KINDS = (
    StoreKind("memory", lambda directory: "memory:", persistent=False),
    StoreKind("lmdb", lambda directory: f"lmdb:{directory / 'store'}"),
    StoreKind(
        "fdb",
        lambda directory: f"fdb:{os.environ[FDB_VARIABLE]}",
        shared=True,
        missing=None if FDB_VARIABLE in os.environ else f"{FDB_VARIABLE} names no cluster file",
    ),
)


def _parameter(kind: StoreKind) -> object:
    marks = []
    if kind.missing is not None:
        marks.append(pytest.mark.skip(reason=kind.missing))
    elif kind.shared:
        marks.append(pytest.mark.xdist_group(kind.name))
    return pytest.param(kind, id=kind.name, marks=marks)


EVERY_STORE = [_parameter(kind) for kind in KINDS]
"""The parameters of a fixture or test that runs once per kind of store."""
