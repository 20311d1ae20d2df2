"""A running service on every store, with two types in it, as couch_jobs' own suite sets them up."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from jobs_service import JobsService, Settings
from jobs_service.store import Store
from tests.checker import assert_sound
from tests.service.open_files import open_files
from tests.service.rerunning import Unsure, opened
from tests.service.support import T1, T2, TIMEOUT
from tests.stores import EVERY_KIND, StoreKind, one_of
from tests.unsure import UNSURE_KINDS

store_kind = one_of(EVERY_KIND)


@pytest.fixture
def address(store_kind: StoreKind, tmp_path: Path) -> str:
    """The address of a store of this test's own."""
    return store_kind.address_in(tmp_path)


@pytest.fixture
async def where(store_kind: StoreKind, tmp_path: Path) -> str | Store:
    """What `JobsService` is given to use this test's store: an address, or the store itself where none names it."""
    return store_kind.where(tmp_path)


@pytest.fixture(scope="session")
def settings() -> Settings:
    """Settings under which notifications come soon."""
    return Settings(notify_holdoff=0.01)


@pytest.fixture
async def jobs(where: str | Store, settings: Settings) -> AsyncIterator[JobsService]:
    """A service with its supervisor tree and the types T1 and T2, whose jobs are not lost while a test runs."""
    async with JobsService(where, settings=settings) as service:
        await service.set_type_timeout(T1, TIMEOUT)
        await service.set_type_timeout(T2, TIMEOUT)
        yield service


@pytest.fixture
async def quiet(where: str | Store, settings: Settings) -> AsyncIterator[JobsService]:
    """The same without a supervisor tree: nothing but the test itself writes to the store."""
    async with JobsService(where, settings=settings, supervise=False) as service:
        await service.set_type_timeout(T1, TIMEOUT)
        await service.set_type_timeout(T2, TIMEOUT)
        yield service


@pytest.fixture
def nothing_left_behind() -> Iterator[None]:
    """Fail when a test leaves a thread or an open file behind."""
    threads = set(threading.enumerate())
    files = open_files()
    yield
    assert set(threading.enumerate()) - threads == set()
    assert open_files() - files == set()


@pytest.fixture(params=UNSURE_KINDS)
async def unsure(request: pytest.FixtureRequest) -> AsyncIterator[Unsure]:
    """Two services on a store of every kind that can meet such commits."""
    async with opened(request.param) as found:
        yield found
        assert not found.fates.coming, "a fate was not met"
        assert found.fates.meanwhile is None, "the others did not act"
        await assert_sound(found.jobs.store)
