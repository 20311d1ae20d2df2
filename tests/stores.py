"""The stores that suites run against, in one place: another store joins all of them by one line in KINDS."""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from jobs_service.settings import Settings
from jobs_service.sources import Sources
from jobs_service.store import Store, open_address
from jobs_service.testing import Choices, Cluster, Plan, SimulatedStore

FDB_VARIABLE = "JOBS_SERVICE_TEST_FDB"
"""Names the cluster file of a FoundationDB that tests may write to, or is "own"; see tests/fdb_place."""


@dataclass(frozen=True)
class StoreKind:
    """One kind of store.

    Attributes:
        name: stands in the tests' ids.
        address: makes the address of the store that a test uses, given a directory of the test's own; None when no
            address names it, so that only who has the object can use it.
        persistent: what was written is there again when the same address is opened anew.
        shared: every test meets the same store. It is emptied before each; a test that wants several empties it itself.
        suspends: its transaction functions run on the loop and are suspended at reads; so it cannot tell what else
            they await.
        missing: why it cannot be tested here, None when it can.
    """

    name: str
    address: Callable[[Path], str] | None
    persistent: bool = True
    shared: bool = False
    suspends: bool = False
    missing: str | None = None

    def address_in(self, directory: Path) -> str:
        """Return the address of the test's store; a test that needs one is skipped where there is none."""
        if self.address is None:
            pytest.skip(f"no address names the {self.name} store")
        return self.address(directory)

    def make(self, directory: Path) -> Store:
        """Return the test's store, not yet open. Called while the loop runs that it will be used on."""
        if self.address is None:
            return _simulated()
        return open_address(self.address(directory), plain_settings(), Sources(None if self.shared else 0))

    def make_bare(self, directory: Path) -> Store:
        """Return the same, but one that keeps nothing of its own among the keys: they are all the test's."""
        if self.name != "fdb":
            return self.make(directory)
        from tests.fdb_stores import BareFdbStore

        return BareFdbStore(os.environ[FDB_VARIABLE], settings=plain_settings(), sources=Sources())

    def where(self, directory: Path) -> str | Store:
        """Return what a service is given to use the test's store: its address, or itself."""
        return _simulated() if self.address is None else self.address(directory)


def _simulated() -> SimulatedStore:
    """Return a simulated store in calm weather on the running loop; every other read suspends the function."""
    choices = Choices(Plan(0), rates={"suspend": 0.5})
    cluster = Cluster(asyncio.get_running_loop(), choices)
    return SimulatedStore(cluster, None, settings=plain_settings(), sources=Sources(0))


@functools.cache
def plain_settings() -> Settings:
    """Return settings as they are by default; to make them anew takes longer than many a test."""
    return Settings()


@functools.cache
def settings_with(**values: Any) -> Settings:
    """Return settings with other values, also of those that are the same for everybody else."""
    chosen = {name: value for name, value in values.items() if name in Settings.model_fields}
    others = {name: value for name, value in values.items() if name not in chosen}
    return Settings(**chosen).model_copy(update=others)


ADDRESSED = (
    StoreKind("memory", lambda directory: "memory:", persistent=False),
    StoreKind("lmdb", lambda directory: f"lmdb:{directory / 'store'}"),
    StoreKind("sqlite", lambda directory: f"sqlite:{directory / 'app.db'}"),
    StoreKind(
        "fdb",
        lambda directory: f"fdb:{os.environ[FDB_VARIABLE]}",
        shared=True,
        suspends=True,
        missing=None if FDB_VARIABLE in os.environ else f"{FDB_VARIABLE} names no cluster file",
    ),
)

KINDS = (*ADDRESSED, StoreKind("simulated", None, persistent=False, suspends=True))


def _parameter(kind: StoreKind) -> object:
    marks = []
    if kind.missing is not None:
        marks.append(pytest.mark.skip(reason=kind.missing))
    return pytest.param(kind, id=kind.name, marks=marks)


EVERY_STORE = [_parameter(kind) for kind in ADDRESSED]
"""The parameters of a fixture or test that runs once per kind of store that an address names."""

EVERY_KIND = [_parameter(kind) for kind in KINDS]
"""The same with the simulated store."""

EVERY_LASTING_STORE = [_parameter(kind) for kind in ADDRESSED if kind.persistent]
"""The parameters of one that runs once per kind of store that processes can share."""

QUICKEST_AND_CLUSTER = [EVERY_STORE[0], EVERY_STORE[-1]]
"""The parameters of one that is the same on every store: the quickest one, and the one with a network of its own."""


def one_of(kinds: Sequence[Any]) -> Any:
    """Return a fixture: one kind of store after the other."""

    @pytest.fixture(params=kinds)
    def kind(request: pytest.FixtureRequest) -> StoreKind:
        found = request.param
        assert isinstance(found, StoreKind)
        return found

    return kind
